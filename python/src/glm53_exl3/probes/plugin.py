"""Checks of what this project adds to the runtime: the plugin, the extension and the K-pool fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from glm53_exl3.pins import capabilities, load_pins
from glm53_exl3.probes.catalogue import EXL3, EXTENSION, KPOOL, RIVALS
from glm53_exl3.probes.environment import ENTRY_POINT
from glm53_exl3.probes.interpreter import Fact, RuntimeFacts
from glm53_exl3.probes.result import CheckResult
from glm53_exl3.probes.runtime import pip, unavailable

_OURS: Final = "glm53_exl3."
_DISTRIBUTION: Final = "glm53-exl3"
_EXTENSION_MODULE: Final = "glm53_exl3_exllamav3_ext"
#: exl3_moe of exllamav3 takes this many arguments in these releases.
_ARITY_RELEASES: Final[Mapping[int, str]] = {29: "0.0.x", 30: "1.4.x", 35: "1.5.0 or newer"}
_DECISIVE: Final = ("mapping", "in-place", "positions")
#: Tried only where the model can be imported; wrong all the same.
_CORRUPTING: Final = ("seed", "drafts")
_FIXED: Final = "with Nix: nix run .#serve-upstream; without: vLLM 0.31.0 or newer"


def check_exl3(facts: RuntimeFacts) -> CheckResult:
    """After vLLM has loaded its plugins, exl3 has to be ours."""
    install = f"{pip(facts, 'install', '--no-deps', './python')} in a checkout of this project"
    if (broken := unavailable(EXL3, facts, "exl3", install)) is not None:
        return broken
    value = facts.value("exl3")
    if not value["module"]:
        reason = f": {value['reason']}" if value["reason"] else ""
        return EXL3.fail(f"vLLM does not know exl3{reason}", install)
    if value["module"].startswith(_OURS):
        return EXL3.ok(f"{value['module']}")
    return EXL3.fail(f"exl3 is {value['module']}", "uninstall the other plugin, see exl3-rivals")


def check_rivals(facts: RuntimeFacts) -> CheckResult:
    """Of two plugins that register exl3 the one loaded last wins, and vLLM does not say which."""
    if (broken := unavailable(RIVALS, facts, "distributions", "name a working interpreter")) is not None:
        return broken
    plugins = facts.value("distributions")["plugins"]
    rivals = sorted(
        {
            plugin["distribution"] or plugin["name"]
            for plugin in plugins
            if "exl3" in f"{plugin['name']} {plugin['value']} {plugin['distribution']}".lower()
            and plugin["distribution"].lower().replace("_", "-") != _DISTRIBUTION
        }
    )
    if not rivals:
        ours = any(plugin["name"] == ENTRY_POINT for plugin in plugins)
        return RIVALS.ok("none" if ours else "none, nor ours")
    return RIVALS.fail(f"{', '.join(rivals)} registers exl3 too", pip(facts, "uninstall -y", *rivals))


def check_extension(facts: RuntimeFacts) -> CheckResult:
    """The extension has to load, have the functions that the plugin calls with its arguments, and code for the GPU."""
    pins = load_pins()
    build = f"build it from exllamav3 {pins.exllamav3_version} for torch {pins.torch}; with Nix: nix run .#serve"
    error = facts.facts.get("extension", Fact()).error
    if "undefined symbol" in error:
        return EXTENSION.fail(f"built for another torch than {_torch(facts)}: {error}", build)
    if error.startswith("ModuleNotFoundError") and _EXTENSION_MODULE in error:
        return EXTENSION.fail(f"{_EXTENSION_MODULE} is not installed", build)
    if (broken := unavailable(EXTENSION, facts, "extension", build)) is not None:
        return broken
    value = facts.value("extension")
    if value["missing"]:
        return EXTENSION.fail(f"{value['file']} lacks {', '.join(value['missing'])}", build)
    archs, capability = str(value.get("arch_list", "")), facts.value("cuda").get("capability", "")
    if archs and capability and capability not in capabilities(archs):
        return EXTENSION.fail(
            f"{value['file']} has code for {archs}, none for this GPU of {capability}", f"{build}, with --arch"
        )
    return _arity(str(value["file"]), value["arity"], build)


def _arity(file: str, arity: int | None, build: str) -> CheckResult:
    pins = load_pins()
    if arity is None:
        return EXTENSION.skip("exl3_moe does not say how many arguments it takes")
    if arity == pins.moe_arity:
        return EXTENSION.ok(f"{file}, exl3_moe takes {arity} arguments")
    release = f" (exllamav3 {_ARITY_RELEASES[arity]})" if arity in _ARITY_RELEASES else ""
    return EXTENSION.fail(
        f"exl3_moe takes {arity} arguments{release}; the plugin passes {pins.moe_arity}, as exllamav3 "
        f"{pins.exllamav3_version} has it",
        build,
    )


def _torch(facts: RuntimeFacts) -> str:
    return str(facts.value("torch").get("version", "that here"))


def check_kpool(facts: RuntimeFacts) -> CheckResult:
    """Without the fixes vLLM writes outside the tail cache or corrupts its keys (docs/kpool-tail.md)."""
    if (broken := unavailable(KPOOL, facts, "kpool-tail", _FIXED)) is not None:
        return broken
    verdicts: Mapping[str, Mapping[str, Any]] = facts.value("kpool-tail")
    tried = [*_DECISIVE, *(name for name in _CORRUPTING if name in verdicts)]
    wrong = [name for name in tried if verdicts[name]["verdict"] == "wrong"]
    if wrong:
        return KPOOL.fail("; ".join(f"{name}: {verdicts[name]['detail']}" for name in wrong), _FIXED)
    undecided = [name for name in _DECISIVE if verdicts[name]["verdict"] != "right"]
    if undecided:
        return KPOOL.skip("; ".join(f"{name}: {verdicts[name]['detail']}" for name in undecided))
    if verdicts["generic"]["verdict"] == "wrong":
        return KPOOL.warn(
            f"{verdicts['generic']['detail']}: the generic mapping still reads beyond its table on long contexts",
            _FIXED,
        )
    return KPOOL.ok(f"{verdicts['mapping']['detail']}, {verdicts['in-place']['detail']}, positions handed on")


PLUGIN_CHECKS: Final[tuple[Callable[[RuntimeFacts], CheckResult], ...]] = (
    check_exl3,
    check_rivals,
    check_extension,
    check_kpool,
)
