# vLLM's CMake files copy the Python files of this folder.
