// Python module of the kernels of exllamav3 that the plugin calls, and of nothing else of it.
//
// The kernels are compiled from a tree of turboderp-org/exllamav3 that is not part of this repository; this file only
// names them to Python. tools/extension/build.py defines the three macros below.
#include <cstddef>
#include <torch/csrc/utils/pybind.h>

#include "layer.h"
#include "quant/exl3_moe.cuh"
#include "quant/hadamard.cuh"
#include "quant/reconstruct.cuh"

#if !defined(GLM53_EXL3_SOURCE_REVISION) || !defined(GLM53_EXL3_ARCH_LIST) || !defined(GLM53_EXL3_MOE_ARITY)
#error "build this file with tools/extension/build.py, which defines what it was built from and for"
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
    module.doc() = "EXL3 kernels of exllamav3, compiled ahead of time";
    // Without argument names, as exllamav3 binds them: callers pass by position and can run on either module.
    module.def("exl3_moe", &exl3_moe, "Routed experts of one layer: gate, up, activation, down, weighted sum.");
    module.def("exl3_moe_max_concurrency", &exl3_moe_max_concurrency,
               "Experts that one launch can run at once on a device: its SMs divided by 8.");
    module.def("reconstruct", &reconstruct, "One matrix decoded to fp16, still between its Hadamard transforms.");
    module.def("reconstruct_had_slice", &reconstruct_had_slice,
               "Columns of one matrix decoded to fp16 and multiplied by its Hadamard transforms, suh and svh.");
    module.def("had_r_128", &had_r_128, "Hadamard transform of each 128 values of a row, scaled before or after.");
    module.def("run_layer", &glm53_exl3::run_layer, py::arg("x"), py::arg("expert"), py::arg("weight"),
               py::arg("output"), py::arg("scratch"), py::arg("tables"), py::arg("bits"), py::arg("mcg"),
               py::arg("limit"), py::call_guard<py::gil_scoped_release>(),
               "Routed experts of one layer for any batch: sorted, run in pieces that fit the scratch, cast back.");
    module.attr("source_revision") = py::str(GLM53_EXL3_SOURCE_REVISION);
    module.attr("moe_arity") = py::int_(kMoeArity);
    module.attr("arch_list") = py::str(GLM53_EXL3_ARCH_LIST);
}
