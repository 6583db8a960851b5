include(FetchContent)

if(DEFINED ENV{TML_FA4_SRC_DIR})
  FetchContent_Declare(tml_fa4 SOURCE_DIR $ENV{TML_FA4_SRC_DIR})
else()
  FetchContent_Declare(
    tml_fa4
    GIT_REPOSITORY https://github.com/vllm-project/tml-fa4.git
    GIT_TAG b206834606ed5b5f21f8eed6b0683f528ea9cf7d
  )
endif()
