# shellcheck shell=bash disable=SC2154
# Sets what a program of an environment needs and becomes it. nix/packages/program.nix writes the lines before this:
# bash and its options, `environment` (folder), `program` (path in it), `fixed` (its first arguments), `tools` (folders
# for PATH), and for a GPU `cuda_home`, `arch_list`, `host_compiler`, `runtime`.

# Folders in which distributions without /run/opengl-driver keep the libraries of the driver.
usual_folders=/usr/lib/aarch64-linux-gnu:/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/lib/wsl/lib
IFS=: read -r -a driver_folders <<<"${GLM53_EXL3_DRIVER_FOLDERS:-$usual_folders}"
# Libraries are loaded from here, so it must not be a folder that others can make first.
if [[ -z ${XDG_CACHE_HOME:-${HOME:-}} ]]; then
  printf 'error: home-missing: neither HOME nor XDG_CACHE_HOME is set\n\nhint: export HOME=/path/to/your/home\n' >&2
  exit 1
fi
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/glm53-exl3

# Libraries of the driver in a folder of their own: the folder of the distribution also holds its libc, which would be
# taken instead of the one that everything here was linked with.
link_driver() {
  local folder library links
  for folder in "${driver_folders[@]}"; do
    [[ -e $folder/libcuda.so.1 ]] || continue
    # Named by what the driver's library is now, so that an update of the driver gets new links.
    links=$cache/driver/$(basename "$(readlink -f "$folder/libcuda.so.1")")
    mkdir -p "$links" || return 0
    for library in "$folder"/libcuda.so* "$folder"/libnvidia-*.so* "$folder"/libcudadebugger.so* "$folder"/libnvcuvid.so*; do
      [[ -e $library ]] && ln -sfn "$library" "$links/$(basename "$library")"
    done
    printf '%s\n' "$links"
    return 0
  done
}

use_gpu() {
  local driver=${GLM53_EXL3_DRIVER:-/run/opengl-driver/lib}
  if [[ ! -e $driver/libcuda.so.1 ]]; then
    driver=$(link_driver)
  fi
  if [[ -n $driver ]]; then
    export LD_LIBRARY_PATH=$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    # Triton would ask /sbin/ldconfig, which NixOS does not have.
    export TRITON_LIBCUDA_PATH=$driver
  else
    # Preflight names a missing driver with its remedy; whoever asked for --help needs none.
    printf 'warning: driver-missing: no libcuda.so.1 in /run/opengl-driver/lib or %s\n' "${driver_folders[*]}" >&2
  fi
  # nvidia-smi comes with the driver; a unit of NixOS has a PATH without it.
  export PATH=$PATH:/run/current-system/sw/bin
  # Not what the user has: another release of CUDA breaks what is compiled at run time.
  export CUDA_HOME=$cuda_home CUDA_PATH=$cuda_home
  export CC=$host_compiler/bin/cc CXX=$host_compiler/bin/c++
  export NVCC_PREPEND_FLAGS="-ccbin $host_compiler/bin/c++"
  export TRITON_PTXAS_PATH=$cuda_home/bin/ptxas TRITON_PTXAS_BLACKWELL_PATH=$cuda_home/bin/ptxas
  export TRITON_CUOBJDUMP_PATH=$cuda_home/bin/cuobjdump
  export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-$arch_list}
  export FLASHINFER_CUDA_ARCH_LIST=${FLASHINFER_CUDA_ARCH_LIST:-$arch_list}
}

# What is compiled at run time is of use only to the environment that compiled it.
use_caches() {
  local own=$cache/$runtime
  export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$own/triton}
  export FLASHINFER_WORKSPACE_BASE=${FLASHINFER_WORKSPACE_BASE:-$own/flashinfer}
  export VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$own/vllm}
  export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$own/inductor}
  export DG_JIT_CACHE_DIR=${DG_JIT_CACHE_DIR:-$own/deep_gemm}
  export TILELANG_CACHE_DIR=${TILELANG_CACHE_DIR:-$own/tilelang}
}

# Packages of the user's own Python must not mix with these.
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1
export PATH=$tools${PATH:+:$PATH}
if [[ -n $cuda_home ]]; then
  use_gpu
fi
use_caches
exec "$environment/$program" "${fixed[@]}" "$@"
