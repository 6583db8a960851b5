// Operands of the tensor core: decoded weights as A (16 output columns by 16 input rows), activations as B.
//
// Activations lie in memory in the order in which lanes read them: a block of 32 values is four chunks of 16 bytes, and chunk c
// holds the values 2c, 2c + 1, 2c + 8, 2c + 9 of the first 16 and the same of the second. So lane l reads one chunk, l % 4, for
// two tiles.
#pragma once

#include "call.cuh"
#include "machine.cuh"
#include "trellis.cuh"

namespace glm53_exl3::native {

// (a's sum of halves, b's sum of halves): two weights of mcg or 3inst.
__device__ __forceinline__ uint32_t two_sums(uint32_t a, uint32_t b) {
    return bits_of(__hadd2(halves_of(__byte_perm(a, b, 0x5410)), halves_of(__byte_perm(a, b, 0x7632))));
}

// Two weights of mul1 from their hashes.
__device__ __forceinline__ uint32_t two_scaled(uint32_t a, uint32_t b) {
    const __half2 scale = halves_of(0x1EEE1EEEu), shift = halves_of(0xC931C931u);
    return bits_of(__hfma2(halves_of(__byte_perm(a, b, 0x5410)), scale, shift));
}

template <Codebook kCodebook>
__device__ __forceinline__ uint32_t two_weights(uint32_t a, uint32_t b) {
    if constexpr (kCodebook == Codebook::kMul1) {
        return two_scaled(a, b);
    } else {
        return two_sums(a, b);
    }
}

// Hashes of the lane's eight weights of the tile at `address` in shared memory.
template <int kBits, Codebook kCodebook>
__device__ __forceinline__ void decode(uint32_t address, const LaneBits<kBits>& lane, uint32_t mask, uint32_t (&hashes)[8]) {
    uint32_t word[3] = {load_shared(address + lane.offset[0]), load_shared(address + lane.offset[1]), 0};
    if constexpr (LaneBits<kBits>::kWords > 2) word[2] = load_shared(address + lane.offset[2]);
    Decoder<kBits, kCodebook>(word, lane.shift, mask).all(hashes);
}

// Whether the halves of a hash go to the tensor core unsummed, as two input rows with the same activation. That saves the sum,
// which costs more than the second product as long as there are few rows: for the decode path.
template <Codebook kCodebook>
constexpr bool kHalvesApart = kCodebook != Codebook::kMul1;

// Activations of one tile for a lane, as the B operand of one product or of two.
struct Activations {
    uint32_t value[4];

    // first: rows 2c, 2c + 1; second: rows 2c + 8, 2c + 9.
    __device__ __forceinline__ void apart(uint32_t first, uint32_t second) {
        value[0] = __byte_perm(first, first, 0x1010);
        value[1] = __byte_perm(first, first, 0x3232);
        value[2] = __byte_perm(second, second, 0x1010);
        value[3] = __byte_perm(second, second, 0x3232);
    }
};

// Where value `index` (a multiple of 4) of a block of 128 and its neighbours lie in that order: two pairs, 8 apart.
__device__ __forceinline__ int place_of(int index) {
    const int row = index & 15;
    return (index & ~31) + (row & 7) / 2 * 8 + (index >> 4 & 1) * 4 + (row >> 3) * 2;
}

// Stores four consecutive values of a block of 128, of which the lane holds those from 4 lane on.
__device__ __forceinline__ void store_in_order(__half* block, const float (&value)[4], int lane) {
    __half* to = block + place_of(4 * lane);
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(value[0], value[1]);
    *reinterpret_cast<__half2*>(to + 8) = __floats2half2_rn(value[2], value[3]);
}

}  // namespace glm53_exl3::native
