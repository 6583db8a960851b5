"""GLM-5.3-Flash's layout loads into vLLM's own Glm5Next and Glm5NextMTP classes, tensor by tensor.

Weights only: sparse attention has no CPU path. `glm5next/stubs.py` says what is replaced and why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "glm5next" / "load.py"
TARGET_LAYERS = [1, 2, 3, 4]
MTP_LAYERS = [5]
BITS = {"1": 2, "2": 2, "3": 3, "4": 2, "5": 3}
TENSORS_A_LAYER = 4 * 3 * 4  # experts, projections, suffixes
PARAMETERS_A_LAYER = 2 * 4  # w13 and w2, suffixes

# Three quarters of the time is vLLM's import, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `glm5next/load.py` found, in a process of its own: stubs and vLLM's globals must not reach other tests."""
    directory = tmp_path_factory.mktemp("glm5next")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLM53_EXL3_")}
    environment |= {
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "VLLM_CACHE_ROOT": str(directory / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, str(SCRIPT), str(directory)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_vllm_picks_plugin_and_classes_from_config_json(report: dict[str, Any]) -> None:
    assert report["quantization"] == ["exl3", "exl3", "Exl3Config"]
    assert report["target"]["class"] == "Glm5NextForConditionalGeneration"
    assert report["mtp"]["class"] == "Glm5NextMTP"


@pytest.mark.parametrize(("model", "layers"), [("target", TARGET_LAYERS), ("mtp", MTP_LAYERS)])
def test_every_expert_tensor_lands_in_its_view(report: dict[str, Any], model: str, layers: list[int]) -> None:
    found = report[model]
    assert found["layers"] == layers
    assert found["compared"] == TENSORS_A_LAYER * len(layers)
    assert found["different"] == []


@pytest.mark.parametrize(("model", "layers"), [("target", TARGET_LAYERS), ("mtp", MTP_LAYERS)])
def test_no_parameter_stays_unloaded(report: dict[str, Any], model: str, layers: list[int]) -> None:
    found = report[model]
    assert found["expert_parameters"] == PARAMETERS_A_LAYER * len(layers)
    # vLLM's proposer lets the MTP layer share the embedding of the target.
    assert found["not_loaded"] == (["model.embed_tokens.weight"] if model == "mtp" else [])


@pytest.mark.parametrize("model", ["target", "mtp"])
def test_kernels_hold_and_compute_what_is_stored(report: dict[str, Any], model: str) -> None:
    for layer, kernel in report[model]["kernels"].items():
        assert kernel["backend"] == "reference"
        assert kernel["bits"] == BITS[layer]
        assert kernel["dense_equal"] == [True, True, True], layer
        assert kernel["output_equal"], layer
        assert kernel["packed_parameters_left"] == []


@pytest.mark.parametrize("model", ["target", "mtp"])
def test_swiglu_limit_of_config_json_reaches_the_kernels(report: dict[str, Any], model: str) -> None:
    for layer, kernel in report[model]["kernels"].items():
        assert kernel["limit"] == 10.0, layer
        assert kernel["limit_acts"], layer


def test_pack_without_one_tensor_of_the_mtp_layer_is_refused_by_name(report: dict[str, Any]) -> None:
    assert report["refused_pack"].startswith("PackError: error: tensor-missing: ")
    assert report["withheld"] in report["refused_pack"]


def test_mtp_tensor_that_never_arrives_is_refused_by_name(report: dict[str, Any]) -> None:
    assert report["mtp"]["refused_stream"].startswith("PackError: error: tensor-missing: ")
    assert f"{report['withheld']} was not loaded" in report["mtp"]["refused_stream"]
