# The vLLM fork, compiled for one architecture: a folder with one wheel, a report of its kernels (kernels.json) and the
# licences of what was compiled in (licenses). docs/vllm-fork.md says what is compiled, from where, and what nobody could
# check yet.
{
  lib,
  stdenv,
  callPackage,
  cmake,
  ninja,
  pins,
  wheelTools,
  # Joined root of CUDA 13.0: nvcc, cuobjdump, headers, libraries with the driver's stubs.
  cuda-home,
  # A GCC that nvcc of CUDA 13.0 accepts.
  hostCompiler,
  # Environment with torch and the nvidia-* wheels it was built against.
  torch,
  vllm-fork-source ? callPackage ./vllm-fork/source.nix { },
}:
let
  fork = pins.runtimes.fork.vllm;
  revision = builtins.substring 0 9 fork.revision;
  numPatches = builtins.length vllm-fork-source.patches;
  inherit (vllm-fork-source) buildWheels checks;

  # A fork has no version. Its base lies between 0.28.0 and 0.29.0; the local part carries the revision, which preflight
  # looks for, and how many patches are in it.
  version = "0.28.1.dev0+g${revision}.p${toString numPatches}";

  # FetchContent's own variables are options of CMake, the others environment variables that vLLM's CMake files read.
  isOption = pin: lib.hasPrefix "FETCHCONTENT_" pin.cmake_variable;
  fetched = lib.filterAttrs (_: pin: pin ? cmake_variable) pins.sources;
  place = name: pin: "${vllm-fork-source}/sources/${name}${lib.optionalString (pin ? folder) "/${pin.folder}"}";
  variables = lib.mapAttrsToList (name: pin: {
    name = pin.cmake_variable;
    value = place name pin;
  }) (lib.filterAttrs (_: pin: !(isOption pin)) fetched);
  # Of flash-attention this makes CMake copy FA4's Python files; vLLM's own variable links them out of the wheel.
  options = lib.mapAttrsToList (name: pin: "-D${pin.cmake_variable}=${place name pin}") (
    lib.filterAttrs (_: isOption) fetched
  );
in
stdenv.mkDerivation (
  builtins.listToAttrs variables
  // {
    pname = "vllm-fork";
    inherit version;
    src = "${vllm-fork-source}/vllm";

    nativeBuildInputs = [
      cmake
      ninja
    ];
    # setup.py calls both itself.
    dontUseCmakeConfigure = true;
    dontUseNinjaBuild = true;
    dontUseNinjaInstall = true;
    dontConfigure = true;

    # Modules are kept as in the wheel: they find torch's libraries, which are loaded before them, by name.
    NIX_DONT_SET_RPATH = "1";
    dontStrip = true;
    dontPatchELF = true;

    VLLM_TARGET_DEVICE = "cuda";
    VLLM_VERSION_OVERRIDE = version;
    # No cargo here: the Rust front end is left out, vLLM's Python one serves.
    VLLM_REQUIRE_RUST_FRONTEND = "0";
    VLLM_DISABLE_SCCACHE = "1";
    TORCH_CUDA_ARCH_LIST = pins.gpu.arch_list;
    FLASHINFER_CUDA_ARCH_LIST = pins.gpu.arch_list;
    CMAKE_BUILD_TYPE = "Release";
    CMAKE_ARGS = lib.concatStringsSep " " (
      options
      ++ [
        # Takes every source from its folder; one without a folder is an error instead of a download.
        "-DFETCHCONTENT_FULLY_DISCONNECTED=ON"
        "-DCMAKE_CUDA_HOST_COMPILER=${hostCompiler}/bin/g++"
      ]
    );
    CUDA_HOME = "${cuda-home}";
    NVCC_THREADS = "1";
    # Dates in the wheel; the first that a zip file can hold.
    SOURCE_DATE_EPOCH = "315532800";

    buildPhase = ''
      runHook preBuild
      export HOME=$TMPDIR PATH=$CUDA_HOME/bin:$PATH
      # Here, because the compiler of stdenv sets its own after the environment of the derivation.
      export CC=${hostCompiler}/bin/gcc CXX=${hostCompiler}/bin/g++ CUDAHOSTCXX=${hostCompiler}/bin/g++
      export MAX_JOBS=$(bash ${./vllm-fork/max-jobs.sh} $NIX_BUILD_CORES)
      for wheel in ${
        lib.concatMapStringsSep " " (entry: "${wheelTools.fetch entry}") (builtins.attrValues buildWheels)
      }; do
        ${torch}/bin/python -m zipfile -e $wheel $TMPDIR/build-wheels
      done
      mkdir -p $out
      cp -r ${vllm-fork-source}/licenses $out/
      PYTHONPATH=$TMPDIR/build-wheels ${torch}/bin/python -c \
        'import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])' $out
      runHook postBuild
    '';
    dontInstall = true;

    # A build for the wrong architecture compiles and starts, and fails at the first kernel.
    doInstallCheck = true;
    installCheckPhase = ''
      runHook preInstallCheck
      ${torch}/bin/python ${checks}/check_wheel.py $out/*.whl --capability ${pins.gpu.capability} \
        --require '_C_*.so' --require '_moe_C_*.so' --cuobjdump ${cuda-home}/bin/cuobjdump > $out/kernels.json
      ${torch}/bin/python -m zipfile -e $out/*.whl $TMPDIR/unpacked
      ${torch}/bin/python ${checks}/check_operators.py $TMPDIR/unpacked _C.rms_norm _moe_C.topk_softmax
      runHook postInstallCheck
    '';

    passthru = {
      source = vllm-fork-source;
      inherit numPatches;
    };
    meta = {
      description = "vLLM fork with GLM-5.3-Flash for GB10 (${revision}, patches applied: ${toString numPatches})";
      homepage = "https://github.com/${fork.repository}";
      # vLLM's own; docs/vllm-fork.md lists those of the sources that are compiled in.
      license = lib.licenses.asl20;
      platforms = [ "aarch64-linux" ];
    };
  }
)
