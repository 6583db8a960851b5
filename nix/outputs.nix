# Outputs of the flake.
{
  self,
  nixpkgs,
  # Source trees, by the name of the input.
  inputs,
}:
let
  inherit (nixpkgs) lib;
  systems = [
    "aarch64-linux"
    "x86_64-linux"
  ];
  packagesOf = lib.genAttrs systems (
    system:
    import nixpkgs {
      inherit system;
      # NVIDIA's and torch's wheels are not free software. Ours are the only packages with that licence here.
      config.allowUnfreePredicate = package: lib.hasPrefix "glm53-exl3" (package.pname or package.name);
      overlays = [ self.overlays.default ];
    }
  );
  forSystems = convert: lib.genAttrs systems (system: convert system packagesOf.${system});

  programs = {
    # A GB10 is needed for the two that serve.
    aarch64-linux = [
      "serve"
      "serve-upstream"
      "preflight"
      "fetch"
      "demo"
    ];
    x86_64-linux = [
      "preflight"
      "fetch"
      "demo"
    ];
  };
  packages = {
    aarch64-linux = programs.aarch64-linux ++ [
      "plugin"
      "exllamav3-extension"
      "native-extension"
      "vllm-fork"
      "wheelhouse"
      "wheelhouse-upstream"
    ];
    x86_64-linux = programs.x86_64-linux ++ [ "plugin" ];
  };
  defaults = {
    aarch64-linux = "serve";
    x86_64-linux = "demo";
  };
in
{
  # The stub of nixpkgs has a fetchTree of its own, nixpkgs has none.
  overlays.default = import ./overlay.nix (
    { inherit inputs; } // lib.optionalAttrs (nixpkgs ? fetchTree) { inherit (nixpkgs) fetchTree; }
  );

  packages = forSystems (
    system: pkgs:
    lib.genAttrs packages.${system} (name: pkgs.glm53-exl3.${name})
    // {
      default = pkgs.glm53-exl3.${defaults.${system}};
    }
  );

  apps = forSystems (
    system: pkgs:
    lib.genAttrs programs.${system} (
      name:
      let
        package = pkgs.glm53-exl3.${name};
      in
      {
        type = "app";
        program = lib.getExe package;
        meta = { inherit (package.meta) description; };
      }
    )
    // {
      default = self.apps.${system}.${defaults.${system}};
    }
  );

  nixosModules.default =
    { ... }:
    {
      imports = [ ./module.nix ];
      # Built from the nixpkgs that is pinned here, whatever the machine itself is made of.
      nixpkgs.overlays = [
        (
          final: _prev:
          let
            inherit (final.stdenv.hostPlatform) system;
            packages =
              packagesOf.${system}
                or (throw "glm53-exl3 is for ${lib.concatStringsSep " and " systems}; this machine is ${system}");
          in
          {
            inherit (packages) glm53-exl3;
          }
        )
      ];
    };

  checks = forSystems (
    _system: pkgs:
    import ./checks {
      inherit self pkgs nixpkgs;
    }
  );

  devShells = forSystems (
    _system: pkgs: {
      default = pkgs.callPackage ./shell.nix { };
    }
  );

  # `nix fmt` gives it the whole tree; nixfmt alone would wait for its standard input.
  formatter = forSystems (_system: pkgs: pkgs.nixfmt-tree);

  templates.default = {
    path = ./template;
    description = "A NixOS machine that serves GLM-5.3-Flash";
  };
}
