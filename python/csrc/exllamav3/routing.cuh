// What a layer's call needs around exl3_moe: rows sorted by expert, casts and zeros in one kernel, the cast back in another.
#pragma once

#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

namespace glm53_exl3 {

enum class ActivationType { kHalf, kBFloat16 };

// Sorting counts experts in shared memory, a bin each and one for rows that are nobody's.
constexpr int kMaxExperts = 8191;

struct Batch {
    const void* x;         // [tokens, hidden], contiguous, of type `activation`
    const void* expert;    // [tokens, top_k] int32 or int64; outside [0, experts) means none
    const float* weight;   // [tokens, top_k]
    bool wide_ids;         // whether `expert` is int64
    ActivationType activation;
    int tokens;
    int hidden;            // a multiple of 128
    int top_k;
    int experts;
};

struct Rows {
    __half* hidden;          // [tokens, hidden]
    float* sums;             // [tokens, hidden]
    int64_t* count;          // [experts + 1]; the last bin takes what is nobody's
    int64_t* token_sorted;   // [tokens * top_k]
    __half* weight_sorted;   // [tokens * top_k]
};

// Fills `rows`: casts x, zeroes the sums, and sorts the choices by expert. An expert that a token names more than once gets
// one row with the sum of the weights, so that no expert has more rows than there are tokens.
cudaError_t prepare(const Batch& batch, const Rows& rows, cudaStream_t stream);

// Casts sums [elements] to `activation`.
cudaError_t finish(const float* sums, void* output, ActivationType activation, int64_t elements, cudaStream_t stream);

}  // namespace glm53_exl3
