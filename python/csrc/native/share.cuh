// A warp's share of the product of up to 8 rows with 128 columns of one matrix: all columns, a part of the input.
#pragma once

#include "call.cuh"
#include "machine.cuh"
#include "operand.cuh"

namespace glm53_exl3::native {

constexpr int kRowsAtOnce = 8;        // columns of the B operand
constexpr int kTilesOfBlock = kColumns / kTile;
constexpr int kStageTiles = 2;        // along the input, of one stage of a warp's ring
constexpr int kPitch = kColumns + 4;  // floats between rows of sums, so that columns of one lane group fall into different banks

// A warp's share of a product: all 128 columns, a part of the input.
//
// kPlaceBits: the largest rate that a warp of the block may have, as places in shared memory are the same for all of them.
template <int kBits, Codebook kCodebook, int kStages, int kPlaceBits>
struct Share {
    static constexpr int kTileBytes = 32 * kBits;
    static constexpr int kRowBytes = kTilesOfBlock * kTileBytes;  // of one tile row of the block
    static constexpr int kStageBytes = kStageTiles * kRowBytes;
    static constexpr int kPlace = kStages * kStageTiles * kTilesOfBlock * 32 * kPlaceBits;

    const uint8_t* source;  // first tile of the block's columns
    size_t stride;          // bytes from one tile row of the matrix to the next
    uint32_t ring;          // shared memory, kPlace bytes
    int begin, end;         // stages of this warp

    // matrix: trellis of an expert with `columns` columns; shared: of the block, where the warps' rings lie.
    __device__ __forceinline__ Share(const uint8_t* matrix, int columns, int block, void* shared, int warp, int first, int last)
        : source(matrix + static_cast<size_t>(block) * kRowBytes),
          stride(static_cast<size_t>(columns / kTile) * kTileBytes),
          ring(static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + warp * kPlace),
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
            decode<kBits, kCodebook>(address + tile * kTileBytes, bits, mask, w);
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

}  // namespace glm53_exl3::native
