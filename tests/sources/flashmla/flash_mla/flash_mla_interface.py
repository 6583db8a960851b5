# vLLM's CMake files copy this file into the package.
