// Python module of the MoE kernels of exllamav3 that the plugin calls, and of nothing else of it.
//
// The kernels are compiled from a tree of turboderp-org/exllamav3 that is not part of this repository; this file only
// names them to Python. tools/exllamav3_extension/build.py defines the three macros below.
#include <cstddef>
#include <torch/csrc/utils/pybind.h>

#include "quant/exl3_moe.cuh"

#if !defined(GLM53_EXL3_SOURCE_REVISION) || !defined(GLM53_EXL3_ARCH_LIST) || !defined(GLM53_EXL3_MOE_ARITY)
#error "build this file with tools/exllamav3_extension/build.py, which defines what it was built from and for"
#endif

namespace {

template <typename... Arguments>
constexpr std::size_t count_arguments(void (*)(Arguments...)) {
    return sizeof...(Arguments);
}

// exllamav3 has no stable interface: 1.5.0 takes 35 arguments, which Python would only notice at the first token.
constexpr std::size_t kMoeArity = count_arguments(&exl3_moe);
static_assert(kMoeArity == GLM53_EXL3_MOE_ARITY, "exl3_moe takes another number of arguments than the plugin passes");

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    namespace py = pybind11;
    module.doc() = "EXL3 mixture-of-experts kernels of exllamav3, compiled ahead of time";
    // Without argument names, as exllamav3 binds them: callers pass by position and can run on either module.
    module.def("exl3_moe", &exl3_moe, "Routed experts of one layer: gate, up, activation, down, weighted sum.");
    module.def("exl3_moe_max_concurrency", &exl3_moe_max_concurrency,
               "Experts that one launch can run at once on a device: its SMs divided by 8.");
    module.attr("source_revision") = py::str(GLM53_EXL3_SOURCE_REVISION);
    module.attr("moe_arity") = py::int_(kMoeArity);
    module.attr("arch_list") = py::str(GLM53_EXL3_ARCH_LIST);
}
