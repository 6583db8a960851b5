"""The preflight: which probes run, and the report of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from glm53_exl3.pins import RuntimeName, load_pins
from glm53_exl3.probes import catalogue, gpu, system, toolchain
from glm53_exl3.probes.environment import ENVIRONMENT_CHECKS, OFFLINE, check_offline
from glm53_exl3.probes.host import Host, LiveHost
from glm53_exl3.probes.result import Check, CheckResult, Report, worst_first
from glm53_exl3.probes.runner import Probe, probe, run_probes

DEFAULT_PORT: Final = 8000
#: The pack that is meant when none is named.
_DEFAULT_PACK: Final = "K2"
_ADDRESS: Final = "127.0.0.1"
_SECONDS: Final = 10.0
_HUB_SECONDS: Final = 20.0
_PACK_SECONDS: Final = 120.0

#: What no preflight can know.
UNSEEN: Final = (
    "whether kernels compute rightly and at speed on this GPU",
    "the tail cache's block stride in prefill",
    "memory while loading, compiling and prefilling",
    "stalls while CUDA graphs are captured",
    "the quality of answers",
)


@dataclass(frozen=True)
class PreflightOptions:
    """What to check.

    Attributes:
        runtime: `fork` or `upstream`.
        fast: leave out whatever imports torch, reads headers of the pack or asks the Hub.
        pack: folder of the pack; without one no pack is checked, and memory and disk are those for the K2 pack.
        port: where the server is to listen.
        python: interpreter of the runtime.
        with_runtime: check the interpreter, what is installed in it and its compiler; without, host and pack alone.
    """

    runtime: RuntimeName = "fork"
    fast: bool = False
    pack: Path | None = None
    port: int = DEFAULT_PORT
    python: str = sys.executable
    with_runtime: bool = True


def run_preflight(options: PreflightOptions, host: Host | None = None) -> Report:
    """Run all probes side by side.

    Args:
        options: what to check.
        host: the machine, this one by default.
    """
    started = time.monotonic()
    machine = host or LiveHost()
    environment = probe("environment", "runtime", _SECONDS, machine.variables, ENVIRONMENT_CHECKS)
    probes = [*_host_probes(machine, options), environment, *_pack_probes(options)]
    if options.with_runtime:
        probes += [_python_probe(machine, options), *_toolchain_probes(machine, options)]
    if not options.fast:
        probes += _hub_probes(machine)
    if options.with_runtime and not options.fast:
        probes.append(_runtime_probe(machine, options))
    results = worst_first([*run_probes(probes), *skipped_checks(options)])
    return Report(results, UNSEEN, options.runtime, options.fast, time.monotonic() - started)


def runtime_failures(
    runtime: RuntimeName = "fork", python: str = sys.executable, *, with_runtime: bool = True
) -> list[CheckResult]:
    """Failures that make the download of a pack pointless: of the machine's kind, its GPU and the runtime.

    Whatever only says that the moment is bad (a port in use, memory or disk in use) is not among them.

    Args:
        runtime: `fork` or `upstream`.
        python: interpreter of the runtime.
        with_runtime: check the runtime; without, the machine alone.
    """
    host, options = LiveHost(), PreflightOptions(runtime=runtime, python=python)
    probes = [_system_probe(host), _gpu_probe(host)]
    if with_runtime:
        probes += [_python_probe(host, options), *_toolchain_probes(host, options), _runtime_probe(host, options)]
    results = run_probes(probes)
    return [result for result in results if result.status == "fail"]


def skipped_checks(options: PreflightOptions) -> list[CheckResult]:
    """Checks that these options leave out."""
    without_pack = [check.skip("no --pack") for check in catalogue.PACK] if options.pack is None else []
    left_out: dict[Check, str] = {}
    if options.fast:
        left_out = dict.fromkeys(catalogue.SLOW, "left out by --fast")
        if options.pack is not None:
            left_out[catalogue.INVENTORY] = "left out by --fast"
    if not options.with_runtime:
        of_runtime = [check for check in catalogue.SLOW if check.scope == "runtime"]
        of_runtime += [system.PYTHON, *toolchain.TOOLCHAIN]
        left_out |= dict.fromkeys(of_runtime, "left out by --no-runtime")
    return [*(check.skip(reason) for check, reason in left_out.items()), *without_pack]


@dataclass(frozen=True)
class _Pack:
    """What memory and disk have to hold.

    Attributes:
        name: what the pack is called.
        weight_bytes: size of all its shards.
        missing_bytes: what is still to be downloaded.
    """

    name: str
    weight_bytes: int
    missing_bytes: int


def _pack(options: PreflightOptions) -> _Pack:
    if options.pack is None:
        pin = load_pins().packs[_DEFAULT_PACK]
        return _Pack(pin.name, pin.weight_bytes, pin.weight_bytes)
    from glm53_exl3.probes.pack import read_sizes

    sizes = read_sizes(options.pack)
    return _Pack(sizes.name, sizes.weight_bytes, sizes.missing_bytes)


def _system_probe(host: Host) -> Probe:
    return probe("system", "host", _SECONDS, lambda: system.read_system(host), (system.check_arch, system.check_os))


def _python_probe(host: Host, options: PreflightOptions) -> Probe:
    return probe(
        "python",
        "host",
        _SECONDS,
        lambda: system.read_python(host, options.python, options.runtime),
        (system.check_python,),
    )


def _gpu_probe(host: Host) -> Probe:
    return probe("gpu", "host", _SECONDS, lambda: gpu.read_gpus(host), (gpu.check_gpu, gpu.check_driver))


def _host_probes(host: Host, options: PreflightOptions) -> Sequence[Probe]:
    def memory() -> system.MemoryFacts:
        pack = _pack(options)
        return system.read_memory(host, pack.weight_bytes, pack.name, f"{options.pack or 'PACK'}/*.safetensors")

    def disk() -> system.DiskFacts:
        pack = _pack(options)
        folder = str(options.pack or Path.cwd())
        return system.DiskFacts(folder, host.free_bytes(folder), pack.missing_bytes, options.pack is not None)

    def port() -> system.PortFacts:
        return system.PortFacts(options.port, host.listen_error(_ADDRESS, options.port))

    def offline() -> list[CheckResult]:
        missing = _pack(options).missing_bytes if options.pack is not None else 0
        return [check_offline(host.variables(), missing)]

    memory_checks = (system.check_memory, system.check_page_cache, system.check_swap)
    return (
        _system_probe(host),
        _gpu_probe(host),
        probe("gpu-processes", "host", _SECONDS, lambda: gpu.read_gpu_processes(host), (gpu.check_processes,)),
        probe("memory", "host", _SECONDS, memory, memory_checks),
        probe("disk", "host", _SECONDS, disk, (system.check_disk,)),
        probe("port", "host", _SECONDS, port, (system.check_port,)),
        probe(
            "limits",
            "host",
            _SECONDS,
            lambda: system.read_limits(host),
            (system.check_open_files, system.check_address_space),
        ),
        Probe(OFFLINE.id, "host", _SECONDS, offline),
    )


def _toolchain_probes(host: Host, options: PreflightOptions) -> Sequence[Probe]:
    return (
        probe(
            "toolchain",
            "runtime",
            _SECONDS,
            lambda: toolchain.read_toolchain(host, options.python),
            (
                toolchain.check_nvcc,
                toolchain.check_cuda_home,
                toolchain.check_host_compiler,
                toolchain.check_ninja,
                toolchain.check_ldconfig,
            ),
        ),
        probe(
            "caches",
            "runtime",
            _SECONDS,
            lambda: toolchain.read_caches(host),
            (toolchain.check_jit_cache, toolchain.check_locks),
        ),
    )


def _pack_probes(options: PreflightOptions) -> Sequence[Probe]:
    folder = options.pack
    if folder is None:
        return ()
    from glm53_exl3.probes.pack import PACK_CHECKS, check_inventory, read_faults, read_pack

    probes = [probe("pack", "pack", _PACK_SECONDS, lambda: read_pack(folder, tensors=not options.fast), PACK_CHECKS)]
    if not options.fast:
        probes.append(probe("inventory", "pack", _PACK_SECONDS, lambda: read_faults(folder), (check_inventory,)))
    return probes


def _hub_probes(host: Host) -> Sequence[Probe]:
    from glm53_exl3.probes import hub
    from glm53_exl3.probes.environment import is_on
    from glm53_exl3.probes.network import hub_endpoint

    if is_on(host.variables().get("HF_HUB_OFFLINE", "")):
        return (
            Probe(
                "hub", "host", _SECONDS, lambda: [check.skip("offline") for check in (catalogue.CLOCK, catalogue.TOKEN)]
            ),
        )

    def clock() -> list[CheckResult]:
        endpoint = host.variables().get("HF_ENDPOINT") or hub_endpoint()
        if endpoint is None:
            return [catalogue.CLOCK.skip("huggingface_hub is not installed")]
        return [hub.check_clock(host.head(endpoint))]

    return (
        Probe(catalogue.CLOCK.id, "host", _HUB_SECONDS, clock),
        probe(catalogue.TOKEN.id, "host", _HUB_SECONDS, host.hub_identity, (hub.check_token,)),
    )


def _runtime_probe(host: Host, options: PreflightOptions) -> Probe:
    from glm53_exl3.probes.interpreter import LIMITS
    from glm53_exl3.probes.plugin import PLUGIN_CHECKS
    from glm53_exl3.probes.runtime import runtime_checks

    # Each fact has its own limit inside; this one only ends what ends in no other way.
    limit = sum(LIMITS.values()) + _HUB_SECONDS
    checks = (*runtime_checks(options.runtime), *PLUGIN_CHECKS)
    return probe("runtime", "runtime", limit, lambda: host.runtime(options.python), checks)
