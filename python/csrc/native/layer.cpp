#include "layer.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "scratch_layout.h"
#include "variant.h"

namespace glm53_exl3::native {

extern const Variant k2BitsMcg, k3BitsMcg, k4BitsMcg, k2BitsMul1, k3BitsMul1, k4BitsMul1, kAnyBitsMcg, kAnyBitsMul1, kAnyBits3inst;

namespace {

constexpr int kMostExperts = 8192;  // sorting counts them in shared memory
constexpr int kTables = 9;

constexpr int kMostPieces = 4;

const Variant& choose(int64_t rate, int64_t codebook) {
    const std::array<const Variant*, 9> all{&k2BitsMcg,  &k3BitsMcg,   &k4BitsMcg,    &k2BitsMul1,   &k3BitsMul1,
                                            &k4BitsMul1, &kAnyBitsMcg, &kAnyBitsMul1, &kAnyBits3inst};
    const Variant* any = nullptr;
    for (const Variant* one : all) {
        if (static_cast<int64_t>(one->codebook) != codebook) continue;
        if (one->bits == rate && rate != kAnyBits) return *one;
        if (one->bits == kAnyBits) any = one;
    }
    TORCH_CHECK(any != nullptr, "no codebook ", codebook);
    return *any;
}

Device device_of(int index) {
    static std::mutex lock;
    static std::array<Device, 64> known{};
    const std::lock_guard<std::mutex> hold(lock);
    TORCH_CHECK(index >= 0 && index < static_cast<int>(known.size()), "device ", index);
    Device& device = known[index];
    if (device.multiprocessors == 0) {
        int major = 0;
        C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
        device.index = index;
        device.dependent_launch = major >= 9;
        C10_CUDA_CHECK(cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, index));
    }
    return device;
}

void check(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& output, const at::Tensor& scratch,
           int64_t tokens, const std::vector<at::Tensor>& tables, const std::vector<at::Tensor>& bits, int64_t intermediate) {
    TORCH_CHECK(x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16, "activations are ", x.scalar_type(),
                "; expected fp16 or bf16");
    TORCH_CHECK(x.dim() == 2 && x.size(1) % kColumns == 0, "hidden size ", x.size(-1), " is not a multiple of 128");
    TORCH_CHECK(intermediate > 0 && intermediate % kColumns == 0, "intermediate size ", intermediate, " is not a multiple of 128");
    TORCH_CHECK(expert.dim() == 2 && expert.size(0) == x.size(0), "one row of experts a token");
    TORCH_CHECK(expert.scalar_type() == at::kInt || expert.scalar_type() == at::kLong, "experts are integers");
    TORCH_CHECK(weight.sizes() == expert.sizes() && weight.scalar_type() == at::kFloat, "a float weight for each expert");
    TORCH_CHECK(output.sizes() == x.sizes() && output.scalar_type() == x.scalar_type(), "output is like the input");
    TORCH_CHECK(x.is_contiguous() && expert.is_contiguous() && weight.is_contiguous() && output.is_contiguous(), "tensors are contiguous");
    TORCH_CHECK(tables.size() == kTables && bits.size() == 3, "tables of another layer");
    const int64_t experts = tables[0].numel();
    TORCH_CHECK(experts <= kMostExperts, "more than ", kMostExperts, " experts");
    for (const at::Tensor& table : tables) TORCH_CHECK(table.numel() == experts && table.scalar_type() == at::kLong, "a table of addresses");
    for (const at::Tensor& one : bits) TORCH_CHECK(one.numel() == experts && one.scalar_type() == at::kByte, "a table of rates");
    TORCH_CHECK(tokens > 0 && scratch.numel() >= scratch_bytes(tokens, expert.size(1), x.size(1), intermediate, experts),
                "scratch for fewer tokens or choices");
}

template <typename T>
T* at_place(const at::Tensor& scratch, int64_t place) {
    return reinterpret_cast<T*>(static_cast<char*>(scratch.data_ptr()) + place);
}

cudaError_t run_few(const Layer& layer, const Batch& batch, const at::Tensor& scratch, const ScratchLayout& places, const Variant& variant,
                    const Device& device, cudaStream_t stream) {
    // As long as there are multiprocessors without a block. Half of a long product is sooner done than all of it.
    const int units = batch.choices() * (layer.intermediate / kColumns);
    int split = 1;
    while (split < kMostPieces && 2 * split * units <= std::min(device.multiprocessors, kMostUnits)) split *= 2;
    DecodeCall call{layer, batch, {}, kSumMask, split};
    for (int which = 0; which < 2; ++which) call.scratch.rotated[which] = at_place<__half>(scratch, places.decode_rotated[which]);
    call.scratch.between = at_place<__half>(scratch, places.decode_between);
    call.scratch.part = at_place<float>(scratch, places.part);
    call.scratch.arrived = at_place<int>(scratch, places.arrived);
    call.scratch.piece = at_place<float>(scratch, places.piece);
    call.scratch.met = at_place<int>(scratch, places.met);
    // For one or two tokens waiting for the whole kernel was sooner done than asking for each expert.
    call.scratch.ready = device.dependent_launch && batch.tokens > 2 && split == 1 ? at_place<int>(scratch, places.ready) : nullptr;
    return variant.decode(call, device, stream);
}

cudaError_t run_many(const Layer& layer, const Batch& batch, const at::Tensor& scratch, const ScratchLayout& places, const Variant& variant,
                     const Device& device, cudaStream_t stream) {
    PrefillCall call{layer, batch, {}, kSumMask};
    call.scratch.token = at_place<int>(scratch, places.token);
    call.scratch.expert = at_place<int>(scratch, places.expert);
    call.scratch.row = at_place<int>(scratch, places.row);
    call.scratch.tall = at_place<RowTile>(scratch, places.tall);
    call.scratch.tile = at_place<RowTile>(scratch, places.tile);
    call.scratch.count = at_place<int>(scratch, places.count);
    for (int which = 0; which < 2; ++which) call.scratch.rotated[which] = at_place<__half>(scratch, places.rotated[which]);
    call.scratch.between = at_place<__half>(scratch, places.between);
    return variant.prefill(call, device, stream);
}

}  // namespace

int64_t scratch_bytes(int64_t tokens, int64_t top_k, int64_t hidden, int64_t intermediate, int64_t experts) {
    return layout(tokens, top_k, hidden, intermediate, experts).bytes();
}

void run_layer(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& output,
               const at::Tensor& scratch, int64_t tokens, const std::vector<at::Tensor>& tables, const std::vector<at::Tensor>& bits,
               int64_t rate, int64_t codebook, int64_t intermediate, double limit) {
    check(x, expert, weight, output, scratch, tokens, tables, bits, intermediate);
    const c10::cuda::CUDAGuard guard(x.device());
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    const Device device = device_of(x.get_device());
    const Variant& variant = choose(rate, codebook);
    const int64_t hidden = x.size(1), top_k = expert.size(1), experts = tables[0].numel();
    const ScratchLayout places = layout(tokens, top_k, hidden, intermediate, experts);
    Layer layer{};
    for (int which = 0; which < 3; ++which) {
        layer.trellis[which] = reinterpret_cast<const uint64_t*>(tables[3 * which].data_ptr());
        layer.suh[which] = reinterpret_cast<const uint64_t*>(tables[3 * which + 1].data_ptr());
        layer.svh[which] = reinterpret_cast<const uint64_t*>(tables[3 * which + 2].data_ptr());
        layer.bits[which] = static_cast<const uint8_t*>(bits[which].data_ptr());
    }
    layer.experts = static_cast<int>(experts);
    layer.hidden = static_cast<int>(hidden);
    layer.intermediate = static_cast<int>(intermediate);
    layer.limit = static_cast<float>(limit);
    for (int64_t begin = 0; begin < x.size(0); begin += tokens) {
        const int64_t length = std::min(tokens, x.size(0) - begin), choices = length * top_k;
        Batch batch{x.narrow(0, begin, length).data_ptr(), expert.narrow(0, begin, length).data_ptr(),
                    weight.narrow(0, begin, length).data_ptr<float>(), output.narrow(0, begin, length).data_ptr(),
                    expert.scalar_type() == at::kLong, x.scalar_type() == at::kBFloat16, static_cast<int>(length),
                    static_cast<int>(top_k)};
        const bool few = choices <= kMaxDecodeChoices && choices <= kDecodeRows * experts;
        C10_CUDA_CHECK(few ? run_few(layer, batch, scratch, places, variant, device, stream)
                           : run_many(layer, batch, scratch, places, variant, device, stream));
    }
}

}  // namespace glm53_exl3::native
