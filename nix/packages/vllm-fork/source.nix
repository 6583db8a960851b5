# The tree of the vLLM fork as it is compiled: patched, compared with the pins, beside the sources that CMake would fetch.
# Nothing here depends on the machine it is built on, so that a patch or a pin that does not fit shows within a minute.
{
  lib,
  stdenv,
  # Runs the comparison.
  python,
  # Source trees by name: vllm-src, and all of `sources` in the pins.
  sources,
  pins,
  # Reader of patches/vllm/series.
  series,
  wheelTools,
  locks,
  # Versions of the tools that vLLM's build takes from nixpkgs.
  cmake,
  ninja,
  # Folder with the patches and their series.
  patchFolder ? ../../../patches/vllm,
}:
let
  fork = pins.runtimes.fork.vllm;
  patches = series.read patchFolder;
  # Copied as one folder: files of their own would carry a hash in front of their names.
  patchStore = builtins.path {
    path = patchFolder;
    name = "vllm-patches";
  };

  # By value: nix/pins.json is a link, which a copy of its own would leave without what it points to.
  asFile = name: value: builtins.toFile "${name}.json" (builtins.toJSON value);

  checks = builtins.path {
    path = ../../../tools/fork_tree;
    name = "fork-tree-checks";
    filter = path: _type: lib.hasSuffix ".py" path;
  };

  # check_patches.py and what it imports, of all that is in tools.
  patchTools = builtins.path {
    path = ../../../tools;
    name = "patch-tools";
    filter =
      path: type:
      baseNameOf path == "patchset" && type == "directory"
      || baseNameOf path == "check_patches.py"
      || baseNameOf (dirOf path) == "patchset" && lib.hasSuffix ".py" path;
  };

  # What setup.py imports beside torch and its requirements; all of it is pure Python, good for any machine.
  buildWheels = wheelTools.closure {
    lock = locks.fork;
    system = "aarch64-linux";
    roots = [
      "packaging"
      "setuptools-rust"
      "setuptools-scm"
    ];
  };

  source =
    name:
    sources.${name}
      or (throw "the source `${name}` is pinned but not given; there are: ${lib.concatStringsSep ", " (builtins.attrNames sources)}");

  pinned = pins.sources;
  tops = lib.filterAttrs (_: pin: !(pin ? submodule_of)) pinned;
  submodulesOf = name: lib.filterAttrs (_: pin: (pin.submodule_of or null) == name) pinned;

  # Folders that CMake copies from submodules whose code no GB10 can run (SM100 only): empty ones satisfy it.
  emptyFolders = {
    fmha-sm100-src = [
      "python/fmha_sm100/cutlass/include"
      "python/fmha_sm100/cutlass/tools/util/include"
    ];
  };

  # A fetched tree has no submodules; they are linked into a copy of it.
  lay =
    name:
    let
      submodules = submodulesOf name;
      folders = emptyFolders.${name} or [ ];
    in
    if submodules == { } && folders == [ ] then
      "ln -s ${source name} $out/sources/${name}"
    else
      lib.concatStringsSep "\n" (
        [
          "cp -r ${source name} $out/sources/${name}"
          "chmod -R u+w $out/sources/${name}"
        ]
        ++ lib.mapAttrsToList (submodule: pin: ''
          rm -rf $out/sources/${name}/${pin.path}
          mkdir -p $(dirname $out/sources/${name}/${pin.path})
          ln -s ${source submodule} $out/sources/${name}/${pin.path}'') submodules
        ++ map (folder: "mkdir -p $out/sources/${name}/${folder}") folders
      );

  passOn =
    name:
    let
      folder = "$out/licenses/${lib.removeSuffix "-src" name}";
    in
    "mkdir -p ${folder}; for file in ${source name}/{LICEN[CS]E,NOTICE,COPYING}*; do"
    + " if [ -f $file ]; then cp $file ${folder}/; fi; done";

  # Those of nixpkgs instead of the lock's; everything else that pyproject.toml names is looked up in the lock.
  buildTools = lib.concatMapStringsSep " " (tool: "--build-tool ${tool}") [
    "cmake=${cmake.version}"
    "ninja=${ninja.version}"
  ];
in
stdenv.mkDerivation {
  pname = "vllm-fork-source";
  version = builtins.substring 0 9 fork.revision;
  src = source "vllm-src";

  nativeBuildInputs = [ python ];

  patchPhase = ''
    runHook prePatch
    # Counting them has the series checked while evaluating.
    echo "${toString (builtins.length patches)} patches"
    # Its rules ask for the tests that headers name; those are not here, and were asked for when the patches were made.
    PYTHONDONTWRITEBYTECODE=1 python3 ${patchTools}/check_patches.py --tree . --apply --without-evidence \
      --patches ${patchStore} --pins ${asFile "pins" pins}
    # Data files of the package: setuptools-scm lists them from git, which a fetched tree is not.
    printf '\ngraft vllm\nglobal-exclude *.py[co]\n' >> MANIFEST.in
    runHook postPatch
  '';

  dontConfigure = true;
  # Before anything is compiled: the tree could not be read when it was pinned.
  buildPhase = ''
    runHook preBuild
    PYTHONPATH=${wheelTools.fetch buildWheels.packaging} PYTHONDONTWRITEBYTECODE=1 python3 ${checks}/check.py . \
      --pins ${asFile "pins" pins} --lock ${asFile "fork" locks.fork} ${buildTools}
    runHook postBuild
  '';
  installPhase = ''
    runHook preInstall
    mkdir -p $out/sources
    cp -r . $out/vllm
    ${lib.concatStringsSep "\n" (map lay (builtins.attrNames tops))}
    # What is compiled in or copied is passed on with the wheel, so are its licences.
    ${lib.concatMapStringsSep "\n" passOn ([ "vllm-src" ] ++ builtins.attrNames pinned)}
    runHook postInstall
  '';
  dontFixup = true;

  passthru = { inherit patches buildWheels checks patchTools; };
  meta = {
    description = "Sources of the vLLM fork at ${builtins.substring 0 9 fork.revision}, patches applied: ${toString (builtins.length patches)}";
    homepage = "https://github.com/${fork.repository}";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
  };
}
