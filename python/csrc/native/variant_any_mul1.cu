#include "instance.cuh"

GLM53_EXL3_VARIANT(kAnyBitsMul1, kAnyBits, Codebook::kMul1)
