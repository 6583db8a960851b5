// Python module of the native kernels. A plain torch extension: the kernels are compiled for one torch anyway, the pinned one,
// and torch's stable interface has no words yet for a stream and a device guard.
#include <torch/csrc/utils/pybind.h>

#include "layer.h"

#if !defined(GLM53_EXL3_ARCH_LIST) || !defined(GLM53_EXL3_VERSION)
#error "build this file with the build script, which defines what it was built for"
#endif

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    namespace py = pybind11;
    module.doc() = "EXL3 mixture-of-experts kernels of glm53-exl3";
    module.def("run_layer", &glm53_exl3::native::run_layer, py::arg("x"), py::arg("expert"), py::arg("weight"), py::arg("output"),
               py::arg("scratch"), py::arg("tokens"), py::arg("tables"), py::arg("bits"), py::arg("rate"), py::arg("codebook"),
               py::arg("intermediate"), py::arg("limit"), py::call_guard<py::gil_scoped_release>(),
               "Routed experts of one layer for any batch.");
    module.def("scratch_bytes", &glm53_exl3::native::scratch_bytes, py::arg("tokens"), py::arg("top_k"), py::arg("hidden"),
               py::arg("intermediate"), py::arg("experts"), "Bytes of scratch for pieces of at most `tokens` tokens.");
    module.attr("arch_list") = py::str(GLM53_EXL3_ARCH_LIST);
    module.attr("version") = py::str(GLM53_EXL3_VERSION);
}
