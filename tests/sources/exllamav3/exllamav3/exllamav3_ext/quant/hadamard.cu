#include "hadamard.cuh"
