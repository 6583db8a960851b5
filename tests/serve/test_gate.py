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

MISSING = {"value": None, "error": "ModuleNotFoundError: No module named 'glm53_exl3_exllamav3_ext'"}
AUTO, REFERENCE = KernelSettings(), KernelSettings("reference")


def spark(**extension: Any) -> RecordedHost:
    return RecordedHost(merged(healthy_record(), {"runtime": {"extension": extension}}))


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


def test_graphs_of_the_reference_are_refused_before_a_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError) as caught:
        opened(settings_of(kernel="reference"), spark())
    assert caught.value.id == "reference-graphs"
    monkeypatch.setenv("GLM53_EXL3_KERNEL", "reference")
    with pytest.raises(KernelError) as caught:
        opened(settings_of(), spark())
    assert caught.value.id == "reference-graphs"


@pytest.mark.parametrize("flags", [{}, {"kernel": "exllamav3", "enforce_eager": True}, {"memory_plan": False}])
def test_missing_extension_is_refused_without_preflight_too(flags: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match="glm53_exl3_exllamav3_ext is not installed") as caught:
        opened(unchecked(**flags), spark(**MISSING))
    assert caught.value.id == "extension-missing"


def test_eager_engine_without_the_extension_is_planned_as_the_reference_that_it_will_run() -> None:
    kernels, said = opened(unchecked(enforce_eager=True), spark(**MISSING))
    assert kernels == REFERENCE
    assert "extension-missing: glm53_exl3_exllamav3_ext is not installed; the experts run by the reference" in said


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


@pytest.mark.parametrize(("flags", "refused"), [({}, True), ({"kernel": "reference", "enforce_eager": True}, False)])
def test_preflight_fails_for_the_extension_only_where_it_is_needed(
    flags: dict[str, Any], refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    # The pack is not there, which a preflight names in any case.
    with pytest.raises(ServerError) as caught:
        runnable_kernels(settings_of(**flags), spark(**MISSING), print)
    assert caught.value.id == "preflight-failed"
    assert "pack-present: " in caught.value.what
    assert ("moe-extension: " in caught.value.what) == refused
    assert ("warning: moe-extension: " in capsys.readouterr().out) != refused


def test_the_gate_needs_no_torch() -> None:
    code = "import sys, glm53_exl3.serve.gate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
