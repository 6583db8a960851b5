// What a layer's call hands to its kernels. For the host compiler too.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "sizes.h"
#include "trellis.cuh"

namespace glm53_exl3::native {

enum Projection { kGate, kUp, kDown };

// One MoE layer on this device. Tables hold the address of each expert's tensor, int64 [experts].
struct Layer {
    const uint64_t* trellis[3];  // int16 [in / 16, out / 16, 16 K] each
    const uint64_t* suh[3];      // fp16 [in]
    const uint64_t* svh[3];      // fp16 [out]
    const uint8_t* bits[3];      // [experts], read by the kernels for any rate only
    int experts;
    int hidden;
    int intermediate;
    float limit;  // of SwiGLU, 0 for none
};

// One batch. A choice is one of the top_k experts of a token; there are tokens * top_k of them.
struct Batch {
    const void* x;         // [tokens, hidden] fp16 or bf16
    const void* expert;    // [tokens, top_k] int32 or int64; outside [0, experts) for none
    const float* weight;   // [tokens, top_k]
    void* output;          // [tokens, hidden], as x
    bool wide_ids;         // whether `expert` is int64
    bool bfloat16;         // whether x and output are bf16
    int tokens;
    int top_k;

#ifdef __CUDACC__
    __host__ __device__
#endif
    int choices() const { return tokens * top_k; }
};

// Stands for the rate that a kernel reads for each expert instead of being compiled for.
constexpr int kAnyBits = 0;

struct DecodeScratch {
    __half* rotated[2];  // [choices, hidden], gate and up
    __half* between;     // [choices, intermediate]
    float* part;         // [choices, hidden]
    int* arrived;        // [tokens, hidden / 128], all 0 between calls
    int* ready;          // [2, kMaxDecodeChoices], all 0 between calls: blocks of gate_up, and of down, that are done; null: wait for all
    float* piece;        // [kMostUnits, 2, 128]: sums of gate and of up over a piece of the input
    int* met;            // [kMostUnits], all 0 between calls: pieces that are there
};

struct DecodeCall {
    Layer layer;
    Batch batch;
    DecodeScratch scratch;
    uint32_t mask;  // kSumMask
    int split;      // pieces of the input of gate and up, a block each
};

struct PrefillScratch {
    int* token;            // [choices] of each row
    int* expert;           // [choices] of each row
    int* row;              // [choices] of each choice, -1 for none
    RowTile* tall;         // [most_tall_tiles]
    RowTile* tile;         // [most_short_tiles]
    int* count;            // short tiles, tall tiles, rows
    __half* rotated[2];    // [choices, hidden]; the first also takes the sums of down, when gate_up_all is done with it
    __half* between;       // [choices, intermediate]
};

struct PrefillCall {
    Layer layer;
    Batch batch;
    PrefillScratch scratch;
    uint32_t mask;  // kSumMask
};

}  // namespace glm53_exl3::native
