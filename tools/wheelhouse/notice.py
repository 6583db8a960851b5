"""The NOTICE of a wheelhouse: who made what is in it, and under which terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wheel_contents import Wheel


def notice(runtime: str, wheels: Sequence[Wheel], pins: Mapping[str, Any], compiled_in: Sequence[str]) -> str:
    """The text.

    Args:
        runtime: that the wheels are for.
        wheels: that lie in the folder.
        pins: say where sources are from.
        compiled_in: names of sources that parts of the wheels were compiled from.
    """
    lines = [
        f"Wheels for glm53-exl3, runtime `{runtime}`.",
        "Independent work; not affiliated with or endorsed by Z.ai, NVIDIA, the vLLM project or ExLlamaV3.",
        "Weights are not included.",
        "",
        "Wheels in this folder, with the terms that their metadata state:",
    ]
    for wheel in wheels:
        lines.append(f"  {wheel.name} {wheel.version}: {wheel.licence or 'not stated'}; licences/wheels/{wheel.name}/")
    origins = _origins(runtime, pins)
    if origins or compiled_in:
        lines += ["", "Sources that parts of them were compiled from:", *origins]
    for name in compiled_in:
        origin = _source(pins["sources"].get(f"{name}-src"))
        lines.append(f"  {name}{f', {origin}' if origin else ''}; licences/compiled-in/{name}/")
    lines += [
        "",
        "Everything else is downloaded by pip on the machine that installs, under its own terms: requirements.txt",
        "names it. Among it are NVIDIA's libraries and compiler, which are not free software; their terms are in the",
        "downloaded wheels.",
        "",
    ]
    return "\n".join(lines)


def _origins(runtime: str, pins: Mapping[str, Any]) -> list[str]:
    """What whole wheels of a runtime were compiled from."""
    if runtime not in pins["runtimes"]:
        return []
    found = [f"  the MoE kernels of exllamav3, {_source(pins['exllamav3'])}"]
    vllm = pins["runtimes"][runtime]["vllm"]
    # A release is downloaded, not compiled.
    return found if vllm["version"] else [*found, f"  the vLLM fork, {_source(vllm)}, with the patches of this project"]


def _source(pin: Mapping[str, Any] | None) -> str:
    return f"{pin['repository']} at {pin['revision']}" if pin else ""
