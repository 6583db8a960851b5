// The product of a tile of rows of one expert with 256 columns of one matrix, in a block.
#pragma once

#include "call.cuh"
#include "machine.cuh"
#include "operand.cuh"

namespace glm53_exl3::native {

constexpr int kWarpTiles = 2;      // column tiles of a warp
constexpr int kHalfRows = 32;      // of the input, whose weights are decoded at once
constexpr int kHalfRowBytes = 64;  // as many activations of a row, as a lane group reads them
constexpr int kPrefillWarps = 8, kPrefillThreads = kPrefillWarps * 32;
constexpr int kBlockColumns = kPrefillWarps * kWarpTiles * kTile;
constexpr int kStageRows = 2 * kHalfRows;        // along the input, of one stage of the ring
constexpr int kStagedPitch = kBlockColumns + 8;  // halves between rows of a staged tile

// What a block has in shared memory: a ring of stages, and afterwards its sums. kBits may be kAnyBits, which takes places for the
// largest rate.
template <int kBits, int kMostRows>
struct Ring {
    static constexpr int kWarpPlace = kStageRows / kTile * kWarpTiles * 32 * largest_bits(kBits);

    static constexpr int stage_bytes(int rows) { return rows * kStageRows * 2 + kPrefillWarps * kWarpPlace; }

    // More than four were no faster.
    static constexpr int kFit = kMostShared / stage_bytes(kMostRows), kStages = kFit > 4 ? 4 : kFit;
    static_assert(kStages >= 3);
    static constexpr int kBytes = kStages * stage_bytes(kMostRows), kStaged = kMostRows * kStagedPitch * 2;
    static constexpr int kSharedBytes = kBytes > kStaged ? kBytes : kStaged;
};

extern __shared__ uint4 prefill_shared[];
__device__ __forceinline__ uint32_t ring() { return static_cast<uint32_t>(__cvta_generic_to_shared(prefill_shared)); }
__device__ __forceinline__ __half* staged_tile() { return reinterpret_cast<__half*>(prefill_shared); }

// threadIdx.x, but not to be computed with before a product begins: what the compiler kept over it would cost registers.
__device__ __forceinline__ int my_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// The product of a tile of rows with the decoded columns of a block, 32 of each warp.
template <int kBits, Codebook kCodebook, typename Ring>
struct TileProduct {
    static constexpr int kStages = Ring::kStages;
    static constexpr int kTileBytes = 32 * kBits;
    static constexpr int kWarpBytes = kStageRows / kTile * kWarpTiles * kTileBytes;  // of a stage

    const __half* input;     // [rows, width] of the tile, in the operand's order: this thread's first chunk of the next stage
    const uint8_t* weights;  // first tile of the warp's columns, in the next stage
    int stride;              // bytes between tile rows of the matrix
    int width;               // of the input, a multiple of 64
    int rows;
    bool live;               // whether the matrix has this warp's columns
    uint32_t mask;

    static constexpr int kOfInputRow = kStageRows / 8;                      // chunks of 16 bytes
    static constexpr int kRowsOfRound = kPrefillThreads / kOfInputRow;      // that the block's threads copy at once

    // matrix: address of a trellis with `columns` columns, of which the block has 256 from first_column on.
    __device__ __forceinline__ TileProduct(uint64_t matrix, int columns, int first_column, const __half* tile_input, int input_width,
                                           int tile_rows, uint32_t sum_mask)
        : input(tile_input + static_cast<size_t>(my_thread() / kOfInputRow) * input_width + my_thread() % kOfInputRow * 8),
          weights(reinterpret_cast<const uint8_t*>(matrix) + static_cast<size_t>(column_tile(first_column)) * kTileBytes),
          stride(columns / kTile * kTileBytes),
          width(input_width),
          rows(tile_rows),
          live(column_tile(first_column) < columns / kTile),
          mask(sum_mask) {}

    static __device__ __forceinline__ int column_tile(int first_column) { return first_column / kTile + my_thread() / 32 * kWarpTiles; }

    // Starts the copies of the next stage.
    template <int kGroups>
    __device__ __forceinline__ void fetch(int slot) {
        constexpr int kRows = kGroups * 8;
        const int thread = my_thread(), lane = thread % 32, warp = thread / 32, part = thread % kOfInputRow;
        const uint32_t shared = ring();
        uint32_t to = shared + slot * Ring::stage_bytes(kRows) + part / 4 * (kRows * kHalfRowBytes) + part % 4 * 16;
#pragma unroll
        for (int first = 0; first < kRows; first += kRowsOfRound) {
            const int row = first + thread / kOfInputRow;
            if (kRows % kRowsOfRound != 0 && row >= kRows) break;
            const bool there = row < rows;
            copy_async(to + row * kHalfRowBytes, there ? input + static_cast<size_t>(first) * width : input, there);
        }
        input += kStageRows;
        if (!live) return;
        to = shared + slot * Ring::stage_bytes(kRows) + kRows * kStageRows * 2 + warp * Ring::kWarpPlace;
        constexpr int kOfRow = kWarpTiles * kTileBytes / 16, kAll = kWarpBytes / 16;
#pragma unroll
        for (int i = 0; i < (kAll + 31) / 32; ++i) {
            const int chunk = i * 32 + lane;
            if (kAll % 32 != 0 && chunk >= kAll) break;
            copy_async(to + chunk * 16, weights + (chunk / kOfRow * stride + chunk % kOfRow * 16));
        }
        weights += kStageRows / kTile * stride;
    }

    template <int kGroups>
    __device__ __forceinline__ void run(float (&sum)[kWarpTiles][kGroups][4]) {
        constexpr int kRows = kGroups * 8;
        const int lane = my_thread() % 32, warp = my_thread() / 32, stages = width / kStageRows;
        const uint32_t shared = ring();
        const LaneBits<kBits> bits(lane);
#pragma unroll
        for (int tile = 0; tile < kWarpTiles; ++tile) {
#pragma unroll
            for (int group = 0; group < kGroups; ++group) {
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[tile][group][i] = 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < kStages - 1; ++i) {
            if (i < stages) fetch<kGroups>(i);
            commit_copies();
        }
        const auto weights_of = [&](int slot) {
            return shared + slot * Ring::stage_bytes(kRows) + kRows * kStageRows * 2 + warp * Ring::kWarpPlace;
        };
        constexpr bool kApart = kGroups == 1 && kHalvesApart<kCodebook>;
        constexpr int kOfTile = kApart ? 8 : 4;
        const auto decoded = [&](uint32_t address, uint32_t (&a)[kOfTile]) {
            uint32_t w[8];
            decode<kBits, kCodebook>(address, bits, mask, w);
            if constexpr (kApart) {
                a[0] = w[0], a[1] = w[4], a[2] = w[1], a[3] = w[5], a[4] = w[2], a[5] = w[6], a[6] = w[3], a[7] = w[7];
            } else {
                a[0] = two_weights<kCodebook>(w[0], w[1]), a[1] = two_weights<kCodebook>(w[4], w[5]);
                a[2] = two_weights<kCodebook>(w[2], w[3]), a[3] = two_weights<kCodebook>(w[6], w[7]);
            }
        };
        const auto multiplied = [](float (&c)[4], const uint32_t (&a)[kOfTile], uint32_t first, uint32_t second) {
            if constexpr (kApart) {
                Activations doubled;
                doubled.apart(first, second);
                multiply(c, a[0], a[1], a[2], a[3], doubled.value[0], doubled.value[1]);
                multiply(c, a[4], a[5], a[6], a[7], doubled.value[2], doubled.value[3]);
            } else {
                multiply(c, a[0], a[1], a[2], a[3], first, second);
            }
        };
        // Decoded just before they are multiplied: other warps have products meanwhile. Decoding ahead, beside the products of the tiles
        // before, was 4 to 10 % slower on an H200.
        uint32_t tiles[4][kOfTile];
        int slot = 0;
        for (int stage = 0; stage < stages; ++stage) {
            wait_copies<kStages - 2>();  // this stage is there
            __syncthreads();
            const int free_slot = slot == 0 ? kStages - 1 : slot - 1;
            if (stage + kStages - 1 < stages) fetch<kGroups>(free_slot);
            commit_copies();
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t from = shared + slot * Ring::stage_bytes(kRows) + half * (kRows * kHalfRowBytes) +
                                      lane / 4 * kHalfRowBytes + lane % 4 * 16;
#pragma unroll
                for (int tile = 0; tile < 4; ++tile) decoded(weights_of(slot) + (4 * half + tile) * kTileBytes, tiles[tile]);
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                    const uint4 b = load_shared_16(from + group * 8 * kHalfRowBytes);
                    multiplied(sum[0][group], tiles[0], b.x, b.y);
                    multiplied(sum[1][group], tiles[1], b.x, b.y);
                    multiplied(sum[0][group], tiles[2], b.z, b.w);
                    multiplied(sum[1][group], tiles[3], b.z, b.w);
                }
            }
            if (++slot == kStages) slot = 0;
        }
        wait_copies<0>();
        __syncthreads();
    }
};

// The warp's sums, fp16, to staged[row * kStagedPitch + column]. From fp16 on as exllamav3 has it.
template <int kGroups>
__device__ __forceinline__ void stage_sums(const float (&sum)[kWarpTiles][kGroups][4], __half* staged) {
    const int thread = my_thread(), lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; ++tile) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = group * 8 + lane % 4 * 2 + i % 2, column = warp * 32 + tile * kTile + lane / 4 + i / 2 * 8;
                staged[row * kStagedPitch + column] = __float2half_rn(sum[tile][group][i]);
            }
        }
    }
}

template <int kGroups, typename Product>
__device__ __forceinline__ void multiply_groups(Product product) {
    float sum[kWarpTiles][kGroups][4];
    product.template run<kGroups>(sum);
    stage_sums(sum, staged_tile());
    __syncthreads();
}
// As a function with registers of its own: inlined side by side, the heights would cost each other some, and spill.
template <int kGroups, typename Product>
__device__ __noinline__ void call_multiply_groups(Product product) {
    multiply_groups<kGroups>(product);
}

// kHeights: of those up to the last, the first that holds all groups of 8 rows is taken.
template <bool kInline, int kHeight, int... kHigher, typename Product>
__device__ __forceinline__ void multiply_height(const Product& product, int groups) {
    if constexpr (sizeof...(kHigher) > 0) {
        if (groups > kHeight) return multiply_height<kInline, kHigher...>(product, groups);
    }
    if constexpr (kInline) {
        multiply_groups<kHeight>(product);
    } else {
        call_multiply_groups<kHeight>(product);
    }
}

// Experts of few rows are multiplied as the decode path does it. That is decided by their rows and not by the tile's: a row gets the same
// bits wherever sorting puts it.
template <int kMostRows, bool kEveryRate, typename Product>
__device__ __forceinline__ void multiply_tile(const Product& product, bool few) {
    const int groups = (product.rows + 7) / 8;
    if constexpr (kMostRows == kTallRows) {
        if constexpr (kEveryRate) {
            multiply_height<false, 10, 16>(product, groups);
        } else {
            multiply_height<true, 8, 10, 12, 14, 16>(product, groups);
        }
    } else if (few) {
        call_multiply_groups<1>(product);
    } else if constexpr (kEveryRate) {
        multiply_height<false, 3, 7>(product, groups);
    } else {
        multiply_height<false, 2, 3, 4, 5, 6, 7>(product, groups);
    }
}

}  // namespace glm53_exl3::native
