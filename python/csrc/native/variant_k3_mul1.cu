#include "instance.cuh"

GLM53_EXL3_VARIANT(k3BitsMul1, 3, Codebook::kMul1)
