#include "instance.cuh"

GLM53_EXL3_VARIANT(k2BitsMul1, 2, Codebook::kMul1)
