# Options of one instance of services.glm53-exl3.
{
  lib,
  # As in nix/pins.json.
  packs,
  # Options of nix/module/settings.nix.
  settings,
  # Default of `package`, by the name of the scope's program.
  program,
}:
{ config, ... }:
let
  inherit (lib) literalExpression mkOption types;

  repository = types.submodule {
    options = {
      repository = mkOption {
        type = types.strMatching "[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*";
        example = "vcruz305/GLM-5.3-Flash-EXL3-K2";
        description = "Repository on the Hugging Face Hub.";
      };
      commit = mkOption {
        type = types.nullOr (types.strMatching "[0-9a-f]{40}");
        default = null;
        description = "Commit of it; null follows its branch `main`, which is looked at on each boot.";
      };
    };
  };

  source = types.oneOf [
    (types.enum (builtins.attrNames packs))
    types.path
    repository
  ];
in
{
  options = {
    autoStart = mkOption {
      type = types.bool;
      default = true;
      description = "Whether it is started at boot.";
    };

    runtime = mkOption {
      type = types.enum [
        "fork"
        "upstream"
      ];
      default = "fork";
      description = "Which vLLM runs. `fork` is compiled from source, `upstream` is a release; see docs/serve.md.";
    };

    gpu = mkOption {
      type = types.bool;
      default = true;
      description = "Whether it runs on the GPU. Without, it sees no device at all: that is for the demo pack.";
    };

    package = mkOption {
      type = types.package;
      default = program (
        if !config.gpu then
          "demo"
        else if config.runtime == "fork" then
          "serve"
        else
          "serve-upstream"
      );
      defaultText = literalExpression "pkgs.glm53-exl3.serve, serve-upstream or demo, by runtime and gpu";
      description = "Package whose `bin/glm53-exl3` is the command of the runtime.";
    };

    pack = mkOption {
      type = types.nullOr source;
      default = null;
      example = "K2";
      description = "Weights: a folder, a name of the pins, or a repository. What is no folder is fetched before the server starts, below `/var/lib/glm53-exl3/packs`.";
    };

    draft = mkOption {
      type = types.nullOr source;
      default = null;
      example = "DFlash2";
      description = "Draft model for the speculation `dflash2`, as `pack`.";
    };

    acceptLicence = mkOption {
      type = types.bool;
      default = false;
      description = "Accept a licence with restrictions of what is fetched, such as that of DFlash2.";
    };

    tokenFile = mkOption {
      type = types.nullOr types.path;
      default = null;
      example = "/run/secrets/hub-token";
      description = "File with an access token of the Hub. Only root has to be able to read it; the fetch unit gets it as a credential.";
    };

    apiKeyFile = mkOption {
      type = types.nullOr types.path;
      default = null;
      example = "/run/secrets/glm53-exl3-key";
      description = "File with the key that clients must send. Only root has to be able to read it; the server gets it as a credential.";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Open the port of the API on all interfaces.";
    };

    plannedMemoryGiB = mkOption {
      type = types.nullOr types.numbers.nonnegative;
      default = null;
      example = 104;
      description = "Memory that the server takes, as `glm53-exl3 plan` says; needed where `exclusiveGpu` is off.";
    };

    cluster.interface = mkOption {
      # What Linux allows, less what a unit's environment would read as syntax.
      type = types.nullOr (types.strMatching "[A-Za-z0-9_.:-]{1,15}");
      default = null;
      example = "enp1s0f0np0";
      description = "Interface of the link to the other machines, for NCCL and Gloo. Ports 1024 and up are opened on it, since both choose theirs freely: whoever is on that link can take part in the model.";
    };

    supplementaryGroups = mkOption {
      type = types.listOf types.str;
      default = [ ];
      description = "Further groups, for a pack that only a group may read.";
    };

    settings = mkOption {
      type = types.submodule { options = settings; };
      default = { };
      description = "Settings of `serve`. What is null or left at its default is not written to its file.";
    };
  };
}
