# The wheel of our Python package, in a folder of its own.
{
  lib,
  stdenv,
  python,
  pinnedWheel,
}:
stdenv.mkDerivation {
  pname = "glm53-exl3";
  version = (builtins.fromTOML (builtins.readFile ../../python/pyproject.toml)).project.version;
  src = builtins.path {
    path = ../../python;
    name = "glm53-exl3-python";
    # Build products of a work tree must not change the result; CUDA sources are other packages.
    filter =
      path: _type:
      !(builtins.elem (baseNameOf path) [
        "__pycache__"
        "build"
        "csrc"
        "dist"
      ]);
  };

  nativeBuildInputs = [ python ];
  dontConfigure = true;
  buildPhase = ''
    runHook preBuild
    mkdir -p $out
    python3 -m zipfile -e ${pinnedWheel "poetry-core"} backend
    PYTHONPATH=$PWD/backend python3 -c \
      'import sys; from poetry.core.masonry.api import build_wheel; build_wheel(sys.argv[1])' $out
    runHook postBuild
  '';
  dontInstall = true;

  meta = {
    description = "vLLM plugin that reads EXL3 weights, with its command line, as a wheel";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
  };
}
