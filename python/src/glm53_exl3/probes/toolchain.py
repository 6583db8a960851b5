"""Compilers that FlashInfer, DeepGEMM and Triton call while the server starts, and what earlier runs left behind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from glm53_exl3.pins import load_pins
from glm53_exl3.probes.host import Host
from glm53_exl3.probes.result import Check, CheckResult
from glm53_exl3.probes.units import version_numbers

NVCC: Final = Check("nvcc", "nvcc", "runtime")
CUDA_HOME: Final = Check("cuda-home", "CUDA_HOME", "runtime")
HOST_COMPILER: Final = Check("host-compiler", "C++ compiler", "runtime")
NINJA: Final = Check("ninja", "ninja", "runtime")
JIT_CACHE: Final = Check("flashinfer-jit-cache", "FlashInfer's compiled kernels", "runtime")
LOCKS: Final = Check("extension-locks", "locks of torch extensions", "runtime")
LDCONFIG: Final = Check("triton-libcuda", "how Triton finds libcuda", "runtime")
#: All of this module's.
TOOLCHAIN: Final = (NVCC, CUDA_HOME, HOST_COMPILER, NINJA, LDCONFIG, JIT_CACHE, LOCKS)

#: Newest GCC that nvcc 13.0 takes: `__GNUC__ > 15` is an error in its crt/host_config.h.
_NEWEST_GCC: Final = 15
#: torch 2.13's headers are C++17 with library features of GCC 9.
_OLDEST_GCC: Final = 9
#: Building an extension takes minutes; a lock older than this is left over.
_STALE_SECONDS: Final = 30 * 60.0
_RELEASE: Final = re.compile(r"release (\d+\.\d+)")
_CUDA_HOME_LINE: Final = re.compile(r"^cuda_home = (.+)$", re.MULTILINE)
_FOLDER_VERSION: Final = re.compile(r"cuda(?:[-_]toolkit)?[-_/](\d+\.\d+)")


@dataclass(frozen=True)
class ToolchainFacts:
    """Compilers.

    Attributes:
        nvcc: path of the nvcc that would be used, None when there is none.
        nvcc_on_path: whether it was found on PATH.
        nvcc_version: as `13.0`, empty when it does not say.
        cuda_home: CUDA_HOME or CUDA_PATH as set, empty when unset.
        cuda_home_version: version of the nvcc in it, empty when there is none.
        toolkit: folder that FlashInfer takes for the toolkit: CUDA_HOME, else two up from nvcc; empty without either.
        has_headers: whether the CUDA headers are in it.
        whole_toolkit: folder of a toolkit that has its headers, empty when none was found.
        compiler: path of the host compiler, None when there is none.
        compiler_version: its version, empty when it does not say.
        ninja: path of ninja, None when there is none.
        ldconfig: whether `/sbin/ldconfig` is there.
        triton_libcuda: TRITON_LIBCUDA_PATH, empty when unset.
    """

    nvcc: str | None
    nvcc_on_path: bool
    nvcc_version: str
    cuda_home: str
    cuda_home_version: str
    toolkit: str
    has_headers: bool
    whole_toolkit: str
    compiler: str | None
    compiler_version: str
    ninja: str | None
    ldconfig: bool
    triton_libcuda: str


def read_toolchain(host: Host, python: str) -> ToolchainFacts:
    """Compilers of a host, searched for where FlashInfer and torch search, then where CUDA is usually put."""
    variables = host.variables()
    cuda_home = variables.get("CUDA_HOME") or variables.get("CUDA_PATH") or ""
    on_path = host.which("nvcc")
    folders = [*([cuda_home] if cuda_home else []), f"/usr/local/cuda-{load_pins().cuda}", "/usr/local/cuda"]
    elsewhere = next((path for folder in folders if (path := host.which(f"{folder}/bin/nvcc"))), None)
    nvcc = on_path or elsewhere
    # The order of nvcc itself; FlashInfer passes CC on as -ccbin.
    compiler = next(
        (
            path
            for name in (variables.get("NVCC_CCBIN"), variables.get("CC"), "g++")
            if name and (path := host.which(name))
        ),
        None,
    )
    toolkit = _toolkit(cuda_home, nvcc)
    resolved = _toolkit("", host.real_path(nvcc)) if nvcc else ""
    return ToolchainFacts(
        nvcc=nvcc,
        nvcc_on_path=on_path is not None,
        nvcc_version=_nvcc_version(host, nvcc),
        cuda_home=cuda_home,
        cuda_home_version=_nvcc_version(host, host.which(f"{cuda_home}/bin/nvcc")) if cuda_home else "",
        toolkit=toolkit,
        has_headers=_has_headers(host, toolkit),
        whole_toolkit=next((folder for folder in (resolved, *folders) if _has_headers(host, folder)), ""),
        compiler=compiler,
        compiler_version=_gcc_version(host, compiler),
        ninja=host.which("ninja") or host.which(f"{python.rpartition('/')[0] or '.'}/ninja"),
        ldconfig=host.which("/sbin/ldconfig") is not None,
        triton_libcuda=variables.get("TRITON_LIBCUDA_PATH", ""),
    )


def _toolkit(cuda_home: str, nvcc: str | None) -> str:
    """Where FlashInfer looks for the toolkit (get_cuda_path of its jit/cpp_ext.py)."""
    return cuda_home or (nvcc or "").rpartition("/bin/")[0]


def _has_headers(host: Host, toolkit: str) -> bool:
    return bool(toolkit and host.paths(f"{toolkit}/include/cuda_runtime.h"))


def _nvcc_version(host: Host, nvcc: str | None) -> str:
    output = host.run(nvcc, "--version") if nvcc else None
    match = _RELEASE.search(output.stdout) if output else None
    return match.group(1) if match else ""


def _gcc_version(host: Host, compiler: str | None) -> str:
    output = host.run(compiler, "-dumpfullversion", "-dumpversion") if compiler else None
    return output.stdout.strip() if output and not output.returncode else ""


def _install() -> str:
    return f"DGX OS: sudo apt install cuda-toolkit-{load_pins().cuda.replace('.', '-')}; with Nix: nix run .#serve"


def check_nvcc(facts: ToolchainFacts) -> CheckResult:
    """Without nvcc FlashInfer has no backend, which vLLM reports as "no valid attention backend"."""
    wanted, install = load_pins().cuda, _install()
    if facts.nvcc is None:
        return NVCC.fail("not found on PATH, in CUDA_HOME or in /usr/local/cuda", install)
    folder = facts.nvcc.rpartition("/")[0]
    measured = f"{facts.nvcc_version or 'unknown version'} ({facts.nvcc})"
    if not facts.nvcc_on_path:
        return NVCC.fail(
            f"{measured} is not on PATH", f"export PATH={folder}:$PATH CUDA_HOME={folder.removesuffix('/bin')}"
        )
    if facts.nvcc_version == wanted:
        return NVCC.ok(measured)
    if version_numbers(facts.nvcc_version)[:1] == version_numbers(wanted)[:1]:
        return NVCC.warn(
            f"{measured}; torch is built with {wanted}, and mixed 13.x packages have broken DeepGEMM's compiler",
            install,
        )
    return NVCC.fail(f"{measured}, not {wanted}", install)


def check_cuda_home(facts: ToolchainFacts) -> CheckResult:
    """FlashInfer compiles with CUDA_HOME, whatever nvcc is on PATH, and with the headers in it."""
    if not facts.toolkit:
        return CUDA_HOME.skip("no nvcc")
    measured = f"{facts.toolkit}{'' if facts.cuda_home else ' (unset, that of nvcc)'}"
    hint = f"export CUDA_HOME={facts.whole_toolkit}" if facts.whole_toolkit else _install()
    if facts.cuda_home and facts.nvcc_on_path and facts.cuda_home_version != facts.nvcc_version:
        there = facts.cuda_home_version or "no nvcc"
        return CUDA_HOME.fail(f"{measured} has {there}, but nvcc on PATH is {facts.nvcc_version}", hint)
    if not facts.has_headers:
        return CUDA_HOME.fail(f"{measured} has no include/cuda_runtime.h", hint)
    return CUDA_HOME.ok(measured)


def check_host_compiler(facts: ToolchainFacts) -> CheckResult:
    """The GCC has to be one that nvcc knows."""
    hint = "sudo apt install g++-13 && export CC=gcc-13 CXX=g++-13 NVCC_CCBIN=g++-13"
    if facts.compiler is None:
        return HOST_COMPILER.fail("no g++ on PATH", "sudo apt install g++")
    measured = f"{facts.compiler_version or 'unknown version'} ({facts.compiler})"
    major = (version_numbers(facts.compiler_version) or (0,))[0]
    if not major:
        return HOST_COMPILER.warn(f"{measured}: does not say its version", hint)
    if _OLDEST_GCC <= major <= _NEWEST_GCC:
        return HOST_COMPILER.ok(measured)
    return HOST_COMPILER.fail(f"{measured}; nvcc {load_pins().cuda} takes GCC {_OLDEST_GCC} to {_NEWEST_GCC}", hint)


def check_ninja(facts: ToolchainFacts) -> CheckResult:
    """FlashInfer builds with ninja."""
    if facts.ninja is not None:
        return NINJA.ok(facts.ninja)
    return NINJA.fail(
        "not found on PATH or beside the interpreter", "pip install ninja, or: sudo apt install ninja-build"
    )


def check_ldconfig(facts: ToolchainFacts) -> CheckResult:
    """Triton asks /sbin/ldconfig where libcuda is, which NixOS has not."""
    if facts.triton_libcuda:
        return LDCONFIG.ok(f"TRITON_LIBCUDA_PATH={facts.triton_libcuda}")
    if facts.ldconfig:
        return LDCONFIG.ok("/sbin/ldconfig")
    return LDCONFIG.fail(
        "no /sbin/ldconfig and no TRITON_LIBCUDA_PATH", "export TRITON_LIBCUDA_PATH=/run/opengl-driver/lib"
    )


@dataclass(frozen=True)
class CacheFacts:
    """What earlier runs left behind.

    Attributes:
        jit_folder: FlashInfer's cache.
        jit_homes: toolkit that each cached kernel was built by (link resolved), with the number of kernels.
        toolkit: toolkit that would be used now (link resolved), empty when there is none.
        locks: lock files of torch extensions with their age in seconds.
    """

    jit_folder: str
    jit_homes: Mapping[str, int]
    toolkit: str
    locks: Mapping[str, float]


def read_caches(host: Host) -> CacheFacts:
    """Caches of FlashInfer and of torch extensions."""
    variables = host.variables()
    home = variables.get("HOME", "/root")
    folder = f"{variables.get('FLASHINFER_WORKSPACE_BASE') or home}/.cache/flashinfer"
    homes: dict[str, int] = {}
    # Older releases have no version folder between the cache and the architecture.
    for depth in ("*", "*/*"):
        for path in host.paths(f"{folder}/{depth}/cached_ops/*/build.ninja"):
            match = _CUDA_HOME_LINE.search(host.read_text(path) or "")
            if match:
                built_by = host.real_path(match.group(1).strip())
                homes[built_by] = homes.get(built_by, 0) + 1
    toolkit = _toolkit(variables.get("CUDA_HOME") or variables.get("CUDA_PATH") or "", host.which("nvcc"))
    extensions = variables.get("TORCH_EXTENSIONS_DIR") or f"{home}/.cache/torch_extensions"
    locks = {
        path: age
        for depth in ("*", "*/*")
        for path in host.paths(f"{extensions}/{depth}/lock")
        if (age := host.age_seconds(path)) is not None
    }
    return CacheFacts(folder, homes, host.real_path(toolkit) if toolkit else "", locks)


def check_jit_cache(facts: CacheFacts) -> CheckResult:
    """FlashInfer reuses objects of another toolkit without looking (flashinfer issue 5145)."""
    if not facts.jit_homes:
        return JIT_CACHE.ok("none yet")
    total = sum(facts.jit_homes.values())
    foreign = {home: count for home, count in facts.jit_homes.items() if home != facts.toolkit}
    if not foreign or not facts.toolkit:
        return JIT_CACHE.ok(f"{total} in {facts.jit_folder}")
    listed = ", ".join(f"{count} by {home}" for home, count in foreign.items())
    measured = f"{listed}; the toolkit now is {facts.toolkit}"
    hint = f"rm -r {facts.jit_folder}"
    now = _FOLDER_VERSION.search(facts.toolkit)
    other = [match.group(1) for home in foreign if (match := _FOLDER_VERSION.search(home))]
    if now and any(version != now.group(1) for version in other):
        return JIT_CACHE.fail(measured, hint)
    return JIT_CACHE.warn(measured, hint)


def check_locks(facts: CacheFacts) -> CheckResult:
    """A lock that a killed build left makes the next import wait for ever, without a word."""
    if not facts.locks:
        return LOCKS.ok("none")
    stale = {path: age for path, age in facts.locks.items() if age >= _STALE_SECONDS}
    shown = stale or facts.locks
    measured = ", ".join(f"{path} ({age / 60:.0f} min old)" for path, age in shown.items())
    hint = f"if nothing is being built: rm {' '.join(shown)}"
    return LOCKS.fail(measured, hint) if stale else LOCKS.warn(measured, hint)
