include(FetchContent)

if(DEFINED ENV{FLASH_MLA_SRC_DIR})
  FetchContent_Declare(flashmla SOURCE_DIR $ENV{FLASH_MLA_SRC_DIR})
else()
  FetchContent_Declare(
    flashmla
    GIT_REPOSITORY https://github.com/vllm-project/FlashMLA.git
    GIT_TAG 0397728d511c4e3d94ea3a01d8dda8654525a611
  )
endif()
