// The variants of the native kernels that GLM-5.3-Flash's pack takes, for a test to compile.
#include "decode_path.cuh"
#include "prefill_path.cuh"

namespace glm53_exl3::native {

template __global__ void gate_up<2, Codebook::kMcg, 16, 4, 1>(DecodeCall);
template __global__ void gate_up<2, Codebook::kMcg, 8, 4, 2>(DecodeCall);
template __global__ void down<2, Codebook::kMcg, 8, 4, 2>(DecodeCall);
template __global__ void gate_up<3, Codebook::kMcg, 16, 3, 1>(DecodeCall);
template __global__ void gate_up<3, Codebook::kMcg, 8, 3, 2>(DecodeCall);
template __global__ void down<3, Codebook::kMcg, 8, 3, 2>(DecodeCall);
template __global__ void gate_up_all<2, Codebook::kMcg, 3>(PrefillCall);
template __global__ void gate_up_all<3, Codebook::kMcg, 3>(PrefillCall);
template __global__ void down_all<2, Codebook::kMcg, 4>(PrefillCall);
template __global__ void down_all<3, Codebook::kMcg, 3>(PrefillCall);

// A block of a GB10 has 99 KiB of shared memory; the decode kernels have 4.1 KiB beside what they ask for.
constexpr int kMost = 99 * 1024 - 4200;
static_assert(decode_shared_bytes<2, 16, 4, 2>() <= kMost && decode_shared_bytes<3, 16, 3, 2>() <= kMost);
static_assert(gate_up_shared_bytes<2, Codebook::kMcg, 3>() <= kMost && gate_up_shared_bytes<3, Codebook::kMcg, 3>() <= kMost);
static_assert(down_shared_bytes<2, Codebook::kMcg, 4>() <= kMost && down_shared_bytes<3, Codebook::kMcg, 3>() <= kMost);

}  // namespace glm53_exl3::native
