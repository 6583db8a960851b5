# A Python module of CUDA kernels, compiled ahead of time for the GB10, as a wheel in a folder of its own.
{
  lib,
  stdenv,
  pins,
  python,
  # Environment with the pinned torch and the CUDA libraries it was built against; its Python can import both.
  torch,
  # Root of CUDA 13.0 with nvcc.
  cuda-home,
  # A GCC that this nvcc accepts.
  hostCompiler,
  # The largest unit took 1.1 GB, and on a GB10 the GPU's memory is the same memory.
  maxJobs ? 8,
}:
{
  # As tools/extension/build.py calls it, and what else it is told.
  product,
  arguments ? "",
  # What it imports as, and a Python expression on `module` that is true of a right one.
  module,
  check,
  version,
  # What of the repository the build reads, beside the tool itself; other changes must not compile the kernels again.
  wanted,
  # The pins that matter, so that a new pack or runtime is no reason to compile.
  pinned,
  # More attributes of the derivation.
  attributes ? { },
  meta,
}:
let
  root = ../..;
  parts = wanted ++ [
    "LICENSE"
    "tools/extension"
  ];
  isWanted =
    path: _type:
    let
      relative = lib.removePrefix "${toString root}/" (toString path);
      isWithin = folder: inner: lib.hasPrefix "${folder}/" inner;
    in
    baseNameOf path != "__pycache__"
    && builtins.any (
      name: name == relative || isWithin name relative || isWithin relative name
    ) parts;
in
stdenv.mkDerivation (
  {
    pname = "glm53-exl3-${product}-extension";
    inherit version;
    src = builtins.path {
      path = root;
      name = "glm53-exl3-extension-source";
      filter = isWanted;
    };

    nativeBuildInputs = [ python ];
    # The linker of nixpkgs would write the folder of this torch into the module, and every runtime would keep it.
    NIX_DONT_SET_RPATH = "1";
    disallowedReferences = [ torch ];
    pinned = builtins.toJSON pinned;
    passAsFile = [ "pinned" ];
    # Dates in the wheel; the first that a zip file can hold.
    SOURCE_DATE_EPOCH = "315532800";

    dontConfigure = true;
    buildPhase = ''
      runHook preBuild
      jobs=''${NIX_BUILD_CORES:-1}
      if [ "$jobs" -lt 1 ] || [ "$jobs" -gt ${toString maxJobs} ]; then jobs=${toString maxJobs}; fi
      PYTHONDONTWRITEBYTECODE=1 python3 tools/extension/build.py ${product} ${arguments} \
        --pins "$pinnedPath" --arch "${pins.gpu.arch_list}" --jobs "$jobs" --output build --wheel \
        --cuda-home ${cuda-home} --host-compiler ${hostCompiler}/bin/g++ \
        --torch ${torch}/${python.sitePackages}/torch --python-include ${python}/include/python${python.pythonVersion}
      runHook postBuild
    '';

    # Importing needs no driver: CUDA is only touched by the first call.
    doCheck = true;
    checkPhase = ''
      runHook preCheck
      python3 -m zipfile -e build/*.whl unpacked
      if readelf -d unpacked/*.so | grep -F /nix/store; then
        echo "error: store-path: the module looks for libraries in the store instead of beside itself" >&2
        exit 1
      fi
      PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=unpacked ${torch}/bin/python3 -c '
      import torch, ${module} as module
      found, expected = ${check}
      assert found == expected, f"the module says {found}, expected {expected}"
      '
      runHook postCheck
    '';

    # build.json and resources.md say what was compiled with what, and the registers and spills of each kernel.
    installPhase = ''
      runHook preInstall
      mkdir -p $out
      cp build/*.whl build/build.json build/resources.md $out/
      runHook postInstall
    '';

    passthru = { inherit module; };
    meta = {
      platforms = [ "aarch64-linux" ];
    }
    // meta;
  }
  // attributes
)
