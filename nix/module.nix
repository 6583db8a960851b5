# services.glm53-exl3: servers of EXL3 packs as hardened units. docs/nixos.md has examples, docs/options.md all options.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkIf mkOption types;

  cfg = config.services.glm53-exl3;
  units = import ./units.nix;
  text = import ./module/text.nix;
  settings = import ./module/settings.nix { inherit lib; };
  inherit (builtins.fromJSON (builtins.readFile ./pins.json)) packs;
  sources = import ./module/sources.nix {
    inherit packs;
    folder = units.packs;
  };
  names = builtins.attrNames cfg.instances;
  each = make: builtins.map (name: make name cfg.instances.${name}) names;
  setting = instance: settings.effective instance.settings;

  program =
    name:
    (pkgs.glm53-exl3 or (throw "services.glm53-exl3 takes its packages from pkgs.glm53-exl3, which is not there. Import nixosModules.default of the flake, add its overlay, or set `package` of the instance."))
    .${name};

  fetchesOf =
    instance:
    builtins.filter (source: source != null) (
      builtins.map (sources.fetchOf instance.acceptLicence) (
        builtins.filter (source: source != null) [
          instance.pack
          instance.draft
        ]
      )
    );

  # Two fetches must not write to one folder at once.
  fetchAfter =
    name: instance:
    let
      directories = builtins.map (source: source.directory) (fetchesOf instance);
      shares = other: builtins.any (source: builtins.elem source.directory directories) (fetchesOf cfg.instances.${other});
    in
    builtins.filter (other: other < name && shares other) names;

  settingsText =
    instance:
    text.toToml (
      settings.stated instance.settings
      // {
        inherit (instance) runtime;
        pack = sources.pathOf instance.pack;
      }
      // (if instance.draft == null then { } else { draft = sources.pathOf instance.draft; })
    );

  unitsOf =
    name: instance:
    let
      pathsRead = builtins.map sources.pathOf (
        builtins.filter (source: source != null) [
          instance.pack
          instance.draft
          instance.settings.chat-template
        ]
      );
      asString = path: if path == null then null else toString path;
    in
    units.unitsOf {
      inherit name;
      inherit (instance)
        autoStart
        gpu
        runtime
        ;
      inherit (instance.cluster) interface;
      description = setting instance "served-name";
      command = "${instance.package}/bin/glm53-exl3";
      build = builtins.substring 0 12 (builtins.hashString "sha256" (builtins.unsafeDiscardStringContext "${instance.package}"));
      settingsFile = "${pkgs.writeText "glm53-exl3-${name}.toml" (settingsText instance)}";
      sources = fetchesOf instance;
      fetchAfter = fetchAfter name instance;
      apiKeyFile = asString instance.apiKeyFile;
      tokenFile = asString instance.tokenFile;
      host = setting instance "host";
      nodes = setting instance "nodes";
      stopSeconds = setting instance "limit-stop";
      conflicts =
        if instance.gpu && cfg.exclusiveGpu then
          builtins.filter (other: other != name && cfg.instances.${other}.gpu) names
        else
          [ ];
      readPaths = builtins.filter units.isHidden pathsRead;
      groups = instance.supplementaryGroups;
    };
in
{
  options.services.glm53-exl3 = {
    enable = lib.mkEnableOption "servers of GLM-5.3-Flash from EXL3 weights";

    exclusiveGpu = mkOption {
      type = types.bool;
      default = true;
      description = "Whether an instance on the GPU is stopped when another is started. One server takes nearly all memory of a DGX Spark.";
    };

    memoryGiB = mkOption {
      type = types.numbers.nonnegative;
      # 121.69 GiB of a GB10 less the 8 GiB that the memory plan keeps free.
      default = 113;
      description = "Memory that all instances on the GPU may plan together, where `exclusiveGpu` is off.";
    };

    instances = mkOption {
      type = types.attrsOf (
        types.submodule (
          import ./module/instance.nix {
            inherit lib packs program;
            settings = settings.options;
          }
        )
      );
      default = { };
      description = "Servers by name: `glm53-exl3-NAME.service`, and `glm53-exl3-fetch-NAME.service` where something is fetched.";
    };
  };

  config = mkIf cfg.enable {
    assertions = import ./module/assertions.nix {
      config = cfg;
      inherit (pkgs.stdenv.hostPlatform) system;
      # Every NixOS has the option; its value is false unless somebody asked for graphics.
      graphics = config.hardware.graphics.enable or true;
      inherit units;
      inherit (settings) effective;
    };

    systemd.services = lib.mkMerge (each unitsOf);

    networking.firewall = {
      allowedTCPPorts = builtins.concatLists (
        each (_: instance: if instance.openFirewall then [ (setting instance "port") ] else [ ])
      );
      # NCCL and Gloo listen on ports that the kernel chooses; without an interface none is opened.
      interfaces = lib.mkMerge (
        each (
          _: instance:
          if instance.cluster.interface == null then
            { }
          else
            {
              ${instance.cluster.interface}.allowedTCPPortRanges = [
                {
                  from = 1024;
                  to = 65535;
                }
              ];
            }
        )
      );
    };
  };
}
