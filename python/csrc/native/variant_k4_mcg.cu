#include "instance.cuh"

GLM53_EXL3_VARIANT(k4BitsMcg, 4, Codebook::kMcg)
