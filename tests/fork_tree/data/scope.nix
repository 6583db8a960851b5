# The scope of the overlay with the stub of nixpkgs, and with stand-ins or given trees for the sources.
{
  system ? "x86_64-linux",
  # Tree of vLLM.
  vllm ? ../../sources/vllm,
  patchFolder ? ../../../patches/vllm,
}:
let
  pkgs = import ../../nixpkgs-stub {
    inherit system;
    overlays = [
      (import ../../../nix/overlay.nix {
        inputs = {
          vllm-src = vllm;
          exllamav3-src = throw "not needed for vLLM";
        };
      })
    ];
  };
  inherit (pkgs) lib;
  scope = pkgs.glm53-exl3;
  standIns = lib.genAttrs (builtins.attrNames scope.pins.sources) (
    name: ../../sources + "/${lib.removeSuffix "-src" name}"
  );
  callPackage = pkgs.newScope (
    scope
    // {
      inherit callPackage;
      sources = standIns // {
        vllm-src = vllm;
      };
    }
  );
in
rec {
  source = callPackage ../../../nix/packages/vllm-fork/source.nix { inherit patchFolder; };
  fork = callPackage ../../../nix/packages/vllm-fork.nix { vllm-fork-source = source; };
}
