include(FetchContent)

if(DEFINED ENV{FMHA_SM100_SRC_DIR})
  FetchContent_Declare(fmha_sm100 SOURCE_DIR $ENV{FMHA_SM100_SRC_DIR})
else()
  FetchContent_Declare(
    fmha_sm100
    GIT_REPOSITORY https://github.com/vllm-project/MSA.git
    GIT_TAG 087c161814d4d9c735b46c21212a09e5f8eb92fa
  )
endif()
