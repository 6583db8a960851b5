#include "instance.cuh"

GLM53_EXL3_VARIANT(kAnyBits3inst, kAnyBits, Codebook::k3inst)
