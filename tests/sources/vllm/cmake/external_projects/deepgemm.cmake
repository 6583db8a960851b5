include(FetchContent)

if(DEFINED ENV{DEEPGEMM_SRC_DIR})
  FetchContent_Declare(deepgemm SOURCE_DIR $ENV{DEEPGEMM_SRC_DIR})
else()
  FetchContent_Declare(
    deepgemm
    GIT_REPOSITORY https://github.com/deepseek-ai/DeepGEMM.git
    GIT_TAG 8b1392b978f5a03c828dd1711090d7fb50958b8a
    GIT_SUBMODULES "third-party/cutlass" "third-party/fmt"
  )
endif()
