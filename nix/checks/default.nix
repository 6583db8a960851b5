# Checks of the flake. Each is named for what it proves; docs/verify-on-spark.md says what none of them can.
{
  # The flake itself.
  self,
  pkgs,
  nixpkgs,
}:
let
  inherit (pkgs) lib runCommand;
  scope = pkgs.glm53-exl3;
  inherit (scope) python wheelTools locks;
  inherit (pkgs.stdenv.hostPlatform) system;

  # A command with Python in an environment of wheels, for tools that need more than the standard library.
  script =
    name: distributions: text:
    runCommand "glm53-exl3-check-${name}" { nativeBuildInputs = [ python ]; } ''
      for wheel in ${
        lib.concatMapStringsSep " " (
          distribution: "${wheelTools.fetch (wheelTools.entries { lock = locks.demo; inherit system; }).${distribution}}"
        ) distributions
      }; do python3 -m zipfile -e $wheel site; done
      export PYTHONPATH=$PWD/site PYTHONDONTWRITEBYTECODE=1
      ${text}
      touch $out
    '';

  # Evaluating the derivation of everything is what this proves; nothing of it is built.
  evaluated =
    outputs:
    lib.mapAttrsToList (
      name: output: "${name} ${builtins.unsafeDiscardStringContext (output.drvPath or output.program)}"
    ) outputs;

  attributes = builtins.fromJSON (builtins.readFile ../../tests/nixpkgs-surface.json);
  missing =
    builtins.filter (path: !(lib.hasAttrByPath path pkgs)) (map (lib.splitString ".") attributes.pkgs)
    ++ builtins.filter (path: !(lib.hasAttrByPath path lib)) (map (lib.splitString ".") attributes.lib);
in
{
  # flake.nix and flake.lock name the revisions of the pins.
  inputs = script "inputs" [ ] "python3 ${self}/tools/flake/inputs.py --check --root ${self}";

  # Locks hold the pinned wheels, and whatever a wheel asks for.
  locks = script "locks" [ "packaging" ] "python3 ${self}/tools/locks/check.py";

  # Every package and program of this system evaluates.
  evaluation = runCommand "glm53-exl3-check-evaluation" {
    derivations = evaluated self.packages.${system} ++ evaluated self.apps.${system};
  } "printf '%s\\n' $derivations > $out";

  # The attributes of nixpkgs that this repository relies on exist. With the stub of tests/ it only proves that the list is
  # that of the stub.
  nixpkgs-surface =
    if missing != [ ] then
      throw "nixpkgs has no ${
        lib.concatMapStringsSep ", " (lib.concatStringsSep ".") missing
      }, which tests/nixpkgs-surface.json lists; pin a nixpkgs that has them or change what needs them"
    else
      runCommand "glm53-exl3-check-nixpkgs-surface" { } "touch $out";

  # Command line, wheel and environment are built, and preflight answers. It may find this machine wanting: that is code 1.
  preflight = runCommand "glm53-exl3-check-preflight" { } ''
    export HOME=$TMPDIR
    code=0
    ${lib.getExe scope.preflight} --fast --json > report.json || code=$?
    test $code -le 1
    grep -q '"fast": true' report.json
    mv report.json $out
  '';
}
// import ./module.nix { inherit pkgs nixpkgs self; }
