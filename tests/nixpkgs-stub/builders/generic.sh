# shellcheck shell=bash disable=SC2154
# The phases of a derivation in nixpkgs' order, as far as this repository uses them. Runs with Debian's tools.
set -euo pipefail
PATH=/usr/bin:/bin
for input in ${nativeBuildInputs:-}; do PATH=$input/bin:$PATH; done
# As the compiler of stdenv does, whatever the derivation's own environment says.
export PATH HOME=$TMPDIR CC=gcc CXX=g++

# Hooks are variables with commands.
runHook() {
  eval "${!1:-}"
}

run_phase() {
  [[ -z $1 && -n $3 ]] || return 0
  printf 'phase: %s\n' "$2"
  eval "$3"
}

if [[ -z ${dontUnpack:-} ]]; then
  cp -r "$src" source
  chmod -R u+w source
  cd source
fi
run_phase "${dontPatch:-}" patch "${patchPhase:-}"
run_phase "" post-patch "${postPatch:-}"
run_phase "${dontConfigure:-}" configure "${preConfigure:-}${configurePhase:-}"
run_phase "${dontBuild:-}" build "${buildPhase:-}"
[[ -z ${doCheck:-} ]] || run_phase "" check "${checkPhase:-}"
run_phase "${dontInstall:-}" install "${installPhase:-}"
[[ -z ${doInstallCheck:-} ]] || run_phase "" install-check "${installCheckPhase:-}"
