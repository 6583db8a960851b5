#!/bin/bash
# systemd as process 1 of namespaces of its own, on a copy of this machine's root that is thrown away. As root:
#   systemd_container.sh FOLDER
# FOLDER/units is all that /etc/systemd/system has; FOLDER/out is /out inside. Ends when a unit calls `systemctl exit`.
# /proc/sys and /sys are read-only inside, and what would set up the machine is masked.
set -euo pipefail
folder=$(realpath "$1")
hierarchy=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
group=$hierarchy/glm53-exl3-test-$$
mkdir "$group"
trap 'find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true' EXIT

# shellcheck disable=SC2329 # called by the shell below, as the functions after it
inside() {
  set -euo pipefail
  folder=$1
  mount --make-rprivate /
  mkdir -p "$folder/root"
  mount -t tmpfs tmpfs "$folder/root"
  mkdir "$folder"/root/{upper,work,merged}
  local root=$folder/root/merged
  mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/root/upper,workdir=$folder/root/work" "$root"
  mount -t proc proc "$root/proc"
  mount --bind "$root/proc/sys" "$root/proc/sys"
  mount -o remount,ro,bind "$root/proc/sys"
  mount -t sysfs -o ro sysfs "$root/sys"
  # Where it is of the first version, it has no folder for the second.
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  devices "$root/dev"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mkdir -p "$root/out"
  mount --bind "$folder/out" "$root/out"
  units "$root/etc/systemd/system"
  : >"$root/etc/machine-id"
  cd "$root"
  pivot_root . mnt
  umount -l /mnt
  # Otherwise systemd's credentials would stay in the namespace of the process that makes them.
  mount --make-rshared /
  unset NOTIFY_SOCKET
  container=custom exec /lib/systemd/systemd --system --unit=test.target --log-target=journal --show-status=no
}

# shellcheck disable=SC2329
devices() {
  local name
  mount -t tmpfs -o mode=755 tmpfs "$1"
  mkdir "$1"/{shm,pts,mqueue,hugepages}
  for name in null zero full random urandom tty; do
    touch "$1/$name"
    mount --bind "/dev/$name" "$1/$name"
  done
  for name in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${name%%:*}" "$1/${name#*:}"
  done
  ln -s /proc/self/fd "$1/fd"
  ln -s pts/ptmx "$1/ptmx"
  mount -t tmpfs -o mode=1777 tmpfs "$1/shm"
  mount -t devpts -o newinstance,mode=620,ptmxmode=666 devpts "$1/pts"
  mount -t mqueue mqueue "$1/mqueue"
}

# shellcheck disable=SC2329
units() {
  local name
  rm -rf "${1:?}"/*
  cp -r "$folder"/units/. "$1/"
  for name in sysctl udevd udev-trigger modules-load random-seed tmpfiles-setup-dev binfmt remount-fs update-utmp \
    journal-flush logind; do
    ln -s /dev/null "$1/systemd-$name.service"
  done
  for name in networking.service ifupdown-pre.service apparmor.service dev-hugepages.mount dev-mqueue.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount \
    proc-sys-fs-binfmt_misc.automount systemd-ask-password-console.path; do
    ln -s /dev/null "$1/$name"
  done
}

export folder
export -f inside devices units
echo $$ >"$group/cgroup.procs"
# shellcheck disable=SC2016 # expanded by the inner shell
unshare --pid --fork --kill-child --mount --uts --ipc --cgroup bash -c 'inside "$1"' inside "$folder" || code=$?
echo $$ >"$hierarchy/cgroup.procs"
exit "${code:-0}"
