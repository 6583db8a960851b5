"""`--load-format glm53_exl3` in vLLM: bit for bit the parameters of a load without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "bulk_loader" / "compare.py"
TENSORS_A_LAYER = 4 * 3 * 4  # experts, projections, suffixes
FINAL_LINE = re.compile(r"INFO: loaded weights: (\d+) bytes in \d+\.\d\d s, \d+\.\d\d GiB/s")

# Three quarters of the time is vLLM's import, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `bulk_loader/compare.py` found, in a process of its own."""
    directory = tmp_path_factory.mktemp("bulk")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLM53_EXL3_")}
    environment |= {
        "PYTHONPATH": f"{SCRIPT.parents[2]}{os.pathsep}{SCRIPT.parents[1] / 'glm5next'}",
        "VLLM_CACHE_ROOT": str(directory / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, str(SCRIPT), str(directory)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


CASES = ("target", "mtp", "plain", "moved", "tracked", "strategy", "unquantized")


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_a_default_load(report: dict[str, Any], case: str) -> None:
    found = report[case]
    assert found["class"] == ("Glm5NextMTP" if case == "mtp" else "Glm5NextForConditionalGeneration")
    assert found["names"] == []
    assert found["different"] == []
    assert found["compared"] > 20


@pytest.mark.parametrize("case", ["target", "mtp", "plain", "tracked", "strategy"])
def test_no_expert_comes_one_by_one(report: dict[str, Any], case: str) -> None:
    assert report[case]["one_by_one"] == 0


@pytest.mark.parametrize("case", ["target", "mtp", "plain", "tracked"])
def test_log_of_a_load_in_bulk_is_its_last_line(report: dict[str, Any], case: str) -> None:
    *before, line = report[case]["log"]
    assert FINAL_LINE.fullmatch(line)
    # The method itself says that experts are plain.
    assert len(before) == (1 if case == "plain" else 0)


def test_mtp_layer_reads_its_own_experts_only(report: dict[str, Any]) -> None:
    target, mtp = (int(FINAL_LINE.fullmatch(report[case]["log"][0])[1]) for case in ("target", "mtp"))  # type: ignore[index]
    assert mtp < target / 3


def test_layers_that_cannot_go_in_bulk_are_named_once_with_the_reason(report: dict[str, Any]) -> None:
    found = report["moved"]
    assert found["one_by_one"] == 2 * TENSORS_A_LAYER
    warning, final = found["log"]
    assert warning == (
        "WARNING: language_model.model.layers.2.mlp.experts.routed_experts and layers like it load as vLLM does by "
        "default, slower than in bulk: its parameters were moved, as with --cpu-offload-gb"
    )
    assert FINAL_LINE.fullmatch(final)


def test_model_without_exl3_experts_is_loaded_by_default_with_a_warning(report: dict[str, Any]) -> None:
    assert report["unquantized"]["log"] == [
        "WARNING: Glm5NextForConditionalGeneration has no EXL3 experts: it loads as vLLM does by default, slower than "
        "in bulk"
    ]


def test_setting_without_effect_is_named(report: dict[str, Any]) -> None:
    assert report["strategy"]["log"][0] == (
        "WARNING: --safetensors-load-strategy eager has no effect with --load-format glm53_exl3"
    )


def test_weights_can_be_loaded_anew(report: dict[str, Any]) -> None:
    assert report["anew"]["missing"] == 0
    assert report["anew"]["stored"] > 6 * TENSORS_A_LAYER


def test_damage_is_refused_by_name(report: dict[str, Any]) -> None:
    assert report["nan"].startswith("PackError: error: scale-not-finite: ")
    assert "layers.3.mlp.experts.1.up_proj.suh" in report["nan"]


def test_models_leave_no_layer_behind(report: dict[str, Any]) -> None:
    # vLLM keeps a table of what it needs to load weights anew; a hold of ours in it would keep all weights.
    assert report["alive"] == 0
