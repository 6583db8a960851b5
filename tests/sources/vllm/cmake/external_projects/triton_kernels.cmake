include(FetchContent)

if(DEFINED ENV{TRITON_KERNELS_SRC_DIR})
  FetchContent_Declare(triton_kernels SOURCE_DIR $ENV{TRITON_KERNELS_SRC_DIR})
else()
  if(VLLM_TARGET_DEVICE STREQUAL "rocm")
    set(TAG "another-tag")
  else()
    set(TAG "v3.5.1")
  endif()
  FetchContent_Declare(
    triton_kernels
    GIT_REPOSITORY https://github.com/triton-lang/triton.git
    GIT_TAG ${TAG}
  )
endif()
