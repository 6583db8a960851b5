// One call for the routed experts of a layer, whatever the batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <vector>

namespace glm53_exl3 {

// Runs the experts of one layer and writes their weighted sums to `output`; a batch with more tokens than the scratch has rows
// is cut, so that no expert can exceed them.
//
// x, output: [T, hidden] bf16 or fp16. expert: [T, top_k] int32 or int64, outside [0, experts) for none. weight: [T, top_k] fp32.
// scratch: hidden fp16 [R, hidden], sums fp32 [R, hidden], count int64 [experts + 1], token_sorted int64 [R * top_k or more],
//     weight_sorted fp16 of the same size, then the four of exl3_moe: [C, R, hidden] twice, [C, R, intermediate] twice, fp16.
// tables: nine int64 [experts] of addresses: trellis, suh, svh of gate, up and down.
// bits: of gate, up and down.
void run_layer(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& output,
               const std::vector<at::Tensor>& scratch, const std::vector<at::Tensor>& tables,
               const std::vector<int64_t>& bits, bool mcg, double limit);

}  // namespace glm53_exl3
