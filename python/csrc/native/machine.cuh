// Instructions of the GPU that C++ has no words for: asynchronous copies, tensor cores, dependent launches. From sm_80 on.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace glm53_exl3::native {

// c += a b: a is 16 by 16, one row a register pair of lane / 4 and lane / 4 + 8; b is 16 by 8; see the PTX manual, m16n8k16.
__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory; with `wanted` false zeros instead.
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, bool wanted = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(wanted ? 16 : 0));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
// Until at most kPending of the groups that were committed last are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Programmatic dependent launch, from sm_90 on: a kernel may start before the one it depends on has ended, and waits here
// for what that one wrote. Elsewhere, and when launched without the attribute, kernels run one after another.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address));
    return value;
}

__device__ __forceinline__ uint32_t bits_of(__half2 value) { return *reinterpret_cast<const uint32_t*>(&value); }
__device__ __forceinline__ __half2 halves_of(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }

}  // namespace glm53_exl3::native
