#include "instance.cuh"

GLM53_EXL3_VARIANT(k3BitsMcg, 3, Codebook::kMcg)
