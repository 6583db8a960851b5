# Pinned wheels as Nix fetches them, without anything that is made of them.
{
  # System whose wheels are meant.
  system,
  # Distributions; all of the pins where none is named.
  names ? [ ],
}:
let
  pkgs = import ../nixpkgs-stub { inherit system; };
  inherit (pkgs) lib;
  pins = builtins.fromJSON (builtins.readFile ../../nix/pins.json);
  tools = import ../../nix/lib/wheels.nix { inherit (pkgs) lib fetchPypi linkFarm; };
  wanted = if names == [ ] then pins.wheels else lib.genAttrs names (name: pins.wheels.${name});
in
lib.concatMap (
  name:
  lib.concatMap (
    version:
    let
      files = wanted.${name}.${version};
    in
    lib.optional (files ? any || files ? ${system}) (
      tools.fetchPinned {
        inherit pins system version;
        distribution = name;
      }
    )
  ) (builtins.attrNames wanted.${name})
) (builtins.attrNames wanted)
