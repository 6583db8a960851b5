#include "instance.cuh"

GLM53_EXL3_VARIANT(k2BitsMcg, 2, Codebook::kMcg)
