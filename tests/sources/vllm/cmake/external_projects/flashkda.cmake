include(FetchContent)

if(DEFINED ENV{FLASH_KDA_SRC_DIR})
  FetchContent_Declare(flashkda SOURCE_DIR $ENV{FLASH_KDA_SRC_DIR})
else()
  FetchContent_Declare(
    flashkda
    GIT_REPOSITORY https://github.com/vllm-project/FlashKDA.git
    GIT_TAG ee0be888cd0e972f9409bf53756f8c38c6652173
    GIT_SUBMODULES "cutlass"
  )
endif()
