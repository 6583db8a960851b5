// Sizes that kernels and the layout of the scratch share. No CUDA in here.
#pragma once

#include <cstdint>

namespace glm53_exl3::native {

constexpr int kColumns = 128;  // what a Hadamard transform spans
constexpr int kTile = 16;
// Shared memory of a block, at most: what a GB10 has.
constexpr int kMostShared = 99 * 1024;

// Choices of a decode step; a block keeps the rows of its expert in shared memory.
constexpr int kMaxDecodeChoices = 1024;
// Up to so many rows of an expert on average, decoding its weights for every 8 rows costs less than sorting.
constexpr int kDecodeRows = 8;
// Blocks of gate_up that share the input of a product, at most: as many as an H200 runs side by side, with room for larger GPUs.
constexpr int kMostUnits = 256;

// Rows of one expert that a block takes at once. Every block decodes the weights of its columns once for its tile, so more rows at once
// are fewer decodings; but a tile that is not full costs as much as a full one.
struct RowTile {
    int expert;
    int first;  // row
    int rows;
    int few;  // whether its expert has no more than kFewRows
};
constexpr int kFewRows = 8;
constexpr int kShortRows = 56;   // of the highest short tile: more sums would not fit into the registers of two blocks
constexpr int kTallRows = 128;   // of the highest tall tile

constexpr int64_t most_tall_tiles(int64_t choices) { return choices / (kShortRows + 1); }
constexpr int64_t most_short_tiles(int64_t choices, int64_t experts) {
    return choices < experts ? choices : experts;
}

}  // namespace glm53_exl3::native
