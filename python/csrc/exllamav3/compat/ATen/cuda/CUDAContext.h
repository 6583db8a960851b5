// Stands in for torch's header of this name, which asks for the headers of cuBLAS, cuSPARSE and cuSOLVER: 700 MB of
// packages for two names. The MoE units use the device guard and the current stream only, and both come from c10.
#pragma once

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace at::cuda {
using namespace c10::cuda;
}
