# This project's own MoE kernels.
{
  lib,
  compiledExtension,
  pins,
}:
let
  # That of the plugin, which asks for it.
  inherit ((builtins.fromTOML (builtins.readFile ../../python/pyproject.toml)).project) version;
in
compiledExtension {
  product = "native";
  module = "glm53_exl3_kernels";
  check = ''(module.version, module.arch_list), ("${version}", "${pins.gpu.arch_list}")'';
  inherit version;
  wanted = [
    "python/csrc/native"
    "python/pyproject.toml"
  ];
  pinned = { inherit (pins) cuda torch gpu; };
  meta = {
    description = "MoE kernels of glm53-exl3 for ${pins.gpu.name}, as a wheel";
    license = lib.licenses.asl20;
  };
}
