// Rows of a prefill: sorted by expert and rotated before the products, and summed up for each token after them.
#pragma once

#include "call.cuh"
#include "hadamard.cuh"
#include "machine.cuh"

namespace glm53_exl3::native {

// Exclusive sums of up to 1,024 values, one a thread; the total through `total`.
__device__ __forceinline__ int scan_block(int value, int* warp_sum, int* total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int inclusive = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(0xFFFFFFFFu, inclusive, step);
        if (lane >= step) inclusive += below;
    }
    if (lane == 31) warp_sum[warp] = inclusive;
    __syncthreads();
    if (warp == 0) {
        int sum = warp_sum[lane];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(0xFFFFFFFFu, sum, step);
            if (lane >= step) sum += below;
        }
        warp_sum[lane] = sum;
    }
    __syncthreads();
    *total = warp_sum[31];
    const int before = warp > 0 ? warp_sum[warp - 1] : 0;
    __syncthreads();
    return before + inclusive - value;
}

static __global__ void __launch_bounds__(1024) sort(PrefillCall call) {
    extern __shared__ int bin[];  // [experts]
    __shared__ int warp_sum[32];
    const int experts = call.layer.experts, choices = call.batch.choices();
    for (int expert = threadIdx.x; expert < experts; expert += 1024) bin[expert] = 0;
    __syncthreads();
    for (int choice = threadIdx.x; choice < choices; choice += 1024) {
        const int expert = expert_of(call.batch, experts, choice);
        if (expert >= 0) atomicAdd(&bin[expert], 1);
    }
    __syncthreads();
    int rows_before = 0, tall_before = 0, short_before = 0;
    for (int base = 0; base < experts; base += 1024) {
        const int expert = base + threadIdx.x;
        const int rows = expert < experts ? bin[expert] : 0;
        const int tall_tiles = rows / kTallRows + (rows % kTallRows > kShortRows ? 1 : 0);
        const int rest = max(0, rows - tall_tiles * kTallRows);
        int all_rows, all_tall, all_short;
        const int first = rows_before + scan_block(rows, warp_sum, &all_rows);
        RowTile* tall = call.scratch.tall + tall_before + scan_block(tall_tiles, warp_sum, &all_tall);
        RowTile* tile = call.scratch.tile + short_before + scan_block(rest > 0 ? 1 : 0, warp_sum, &all_short);
        for (int i = 0; i < tall_tiles; ++i) {
            tall[i] = RowTile{expert, first + i * kTallRows, min(kTallRows, rows - i * kTallRows), 0};
        }
        if (rest > 0) *tile = RowTile{expert, first + rows - rest, rest, rows <= kFewRows};
        if (expert < experts) bin[expert] = first;
        rows_before += all_rows;
        tall_before += all_tall;
        short_before += all_short;
    }
    if (threadIdx.x == 0) {
        call.scratch.count[0] = short_before;
        call.scratch.count[1] = tall_before;
        call.scratch.count[2] = rows_before;
    }
    __syncthreads();
    for (int choice = threadIdx.x; choice < choices; choice += 1024) {
        const int expert = expert_of(call.batch, experts, choice);
        // Which of an expert's rows a choice gets may differ from run to run; what is computed for it does not.
        const int row = expert < 0 ? -1 : atomicAdd(&bin[expert], 1);
        call.scratch.row[choice] = row;
        if (row < 0) continue;
        call.scratch.token[row] = choice / call.batch.top_k;
        call.scratch.expert[row] = expert;
    }
}

// Stores 16 consecutive values of a block of 128, of which lane q of 8 holds those from 16 q on, in the operand's order.
__device__ __forceinline__ void store_sixteen(__half* block, const float (&value)[16], int q) {
    __half* to = block + q / 2 * 32 + q % 2 * 4;
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
        const uint2 word = make_uint2(bits_of(__floats2half2_rn(value[2 * chunk], value[2 * chunk + 1])),
                                      bits_of(__floats2half2_rn(value[2 * chunk + 8], value[2 * chunk + 9])));
        *reinterpret_cast<uint2*>(to + chunk * 8) = word;
    }
}

static __global__ void __launch_bounds__(256) rotate_all(PrefillCall call) {
    const int hidden = call.layer.hidden, blocks = hidden / kColumns, q = threadIdx.x % 8;
    const int unit = blockIdx.x * 32 + threadIdx.x / 8, block = unit % blocks;
    int row = unit / blocks;
    const bool live = row < call.scratch.count[2];
    if (__all_sync(0xFFFFFFFFu, !live)) return;
    if (!live) row = 0;
    const int expert = call.scratch.expert[row], column = block * kColumns + q * 16;
    float x[16];
    load_activations(x, call.batch, static_cast<size_t>(call.scratch.token[row]) * hidden + column);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        float value[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) value[i] = x[i];
        multiply_by(value, reinterpret_cast<const __half*>(call.layer.suh[which][expert]) + column);
        hadamard<16, 8>(value, q);
        if (live) store_sixteen(call.scratch.rotated[which] + static_cast<size_t>(row) * hidden + block * kColumns, value, q);
    }
}

static __global__ void __launch_bounds__(256) gather(PrefillCall call) {
    const int hidden = call.layer.hidden, blocks = hidden / kColumns, q = threadIdx.x % 8;
    const int unit = blockIdx.x * 32 + threadIdx.x / 8, block = unit % blocks;
    int token = unit / blocks;
    const bool live = token < call.batch.tokens;
    if (__all_sync(0xFFFFFFFFu, !live)) return;
    if (!live) token = 0;
    const int column = block * kColumns + q * 16;
    float total[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) total[i] = 0.0f;
    for (int which = 0; which < call.batch.top_k; ++which) {
        const int choice = token * call.batch.top_k + which, row = call.scratch.row[choice];
        const bool there = row >= 0;
        const int expert = there ? call.scratch.expert[row] : 0;
        const float weight = there ? call.batch.weight[choice] : 0.0f;
        float value[16];
        load(value, call.scratch.rotated[0] + static_cast<size_t>(there ? row : 0) * hidden + column);
        hadamard<16, 8>(value, q);
        multiply_by(value, reinterpret_cast<const __half*>(call.layer.svh[kDown][expert]) + column);
#pragma unroll
        for (int i = 0; i < 16; ++i) total[i] += there ? weight * value[i] : 0.0f;
    }
    if (live) store_output(call.batch, static_cast<size_t>(token) * hidden + column, total);
}

}  // namespace glm53_exl3::native
