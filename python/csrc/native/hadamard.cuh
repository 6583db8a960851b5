// The Hadamard transform of 128 values, scaled to be its own inverse, in fp32.
//
// Two layouts: a warp with 4 consecutive values a lane, for decode steps, where rows are few; and 8 lanes with 16 values
// each, for prefill, which takes 3 exchanges between lanes instead of 5.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "machine.cuh"

namespace glm53_exl3::native {

constexpr float kInverseRoot128 = 0.08838834764831845f;

template <int kValues, int kLanes>
__device__ __forceinline__ void hadamard(float (&value)[kValues], int lane) {
    static_assert(kValues * kLanes == 128);
#pragma unroll
    for (int step = 1; step < kValues; step *= 2) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
            if ((i & step) == 0) {
                const float sum = value[i] + value[i | step], difference = value[i] - value[i | step];
                value[i] = sum;
                value[i | step] = difference;
            }
        }
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
        const float sign = (lane & step) ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
            value[i] = fmaf(sign, value[i], __shfl_xor_sync(0xFFFFFFFFu, value[i], step));
        }
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) value[i] *= kInverseRoot128;
}

// kValues consecutive fp16 numbers, 8 or 16 bytes aligned.
template <int kValues>
__device__ __forceinline__ void load(float (&value)[kValues], const __half* from) {
    if constexpr (kValues == 4) {
        const uint2 word = *reinterpret_cast<const uint2*>(from);
        const float2 low = __half22float2(halves_of(word.x)), high = __half22float2(halves_of(word.y));
        value[0] = low.x, value[1] = low.y, value[2] = high.x, value[3] = high.y;
    } else {
#pragma unroll
        for (int part = 0; part < kValues / 8; ++part) {
            const uint4 loaded = reinterpret_cast<const uint4*>(from)[part];
            const uint32_t word[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 pair = __half22float2(halves_of(word[i]));
                value[part * 8 + i * 2] = pair.x, value[part * 8 + i * 2 + 1] = pair.y;
            }
        }
    }
}

template <int kValues>
__device__ __forceinline__ void multiply_by(float (&value)[kValues], const __half* factors) {
    float factor[kValues];
    load(factor, factors);
#pragma unroll
    for (int i = 0; i < kValues; ++i) value[i] *= factor[i];
}

// min(silu(gate), limit) * clamp(up, -limit, limit), without a limit where it is 0; as exl3_moe has it.
__device__ __forceinline__ float gated(float gate, float up, float limit) {
    float open = gate / (1.0f + __expf(-gate));
    if (limit > 0.0f) {
        open = fminf(open, limit);
        up = fminf(fmaxf(up, -limit), limit);
    }
    return open * up;
}

}  // namespace glm53_exl3::native
