// Bytes of the counters and of the whole scratch, a line for each line "tokens top_k hidden intermediate experts" of standard input.
#include <cinttypes>
#include <cstdio>

#include "scratch_layout.h"

int main() {
    int64_t tokens, top_k, hidden, intermediate, experts;
    while (scanf("%" SCNd64 "%" SCNd64 "%" SCNd64 "%" SCNd64 "%" SCNd64, &tokens, &top_k, &hidden, &intermediate, &experts) == 5) {
        const auto at = glm53_exl3::native::layout(tokens, top_k, hidden, intermediate, experts);
        printf("%" PRId64 " %" PRId64 "\n", at.counters_end, at.bytes());
    }
}
