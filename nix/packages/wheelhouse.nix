# For machines without Nix: the wheels that are compiled here, with an installer that checks them.
{
  lib,
  runCommand,
  python,
  plugin,
  exllamav3-extension,
  native-extension,
  vllm-fork,
  stdenv,
  # `fork`, or `upstream` for one that is made without compiling vLLM.
  runtime ? "fork",
  # Folders with the licence of a source whose tree has none, by its name without -src.
  licences ? { },
}:
let
  isFork = runtime == "fork";
  built = [
    plugin
    exllamav3-extension
    native-extension
  ]
  ++ lib.optional isFork vllm-fork;

  # Other tools of the repository must not make it anew.
  tool = builtins.path {
    path = ../../tools/wheelhouse;
    name = "wheelhouse-tool";
    filter = path: _type: builtins.match ".*\\.(py|sh)" (baseNameOf path) != null;
  };
  # The plugin's wheel has no licence file of its own.
  ours = builtins.path {
    path = ../..;
    name = "glm53-exl3-licence";
    filter =
      path: type:
      type == "regular"
      && builtins.elem (baseNameOf path) [
        "LICENSE"
        "NOTICE"
      ];
  };
  terms = {
    glm53-exl3 = ours;
  }
  // licences;
in
runCommand "glm53-exl3-wheelhouse-${runtime}"
  {
    nativeBuildInputs = [ python ];
    meta = {
      description = "Wheels of the ${runtime} runtime with hashed requirements and an installer, for machines without Nix";
      # The wheels' own; NOTICE lists them with those of what is compiled in.
      license = [
        lib.licenses.asl20
        lib.licenses.mit
      ];
      platforms = [ "aarch64-linux" ];
    };
  }
  ''
    PYTHONDONTWRITEBYTECODE=1 python3 ${tool}/make.py --output $out \
      --lock ${../locks + "/${runtime}.json"} --pins ${../../python/src/glm53_exl3/pins.json} \
      --system ${stdenv.hostPlatform.system} \
      ${
        lib.concatStringsSep " " (lib.mapAttrsToList (name: tree: "--licences ${name}=${tree}") terms)
      } ${lib.optionalString isFork "--compiled-in ${vllm-fork}/licenses"} \
      ${lib.concatMapStringsSep " " (package: "${package}/*.whl") built}
  ''
