#include "layer.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "quant/exl3_moe.cuh"
#include "routing.cuh"

namespace glm53_exl3 {
namespace {

constexpr int kSiluGated = 0;
// No count of active experts: reading it would wait for the GPU, which no CUDA graph can hold.
constexpr int kActiveUnknown = -1;

enum Scratch { kHidden, kSums, kCount, kTokenSorted, kWeightSorted, kStateG, kStateU, kInterG, kInterU, kScratchSize };
constexpr int kTables = 9;

ActivationType activation_type(const at::Tensor& x) {
    TORCH_CHECK(x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16, "activations are ", x.scalar_type(),
                "; expected fp16 or bf16");
    return x.scalar_type() == at::kHalf ? ActivationType::kHalf : ActivationType::kBFloat16;
}

void check(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& output,
           const std::vector<at::Tensor>& scratch, const std::vector<at::Tensor>& tables,
           const std::vector<int64_t>& bits) {
    TORCH_CHECK(scratch.size() == kScratchSize && tables.size() == kTables && bits.size() == 3,
                "scratch, tables or bits of another layer");
    TORCH_CHECK(x.dim() == 2 && x.size(1) % 128 == 0, "hidden size ", x.size(-1), " is not a multiple of 128");
    TORCH_CHECK(expert.dim() == 2 && expert.size(0) == x.size(0), "one row of experts a token");
    TORCH_CHECK(expert.scalar_type() == at::kInt || expert.scalar_type() == at::kLong, "experts are integers");
    TORCH_CHECK(weight.sizes() == expert.sizes() && weight.scalar_type() == at::kFloat, "a float weight for each expert");
    TORCH_CHECK(output.sizes() == x.sizes() && output.scalar_type() == x.scalar_type(), "output is like the input");
    TORCH_CHECK(x.is_contiguous() && expert.is_contiguous() && weight.is_contiguous() && output.is_contiguous(),
                "tensors are contiguous");
    TORCH_CHECK(scratch[kHidden].size(1) == x.size(1), "scratch for another hidden size");
    TORCH_CHECK(scratch[kCount].size(0) == tables[0].size(0) + 1, "scratch for another number of experts");
    TORCH_CHECK(tables[0].size(0) <= kMaxExperts, "more than ", kMaxExperts, " experts");
    const int64_t rows = scratch[kStateG].size(1);
    TORCH_CHECK(scratch[kHidden].size(0) >= rows && scratch[kTokenSorted].size(0) >= rows * expert.size(1),
                "scratch for fewer choices a token");
    for (const int64_t one : bits) TORCH_CHECK(one >= 1 && one <= 8, one, " bits a weight");
}

}  // namespace

void run_layer(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& output,
               const std::vector<at::Tensor>& scratch, const std::vector<at::Tensor>& tables,
               const std::vector<int64_t>& bits, bool mcg, double limit) {
    check(x, expert, weight, output, scratch, tables, bits);
    const ActivationType activation = activation_type(x);
    const c10::cuda::CUDAGuard guard(x.device());
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    const int64_t tokens = x.size(0), hidden = x.size(1), top_k = expert.size(1), experts = tables[0].size(0);
    const int64_t rows = scratch[kStateG].size(1);
    for (int64_t begin = 0; begin < tokens; begin += rows) {
        const int64_t length = std::min(rows, tokens - begin), choices = length * top_k;
        const at::Tensor states = scratch[kHidden].narrow(0, 0, length), sums = scratch[kSums].narrow(0, 0, length);
        const at::Tensor token = scratch[kTokenSorted].narrow(0, 0, choices);
        const at::Tensor share = scratch[kWeightSorted].narrow(0, 0, choices);
        const at::Tensor part = x.narrow(0, begin, length), ids = expert.narrow(0, begin, length);
        const Batch batch{part.data_ptr(), ids.data_ptr(), weight.narrow(0, begin, length).data_ptr<float>(),
                          expert.scalar_type() == at::kLong, activation, static_cast<int>(length),
                          static_cast<int>(hidden), static_cast<int>(top_k), static_cast<int>(experts)};
        const Rows sorted{static_cast<__half*>(states.data_ptr()), sums.data_ptr<float>(),
                          scratch[kCount].data_ptr<int64_t>(), token.data_ptr<int64_t>(),
                          static_cast<__half*>(share.data_ptr())};
        C10_CUDA_CHECK(prepare(batch, sorted, stream));
        exl3_moe(states, sums, scratch[kCount], token, share, scratch[kStateG], scratch[kStateU], scratch[kInterG],
                 scratch[kInterU], kSiluGated, bits[0], bits[1], bits[2], tables[0], tables[1], tables[2], tables[3],
                 tables[4], tables[5], tables[6], tables[7], tables[8], mcg, !mcg, mcg, !mcg, mcg, !mcg,
                 static_cast<float>(limit), kActiveUnknown);
        C10_CUDA_CHECK(finish(sums.data_ptr<float>(), output.narrow(0, begin, length).data_ptr(), activation,
                              length * hidden, stream));
    }
}

}  // namespace glm53_exl3
