// A set of kernels compiled for a rate and a codebook, and how a layer's call launches it.
#pragma once

#include <cuda_runtime_api.h>

#include "call.h"

namespace glm53_exl3::native {

// What a launch depends on beside the call.
struct Device {
    int index;
    int multiprocessors;
    bool dependent_launch;  // whether a kernel may start before the one it waits for has ended: from compute capability 9.0 on
};

struct Variant {
    int bits;  // kAnyBits for every rate, read for each expert
    Codebook codebook;
    cudaError_t (*decode)(const DecodeCall& call, const Device& device, cudaStream_t stream);
    cudaError_t (*prefill)(const PrefillCall& call, const Device& device, cudaStream_t stream);
};

}  // namespace glm53_exl3::native
