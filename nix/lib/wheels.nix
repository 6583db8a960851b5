# Wheels of a lock, as fixed-output derivations and as a folder of them under their own names.
{
  lib,
  fetchPypi,
  linkFarm,
}:
let
  fileName = entry: "${entry.distribution}-${entry.version}-${entry.python}-${entry.abi}-${entry.platform}.whl";

  # Distributions that a wheel asks for by name; conditions were decided when the lock was made.
  requiredNames =
    entry:
    map (
      requirement: normalise (builtins.head (builtins.match "([A-Za-z0-9._-]+).*" requirement))
    ) entry.requires;

  # Names in locks are lower case with dashes.
  normalise = name: builtins.replaceStrings [ "_" "." ] [ "-" "-" ] (lib.toLower name);
in
rec {
  inherit fileName;

  # The wheel that `entry` of a lock or of the pins describes.
  fetch =
    entry:
    fetchPypi {
      pname = entry.distribution;
      inherit (entry)
        version
        python
        abi
        platform
        hash
        ;
      format = "wheel";
      # The first part of a wheel's address is its Python tag.
      dist = entry.python;
    };

  # The pinned wheel of a distribution for a system; the version may be left out where only one is pinned.
  fetchPinned =
    {
      pins,
      system,
      distribution,
      version ? null,
    }:
    let
      versions =
        pins.wheels.${distribution}
          or (throw "pins.json pins no wheel of `${distribution}`; there are: ${lib.concatStringsSep ", " (builtins.attrNames pins.wheels)}");
      only =
        if version != null then
          version
        else if builtins.length (builtins.attrNames versions) == 1 then
          builtins.head (builtins.attrNames versions)
        else
          throw "pins.json pins `${distribution}` in ${lib.concatStringsSep " and " (builtins.attrNames versions)}; say which is meant";
      files =
        versions.${only}
          or (throw "pins.json pins `${distribution}` in ${lib.concatStringsSep ", " (builtins.attrNames versions)}, not ${only}; run tools/locks/refresh.py after changing a version");
      file =
        files.any or files.${system}
          or (throw "pins.json has no wheel of `${distribution}` ${only} for ${system}, only for ${lib.concatStringsSep ", " (builtins.attrNames files)}");
    in
    fetch (file // { version = only; });

  # Entries of a lock for a system.
  entries =
    { lock, system }:
    lock.systems.${system}
      or (throw "the lock of `${lock.runtime}` holds wheels for ${lib.concatStringsSep ", " (builtins.attrNames lock.systems)}, not for ${system}");

  # The part of a lock that `roots` need.
  closure =
    { lock, system, roots }:
    let
      all = entries { inherit lock system; };
      reached = builtins.genericClosure {
        startSet = map (name: { key = name; }) roots;
        operator =
          { key }:
          map (name: { key = name; }) (
            builtins.filter (name: all ? ${name}) (
              requiredNames (
                all.${key} or (throw "the lock of `${lock.runtime}` has no `${key}` for ${system}; run tools/locks/refresh.py")
              )
            )
          );
      };
    in
    builtins.listToAttrs (
      map (one: {
        name = one.key;
        value = all.${one.key};
      }) reached
    );

  # A folder with the wheels of `chosen`, as attributes of a lock.
  folder =
    name: chosen:
    linkFarm "glm53-exl3-wheels-${name}" (
      map (entry: {
        name = fileName entry;
        path = fetch entry;
      }) (builtins.attrValues chosen)
    );
}
