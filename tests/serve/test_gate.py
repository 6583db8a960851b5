"""What a start refuses before vLLM is started, on recorded machines."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from glm53_exl3.errors import KernelError, ServerError
from glm53_exl3.kernels.settings import KernelSettings
from glm53_exl3.serve.gate import SKIPPED, runnable_kernels
from glm53_exl3.serve.settings import Settings
from support.hosts import RecordedHost, healthy_record, merged
from support.serving import settings_of

AUTO, REFERENCE = KernelSettings(), KernelSettings("reference")


def missing(module: str) -> dict[str, Any]:
    return {"value": None, "error": f"ModuleNotFoundError: No module named '{module}'"}


NO_EXLLAMAV3 = {"extension": missing("glm53_exl3_exllamav3_ext")}
NO_NATIVE = {"native": missing("glm53_exl3_kernels")}
NEITHER = NO_EXLLAMAV3 | NO_NATIVE


def spark(**runtime: Any) -> RecordedHost:
    return RecordedHost(merged(healthy_record(), {"runtime": runtime}))


def unchecked(**flags: Any) -> Settings:
    return settings_of(preflight=False, **flags)


def opened(settings: Settings, host: RecordedHost) -> tuple[KernelSettings, str]:
    said: list[str] = []
    return runnable_kernels(settings, host, said.append), "\n".join(said)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLM53_EXL3_KERNEL", raising=False)
    monkeypatch.delenv("GLM53_EXL3_DECODE", raising=False)


def test_spark_with_its_extension_runs_what_was_asked_for() -> None:
    assert opened(unchecked(), spark()) == (AUTO, SKIPPED)
    assert opened(unchecked(kernel="exllamav3"), spark())[0] == KernelSettings("exllamav3")
    assert opened(unchecked(kernel="native"), spark())[0] == KernelSettings("native")


def test_graphs_of_the_reference_are_refused_before_a_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError) as caught:
        opened(settings_of(kernel="reference"), spark())
    assert caught.value.id == "reference-graphs"
    monkeypatch.setenv("GLM53_EXL3_KERNEL", "reference")
    with pytest.raises(KernelError) as caught:
        opened(settings_of(), spark())
    assert caught.value.id == "reference-graphs"


@pytest.mark.parametrize(
    ("flags", "runtime", "module"),
    [
        ({}, NEITHER, "glm53_exl3_kernels"),
        ({"memory_plan": False}, NEITHER, "glm53_exl3_kernels"),
        ({"kernel": "exllamav3", "enforce_eager": True}, NO_EXLLAMAV3, "glm53_exl3_exllamav3_ext"),
        ({"kernel": "native", "enforce_eager": True}, NO_NATIVE, "glm53_exl3_kernels"),
    ],
)
def test_missing_extension_is_refused_without_preflight_too(
    flags: dict[str, Any], runtime: dict[str, Any], module: str
) -> None:
    with pytest.raises(KernelError, match=f"{module} is not installed") as caught:
        opened(unchecked(**flags), spark(**runtime))
    assert caught.value.id == "extension-missing"


@pytest.mark.parametrize("flags", [{}, {"enforce_eager": True}])
@pytest.mark.parametrize(
    ("runtime", "left", "module"),
    [(NO_EXLLAMAV3, "native", "glm53_exl3_exllamav3_ext"), (NO_NATIVE, "exllamav3", "glm53_exl3_kernels")],
)
def test_auto_with_one_extension_is_planned_as_that_backend_and_names_the_other(
    flags: dict[str, Any], runtime: dict[str, Any], left: str, module: str
) -> None:
    kernels, said = opened(unchecked(**flags), spark(**runtime))
    assert kernels.backend == left
    assert f"extension-missing: {module} is not installed; the experts run by the {left} backend" in said


def test_extension_that_nobody_asked_for_is_not_missed() -> None:
    assert opened(unchecked(kernel="native"), spark(**NO_EXLLAMAV3)) == (KernelSettings("native"), SKIPPED)
    assert opened(unchecked(kernel="exllamav3"), spark(**NO_NATIVE)) == (KernelSettings("exllamav3"), SKIPPED)


def test_eager_engine_without_extensions_is_planned_as_the_reference_that_it_will_run() -> None:
    kernels, said = opened(unchecked(enforce_eager=True), spark(**NEITHER))
    assert kernels == REFERENCE
    assert "extension-missing: glm53_exl3_exllamav3_ext is not installed; the experts run by the reference" in said
    assert "extension-missing: glm53_exl3_kernels is not installed; the experts run by the reference" in said


def test_nobody_asks_for_an_extension_that_nothing_depends_on() -> None:
    record = merged(healthy_record(), {"runtime": None})
    eager = unchecked(enforce_eager=True, memory_plan=False)
    assert opened(eager, RecordedHost(record)) == (AUTO, SKIPPED)
    chosen = unchecked(enforce_eager=True, kernel="reference")
    assert opened(chosen, RecordedHost(record)) == (REFERENCE, SKIPPED)


def test_machine_without_a_gpu_runs_the_reference() -> None:
    record = merged(healthy_record(), {"runtime": None})
    record["programs"] = [path for path in record["programs"] if not path.endswith("/nvidia-smi")]
    assert opened(unchecked(), RecordedHost(record)) == (REFERENCE, SKIPPED)


@pytest.mark.parametrize(
    ("flags", "runtime", "refused", "warned"),
    [
        ({}, NEITHER, {"moe-extension", "native-kernels"}, set()),
        ({}, NO_EXLLAMAV3, set(), {"moe-extension"}),
        ({}, NO_NATIVE, set(), {"native-kernels"}),
        ({"kernel": "exllamav3"}, NO_EXLLAMAV3, {"moe-extension"}, set()),
        ({"kernel": "exllamav3"}, NEITHER, {"moe-extension"}, {"native-kernels"}),
        ({"kernel": "native"}, NO_NATIVE, {"native-kernels"}, set()),
        ({"kernel": "native"}, NO_EXLLAMAV3, set(), {"moe-extension"}),
        ({"kernel": "reference", "enforce_eager": True}, NEITHER, set(), {"moe-extension", "native-kernels"}),
        ({"enforce_eager": True}, NEITHER, set(), {"moe-extension", "native-kernels"}),
    ],
)
def test_preflight_fails_for_an_extension_only_where_it_is_needed(
    flags: dict[str, Any],
    runtime: dict[str, Any],
    refused: set[str],
    warned: set[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The pack is not there, which a preflight names in any case.
    with pytest.raises(ServerError) as caught:
        runnable_kernels(settings_of(**flags), spark(**runtime), print)
    assert caught.value.id == "preflight-failed"
    assert "pack-present: " in caught.value.what
    said = capsys.readouterr().out
    for id in ("moe-extension", "native-kernels"):
        assert (f"{id}: " in caught.value.what) == (id in refused)
        assert (f"warning: {id}: " in said) == (id in warned)


def test_the_gate_needs_no_torch() -> None:
    code = "import sys, glm53_exl3.serve.gate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
