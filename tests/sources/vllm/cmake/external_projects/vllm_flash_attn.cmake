include(FetchContent)

FetchContent_Declare(
  vllm-flash-attn
  GIT_REPOSITORY https://github.com/vllm-project/flash-attention.git
  GIT_TAG 06bdd47c0d0383daf6a2ff0c418faff9c6da16e5
)
