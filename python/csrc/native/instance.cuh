// Launches of one variant. Each variant is a unit of its own, so that they compile side by side.
#pragma once

#include <atomic>

#include "decode_path.cuh"
#include "prefill_path.cuh"
#include "variant.h"

namespace glm53_exl3::native {

constexpr int kDecodeShared = kMostShared - 5 * 1024;  // beside the rows that decode kernels keep
constexpr int kHalfOfMultiprocessor = 47 * 1024;

// Stages of a warp's ring in the decode path, at most four: more were no faster.
template <int kBits, int kWarps>
constexpr int decode_stages() {
    constexpr int stage = kWarps * kStageTiles * kTilesOfBlock * 32 * largest_bits(kBits);
    // 8 warps leave room for a second block.
    constexpr int fit = (kWarps == 8 && kBits != kAnyBits ? kHalfOfMultiprocessor : kDecodeShared) / stage;
    return fit > 4 ? 4 : fit;
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

// Launches kernels one after another; after an error no more.
template <typename Call>
struct Launches {
    const Call& call;
    const Device& device;
    cudaStream_t stream;
    cudaError_t error = cudaSuccess;

    // dependent: the kernel may start before the one before it has ended, and waits itself for what that writes.
    template <auto kKernel>
    void add(dim3 grid, int threads, int shared, bool dependent = false) {
        static std::atomic<uint64_t> allowed{0};
        if (error == cudaSuccess && shared > 0) error = allow_shared(kKernel, shared, device, allowed);
        if (error != cudaSuccess || grid.y == 0) return;
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
        error = cudaLaunchKernelEx(&config, kKernel, call);
    }
};

template <int kBits, Codebook kCodebook>
cudaError_t run_decode(const DecodeCall& call, const Device& device, cudaStream_t stream) {
    constexpr int kWide = 16, kNarrow = 8, kBlocks = kBits == kAnyBits ? 1 : 2;
    constexpr int kWideStages = decode_stages<kBits, kWide>(), kStages = decode_stages<kBits, kNarrow>();
    constexpr bool kHasWide = kBits != kAnyBits && kWideStages >= 2;
    static_assert(kStages >= 2);
    const int choices = call.batch.choices(), blocks = call.layer.intermediate / kColumns;
    const unsigned rotations = (static_cast<unsigned>(choices) * 2 * (call.layer.hidden / kColumns) + 7) / 8;
    const dim3 grid(blocks, choices, call.split);
    Launches<DecodeCall> launches{call, device, stream};
    launches.add<rotate>(rotations, 256, 0);
    // A unit a multiprocessor: 16 warps finish it sooner. With more units than that, two blocks of 8 share one.
    const bool wide = kHasWide && blocks * choices * call.split <= device.multiprocessors;
    if constexpr (kHasWide) {
        constexpr int kBytes = decode_shared_bytes<kBits, kWide, kWideStages, 2>();
        if (wide) launches.add<gate_up<kBits, kCodebook, kWide, kWideStages, 1>>(grid, kWide * 32, kBytes, true);
    }
    if (!wide) {
        constexpr int kBytes = decode_shared_bytes<kBits, kNarrow, kStages, 2>();
        launches.add<gate_up<kBits, kCodebook, kNarrow, kStages, kBlocks>>(grid, kNarrow * 32, kBytes, true);
    }
    constexpr int kBytes = decode_shared_bytes<kBits, kNarrow, kStages, 1>();
    launches.add<down<kBits, kCodebook, kNarrow, kStages, kBlocks>>(dim3(call.layer.hidden / kColumns, choices), kNarrow * 32, kBytes, true);
    return launches.error;
}

// Blocks of a multiprocessor that registers must do for.
template <int kBits, int kMostRows>
constexpr int kPrefillBlocks = kMostRows == kTallRows || kBits == kAnyBits ? 1 : 2;

template <int kBits, Codebook kCodebook>
cudaError_t run_prefill(const PrefillCall& call, const Device& device, cudaStream_t stream) {
    constexpr int kTallBlocks = kPrefillBlocks<kBits, kTallRows>, kShortBlocks = kPrefillBlocks<kBits, kShortRows>;
    constexpr int kTallBytes = Ring<kBits, kTallRows>::kSharedBytes, kShortBytes = Ring<kBits, kShortRows>::kSharedBytes;
    const int choices = call.batch.choices(), experts = call.layer.experts, hidden = call.layer.hidden;
    const auto units = [&](int rows) { return (static_cast<unsigned>(rows) * (hidden / kColumns) + 31) / 32; };
    const auto blocks = [](int columns) { return static_cast<unsigned>(columns + kBlockColumns - 1) / kBlockColumns; };
    // As many tiles as there can be, whatever the routing, as the host does not know it.
    const unsigned tall = most_tall_tiles(choices), low = most_short_tiles(choices, experts);
    const unsigned gate_columns = blocks(call.layer.intermediate), down_columns = blocks(hidden);
    Launches<PrefillCall> launches{call, device, stream};
    launches.add<sort>(1, 1024, experts * static_cast<int>(sizeof(int)));
    launches.add<rotate_all>(units(choices), 256, 0);
    launches.add<gate_up_all<kBits, kCodebook, kTallRows, kTallBlocks>>(dim3(gate_columns, tall), kPrefillThreads, kTallBytes);
    launches.add<gate_up_all<kBits, kCodebook, kShortRows, kShortBlocks>>(dim3(gate_columns, low), kPrefillThreads, kShortBytes);
    launches.add<down_all<kBits, kCodebook, kTallRows, kTallBlocks>>(dim3(down_columns, tall), kPrefillThreads, kTallBytes);
    launches.add<down_all<kBits, kCodebook, kShortRows, kShortBlocks>>(dim3(down_columns, low), kPrefillThreads, kShortBytes);
    launches.add<gather>(units(call.batch.tokens), 256, 0);
    return launches.error;
}

}  // namespace glm53_exl3::native

// Defines the variant that layer.cpp declares.
#define GLM53_EXL3_VARIANT(name, bits, codebook)                                                       \
    namespace glm53_exl3::native {                                                                     \
    extern const Variant name;                                                                         \
    const Variant name{bits, codebook, &run_decode<bits, codebook>, &run_prefill<bits, codebook>};     \
    }
