// A layer for few tokens, in three launches that a dependent launch lets overlap:
//
//   rotate    x of each choice times suh, Hadamard, for gate and for up, stored in the operand's order;
//   gate_up   128 columns of gate and of up for all rows of one expert, their transforms, SwiGLU, and the rotation for down;
//   down      128 columns of down, its transform, and the weighted sum over a token's choices in the order of the choices.
//
// The grid is one block for each choice and each 128 columns, known on the host. The block of an expert's first choice takes all
// its rows; the others end at once. So nothing is sorted, and an expert that nobody chose costs nothing.
#pragma once

#include "call.cuh"
#include "hadamard.cuh"
#include "share.cuh"

namespace glm53_exl3::native {

template <typename T>
__device__ __forceinline__ const T* at(const uint64_t* table, int expert) {
    return reinterpret_cast<const T*>(table[expert]);
}

static __global__ void __launch_bounds__(256) rotate(DecodeCall call) {
    let_next_kernel_start();
    const int blocks = call.layer.hidden / kColumns, lane = threadIdx.x % 32;
    const int unit = blockIdx.x * 8 + threadIdx.x / 32, block = unit % blocks, which = unit / blocks % 2;
    const int choice = unit / blocks / 2;
    if (choice >= call.batch.choices()) return;
    const int expert = expert_of(call.batch, call.layer.experts, choice);
    if (expert < 0) return;
    const int column = block * kColumns + lane * 4;
    float value[4];
    load_activations(value, call.batch, static_cast<size_t>(choice / call.batch.top_k) * call.layer.hidden + column);
    multiply_by(value, at<__half>(call.layer.suh[which], expert) + column);
    hadamard<4, 32>(value, lane);
    store_in_order(call.scratch.rotated[which] + static_cast<size_t>(choice) * call.layer.hidden + block * kColumns, value, lane);
}

// Choices of this expert in order, in rows; false if one of them comes before `choice`, so that another block takes them.
template <int kWarps>
__device__ bool collect_rows(const DecodeCall& call, int choice, int expert, int* rows, int* count, int* found) {
    const int choices = call.batch.choices(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int collected = 0;
    for (int base = 0; base < choices; base += kWarps * 32) {
        const int index = base + threadIdx.x;
        const bool mine = index < choices && expert_of(call.batch, call.layer.experts, index) == expert;
        const unsigned vote = __ballot_sync(0xFFFFFFFFu, mine);
        if (lane == 0) found[warp] = vote;
        __syncthreads();
        int before = collected, total = 0;
#pragma unroll
        for (int other = 0; other < kWarps; ++other) {
            const int bits = __popc(found[other]);
            if (other < warp) before += bits;
            total += bits;
        }
        if (mine) rows[before + __popc(vote & ((1u << lane) - 1))] = index;
        collected += total;
        __syncthreads();
        if (collected && rows[0] < choice) return false;
    }
    *count = collected;
    return true;
}

constexpr int kShareFloats = kTilesOfBlock * 4 * 32;

template <int kWarps, int kProducts>
constexpr int reduction_floats() {
    return kProducts * (kWarps / kProducts / 2 * kShareFloats + kRowsAtOnce * kPitch);
}
template <int kBits, int kWarps, int kStages, int kProducts>
constexpr int decode_shared_bytes() {
    const int ring = kWarps * kStages * kStageTiles * kTilesOfBlock * 32 * largest_bits(kBits);
    const int reduction = reduction_floats<kWarps, kProducts>() * 4;
    return ring > reduction ? ring : reduction;
}

// With the input split over blocks: writes this block's sums of up to 8 rows; the last block to come adds all of them up in the order
// of the pieces, back to `sums`. False for the others.
template <int kWarps>
__device__ __forceinline__ bool join_pieces(const DecodeCall& call, const int* rows, int count, float* sums) {
    __shared__ bool last;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x, blocks = gridDim.x;
    constexpr int kFloats = 2 * kColumns;  // of a row: gate, up
    const int live = min(count, kRowsAtOnce);
    const auto piece = [&](int row, int which, int from) {
        const size_t place = (static_cast<size_t>(rows[row]) * blocks + block) * call.split + from;
        return reinterpret_cast<float4*>(call.scratch.piece + place * kFloats + which * kColumns) + lane;
    };
    const auto summed = [&](int row, int which) {
        return reinterpret_cast<float4*>(sums + (which * kRowsAtOnce + row) * kPitch) + lane;
    };
    for (int unit = warp; unit < 2 * live; unit += kWarps) __stcg(piece(unit / 2, unit % 2, blockIdx.z), *summed(unit / 2, unit % 2));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int* met = call.scratch.met + rows[0] * blocks + block;
        last = atomicAdd(met, 1) == call.split - 1;
        if (last) *met = 0;
        __threadfence();
    }
    __syncthreads();
    const bool mine = last;
    if (mine) {
        for (int unit = warp; unit < 2 * live; unit += kWarps) {
            float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (int from = 0; from < call.split; ++from) {
                const float4 one = __ldcg(piece(unit / 2, unit % 2, from));
                total.x += one.x, total.y += one.y, total.z += one.z, total.w += one.w;
            }
            *summed(unit / 2, unit % 2) = total;
        }
    }
    __syncthreads();
    return mine;
}

template <int kBits, Codebook kCodebook, int kWarps, int kStages, int kBlocksOfMultiprocessor>
__global__ void __launch_bounds__(kWarps * 32, kBlocksOfMultiprocessor) gate_up(DecodeCall call) {
    extern __shared__ uint4 shared[];
    __shared__ int rows[kMaxDecodeChoices];
    __shared__ int found[kWarps];
    let_next_kernel_start();
    constexpr int kParts = kWarps / 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, which = warp / kParts, part = warp % kParts;
    const int block = blockIdx.x, choice = blockIdx.y;
    const Layer& layer = call.layer;
    const int expert = expert_of(call.batch, layer.experts, choice);
    if (expert < 0) return;
    int count;
    if (!collect_rows<kWarps>(call, choice, expert, rows, &count, found)) return;
    const int stages = layer.hidden / (kTile * kStageTiles), parts = kParts * call.split, mine = kParts * blockIdx.z + part;
    float* reduction = reinterpret_cast<float*>(shared);
    float* sums = reduction + 2 * (kParts / 2) * kShareFloats;
    const int column = block * kColumns + lane * 4;
    for (int first = 0; first < count; first += kRowsAtOnce) {
        float sum[kTilesOfBlock][4];
        with_bits<kBits>(layer.bits[which], expert, [&](auto bits) {
            using Mine = Share<bits.value, kCodebook, kStages, largest_bits(kBits)>;
            const Mine share(at<uint8_t>(layer.trellis[which], expert), layer.intermediate, block, shared, warp,
                             stages * mine / parts, stages * (mine + 1) / parts);
            share.start(lane);
            share.run(call.scratch.rotated[which], layer.hidden, rows + first, count - first, call.mask, lane, sum, [&] {
                if (first == 0) wait_for_previous_kernel();
            });
        });
        add_shares<kParts>(sum, reduction + which * (kParts / 2) * kShareFloats, sums + which * kRowsAtOnce * kPitch, part, lane);
        if (call.split > 1 && !join_pieces<kWarps>(call, rows + first, count - first, sums)) continue;
        for (int row = warp; row < kRowsAtOnce && first + row < count; row += kWarps) {
            float gate[4], up[4];
            load_row(gate, sums + row * kPitch, lane);
            load_row(up, sums + (kRowsAtOnce + row) * kPitch, lane);
            hadamard<4, 32>(gate, lane);
            hadamard<4, 32>(up, lane);
            multiply_by(gate, at<__half>(layer.svh[kGate], expert) + column);
            multiply_by(up, at<__half>(layer.svh[kUp], expert) + column);
#pragma unroll
            for (int i = 0; i < 4; ++i) gate[i] = gated(gate[i], up[i], layer.limit);
            multiply_by(gate, at<__half>(layer.suh[kDown], expert) + column);
            hadamard<4, 32>(gate, lane);
            const size_t place = static_cast<size_t>(rows[first + row]) * layer.intermediate + block * kColumns;
            store_in_order(call.scratch.between + place, gate, lane);
        }
        __syncthreads();
    }
    // Never with a split, whose blocks do not all get here with their rows done.
    if (call.scratch.ready != nullptr && threadIdx.x == 0) {
        __threadfence();
        atomicAdd(call.scratch.ready + choice, 1);
    }
}

// Adds a token's parts in the order of its choices once the last of them is there, and writes the output.
__device__ __forceinline__ void arrive(const DecodeCall& call, int token, int block, int lane) {
    __threadfence();
    __syncwarp();
    int* counter = call.scratch.arrived + token * (call.layer.hidden / kColumns) + block;
    int before = 0;
    if (lane == 0) before = atomicAdd(counter, 1);
    before = __shfl_sync(0xFFFFFFFFu, before, 0);
    if (before != call.batch.top_k - 1) return;
    __threadfence();
    const int column = block * kColumns + lane * 4;
    float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
    for (int which = 0; which < call.batch.top_k; ++which) {
        const int choice = token * call.batch.top_k + which;
        if (expert_of(call.batch, call.layer.experts, choice) < 0) continue;
        const float4 part =
            __ldcg(reinterpret_cast<const float4*>(call.scratch.part + static_cast<size_t>(choice) * call.layer.hidden + column));
        total[0] += part.x, total[1] += part.y, total[2] += part.z, total[3] += part.w;
    }
    store_output(call.batch, static_cast<size_t>(token) * call.layer.hidden + column, total);
    if (lane == 0) *counter = 0;
}

// Until gate_up has written what this expert's blocks of down read.
__device__ __forceinline__ void wait_for_expert(const DecodeCall& call, int choice) {
    if (call.scratch.ready == nullptr) {
        wait_for_previous_kernel();
        return;
    }
    // Only for this expert's blocks, all of which are running or done: a dependent kernel starts after every block of the
    // one before it has.
    int done;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(call.scratch.ready + choice) : "memory");
    } while (done < call.layer.intermediate / kColumns);
}

template <int kBits, Codebook kCodebook, int kWarps, int kStages, int kBlocksOfMultiprocessor>
__global__ void __launch_bounds__(kWarps * 32, kBlocksOfMultiprocessor) down(DecodeCall call) {
    extern __shared__ uint4 shared[];
    __shared__ int rows[kMaxDecodeChoices];
    __shared__ int found[kWarps];
    let_next_kernel_start();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x, choice = blockIdx.y;
    const Layer& layer = call.layer;
    const int expert = expert_of(call.batch, layer.experts, choice);
    if (expert < 0) {
        // A choice of nobody arrives too: the token's sum waits for all of them.
        if (call.scratch.ready == nullptr) wait_for_previous_kernel();
        if (warp == 0) arrive(call, choice / call.batch.top_k, block, lane);
        return;
    }
    int count;
    if (!collect_rows<kWarps>(call, choice, expert, rows, &count, found)) return;
    const int stages = layer.intermediate / (kTile * kStageTiles), blocks = layer.hidden / kColumns;
    float* reduction = reinterpret_cast<float*>(shared);
    float* sums = reduction + kWarps / 2 * kShareFloats;
    const int column = block * kColumns + lane * 4;
    for (int first = 0; first < count; first += kRowsAtOnce) {
        float sum[kTilesOfBlock][4];
        with_bits<kBits>(layer.bits[kDown], expert, [&](auto bits) {
            using Mine = Share<bits.value, kCodebook, kStages, largest_bits(kBits)>;
            const Mine share(at<uint8_t>(layer.trellis[kDown], expert), layer.hidden, block, shared, warp,
                             stages * warp / kWarps, stages * (warp + 1) / kWarps);
            share.start(lane);
            share.run(call.scratch.between, layer.intermediate, rows + first, count - first, call.mask, lane, sum, [&] {
                if (first == 0) wait_for_expert(call, choice);
            });
        });
        add_shares<kWarps>(sum, reduction, sums, warp, lane);
        for (int row = warp; row < kRowsAtOnce && first + row < count; row += kWarps) {
            const int mine = rows[first + row];
            float value[4];
            load_row(value, sums + row * kPitch, lane);
            hadamard<4, 32>(value, lane);
            multiply_by(value, at<__half>(layer.svh[kDown], expert) + column);
            const float weight = call.batch.weight[mine];
            float4* to = reinterpret_cast<float4*>(call.scratch.part + static_cast<size_t>(mine) * layer.hidden + column);
            __stcg(to, make_float4(value[0] * weight, value[1] * weight, value[2] * weight, value[3] * weight));
            arrive(call, mine / call.batch.top_k, block, lane);
        }
        __syncthreads();
    }
    if (call.scratch.ready != nullptr && threadIdx.x == 0) {
        // The last block of this expert leaves both counters as it found them.
        if (atomicAdd(call.scratch.ready + kMaxDecodeChoices + choice, 1) == blocks - 1) {
            call.scratch.ready[choice] = 0;
            call.scratch.ready[kMaxDecodeChoices + choice] = 0;
        }
    }
}

}  // namespace glm53_exl3::native
