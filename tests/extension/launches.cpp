// What the variants ask of a GPU, without one: linked with their objects in place of CUDA's run time, this program calls each
// variant and prints a line for each launch: name of the kernel (mangled), threads of a block, bytes of shared memory that the
// launch asks for, bytes that were allowed before. VARIANTS names the variants.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <map>
#include <string>

#include "variant.h"

namespace {

// By the address of a kernel's host function. Filled before main() by what nvcc puts into the objects.
std::map<const void*, std::string>& names() {
    static std::map<const void*, std::string> known;
    return known;
}
std::map<const void*, int> allowed;

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) { names()[host] = name; }

// Of launches with <<<>>>, of which there are none.
cudaError_t __cudaGetKernel(void*, const void*) { return cudaErrorUnknown; }
cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorUnknown; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorUnknown; }

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) allowed[kernel] = value;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
    const dim3 block = config->blockDim;
    std::printf("%s %u %zu %d\n", names().at(kernel).c_str(), block.x * block.y * block.z, config->dynamicSmemBytes, allowed[kernel]);
    return cudaSuccess;
}
}

namespace glm53_exl3::native {

extern const Variant VARIANTS;

}  // namespace glm53_exl3::native

int main() {
    using namespace glm53_exl3::native;
    for (const Variant& variant : {VARIANTS}) {
        Layer layer{};
        layer.experts = 8192;  // the most that are taken; sorting counts them in shared memory
        layer.hidden = 4096;
        layer.intermediate = 2048;
        Batch batch{};
        batch.tokens = 64;
        batch.top_k = 8;
        // A device with room for a block of each unit, and one without, take other kernels.
        for (const int multiprocessors : {1 << 20, 1}) {
            const Device device{0, multiprocessors, true};
            if (variant.decode(DecodeCall{layer, batch, {}, 0, 1}, device, nullptr) != cudaSuccess) return 1;
            if (variant.prefill(PrefillCall{layer, batch, {}, 0}, device, nullptr) != cudaSuccess) return 1;
        }
    }
}
