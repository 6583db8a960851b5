#!/usr/bin/env bash
# Applies patches to a tree, one by one and without fuzz: apply-patches.sh TREE [PATCH...]
# Stops at the first that does not fit, with its name, the files it was meant for and what can be run instead.
set -euo pipefail

tree=$1
shift
for patch in "$@"; do
  name=$(basename "$patch")
  if ! found=$(patch --directory="$tree" -p1 --fuzz=0 --batch --forward --dry-run <"$patch" 2>&1); then
    files=$(sed -n 's/^+++ [^/]*\/\([^\t]*\).*/\1/p' "$patch" | sort -u | paste -sd ' ')
    printf 'error: patch-does-not-apply: %s does not fit this tree of vLLM; it changes %s\n' "$name" "${files:-no file}" >&2
    printf '  expected: every hunk in its place, without fuzz\n  found: %s\n' "$(printf '%s' "$found" | paste -sd ';' | sed 's/;/; /g')" >&2
    printf '\nhint: nix run .#serve-upstream   # vLLM that needs none of these patches, until this one is remade\n' >&2
    exit 1
  fi
  patch --directory="$tree" -p1 --fuzz=0 --batch --forward --no-backup-if-mismatch --quiet <"$patch"
  printf 'applied %s\n' "$name"
done
