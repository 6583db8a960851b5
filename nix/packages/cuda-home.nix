# The CUDA toolkit that kernels are compiled with, here and at run time: NVIDIA's wheels in the layout of an installation.
# They are the release that torch was built with, to the byte what the tests compile with; docs/decisions/0004.
{
  lib,
  stdenv,
  patchelf,
  python,
  pins,
  pinnedWheel,
  hostCompiler,
}:
let
  # Wheels of the toolkit; the others of NVIDIA's have folders of their own.
  parts = [
    "nvidia-cublas"
    "nvidia-cuda-cccl"
    "nvidia-cuda-crt"
    # Of CUDA 13.2: the index has none of 13.0, and it only reads what others made.
    "nvidia-cuda-cuobjdump"
    "nvidia-cuda-cupti"
    "nvidia-cuda-nvcc"
    "nvidia-cuda-nvrtc"
    "nvidia-cuda-runtime"
    "nvidia-cufft"
    "nvidia-cufile"
    "nvidia-curand"
    "nvidia-cusolver"
    "nvidia-cusparse"
    "nvidia-nvjitlink"
    "nvidia-nvtx"
    "nvidia-nvvm"
  ];
in
stdenv.mkDerivation {
  pname = "glm53-exl3-cuda-home";
  version = pins.cuda_release;

  nativeBuildInputs = [
    patchelf
    python
  ];
  dontUnpack = true;
  dontConfigure = true;
  # Device code and static libraries must stay as NVIDIA made them.
  dontStrip = true;
  dontPatchELF = true;
  buildPhase = ''
    runHook preBuild
    PYTHONDONTWRITEBYTECODE=1 python3 ${../../tools/environment}/cuda_home.py --output $out \
      --loader ${stdenv.cc.bintools.dynamicLinker} --stub-compiler ${hostCompiler}/bin/cc \
      ${lib.concatMapStringsSep " " (name: "${pinnedWheel name}") parts}
    runHook postBuild
  '';
  dontInstall = true;

  # Programs of the toolkit must run on this system before anything is compiled with them.
  doInstallCheck = true;
  installCheckPhase = ''
    runHook preInstallCheck
    $out/bin/nvcc --version | grep -F "release ${pins.cuda}," || {
      echo "error: cuda-release: nvcc of the pinned wheels is not of CUDA ${pins.cuda}" >&2
      exit 1
    }
    for program in ptxas nvlink fatbinary cuobjdump; do $out/bin/$program --version > /dev/null; done
    runHook postInstallCheck
  '';

  meta = {
    description = "CUDA ${pins.cuda_release} toolkit made of NVIDIA's wheels";
    license = lib.licenses.unfreeRedistributable;
    platforms = [
      "aarch64-linux"
      "x86_64-linux"
    ];
    sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
  };
}
