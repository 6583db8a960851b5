"""Checks of what this project adds to the runtime: the plugin, the extension and the K-pool fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from glm53_exl3 import __version__
from glm53_exl3.pins import capabilities, load_pins
from glm53_exl3.probes.catalogue import EXL3, EXTENSION, KPOOL, NATIVE, RIVALS
from glm53_exl3.probes.environment import ENTRY_POINT
from glm53_exl3.probes.interpreter import Fact, RuntimeFacts
from glm53_exl3.probes.result import Check, CheckResult
from glm53_exl3.probes.runtime import pip, unavailable

_OURS: Final = "glm53_exl3."
_DISTRIBUTION: Final = "glm53-exl3"
_EXTENSION_MODULE: Final = "glm53_exl3_exllamav3_ext"
_NATIVE_MODULE: Final = "glm53_exl3_kernels"
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
    if (broken := _unloaded(EXTENSION, facts, "extension", _EXTENSION_MODULE, build)) is not None:
        return broken
    value = facts.value("extension")
    return _arity(str(value["file"]), value["arity"], build)


def check_native(facts: RuntimeFacts) -> CheckResult:
    """As :func:`check_extension` of this project's own kernels, which have to be of this version of the package."""
    build = f"build it with tools/extension/build.py native for torch {load_pins().torch}; with Nix: nix run .#serve"
    if (broken := _unloaded(NATIVE, facts, "native", _NATIVE_MODULE, build)) is not None:
        return broken
    value = facts.value("native")
    if value["version"] != __version__:
        found = f"version {value['version']}" if value["version"] else "no stated version"
        return NATIVE.fail(f"{value['file']} is of {found}, the plugin of {__version__}", build)
    return NATIVE.ok(f"{value['file']}, version {value['version']}")


def _unloaded(check: Check, facts: RuntimeFacts, fact: str, module: str, build: str) -> CheckResult | None:
    """What keeps an extension from running, None for nothing."""
    error = facts.facts.get(fact, Fact()).error
    if "undefined symbol" in error:
        return check.fail(f"built for another torch than {_torch(facts)}: {error}", build)
    if error.startswith("ModuleNotFoundError") and module in error:
        return check.fail(f"{module} is not installed", build)
    if (broken := unavailable(check, facts, fact, build)) is not None:
        return broken
    value = facts.value(fact)
    if value["missing"]:
        return check.fail(f"{value['file']} lacks {', '.join(value['missing'])}", build)
    archs, capability = str(value.get("arch_list", "")), facts.value("cuda").get("capability", "")
    if archs and capability and capability not in capabilities(archs):
        return check.fail(
            f"{value['file']} has code for {archs}, none for this GPU of {capability}", f"{build}, with --arch"
        )
    return None


def check_kernels(facts: RuntimeFacts) -> tuple[CheckResult, CheckResult]:
    """Both extensions. A failure of one is a warning where the other is right, whose kernels then run the experts.

    One that ends or hangs whoever imports it stays a failure: `auto` imports both.
    """
    found = {"extension": check_extension(facts), "native": check_native(facts)}
    one_runs = any(result.status == "ok" for result in found.values())
    harmless = {name for name in found if one_runs and not facts.facts.get(name, Fact()).hung}
    extension, native = (
        replace(result, status="warn") if result.status == "fail" and name in harmless else result
        for name, result in found.items()
    )
    return extension, native


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
    lambda facts: check_kernels(facts)[0],
    lambda facts: check_kernels(facts)[1],
    check_kpool,
)
