# The wheel of a pure Python source, in a folder of its own.
{
  lib,
  stdenv,
  python,
}:
{
  pname,
  # Folder with a pyproject.toml, and which of its files count.
  path,
  filter,
  # Wheel of the build backend, and the module in it that builds.
  backend,
  module,
  description,
}:
stdenv.mkDerivation {
  inherit pname;
  version = (builtins.fromTOML (builtins.readFile (path + "/pyproject.toml"))).project.version;
  src = builtins.path {
    inherit path filter;
    name = "${pname}-source";
  };

  nativeBuildInputs = [ python ];
  dontConfigure = true;
  buildPhase = ''
    runHook preBuild
    mkdir -p $out
    python3 -m zipfile -e ${backend} backend
    PYTHONPATH=$PWD/backend python3 -c \
      'import sys; from ${module} import build_wheel; build_wheel(sys.argv[1])' $out
    runHook postBuild
  '';
  dontInstall = true;

  meta = {
    inherit description;
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
  };
}
