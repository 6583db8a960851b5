// A layer for many tokens: rows sorted by expert, then two products over tiles of up to 128 rows of one expert.
//
//   sort       one block: how many rows each expert has, where they lie, and the tables of tiles;
//   rotate_all x of each row times suh, Hadamard, for gate and for up, in the operand's order;
//   gate_up_all 256 columns of gate, then of up, for a tile of rows, their transforms, SwiGLU, and the rotation for down;
//   down_all   256 columns of down for a tile of rows;
//   gather     its transform and the weighted sum over a token's choices in the order of the choices.
//
// The height of a tile follows from the number of rows that its expert has, on the device. Tall tiles have kernels of their own: their
// sums fill the registers, so that only one block fits on a multiprocessor, and lower tiles would suffer from that.
#pragma once

#include "call.cuh"
#include "hadamard.cuh"
#include "prefill_rows.cuh"
#include "tile_product.cuh"

namespace glm53_exl3::native {

// Copies the block's staged columns to a matrix of `width` columns, whose first row is the tile's.
__device__ __forceinline__ void write_staged(const __half* staged, int rows, __half* to, int width, int first_column) {
    const int chunks = min(kBlockColumns, width - first_column) / 8;
    for (int index = my_thread(); index < rows * chunks; index += kPrefillThreads) {
        const int row = index / chunks, chunk = index % chunks;
        *reinterpret_cast<uint4*>(to + static_cast<size_t>(row) * width + first_column + chunk * 8) =
            *reinterpret_cast<const uint4*>(staged + row * kStagedPitch + chunk * 8);
    }
}

// SwiGLU and the rotation for down of a tile whose sums of gate lie where the result goes, and those of up are staged.
__device__ __forceinline__ void finish_gate_up(const PrefillCall& call, const RowTile& tile, int first_column, const __half* staged) {
    constexpr int kBlocks = kBlockColumns / kColumns;
    const int thread = my_thread(), q = thread % 8, units = tile.rows * kBlocks, width = call.layer.intermediate;
    for (int base = 0; base < units; base += kPrefillThreads / 8) {
        const int unit = base + thread / 8;
        const bool there = unit < units && first_column + unit % kBlocks * kColumns < width;
        const int row = there ? unit / kBlocks : 0, offset = there ? unit % kBlocks * kColumns : 0, column = first_column + offset + q * 16;
        const auto of_expert = [&](const uint64_t* table) { return reinterpret_cast<const __half*>(table[tile.expert]) + column; };
        __half* place = call.scratch.between + static_cast<size_t>(tile.first + row) * width + first_column + offset;
        float gate[16], up[16];
        load(gate, place + q * 16);
        load(up, staged + row * kStagedPitch + offset + q * 16);
        // All lanes of a transform exchange values, so that none stores before all have loaded.
        hadamard<16, 8>(gate, q);
        hadamard<16, 8>(up, q);
        multiply_by(gate, of_expert(call.layer.svh[kGate]));
        multiply_by(up, of_expert(call.layer.svh[kUp]));
#pragma unroll
        for (int i = 0; i < 16; ++i) gate[i] = gated(gate[i], up[i], call.layer.limit);
        multiply_by(gate, of_expert(call.layer.suh[kDown]));
        hadamard<16, 8>(gate, q);
        if (there) store_sixteen(place, gate, q);
    }
}

// Whether there is a tile for this block: the host does not know how many there are.
template <int kMostRows>
__device__ __forceinline__ bool has_tile(const PrefillScratch& scratch) {
    return static_cast<int>(blockIdx.y) < scratch.count[kMostRows == kTallRows ? 1 : 0];
}
// Read again wherever it is needed: kept over a product it would cost registers, which the sums need.
template <int kMostRows>
__device__ __forceinline__ RowTile my_tile(const PrefillScratch& scratch) {
    const int* from = reinterpret_cast<const int*>((kMostRows == kTallRows ? scratch.tall : scratch.tile) + blockIdx.y);
    RowTile tile;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(tile.expert) : "l"(from));
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(tile.first) : "l"(from + 1));
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(tile.rows) : "l"(from + 2));
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(tile.few) : "l"(from + 3));
    return tile;
}

template <int kBits, Codebook kCodebook, int kMostRows>
__device__ __forceinline__ void multiply_block(const PrefillCall& call, Projection which, const __half* input, int width, int columns) {
    const RowTile tile = my_tile<kMostRows>(call.scratch);
    with_bits<kBits>(call.layer.bits[which], tile.expert, [&](auto bits) {
        const TileProduct<bits.value, kCodebook, Ring<kBits, kMostRows>> product(
            call.layer.trellis[which][tile.expert], columns, blockIdx.x * kBlockColumns, input + static_cast<size_t>(tile.first) * width, width,
            tile.rows, call.mask);
        multiply_tile<kMostRows, kBits == kAnyBits>(product, tile.few);
    });
}

// Gate first, whose sums wait where the result goes: side by side the two would need half as many columns of each, and so read the
// activations twice as often, and twice the shared memory.
template <int kBits, Codebook kCodebook, int kMostRows, int kBlocksOfMultiprocessor>
__global__ void __launch_bounds__(kPrefillThreads, kBlocksOfMultiprocessor) gate_up_all(PrefillCall call) {
    if (!has_tile<kMostRows>(call.scratch)) return;
    const int width = call.layer.intermediate;
#pragma unroll(kMostRows == kTallRows && kBits != kAnyBits ? 2 : 1)
    for (int which = kGate; which <= kUp; ++which) {
        multiply_block<kBits, kCodebook, kMostRows>(call, static_cast<Projection>(which), call.scratch.rotated[which], call.layer.hidden, width);
        if (which == kUp) break;
        const RowTile tile = my_tile<kMostRows>(call.scratch);
        write_staged(staged_tile(), tile.rows, call.scratch.between + static_cast<size_t>(tile.first) * width, width,
                     blockIdx.x * kBlockColumns);
        __syncthreads();
    }
    finish_gate_up(call, my_tile<kMostRows>(call.scratch), blockIdx.x * kBlockColumns, staged_tile());
}

template <int kBits, Codebook kCodebook, int kMostRows, int kBlocksOfMultiprocessor>
__global__ void __launch_bounds__(kPrefillThreads, kBlocksOfMultiprocessor) down_all(PrefillCall call) {
    if (!has_tile<kMostRows>(call.scratch)) return;
    const int width = call.layer.hidden;
    multiply_block<kBits, kCodebook, kMostRows>(call, kDown, call.scratch.between, call.layer.intermediate, width);
    const RowTile tile = my_tile<kMostRows>(call.scratch);
    // The rotated activations of gate are not needed any more.
    write_staged(staged_tile(), tile.rows, call.scratch.rotated[0] + static_cast<size_t>(tile.first) * width, width, blockIdx.x * kBlockColumns);
}

}  // namespace glm53_exl3::native
