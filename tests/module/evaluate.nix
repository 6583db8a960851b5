# The module on a machine that exists only here: options of NixOS that it sets are declared, and nothing more.
#
# nixpkgs' own lib can stand in for the stub: --arg lib 'import DIR/lib'.
{
  lib ? import ../nixpkgs-stub/lib,
  system ? "aarch64-linux",
  # Whether the overlay is there.
  packages ? true,
  # A module, as users write it.
  configuration,
}:
let
  inherit (builtins)
    attrNames
    concatMap
    concatStringsSep
    filter
    isList
    map
    mapAttrs
    toJSON
    ;
  inherit (lib) mkOption types;

  package = name: {
    type = "derivation";
    inherit name;
    outPath = "/nix/store/00000000000000000000000000000000-${name}";
  };

  pkgs = {
    stdenv.hostPlatform = { inherit system; };
    writeText = builtins.toFile;
  }
  // lib.optionalAttrs packages {
    glm53-exl3 = lib.genAttrs [ "serve" "serve-upstream" "demo" ] (name: package "glm53-exl3-${name}");
  };

  of =
    type: default:
    mkOption {
      inherit type default;
    };
  names = of (types.listOf types.str) [ ];
  values = of (types.attrsOf types.anything) { };

  nixos = {
    options = {
      assertions = of (types.listOf types.raw) [ ];
      networking.firewall = {
        allowedTCPPorts = of (types.listOf types.port) [ ];
        interfaces = of (types.attrsOf (
          types.submodule { options.allowedTCPPortRanges = of (types.listOf types.raw) [ ]; }
        )) { };
      };
      # A machine with the driver, unless a configuration says otherwise.
      hardware.graphics.enable = of types.bool true;
      hardware.nvidia.open = of types.bool false;
      services.xserver.videoDrivers = names;
      systemd.services = of (types.attrsOf (types.submodule {
        options = {
          description = of types.str "";
          wantedBy = names;
          wants = names;
          requires = names;
          conflicts = names;
          after = names;
          environment = of (types.attrsOf types.str) { };
          unitConfig = values;
          serviceConfig = values;
        };
      })) { };
    };
  };

  evaluated = lib.evalModules {
    specialArgs = { inherit pkgs; };
    modules = [
      nixos
      ../../nix/module.nix
      configuration
    ];
  };
  inherit (evaluated) config;

  # --- as NixOS writes a unit; it adds PATH, LOCALE_ARCHIVE and TZDIR, and links instead of [Install] ---
  shown =
    value:
    if value == true then
      "true"
    else if value == false then
      "false"
    else
      toString value;
  section =
    title: values':
    let
      lines = concatMap (
        key: map (value: "${key}=${shown value}\n") (if isList values'.${key} then values'.${key} else [ values'.${key} ])
      ) (attrNames values');
    in
    if lines == [ ] then "" else "[${title}]\n${concatStringsSep "" lines}\n";
  joined = list: if list == [ ] then [ ] else concatStringsSep " " list;
  unit =
    service:
    section "Unit" (
      {
        Description = service.description;
        After = joined service.after;
        Wants = joined service.wants;
        Requires = joined service.requires;
        Conflicts = joined service.conflicts;
      }
      // service.unitConfig
    )
    + section "Service" (
      {
        Environment = map (name: toJSON "${name}=${service.environment.${name}}") (attrNames service.environment);
      }
      // service.serviceConfig
    )
    + section "Install" { WantedBy = joined service.wantedBy; };

  # Documentation of every option of ours, without evaluating what a machine would make of it.
  documented =
    options:
    concatMap (
      name:
      let
        option = options.${name};
      in
      if lib.isOption option then
        [
          {
            name = lib.showOption option.loc;
            type = option.type.description;
            description = option.description;
            default = option.defaultText.text or (toJSON option.default or "none");
            example = if option ? example then toJSON option.example else null;
          }
        ]
        ++ documented (removeAttrs (option.type.getSubOptions option.loc) [ "_module" ])
      else
        documented option
    ) (attrNames options);
in
{
  failed = map (each: each.message) (filter (each: !each.assertion) config.assertions);
  units = mapAttrs (_: unit) config.systemd.services;
  inherit (config.systemd) services;
  inherit (config.networking) firewall;
  options = documented evaluated.options.services.glm53-exl3;
}
