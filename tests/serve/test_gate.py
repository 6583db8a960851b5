"""What a start refuses before vLLM is started, on recorded machines."""

from __future__ import annotations

import subprocess
import sys

import pytest

from glm53_exl3.errors import KernelError
from glm53_exl3.serve.gate import require_recordable
from glm53_exl3.serve.setting_values import merge_settings
from glm53_exl3.serve.settings import Settings
from support.hosts import RecordedHost, healthy_record


def settings(**given: object) -> Settings:
    return merge_settings({"pack": "/packs/K2", **given}, {})


def test_graphs_without_a_backend_are_refused_before_the_weights_are_loaded() -> None:
    with pytest.raises(KernelError, match="the experts would run by the reference backend") as caught:
        require_recordable(settings(), RecordedHost(healthy_record()))
    assert caught.value.id == "reference-graphs"
    assert "--enforce-eager" in caught.value.hint


def test_an_eager_engine_needs_no_graphs() -> None:
    require_recordable(settings(**{"enforce-eager": True}), RecordedHost(healthy_record()))


def test_a_machine_without_a_gpu_records_none() -> None:
    record = healthy_record()
    record["programs"] = [path for path in record["programs"] if not path.endswith("/nvidia-smi")]
    require_recordable(settings(), RecordedHost(record))


def test_the_gate_needs_no_torch() -> None:
    code = "import sys, glm53_exl3.serve.gate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
