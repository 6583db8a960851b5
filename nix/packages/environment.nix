# A virtual environment made of wheels alone: those of a lock, and those built here.
{
  lib,
  stdenv,
  patchelf,
  zlib,
  numactl,
  rdma-core,
  python,
  wheelTools,
  pins,
  pinnedWheel,
}:
{
  name,
  # Lock whose wheels for this system are taken, but for those that only a build needs; or `wheels`, entries of one.
  lock ? null,
  wheels ? lib.filterAttrs (_name: entry: !(entry.build_only or false)) (
    wheelTools.entries {
      inherit lock;
      inherit (stdenv.hostPlatform) system;
    }
  ),
  # Packages of ours, each a folder with one wheel.
  built ? [ ],
}:
let
  # What the wheels expect of any Linux system; tools/environment names a library that is missing here.
  libraries = map (package: "${lib.getLib package}/lib") [
    stdenv.cc.cc
    # Its own output in newer nixpkgs.
    (stdenv.cc.cc.libgcc or stdenv.cc.cc)
    zlib
    numactl
    # NCCL opens libibverbs between two Sparks.
    rdma-core
  ];
in
stdenv.mkDerivation {
  pname = "glm53-exl3-environment-${name}";
  version = "0";
  wheels = wheelTools.folder name wheels;
  inherit built;
  tools = ../../tools/environment;

  nativeBuildInputs = [
    patchelf
    python
  ];
  dontUnpack = true;
  dontConfigure = true;
  # Stripping rewrites gigabytes and removes the device code of some libraries; run paths are set by assemble.py.
  dontStrip = true;
  dontPatchELF = true;

  buildPhase = ''
    runHook preBuild
    export PYTHONDONTWRITEBYTECODE=1
    PYTHONPATH=${pinnedWheel "installer"} python3 $tools/assemble.py \
      --prefix $out --python ${python.interpreter} \
      --library-path ${lib.concatStringsSep ":" libraries} \
      --loader ${stdenv.cc.bintools.dynamicLinker} \
      --rules $tools/rules.json \
      --wheels $wheels/*.whl ${lib.concatMapStringsSep " " (package: "${package}/*.whl") built}
    # Those without torch have no build of it to check.
    ${lib.optionalString (wheels ? torch)
      "python3 $tools/check_torch.py $out/${python.sitePackages} --torch ${pins.torch} --cuda ${pins.cuda}"
    }
    runHook postBuild
  '';
  dontInstall = true;

  passthru = { inherit wheels; };
  meta = {
    description = "Python environment of glm53-exl3 (${name})";
    # torch's and NVIDIA's wheels are redistributable binaries.
    license = lib.licenses.unfreeRedistributable;
    platforms = [
      "aarch64-linux"
      "x86_64-linux"
    ];
    sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
  };
}
