#include "instance.cuh"

GLM53_EXL3_VARIANT(kAnyBitsMcg, kAnyBits, Codebook::kMcg)
