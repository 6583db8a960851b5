#!/bin/sh
# Finds the Python that the wheels are for and lets it check and install them: sh install.sh [--python PYTHON] [--check] DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^ "python": "cp\([0-9]\)\([0-9]*\)",$/\1.\2/p' "$here/wheelhouse.json" 2>/dev/null || true)
if [ -z "$version" ] || [ ! -f "$here/install.py" ]; then
  printf 'error: files-differ: %s is not a whole wheelhouse\n\nhint: copy the wheelhouse again\n' "$here" >&2
  exit 1
fi
python=python$version
if [ "${1:-}" = --python ]; then
  if [ $# -lt 2 ]; then
    printf 'usage: sh install.sh [--python PYTHON] [--check] DIR\n' >&2
    exit 2
  fi
  python=$2
  shift 2
fi
if ! command -v "$python" >/dev/null 2>&1; then
  printf 'error: python-missing: these wheels are for Python %s, and there is no %s\n\n' "$version" "$python" >&2
  printf 'hint: sudo apt install python%s python%s-venv python%s-dev\n' "$version" "$version" "$version" >&2
  exit 1
fi
exec "$python" "$here/install.py" "$@"
