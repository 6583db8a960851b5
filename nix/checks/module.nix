# The NixOS module: its example configurations evaluate and no assertion of ours fails.
{
  self,
  pkgs,
  nixpkgs,
}:
let
  inherit (pkgs) lib runCommand;
  cases = import ../../tests/module/cases.nix // {
    template = import ../template/configuration.nix;
  };
  evaluated = lib.mapAttrs (
    name: configuration:
    import ../../tests/module/evaluate.nix {
      inherit lib configuration;
      # The demo needs no GPU; everything else is for a GB10.
      system = if name == "demo" then "x86_64-linux" else "aarch64-linux";
    }
  ) cases;
  failed = lib.concatMap (name: map (message: "${name}: ${message}") evaluated.${name}.failed) (
    builtins.attrNames evaluated
  );
in
{
  module =
    if failed != [ ] then
      throw "assertions of services.glm53-exl3 fail: ${lib.concatStringsSep "; " failed}"
    else
      runCommand "glm53-exl3-check-module" {
        units = builtins.unsafeDiscardStringContext (
          lib.concatMapStringsSep "\n" (
            name: lib.concatStringsSep "\n" (builtins.attrValues evaluated.${name}.units)
          ) (builtins.attrNames evaluated)
        );
        passAsFile = [ "units" ];
      } "cp $unitsPath $out";
}
# Needs nixpkgs itself, so it is not there with the stub of tests/.
// lib.optionalAttrs (nixpkgs.lib ? nixosSystem) {
  nixos =
    let
      machine = nixpkgs.lib.nixosSystem {
        system = "aarch64-linux";
        modules = [
          self.nixosModules.default
          ../template/configuration.nix
          {
            # The least that a machine must have to evaluate.
            nixpkgs.config.allowUnfree = true;
            boot.loader.grub.enable = false;
            fileSystems."/".device = "/dev/null";
            system.stateVersion = "26.05";
          }
        ];
      };
    in
    runCommand "glm53-exl3-check-nixos" {
      machine = builtins.unsafeDiscardStringContext machine.config.system.build.toplevel.drvPath;
    } "echo $machine > $out";
}
