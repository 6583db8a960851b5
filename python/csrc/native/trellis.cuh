// Decoding of EXL3 trellises: the eight weights that a lane holds of a tile of 16 by 16.
//
// A tile is a ring of 256 K bits, read from the most significant bit of its first 32-bit word on. The state of weight t is
// the 16 bits that end at bit (t + 1) K, and a hash of the state is the weight. Lane l of a warp holds weights 8 l to
// 8 l + 7, which is the order of a tensor core's operand; see python/src/glm53_exl3/decode for the format in plain torch.
//
// Compiles for the host too, where it is tested.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GLM53_EXL3_INLINE __device__ __forceinline__
#else
#define GLM53_EXL3_INLINE inline
#endif

namespace glm53_exl3::native {

enum class Codebook { kMcg, kMul1, k3inst };

// What a hash keeps of its product. Given to the kernel in a register: as an immediate beside kSumBase it would cost an
// instruction more, because an instruction has room for one.
constexpr uint32_t kSumMask = 0x8FFF8FFFu;
constexpr uint32_t kSumBase = 0x3B603B60u;

// 32 bits of the 64 of high:low, from bit `shift` in [0, 31] on.
GLM53_EXL3_INLINE uint32_t funnel(uint32_t low, uint32_t high, uint32_t shift) {
#ifdef __CUDA_ARCH__
    return __funnelshift_r(low, high, shift);
#else
    return static_cast<uint32_t>(((static_cast<uint64_t>(high) << 32) | low) >> shift);
#endif
}

// 16 bits of a word from bit kFirst on. Two of the cases are dot products, which run beside the integer pipe.
template <int kFirst>
GLM53_EXL3_INLINE uint32_t sixteen(uint32_t word) {
    static_assert(kFirst >= 0 && kFirst <= 16);
#ifdef __CUDA_ARCH__
    if constexpr (kFirst == 0) {
        return __dp2a_lo(word, 1u, 0u);
    } else if constexpr (kFirst == 16) {
        return __dp2a_lo(word, 0x100u, 0u);
    } else if constexpr (kFirst == 8) {
        return __byte_perm(word, 0, 0x4421);
    } else if constexpr (kFirst < 8) {
        // A shift to the next byte and a permutation, where shift and mask would be one instruction more.
        return sixteen<8>(word << (8 - kFirst));
    } else {
        return sixteen<16>(word << (16 - kFirst));
    }
#else
    return (word >> kFirst) & 0xFFFFu;
#endif
}

// Hash of a state. mcg and 3inst: two halves whose sum is the weight. mul1: in the low half 1024 + s, where the weight is
// s * 0.00676727294921875 - 10.3828125 + 1024 * 0.00676727294921875 in one rounding.
template <Codebook kCodebook>
GLM53_EXL3_INLINE uint32_t hash(uint32_t state, uint32_t mask) {
    if constexpr (kCodebook == Codebook::kMul1) {
        const uint32_t product = state * 0x83DCD12Du;
#ifdef __CUDA_ARCH__
        return __dp4a(product, 0x01010101u, 0x6400u);
#else
        return 0x6400u + (product & 0xFF) + (product >> 8 & 0xFF) + (product >> 16 & 0xFF) + (product >> 24);
#endif
    } else {
        const uint32_t product =
            kCodebook == Codebook::kMcg ? state * 0xCBAC1FEDu : state * 89226354u + 64248484u;
#ifdef __CUDA_ARCH__
        uint32_t found;
        asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(found) : "r"(product), "r"(mask), "r"(kSumBase));
        return found;
#else
        return (product & mask) ^ kSumBase;
#endif
    }
}

constexpr int greatest_divisor(int a, int b) { return b == 0 ? a : greatest_divisor(b, a % b); }

// Where the bits of a lane lie in its tile.
template <int kBits>
struct LaneBits {
    static_assert(kBits >= 1 && kBits <= 8);
    static constexpr int kWordsOfTile = 8 * kBits;
    // From the first bit of weight 0 to the last of weight 7.
    static constexpr int kSpan = 16 + 7 * kBits;
    // A lane ends at bit 8 K (l + 1), at most this many bits before the end of its last word.
    static constexpr int kMaxShift = 32 - greatest_divisor(8 * kBits, 32);
    static constexpr int kWords = kSpan + kMaxShift > 64 ? 3 : 2;
    // Second window that covers what the first does not, if it can be shifted out of the words in one go.
    static constexpr int kSecondWindow = kSpan - 32;
    static constexpr bool kTwoWindows = kSecondWindow > 0 && kSecondWindow <= 16 && kSecondWindow + kMaxShift <= 31;

    uint32_t offset[3];  // of the last word and the ones before it, in bytes
    uint32_t shift;      // bits of the last word that belong to the next lane

    GLM53_EXL3_INLINE explicit LaneBits(int lane) {
        const int end = 8 * kBits * (lane + 1), last = (end - 1) / 32;
        for (int back = 0; back < 3; ++back) {
            offset[back] = static_cast<uint32_t>((last + kWordsOfTile - back) % kWordsOfTile) * 4;
        }
        shift = static_cast<uint32_t>(32 * (last + 1) - end);
    }

    // First bit, counted from the end of the lane, of the window that holds the 16 bits from `first` on.
    static constexpr int window(int first) {
        if (kTwoWindows) return first <= 16 ? 0 : kSecondWindow;
        int start = 0;
        for (int next = 0; next <= first; next += kBits) {
            if (next + 16 - start > 32) start = next;
        }
        return start;
    }
};

// States of weights 7 down to 0 from the words of a lane, and their hashes: hashes[t] of weight 8 l + t.
template <int kBits, Codebook kCodebook>
struct Decoder {
    using Bits = LaneBits<kBits>;

    uint32_t shifted[3];
    uint32_t second;
    uint32_t mask;

    // word[0] is the last of the lane, word[1] the one before it; word[2] is read where Bits::kWords is 3.
    GLM53_EXL3_INLINE Decoder(const uint32_t (&word)[3], uint32_t shift, uint32_t sum_mask) : mask(sum_mask) {
        shifted[0] = funnel(word[0], word[1], shift);
        if constexpr (Bits::kTwoWindows) {
            second = funnel(word[0], word[1], shift + Bits::kSecondWindow);
        } else {
            if constexpr (Bits::kSpan > 32) shifted[1] = funnel(word[1], Bits::kWords > 2 ? word[2] : 0, shift);
            if constexpr (Bits::kSpan > 64) shifted[2] = word[2] >> shift;
        }
    }

    template <int kWeight>
    GLM53_EXL3_INLINE uint32_t get() const {
        constexpr int kFirst = (7 - kWeight) * kBits, kWindow = Bits::window(kFirst);
        return hash<kCodebook>(sixteen<kFirst - kWindow>(at<kWindow>()), mask);
    }

    GLM53_EXL3_INLINE void all(uint32_t (&hashes)[8]) const {
        hashes[0] = get<0>();
        hashes[1] = get<1>();
        hashes[2] = get<2>();
        hashes[3] = get<3>();
        hashes[4] = get<4>();
        hashes[5] = get<5>();
        hashes[6] = get<6>();
        hashes[7] = get<7>();
    }

   private:
    template <int kWindow>
    GLM53_EXL3_INLINE uint32_t at() const {
        if constexpr (kWindow == 0) {
            return shifted[0];
        } else if constexpr (Bits::kTwoWindows) {
            return second;
        } else if constexpr (kWindow % 32 == 0) {
            return shifted[kWindow / 32];
        } else if constexpr (kWindow / 32 == 0) {
            return funnel(shifted[0], shifted[1], kWindow % 32);
        } else {
            return funnel(shifted[1], Bits::kSpan > 64 ? shifted[2] : 0, kWindow % 32);
        }
    }
};

}  // namespace glm53_exl3::native
