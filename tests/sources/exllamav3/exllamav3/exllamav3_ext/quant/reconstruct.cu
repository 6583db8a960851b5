#include "reconstruct.cuh"
