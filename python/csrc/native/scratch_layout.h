// Where everything lies in a layer's scratch. The counters come first and are 0 between calls; the two paths share the rest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sizes.h"

namespace glm53_exl3::native {

struct ScratchLayout {
    int64_t arrived, ready, met, counters_end;
    // Decode.
    int64_t decode_rotated[2], decode_between, part, piece, decode_end;
    // Prefill.
    int64_t token, expert, row, tall, tile, count, rotated[2], between, prefill_end;

    int64_t bytes() const { return std::max(decode_end, prefill_end); }
};

// Each part begins at a multiple of 256 bytes.
class Places {
   public:
    explicit Places(int64_t begin) : next_(begin) {}
    int64_t take(int64_t bytes) {
        const int64_t place = next_;
        next_ = (next_ + bytes + 255) / 256 * 256;
        return place;
    }
    int64_t end() const { return next_; }

   private:
    int64_t next_;
};

inline ScratchLayout layout(int64_t tokens, int64_t top_k, int64_t hidden, int64_t intermediate, int64_t experts) {
    const int64_t choices = tokens * top_k, few = std::min<int64_t>(choices, kMaxDecodeChoices);
    ScratchLayout at{};
    Places counters(0);
    // Whatever the batch: calls with other numbers of tokens or choices must not put anything else where these expect 0.
    at.arrived = counters.take(kMaxDecodeChoices * (hidden / kColumns) * 4);
    at.ready = counters.take(2 * kMaxDecodeChoices * 4);
    at.met = counters.take(kMostUnits * 4);
    at.counters_end = counters.end();
    Places decode(at.counters_end);
    for (int64_t& place : at.decode_rotated) place = decode.take(few * hidden * 2);
    at.decode_between = decode.take(few * intermediate * 2);
    at.part = decode.take(few * hidden * 4);
    at.piece = decode.take(kMostUnits * 2 * kColumns * 4);
    at.decode_end = decode.end();
    Places prefill(at.counters_end);
    at.token = prefill.take(choices * 4);
    at.expert = prefill.take(choices * 4);
    at.row = prefill.take(choices * 4);
    at.tall = prefill.take(most_tall_tiles(choices) * sizeof(RowTile));
    at.tile = prefill.take(most_short_tiles(choices, experts) * sizeof(RowTile));
    at.count = prefill.take(3 * 4);
    for (int64_t& place : at.rotated) place = prefill.take(choices * hidden * 2);
    at.between = prefill.take(choices * intermediate * 2);
    at.prefill_end = prefill.end();
    return at;
}

}  // namespace glm53_exl3::native
