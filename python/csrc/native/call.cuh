// What the kernels of one layer's call share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "call.h"

namespace glm53_exl3::native {

// Calls `then` with the rate as a constant: kBits, or what the table says of an expert.
template <int kBits, typename Then>
__device__ __forceinline__ void with_bits(const uint8_t* table, int expert, Then then) {
    if constexpr (kBits != kAnyBits) {
        then(std::integral_constant<int, kBits>{});
    } else {
        switch (table[expert]) {
            case 1: then(std::integral_constant<int, 1>{}); break;
            case 2: then(std::integral_constant<int, 2>{}); break;
            case 3: then(std::integral_constant<int, 3>{}); break;
            case 4: then(std::integral_constant<int, 4>{}); break;
            case 5: then(std::integral_constant<int, 5>{}); break;
            case 6: then(std::integral_constant<int, 6>{}); break;
            case 7: then(std::integral_constant<int, 7>{}); break;
            default: then(std::integral_constant<int, 8>{});
        }
    }
}
constexpr int largest_bits(int bits) { return bits == kAnyBits ? 8 : bits; }


// Expert of a choice, -1 for none.
__device__ __forceinline__ int expert_of(const Batch& batch, int experts, int choice) {
    const int64_t id = batch.wide_ids ? static_cast<const int64_t*>(batch.expert)[choice]
                                      : static_cast<const int32_t*>(batch.expert)[choice];
    return id >= 0 && id < experts ? static_cast<int>(id) : -1;
}

// kValues consecutive activations from `index` on; kValues is 4 or 16.
template <int kValues>
__device__ __forceinline__ void load_activations(float (&value)[kValues], const Batch& batch, size_t index) {
    constexpr int kAtOnce = kValues < 8 ? kValues : 8;
#pragma unroll
    for (int part = 0; part < kValues; part += kAtOnce) {
        uint32_t word[kAtOnce / 2];
        const char* from = static_cast<const char*>(batch.x) + 2 * (index + part);
        if constexpr (kAtOnce == 8) {
            const uint4 loaded = *reinterpret_cast<const uint4*>(from);
            word[0] = loaded.x, word[1] = loaded.y, word[2] = loaded.z, word[3] = loaded.w;
        } else {
            const uint2 loaded = *reinterpret_cast<const uint2*>(from);
            word[0] = loaded.x, word[1] = loaded.y;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce / 2; ++i) {
            const float2 pair = batch.bfloat16 ? __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word[i]))
                                               : __half22float2(reinterpret_cast<const __half2&>(word[i]));
            value[part + 2 * i] = pair.x, value[part + 2 * i + 1] = pair.y;
        }
    }
}

// Writes kValues consecutive outputs from `index` on.
template <int kValues>
__device__ __forceinline__ void store_output(const Batch& batch, size_t index, const float (&value)[kValues]) {
    uint32_t word[kValues / 2];
#pragma unroll
    for (int i = 0; i < kValues / 2; ++i) {
        if (batch.bfloat16) {
            reinterpret_cast<__nv_bfloat162&>(word[i]) = __floats2bfloat162_rn(value[2 * i], value[2 * i + 1]);
        } else {
            reinterpret_cast<__half2&>(word[i]) = __floats2half2_rn(value[2 * i], value[2 * i + 1]);
        }
    }
    char* to = static_cast<char*>(batch.output) + 2 * index;
    if constexpr (kValues == 4) {
        *reinterpret_cast<uint2*>(to) = make_uint2(word[0], word[1]);
    } else {
#pragma unroll
        for (int part = 0; part < kValues / 8; ++part) {
            reinterpret_cast<uint4*>(to)[part] =
                make_uint4(word[4 * part], word[4 * part + 1], word[4 * part + 2], word[4 * part + 3]);
        }
    }
}

}  // namespace glm53_exl3::native
