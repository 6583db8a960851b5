include(FetchContent)

if(DEFINED ENV{QUTLASS_SRC_DIR})
  FetchContent_Declare(qutlass SOURCE_DIR $ENV{QUTLASS_SRC_DIR})
else()
  FetchContent_Declare(
    qutlass
    GIT_REPOSITORY https://github.com/IST-DASLab/qutlass.git
    GIT_TAG e74319e3405ce6d71965732880f5dc1f52371f64
  )
endif()
