# shellcheck shell=bash disable=SC2154
# Fetches one wheel through pip, which knows its index; Nix compares the hash.
set -euo pipefail
PATH=/usr/bin:/bin
export HOME=$TMPDIR
options=()
if [[ $platform != any || $abi != none ]]; then
  options=(--python-version 3.12 --implementation cp --abi "$abi")
  IFS=. read -r -a platforms <<<"$platform"
  for one in "${platforms[@]}"; do options+=(--platform "$one"); done
fi
python3 -m pip download --quiet --no-cache-dir --disable-pip-version-check --no-deps --only-binary=:all: \
  "${options[@]}" --dest wheels "$pname==$version"
mv wheels/*.whl "$out"
