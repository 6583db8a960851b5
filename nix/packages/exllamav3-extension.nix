# The MoE kernels of exllamav3.
{
  lib,
  compiledExtension,
  # Source trees by the name of the flake's input.
  sources,
  pins,
}:
compiledExtension {
  product = "exllamav3";
  arguments = "--source $kernels";
  module = "glm53_exl3_exllamav3_ext";
  check = ''(module.source_revision, module.arch_list, module.moe_arity), ("${pins.exllamav3.revision}", "${pins.gpu.arch_list}", ${toString pins.exllamav3.moe_arity})'';
  inherit (pins.exllamav3) version;
  wanted = [ "python/csrc/exllamav3" ];
  pinned = { inherit (pins) cuda torch gpu exllamav3; };
  attributes = {
    kernels = sources.exllamav3-src;
  };
  meta = {
    description = "MoE kernels of exllamav3 ${pins.exllamav3.version} for ${pins.gpu.name}, as a wheel";
    homepage = "https://github.com/${pins.exllamav3.repository}";
    # exllamav3 is MIT, our binding Apache-2.0.
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
  };
}
