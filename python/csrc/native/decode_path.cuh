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
#include "machine.cuh"
#include "operand.cuh"

namespace glm53_exl3::native {

constexpr int kRowsAtOnce = 8;        // columns of the B operand
constexpr int kTilesOfBlock = kColumns / kTile;
constexpr int kStageTiles = 2;        // along the input, of one stage of a warp's ring
constexpr int kPitch = kColumns + 4;  // floats between rows of sums, so that columns of one lane group fall into different banks

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

// A warp's share of a product: all 128 columns, a part of the input.
template <int kBits, Codebook kCodebook, int kStages>
struct Share {
    static constexpr int kTileBytes = 32 * kBits;
    static constexpr int kRowBytes = kTilesOfBlock * kTileBytes;  // of one tile row of the block
    static constexpr int kStageBytes = kStageTiles * kRowBytes;

    const uint8_t* source;  // first tile of the block's columns
    size_t stride;          // bytes from one tile row of the matrix to the next
    uint32_t ring;          // shared memory, kStages * kStageBytes
    int begin, end;         // stages of this warp

    // matrix: trellis of an expert with `columns` columns; shared: of the block, where this warp's ring begins.
    __device__ __forceinline__ Share(const uint8_t* matrix, int columns, int block, void* shared, int warp, int first, int last)
        : source(matrix + static_cast<size_t>(block) * kRowBytes),
          stride(static_cast<size_t>(columns / kTile) * kTileBytes),
          ring(static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + warp * kStages * kStageBytes),
          begin(first),
          end(last) {}

    __device__ __forceinline__ void fetch(int slot, int stage, int lane) const {
        const uint32_t to = ring + slot * kStageBytes;
#pragma unroll
        for (int i = 0; i < kBits; ++i) {
            const int chunk = i * 32 + lane, row = chunk / (2 * kTilesOfBlock * kBits), place = chunk % (2 * kTilesOfBlock * kBits);
            copy_async(to + chunk * 16, source + (static_cast<size_t>(kStageTiles) * stage + row) * stride + place * 16);
        }
    }

    __device__ __forceinline__ void start(int lane) const {
#pragma unroll
        for (int i = 0; i < kStages - 1; ++i) {
            if (begin + i < end) fetch(i, begin + i, lane);
            commit_copies();
        }
    }

    // sum[tile] of the block's columns for up to 8 rows. activations: [row, width] in the operand's order.
    template <typename Wait>
    __device__ __forceinline__ void run(const __half* activations, int width, const int* rows, int count, uint32_t mask, int lane,
                                        float (&sum)[kTilesOfBlock][4], Wait wait) const {
        const int row = lane / 4;
        const bool mine = row < count;
        const LaneBits<kBits> bits(lane);
#pragma unroll
        for (int tile = 0; tile < kTilesOfBlock; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[tile][i] = 0.0f;
        }
        wait();
        const uint4 nothing = make_uint4(0, 0, 0, 0);
        const __half* from = activations + static_cast<size_t>(mine ? rows[row] : 0) * width + (lane % 4) * 8;
        uint4 next = mine && begin < end ? *reinterpret_cast<const uint4*>(from + static_cast<size_t>(begin) * 32) : nothing;
        int slot = 0;
        for (int stage = begin; stage < end; ++stage) {
            const uint4 now = next;
            if (mine && stage + 1 < end) next = *reinterpret_cast<const uint4*>(from + static_cast<size_t>(stage + 1) * 32);
            wait_copies<kStages - 2>();
            __syncwarp();
            const int free_slot = slot + kStages - 1 >= kStages ? slot - 1 : slot + kStages - 1;
            if (stage + kStages - 1 < end) fetch(free_slot, stage + kStages - 1, lane);
            commit_copies();
            multiply_tile_row(ring + slot * kStageBytes, bits, mask, now.x, now.y, sum);
            multiply_tile_row(ring + slot * kStageBytes + kRowBytes, bits, mask, now.z, now.w, sum);
            if (++slot == kStages) slot = 0;
        }
        wait_copies<0>();
    }

   private:
    static __device__ __forceinline__ void multiply_tile_row(uint32_t address, const LaneBits<kBits>& bits, uint32_t mask, uint32_t first,
                                                             uint32_t second, float (&sum)[kTilesOfBlock][4]) {
        Activations doubled;
        if constexpr (kHalvesApart<kCodebook>) doubled.apart(first, second);
#pragma unroll
        for (int tile = 0; tile < kTilesOfBlock; ++tile) {
            uint32_t w[8];
            decode<kBits, kCodebook, true>(address + tile * kTileBytes, bits, mask, w);
            if constexpr (kHalvesApart<kCodebook>) {
                multiply(sum[tile], w[0], w[4], w[1], w[5], doubled.value[0], doubled.value[1]);
                multiply(sum[tile], w[2], w[6], w[3], w[7], doubled.value[2], doubled.value[3]);
            } else {
                multiply(sum[tile], two_weights<kCodebook>(w[0], w[1]), two_weights<kCodebook>(w[4], w[5]),
                         two_weights<kCodebook>(w[2], w[3]), two_weights<kCodebook>(w[6], w[7]), first, second);
            }
        }
    }
};

// Adds the shares of kParts warps in a tree, always in the same order, and leaves the sums in to[row * kPitch + column].
// part: which share this warp has; scratch: kParts / 2 * 1024 floats of this product.
template <int kParts>
__device__ __forceinline__ void add_shares(float (&sum)[kTilesOfBlock][4], float* scratch, float* to, int part, int lane) {
    constexpr int kValues = kTilesOfBlock * 4;
    float* mine = &sum[0][0];
#pragma unroll
    for (int step = kParts / 2; step >= 1; step /= 2) {
        __syncthreads();
        if (part >= step && part < 2 * step) {
            float* place = scratch + (part - step) * kValues * 32 + lane;
#pragma unroll
            for (int i = 0; i < kValues; ++i) place[i * 32] = mine[i];
        }
        __syncthreads();
        if (part < step) {
            const float* place = scratch + part * kValues * 32 + lane;
#pragma unroll
            for (int i = 0; i < kValues; ++i) mine[i] += place[i * 32];
        }
    }
    if (part == 0) {
#pragma unroll
        for (int tile = 0; tile < kTilesOfBlock; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                to[((lane % 4) * 2 + i % 2) * kPitch + tile * kTile + lane / 4 + i / 2 * 8] = sum[tile][i];
            }
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void load_row(float (&value)[4], const float* from, int lane) {
    const float4 loaded = *reinterpret_cast<const float4*>(from + lane * 4);
    value[0] = loaded.x, value[1] = loaded.y, value[2] = loaded.z, value[3] = loaded.w;
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
    const int stages = layer.hidden / (kTile * kStageTiles);
    float* reduction = reinterpret_cast<float*>(shared);
    float* sums = reduction + 2 * (kParts / 2) * kShareFloats;
    const int column = block * kColumns + lane * 4;
    for (int first = 0; first < count; first += kRowsAtOnce) {
        float sum[kTilesOfBlock][4];
        with_bits<kBits>(layer.bits[which], expert, [&](auto bits) {
            using Mine = Share<bits.value, kCodebook, kStages>;
            const Mine share(at<uint8_t>(layer.trellis[which], expert), layer.intermediate, block, shared, warp,
                             stages * part / kParts, stages * (part + 1) / kParts);
            share.start(lane);
            share.run(call.scratch.rotated[which], layer.hidden, rows + first, count - first, call.mask, lane, sum, [&] {
                if (first == 0) wait_for_previous_kernel();
            });
        });
        add_shares<kParts>(sum, reduction + which * (kParts / 2) * kShareFloats, sums + which * kRowsAtOnce * kPitch, part, lane);
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
            using Mine = Share<bits.value, kCodebook, kStages>;
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
