#include "routing.cuh"

#include <cuda_bf16.h>

namespace glm53_exl3 {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kVector = 8;
// Up to here each choice is compared with all others: a decode step of 16 tokens with 8 experts each.
constexpr int kFewChoices = 128;
constexpr float kHalfMax = 65504.0f;

__device__ float to_float(__half value) { return __half2float(value); }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

// The kernels compute in fp16; a bf16 activation beyond its range becomes the largest number, not infinity.
__device__ __half to_half(float value) {
    return __float2half_rn(value > kHalfMax ? kHalfMax : value < -kHalfMax ? -kHalfMax : value);
}

// Expert of choice `index`, `experts` for none, and through `weight` what it adds up to within its token.
template <typename Id>
__device__ int choose(const Batch& batch, int64_t index, float* weight) {
    const Id* ids = static_cast<const Id*>(batch.expert);
    const Id id = ids[index];
    const int64_t first = index / batch.top_k * batch.top_k;
    if (id < 0 || id >= batch.experts) return batch.experts;
    for (int64_t other = first; other < index; ++other) {
        if (ids[other] == id) return batch.experts;
    }
    float sum = batch.weight[index];
    for (int64_t other = index + 1; other < first + batch.top_k; ++other) {
        if (ids[other] == id) sum += batch.weight[other];
    }
    *weight = sum;
    return static_cast<int>(id);
}

// Exclusive prefix sums of `bins` counts in shared memory, by one block.
__device__ void scan(int* bin, int bins) {
    __shared__ int warp_sum[kWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int carry = 0;
    for (int base = 0; base < bins; base += kThreads) {
        const int place = base + threadIdx.x;
        const int value = place < bins ? bin[place] : 0;
        int inclusive = value;
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(0xffffffff, inclusive, step);
            if (lane >= step) inclusive += below;
        }
        if (lane == 31) warp_sum[warp] = inclusive;
        __syncthreads();
        if (warp == 0) {
            int total = warp_sum[lane];
            for (int step = 1; step < 32; step *= 2) {
                const int below = __shfl_up_sync(0xffffffff, total, step);
                if (lane >= step) total += below;
            }
            warp_sum[lane] = total;
        }
        __syncthreads();
        const int before = carry + (warp > 0 ? warp_sum[warp - 1] : 0);
        if (place < bins) bin[place] = before + inclusive - value;
        carry += warp_sum[kWarps - 1];
        __syncthreads();
    }
}

template <typename Id>
__device__ void sort_by_expert(const Batch& batch, const Rows& rows) {
    extern __shared__ int bin[];
    const int bins = batch.experts + 1;
    const int64_t choices = static_cast<int64_t>(batch.tokens) * batch.top_k;
    for (int place = threadIdx.x; place < bins; place += kThreads) bin[place] = 0;
    __syncthreads();
    float weight = 0.0f;
    for (int64_t index = threadIdx.x; index < choices; index += kThreads) {
        atomicAdd(&bin[choose<Id>(batch, index, &weight)], 1);
    }
    __syncthreads();
    for (int place = threadIdx.x; place < bins; place += kThreads) rows.count[place] = bin[place];
    __syncthreads();
    scan(bin, bins);
    for (int64_t index = threadIdx.x; index < choices; index += kThreads) {
        weight = 0.0f;
        const int place = atomicAdd(&bin[choose<Id>(batch, index, &weight)], 1);
        rows.token_sorted[place] = index / batch.top_k;
        rows.weight_sorted[place] = to_half(weight);
    }
}

// The same for few choices, where the waits between steps are all of the time: two of them instead of seven.
template <typename Id>
__device__ void sort_few_by_expert(const Batch& batch, const Rows& rows) {
    __shared__ int named[kFewChoices];
    __shared__ int key[kFewChoices];
    const int index = threadIdx.x, choices = batch.tokens * batch.top_k;
    float weight = 0.0f;
    if (index < choices) {
        const Id id = static_cast<const Id*>(batch.expert)[index];
        named[index] = id < 0 || id >= batch.experts ? batch.experts : static_cast<int>(id);
        weight = batch.weight[index];
    }
    __syncthreads();
    if (index < choices) {
        const int own = named[index], first = index / batch.top_k * batch.top_k;
        bool nobody = own == batch.experts;
        for (int other = first; other < index; ++other) nobody |= named[other] == own;
        for (int other = index + 1; other < first + batch.top_k; ++other) {
            if (named[other] == own) weight += batch.weight[other];
        }
        key[index] = nobody ? batch.experts : own;
        if (nobody) weight = 0.0f;
    }
    __syncthreads();
    if (index < choices) {
        int place = 0;
        for (int other = 0; other < choices; ++other) {
            place += key[other] < key[index] || (key[other] == key[index] && other < index);
        }
        rows.token_sorted[place] = index / batch.top_k;
        rows.weight_sorted[place] = to_half(weight);
    }
    for (int bin = index; bin <= batch.experts; bin += kThreads) {
        int count = 0;
        for (int other = 0; other < choices; ++other) count += key[other] == bin;
        rows.count[bin] = count;
    }
}

template <typename Activation>
__device__ void cast_and_zero(const Batch& batch, const Rows& rows, int64_t worker, int64_t workers) {
    const int64_t elements = static_cast<int64_t>(batch.tokens) * batch.hidden;
    const Activation* x = static_cast<const Activation*>(batch.x);
    for (int64_t base = worker * kVector; base < elements; base += workers * kVector) {
        const uint4 loaded = *reinterpret_cast<const uint4*>(x + base);
        const Activation* values = reinterpret_cast<const Activation*>(&loaded);
        uint4 stored;
        __half* halves = reinterpret_cast<__half*>(&stored);
#pragma unroll
        for (int lane = 0; lane < kVector; ++lane) halves[lane] = to_half(to_float(values[lane]));
        *reinterpret_cast<uint4*>(rows.hidden + base) = stored;
        const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        reinterpret_cast<float4*>(rows.sums + base)[0] = zero;
        reinterpret_cast<float4*>(rows.sums + base)[1] = zero;
    }
}

// Block 0 sorts while the others cast: neither waits for the other.
template <typename Activation, typename Id>
__global__ void __launch_bounds__(kThreads) prepare_kernel(Batch batch, Rows rows) {
    if (blockIdx.x == 0) {
        if (static_cast<int64_t>(batch.tokens) * batch.top_k <= kFewChoices) {
            sort_few_by_expert<Id>(batch, rows);
        } else {
            sort_by_expert<Id>(batch, rows);
        }
    } else {
        const int64_t worker = static_cast<int64_t>(blockIdx.x - 1) * kThreads + threadIdx.x;
        cast_and_zero<Activation>(batch, rows, worker, static_cast<int64_t>(gridDim.x - 1) * kThreads);
    }
}

__device__ void store(__half* output, float value) { *output = __float2half_rn(value); }
__device__ void store(__nv_bfloat16* output, float value) { *output = __float2bfloat16_rn(value); }

template <typename Activation>
__global__ void __launch_bounds__(256) finish_kernel(const float* sums, Activation* output, int64_t elements) {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x * kVector;
    for (int64_t base = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kVector; base < elements;
         base += stride) {
        uint4 stored;
        Activation* values = reinterpret_cast<Activation*>(&stored);
        const float4 low = reinterpret_cast<const float4*>(sums + base)[0];
        const float4 high = reinterpret_cast<const float4*>(sums + base)[1];
        const float all[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int lane = 0; lane < kVector; ++lane) store(values + lane, all[lane]);
        *reinterpret_cast<uint4*>(output + base) = stored;
    }
}

int blocks_for(int64_t elements, int threads) {
    const int64_t wanted = (elements / kVector + threads - 1) / threads;
    // More than fill a GPU gain nothing.
    return static_cast<int>(wanted < 1024 ? wanted : 1024);
}

template <typename Activation, typename Id>
cudaError_t launch_prepare(const Batch& batch, const Rows& rows, cudaStream_t stream) {
    const int blocks = 1 + blocks_for(static_cast<int64_t>(batch.tokens) * batch.hidden, kThreads);
    const size_t shared = (batch.experts + 1) * sizeof(int);
    prepare_kernel<Activation, Id><<<blocks, kThreads, shared, stream>>>(batch, rows);
    return cudaGetLastError();
}

}  // namespace

cudaError_t prepare(const Batch& batch, const Rows& rows, cudaStream_t stream) {
    if (batch.activation == ActivationType::kHalf) {
        return batch.wide_ids ? launch_prepare<__half, int64_t>(batch, rows, stream)
                              : launch_prepare<__half, int32_t>(batch, rows, stream);
    }
    return batch.wide_ids ? launch_prepare<__nv_bfloat16, int64_t>(batch, rows, stream)
                          : launch_prepare<__nv_bfloat16, int32_t>(batch, rows, stream);
}

cudaError_t finish(const float* sums, void* output, ActivationType activation, int64_t elements, cudaStream_t stream) {
    const int blocks = blocks_for(elements, 256);
    if (activation == ActivationType::kHalf) {
        finish_kernel<<<blocks, 256, 0, stream>>>(sums, static_cast<__half*>(output), elements);
    } else {
        finish_kernel<<<blocks, 256, 0, stream>>>(sums, static_cast<__nv_bfloat16*>(output), elements);
    }
    return cudaGetLastError();
}

}  // namespace glm53_exl3
