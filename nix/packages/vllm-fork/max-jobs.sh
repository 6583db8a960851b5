#!/usr/bin/env bash
# How many compilers at once: max-jobs.sh CORES [MEMINFO]
# Memory of a GB10 is one pool for CPU and GPU; a compiler of device code may take 6 GiB of it, and a machine that runs
# out stops answering. So memory bounds the number, not only the cores.
set -euo pipefail

cores=$1
meminfo=${2:-/proc/meminfo}
gib_per_job=6
available_kib=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' "$meminfo")
if [[ -z $available_kib ]]; then
  printf 'error: memory-unknown: %s has no MemAvailable line\n  expected: the /proc/meminfo of Linux\n' "$meminfo" >&2
  exit 1
fi
by_memory=$((available_kib / (gib_per_job * 1024 * 1024)))
jobs=$((cores < by_memory ? cores : by_memory))
printf '%d\n' "$((jobs > 0 ? jobs : 1))"
