// Launches of one variant. Each variant is a unit of its own, so that they compile side by side.
#pragma once

#include <atomic>

#include "decode_path.cuh"
#include "prefill_path.cuh"
#include "variant.h"

namespace glm53_exl3::native {

constexpr int kMostDevices = 64;
constexpr int kBlockBytes = 94 * 1024;  // of the 99 KiB of a GB10's block, beside what decode kernels have anyway
constexpr int kHalfOfMultiprocessor = 47 * 1024;

// Stages of a warp's ring, at most four: more were no faster.
constexpr int stages_within(int bytes, int stage_bytes) {
    const int fit = bytes / stage_bytes;
    return fit > 4 ? 4 : fit;
}
template <int kBits, int kWarps>
constexpr int decode_stages() {
    constexpr int stage = kWarps * kStageTiles * kTilesOfBlock * 32 * largest_bits(kBits);
    // 8 warps leave room for a second block.
    return stages_within(kWarps == 8 && kBits != kAnyBits ? kHalfOfMultiprocessor : kBlockBytes, stage);
}
template <int kBits, Codebook kCodebook, int kInputs>
constexpr int prefill_stages() {
    constexpr int stage = TileProduct<largest_bits(kBits), kCodebook, 3, kInputs>::template stage_bytes<kTileRows / 8>();
    const int fit = stages_within(99 * 1024, stage);
    return fit < 3 ? 3 : fit;
}

// Shared memory beyond 48 KiB has to be asked for, once a device.
template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, int bytes, const Device& device, std::atomic<uint64_t>& done) {
    const uint64_t bit = uint64_t{1} << device.index;
    if (done.load(std::memory_order_relaxed) & bit) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) done.fetch_or(bit, std::memory_order_relaxed);
    return error;
}

template <auto kKernel, typename Call>
cudaError_t launch(const Call& call, dim3 grid, int threads, int shared, const Device& device, bool dependent, cudaStream_t stream) {
    static std::atomic<uint64_t> allowed{0};
    if (shared > 0) {
        if (const cudaError_t error = allow_shared(kKernel, shared, device, allowed); error != cudaSuccess) return error;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = dependent && device.dependent_launch ? 1 : 0;
    return cudaLaunchKernelEx(&config, kKernel, call);
}

template <int kBits, Codebook kCodebook>
cudaError_t run_decode(const DecodeCall& call, const Device& device, cudaStream_t stream) {
    constexpr int kWide = 16, kNarrow = 8, kBlocks = kBits == kAnyBits ? 1 : 2;
    constexpr int kWideStages = decode_stages<kBits, kWide>(), kStages = decode_stages<kBits, kNarrow>();
    constexpr bool kHasWide = kBits != kAnyBits && kWideStages >= 2;
    static_assert(kStages >= 2);
    const int choices = call.batch.choices(), blocks = call.layer.intermediate / kColumns;
    const unsigned rotations = (static_cast<unsigned>(choices) * 2 * (call.layer.hidden / kColumns) + 7) / 8;
    cudaError_t error = launch<rotate>(call, rotations, 256, 0, device, false, stream);
    if (error != cudaSuccess) return error;
    const dim3 grid(blocks, choices);
    bool wide = false;
    if constexpr (kHasWide) {
        // A unit a multiprocessor: 16 warps finish it sooner. With more units than that, two blocks of 8 share one.
        wide = blocks * choices <= device.multiprocessors;
        if (wide) {
            error = launch<gate_up<kBits, kCodebook, kWide, kWideStages, 1>>(
                call, grid, kWide * 32, decode_shared_bytes<kBits, kWide, kWideStages, 2>(), device, true, stream);
        }
    }
    if (!wide) {
        error = launch<gate_up<kBits, kCodebook, kNarrow, kStages, kBlocks>>(
            call, grid, kNarrow * 32, decode_shared_bytes<kBits, kNarrow, kStages, 2>(), device, true, stream);
    }
    if (error != cudaSuccess) return error;
    return launch<down<kBits, kCodebook, kNarrow, kStages, kBlocks>>(
        call, dim3(call.layer.hidden / kColumns, choices), kNarrow * 32, decode_shared_bytes<kBits, kNarrow, kStages, 1>(), device, true,
        stream);
}

template <int kBits, Codebook kCodebook>
cudaError_t run_prefill(const PrefillCall& call, const Device& device, cudaStream_t stream) {
    constexpr int kGateUpStages = prefill_stages<kBits, kCodebook, 2>(), kDownStages = prefill_stages<kBits, kCodebook, 1>();
    const int choices = call.batch.choices(), experts = call.layer.experts;
    // As many tiles as there can be, whatever the routing: the host does not know it.
    const unsigned tiles = choices / kTileRows + (choices < experts ? choices : experts);
    const unsigned row_blocks = (static_cast<unsigned>(choices) * (call.layer.hidden / kColumns) + 31) / 32;
    const unsigned token_blocks = (static_cast<unsigned>(call.batch.tokens) * (call.layer.hidden / kColumns) + 31) / 32;
    cudaError_t error = launch<sort>(call, 1, 1024, experts * static_cast<int>(sizeof(int)), device, false, stream);
    if (error != cudaSuccess) return error;
    error = launch<rotate_all>(call, row_blocks, 256, 0, device, false, stream);
    if (error != cudaSuccess) return error;
    error = launch<gate_up_all<kBits, kCodebook, kGateUpStages>>(call, dim3(call.layer.intermediate / kColumns, tiles), kPrefillThreads,
                                                                gate_up_shared_bytes<kBits, kCodebook, kGateUpStages>(), device, false, stream);
    if (error != cudaSuccess) return error;
    error = launch<down_all<kBits, kCodebook, kDownStages>>(call, dim3((call.layer.hidden + 255) / 256, tiles), kPrefillThreads,
                                                           down_shared_bytes<kBits, kCodebook, kDownStages>(), device, false, stream);
    if (error != cudaSuccess) return error;
    return launch<gather>(call, token_blocks, 256, 0, device, false, stream);
}

}  // namespace glm53_exl3::native

// Defines the variant that layer.cpp declares.
#define GLM53_EXL3_VARIANT(name, bits, codebook)                                                       \
    namespace glm53_exl3::native {                                                                     \
    extern const Variant name;                                                                         \
    const Variant name{bits, codebook, &run_decode<bits, codebook>, &run_prefill<bits, codebook>};      \
    }
