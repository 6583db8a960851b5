#include "instance.cuh"

GLM53_EXL3_VARIANT(k4BitsMul1, 4, Codebook::kMul1)
