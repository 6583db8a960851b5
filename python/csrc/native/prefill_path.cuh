// A layer for many tokens: rows sorted by expert, then two products over tiles of up to kRows rows of one expert.
//
//   sort       one block: how many rows each expert has, where they lie, and the table of tiles;
//   rotate_all x of each row times suh, Hadamard, for gate and for up, in the operand's order;
//   gate_up_all 128 columns of gate and of up for a tile of rows, their transforms, SwiGLU, and the rotation for down;
//   down_all   256 columns of down for a tile of rows;
//   gather     its transform and the weighted sum over a token's choices in the order of the choices.
//
// The height of a tile follows from the number of rows that its expert has, on the device. Every block decodes the weights of its
// columns once for its tile, so more rows at once are fewer decodings; but a tile that is not full costs as much as a full one.
#pragma once

#include "call.cuh"
#include "hadamard.cuh"
#include "machine.cuh"
#include "operand.cuh"

namespace glm53_exl3::native {

constexpr int kPrefillWarps = 8;
constexpr int kPrefillThreads = kPrefillWarps * 32;
constexpr int kWarpTiles = 2;         // column tiles of a warp
constexpr int kStageRows = 64;        // along the input, of one stage
constexpr int kHalfRowBytes = 64;     // 32 activations of a row, as a lane group reads them

// Height of the product for a tile: 16, 32 or 64.
__device__ __forceinline__ int height_of(int rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

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
    int rows_before = 0, tiles_before = 0;
    for (int base = 0; base < experts; base += 1024) {
        const int expert = base + threadIdx.x;
        const int rows = expert < experts ? bin[expert] : 0;
        int all_rows, all_tiles;
        const int first = rows_before + scan_block(rows, warp_sum, &all_rows);
        int tile = tiles_before + scan_block((rows + kTileRows - 1) / kTileRows, warp_sum, &all_tiles);
        for (int done = 0; done < rows; done += kTileRows, ++tile) {
            call.scratch.tile[tile] = RowTile{expert, first + done, min(kTileRows, rows - done)};
        }
        if (expert < experts) bin[expert] = first;
        rows_before += all_rows;
        tiles_before += all_tiles;
    }
    if (threadIdx.x == 0) {
        call.scratch.count[0] = tiles_before;
        call.scratch.count[1] = rows_before;
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
    const bool live = row < call.scratch.count[1];
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

// The product of a tile of up to 8 kGroups rows with 256 decoded columns, 32 of each warp. gate_up_all has 128 columns of each of two
// matrices with an input of its own, down_all 256 of one.
//
// kSideBySide: other warps of the block may have another rate, so that places in a stage are those of the largest.
template <int kBits, Codebook kCodebook, int kStages, int kInputs, bool kSideBySide = false>
struct TileProduct {
    static constexpr int kTileBytes = 32 * kBits;
    static constexpr int kWarpBytes = kStageRows / kTile * kWarpTiles * kTileBytes;  // of a stage
    static constexpr int kWarpPlace = kStageRows / kTile * kWarpTiles * 32 * (kSideBySide ? 8 : kBits);
    static constexpr int kWeightBytes = kPrefillWarps * kWarpPlace;

    template <int kGroups>
    static constexpr int stage_bytes() {
        return kInputs * kGroups * 8 * kStageRows * 2 + kWeightBytes;
    }

    const __half* input[kInputs];  // [rows, width] of the tile, in the operand's order
    const uint8_t* weights;        // first tile of the warp's columns
    size_t stride;                 // bytes between tile rows of the matrix
    int width;                     // of the input, a multiple of 64
    int rows;
    int which;                     // input of this warp
    bool live;                     // whether the matrix has this warp's columns
    uint32_t shared;
    uint32_t mask;

    // matrix: address of a trellis with `columns` columns, of which the warp has kWarpTiles tiles from column_tile on.
    __device__ __forceinline__ TileProduct(uint64_t matrix, int columns, int column_tile, int input_width, int tile_rows, int input_of_warp,
                                           void* memory, uint32_t sum_mask)
        : weights(reinterpret_cast<const uint8_t*>(matrix) + static_cast<size_t>(column_tile) * kTileBytes),
          stride(static_cast<size_t>(columns / kTile) * kTileBytes),
          width(input_width),
          rows(tile_rows),
          which(input_of_warp),
          live(column_tile < columns / kTile),
          shared(static_cast<uint32_t>(__cvta_generic_to_shared(memory))),
          mask(sum_mask) {}

    template <int kGroups>
    __device__ __forceinline__ void fetch(int slot, int stage) const {
        constexpr int kRows = kGroups * 8, kChunks = kRows * 8;  // of 16 bytes, of one input
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        uint32_t to = shared + slot * stage_bytes<kGroups>();
#pragma unroll
        for (int from = 0; from < kInputs; ++from) {
#pragma unroll
            for (int i = 0; i < (kChunks + kPrefillThreads - 1) / kPrefillThreads; ++i) {
                const int chunk = i * kPrefillThreads + threadIdx.x;
                if (kChunks % kPrefillThreads != 0 && chunk >= kChunks) break;
                const int row = chunk / 8, part = chunk % 8;
                const bool there = row < rows;
                copy_async(to + part / 4 * (kRows * kHalfRowBytes) + row * kHalfRowBytes + part % 4 * 16,
                           input[from] + static_cast<size_t>(there ? row : 0) * width + stage * kStageRows + part * 8, there);
            }
            to += kRows * kStageRows * 2;
        }
        to += warp * kWarpPlace;
        if (!live) return;
        constexpr int kOfRow = kWarpTiles * kTileBytes / 16, kAll = kWarpBytes / 16;
#pragma unroll
        for (int i = 0; i < (kAll + 31) / 32; ++i) {
            const int chunk = i * 32 + lane;
            if (kAll % 32 != 0 && chunk >= kAll) break;
            copy_async(to + chunk * 16,
                       weights + (static_cast<size_t>(stage) * (kStageRows / kTile) + chunk / kOfRow) * stride + chunk % kOfRow * 16);
        }
    }

    template <int kGroups>
    __device__ __forceinline__ void run(float (&sum)[kWarpTiles][kGroups][4]) const {
        constexpr int kRows = kGroups * 8;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stages = width / kStageRows;
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
            if (i < stages) fetch<kGroups>(i, i);
            commit_copies();
        }
        const auto weights_of = [&](int slot) {
            return shared + slot * stage_bytes<kGroups>() + kInputs * kRows * kStageRows * 2 + warp * kWarpPlace;
        };
        const auto decoded = [&](uint32_t address, uint32_t (&a)[4]) {
            uint32_t w[8];
            decode<kBits, kCodebook, false>(address, bits, mask, w);
            a[0] = two_weights<kCodebook>(w[0], w[1]), a[1] = two_weights<kCodebook>(w[4], w[5]);
            a[2] = two_weights<kCodebook>(w[2], w[3]), a[3] = two_weights<kCodebook>(w[6], w[7]);
        };
        // Tiles of 32 inputs: this half stage's, and the next one's, which is decoded beside the products of this one.
        uint32_t now[4][4], next[4][4];
        int slot = 0;
        for (int stage = 0; stage < stages; ++stage) {
            wait_copies<kStages - 3>();  // this stage and the next are there
            __syncthreads();
            const int free_slot = slot == 0 ? kStages - 1 : slot - 1;
            if (stage + kStages - 1 < stages) fetch<kGroups>(free_slot, stage + kStages - 1);
            commit_copies();
            const int next_slot = slot + 1 == kStages ? 0 : slot + 1;
            if (stage == 0) {
#pragma unroll
                for (int tile = 0; tile < 4; ++tile) decoded(weights_of(slot) + tile * kTileBytes, now[tile]);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t coming = half == 0 ? weights_of(slot) + 4 * kTileBytes : weights_of(next_slot);
                const uint32_t from = shared + slot * stage_bytes<kGroups>() + which * (kRows * kStageRows * 2) +
                                      half * (kRows * kHalfRowBytes) + lane / 4 * kHalfRowBytes + lane % 4 * 16;
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                    const uint4 b = load_shared_16(from + group * 8 * kHalfRowBytes);
                    multiply(sum[0][group], now[0][0], now[0][1], now[0][2], now[0][3], b.x, b.y);
                    multiply(sum[1][group], now[1][0], now[1][1], now[1][2], now[1][3], b.x, b.y);
                    multiply(sum[0][group], now[2][0], now[2][1], now[2][2], now[2][3], b.z, b.w);
                    multiply(sum[1][group], now[3][0], now[3][1], now[3][2], now[3][3], b.z, b.w);
                    if constexpr (kGroups >= 4) {
                        if (group % (kGroups / 4) == 0) decoded(coming + group / (kGroups / 4) * kTileBytes, next[group / (kGroups / 4)]);
                    } else {
#pragma unroll
                        for (int tile = group * (4 / kGroups); tile < (group + 1) * (4 / kGroups); ++tile) {
                            decoded(coming + tile * kTileBytes, next[tile]);
                        }
                    }
                }
#pragma unroll
                for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) now[tile][i] = next[tile][i];
                }
            }
            slot = next_slot;
        }
        wait_copies<0>();
        __syncthreads();
    }
};

constexpr int kStagedPitch = 256 + 8;  // halves between rows of a staged tile

// The warp's sums, fp16, to staged[row * kStagedPitch + column]. From fp16 on as exllamav3 has it.
template <int kGroups>
__device__ __forceinline__ void stage_sums(const float (&sum)[kWarpTiles][kGroups][4], __half* staged) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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

template <int kBits, Codebook kCodebook, int kStages>
constexpr int gate_up_shared_bytes() {
    constexpr int ring = kStages * TileProduct<largest_bits(kBits), kCodebook, kStages, 2>::template stage_bytes<kTileRows / 8>();
    constexpr int staged = kTileRows * kStagedPitch * 2;
    return ring > staged ? ring : staged;
}
template <int kBits, Codebook kCodebook, int kStages>
constexpr int down_shared_bytes() {
    constexpr int ring = kStages * TileProduct<largest_bits(kBits), kCodebook, kStages, 1>::template stage_bytes<kTileRows / 8>();
    constexpr int staged = kTileRows * kStagedPitch * 2;
    return ring > staged ? ring : staged;
}

// SwiGLU and the rotation for down of a tile whose sums of gate and of up are staged side by side.
__device__ __forceinline__ void finish_gate_up(const PrefillCall& call, const RowTile& tile, int block, const __half* staged) {
    const int q = threadIdx.x % 8, column = block * kColumns + q * 16;
    const auto of_expert = [&](const uint64_t* table) { return reinterpret_cast<const __half*>(table[tile.expert]) + column; };
    for (int base = 0; base < tile.rows; base += kPrefillThreads / 8) {
        const int row = base + threadIdx.x / 8;
        const bool there = row < tile.rows;
        const __half* from = staged + (there ? row : 0) * kStagedPitch + q * 16;
        float gate[16], up[16];
        load(gate, from);
        load(up, from + kColumns);
        hadamard<16, 8>(gate, q);
        hadamard<16, 8>(up, q);
        multiply_by(gate, of_expert(call.layer.svh[kGate]));
        multiply_by(up, of_expert(call.layer.svh[kUp]));
#pragma unroll
        for (int i = 0; i < 16; ++i) gate[i] = gated(gate[i], up[i], call.layer.limit);
        multiply_by(gate, of_expert(call.layer.suh[kDown]));
        hadamard<16, 8>(gate, q);
        __half* to = call.scratch.between + static_cast<size_t>(tile.first + row) * call.layer.intermediate + block * kColumns;
        if (there) store_sixteen(to, gate, q);
    }
}

template <int kGroups, typename Product>
__device__ __forceinline__ void multiply_and_stage(const Product& product, __half* staged) {
    float sum[kWarpTiles][kGroups][4];
    product.template run<kGroups>(sum);
    stage_sums(sum, staged);
}

template <typename Product>
__device__ __forceinline__ void multiply_tile(const Product& product, __half* staged) {
    switch (height_of(product.rows)) {
        case 16: multiply_and_stage<2>(product, staged); break;
        case 32: multiply_and_stage<4>(product, staged); break;
        default: multiply_and_stage<8>(product, staged);
    }
}

template <int kBits, Codebook kCodebook, int kStages>
__global__ void __launch_bounds__(kPrefillThreads, kBits == kAnyBits ? 1 : 2) gate_up_all(PrefillCall call) {
    extern __shared__ uint4 shared[];
    if (static_cast<int>(blockIdx.y) >= call.scratch.count[0]) return;
    const RowTile tile = call.scratch.tile[blockIdx.y];
    const Layer& layer = call.layer;
    const int warp = threadIdx.x / 32, block = blockIdx.x, which = warp / (kPrefillWarps / 2);
    const int column_tile = block * (kColumns / kTile) + warp % (kPrefillWarps / 2) * kWarpTiles;
    __half* staged = reinterpret_cast<__half*>(shared);
    // Rates of gate and up may differ, and with them the size of a stage: each matrix's warps keep to the larger.
    with_bits<kBits>(layer.bits[which], tile.expert, [&](auto bits) {
        using Product = TileProduct<bits.value, kCodebook, kStages, 2, kBits == kAnyBits>;
        Product product(layer.trellis[which][tile.expert], layer.intermediate, column_tile, layer.hidden, tile.rows, which, shared, call.mask);
        for (int from = 0; from < 2; ++from) {
            product.input[from] = call.scratch.rotated[from] + static_cast<size_t>(tile.first) * layer.hidden;
        }
        multiply_tile(product, staged);
    });
    __syncthreads();
    finish_gate_up(call, tile, block, staged);
}

template <int kBits, Codebook kCodebook, int kStages>
__global__ void __launch_bounds__(kPrefillThreads, kBits == kAnyBits ? 1 : 2) down_all(PrefillCall call) {
    extern __shared__ uint4 shared[];
    if (static_cast<int>(blockIdx.y) >= call.scratch.count[0]) return;
    const RowTile tile = call.scratch.tile[blockIdx.y];
    const Layer& layer = call.layer;
    const int warp = threadIdx.x / 32, block = blockIdx.x, column_tile = block * (256 / kTile) + warp * kWarpTiles;
    __half* staged = reinterpret_cast<__half*>(shared);
    with_bits<kBits>(layer.bits[kDown], tile.expert, [&](auto bits) {
        using Product = TileProduct<bits.value, kCodebook, kStages, 1, kBits == kAnyBits>;
        Product product(layer.trellis[kDown][tile.expert], layer.hidden, column_tile, layer.intermediate, tile.rows, 0, shared, call.mask);
        product.input[0] = call.scratch.between + static_cast<size_t>(tile.first) * layer.intermediate;
        multiply_tile(product, staged);
    });
    __syncthreads();
    const int chunks = min(256, layer.hidden - block * 256) / 8;
    // The rotated activations of gate are not needed any more.
    __half* to = call.scratch.rotated[0] + static_cast<size_t>(tile.first) * layer.hidden + block * 256;
    for (int index = threadIdx.x; index < tile.rows * chunks; index += kPrefillThreads) {
        const int row = index / chunks, chunk = index % chunks;
        *reinterpret_cast<uint4*>(to + static_cast<size_t>(row) * layer.hidden + chunk * 8) =
            *reinterpret_cast<const uint4*>(staged + row * kStagedPitch + chunk * 8);
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
