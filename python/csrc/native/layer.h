// One call for the routed experts of a layer, whatever the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace glm53_exl3::native {

// Bytes of scratch for pieces of at most `tokens` tokens with `top_k` experts each. Larger batches are cut into pieces.
int64_t scratch_bytes(int64_t tokens, int64_t top_k, int64_t hidden, int64_t intermediate, int64_t experts);

// Runs the experts of one layer and writes their weighted sums to `output`. Sums are in a fixed order: the same input gives
// the same bits.
//
// x, output: [T, hidden] bf16 or fp16. expert: [T, top_k] int32 or int64, outside [0, experts) for none. weight: [T, top_k] fp32.
// scratch: uint8 [scratch_bytes(tokens, ...)], zeroed when it was made; calls that share it must not overlap.
// tables: nine int64 [experts] of addresses: trellis, suh, svh of gate, up and down.
// bits: three uint8 [experts]: of gate, up and down. rate: of all of them, 0 where they differ.
// codebook: 0 mcg, 1 mul1, 2 3inst.
void run_layer(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& output,
               const at::Tensor& scratch, int64_t tokens, const std::vector<at::Tensor>& tables, const std::vector<at::Tensor>& bits,
               int64_t rate, int64_t codebook, int64_t intermediate, double limit);

}  // namespace glm53_exl3::native
