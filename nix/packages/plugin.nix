# The wheel of our Python package.
{ pythonWheel, pinnedWheel }:
pythonWheel {
  pname = "glm53-exl3";
  path = ../../python;
  # Build products of a work tree must not change the result; CUDA sources are other packages.
  filter =
    path: _type:
    !(builtins.elem (baseNameOf path) [
      "__pycache__"
      "build"
      "csrc"
      "dist"
    ]);
  backend = pinnedWheel "poetry-core";
  module = "poetry.core.masonry.api";
  description = "vLLM plugin that reads EXL3 weights, with its command line, as a wheel";
}
