// Decodes tiles on the host: hashes of all weights, in the order of the stream.
// Arguments: bits, codebook as 0 (mcg), 1 (mul1) or 2 (3inst). Words of tiles on standard input, hashes on standard output.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "trellis.cuh"

using namespace glm53_exl3::native;

template <int kBits, Codebook kCodebook>
void decode(const std::vector<uint32_t>& words) {
    constexpr size_t kTile = LaneBits<kBits>::kWordsOfTile;
    for (size_t tile = 0; tile + kTile <= words.size(); tile += kTile) {
        for (int lane = 0; lane < 32; ++lane) {
            const LaneBits<kBits> bits(lane);
            uint32_t word[3];
            for (int back = 0; back < 3; ++back) word[back] = words[tile + bits.offset[back] / 4];
            // A kernel does not load a third word where the lane has two.
            if (LaneBits<kBits>::kWords < 3) word[2] = 0xDEADBEEF;
            uint32_t hashes[8];
            Decoder<kBits, kCodebook>(word, bits.shift, kSumMask).all(hashes);
            fwrite(hashes, sizeof(uint32_t), 8, stdout);
        }
    }
}

template <int kBits>
void choose(int codebook, const std::vector<uint32_t>& words) {
    if (codebook == 0) decode<kBits, Codebook::kMcg>(words);
    if (codebook == 1) decode<kBits, Codebook::kMul1>(words);
    if (codebook == 2) decode<kBits, Codebook::k3inst>(words);
}

int main(int, char** arguments) {
    std::vector<uint32_t> words;
    uint32_t word;
    while (fread(&word, sizeof word, 1, stdin) == 1) words.push_back(word);
    const int codebook = std::atoi(arguments[2]);
    switch (std::atoi(arguments[1])) {
        case 1: choose<1>(codebook, words); break;
        case 2: choose<2>(codebook, words); break;
        case 3: choose<3>(codebook, words); break;
        case 4: choose<4>(codebook, words); break;
        case 5: choose<5>(codebook, words); break;
        case 6: choose<6>(codebook, words); break;
        case 7: choose<7>(codebook, words); break;
        case 8: choose<8>(codebook, words); break;
    }
}
