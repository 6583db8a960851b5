"""`glm53-exl3 plan` as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glm53_exl3.cli.main import application
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.errors import KernelError, PlanError
from glm53_exl3.kernels.exllamav3.shape import shape_for
from glm53_exl3.kernels.native.scratch import scratch_for
from support.synthetic_pack import write_synthetic_pack


@pytest.fixture(scope="module")
def k2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_pack(tmp_path_factory.mktemp("packs") / "GLM-5.3-Flash-EXL3-K2")


def plan_json(*arguments: str) -> tuple[dict, int]:
    result = CliRunner().invoke(application(), ["plan", *arguments, "--json"])
    return json.loads(result.stdout), result.exit_code


def test_the_k2_pack_is_planned_from_its_headers(k2: Path) -> None:
    plan, code = plan_json(
        str(k2), "--memory", "113", "--context", "262144", "--speculation", "mtp", "--no-prefix-caching"
    )
    shape, scratch = shape_for(4096, 2048, 288, 6, 2048), scratch_for(4096, 2048, 288, 8, 2048)
    assert code == 0
    assert plan["fits"]
    assert plan["problems"] == []
    assert plan["kv_cache"]["block_tokens"] == 8_704
    assert plan["kv_cache"]["bytes"] == 42 * 71_964_672
    assert plan["parts"]["expert scratch"] == shape.num_bytes + shape.buffer_bytes + scratch.num_bytes
    assert "decoded experts" not in plan["parts"]
    # 91.017 GiB of shards, less their headers.
    assert plan["parts"]["weights"] == pytest.approx(97_728_721_536, rel=1e-3)
    assert plan["arguments"][:2] == ["--max-model-len", "262144"]
    assert plan["environment"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_decoded_experts_are_counted_by_option_and_variable(k2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 43 layers with MTP, 288 experts of three 4096 x 2048 matrices; one of them where a batch decodes what it needs.
    one = 3 * 4096 * 2048 * 2
    common = (str(k2), "--memory", "700", "--speculation", "mtp", "--context", "8192")
    packed, _ = plan_json(*common)
    decoded, code = plan_json(*common, "--kernel", "reference")
    assert (code, decoded["parts"]["decoded experts"]) == (0, 43 * 288 * one)
    assert packed["parts"]["weights"] - decoded["parts"]["weights"] == 43 * 288 * (one // 8 + 3 * (4096 + 2048) * 2)
    monkeypatch.setenv("GLM53_EXL3_KERNEL", "reference")
    monkeypatch.setenv("GLM53_EXL3_DECODE", "call")
    called, _ = plan_json(*common)
    assert called["parts"]["decoded experts"] == one
    assert called["parts"]["weights"] == packed["parts"]["weights"]
    for kernel in ("native", "exllamav3"):
        assert "decoded experts" not in plan_json(*common, "--kernel", kernel)[0]["parts"]
    monkeypatch.setenv("GLM53_EXL3_KERNEL", "exllama")
    assert isinstance(CliRunner().invoke(application(), ["plan", *common]).exception, KernelError)


def test_a_plan_without_room_exits_with_1_names_the_memory_and_prints_no_flags(k2: Path) -> None:
    plan, code = plan_json(str(k2), "--memory", "96")
    assert code == 1
    assert [problem["id"] for problem in plan["problems"]] == ["plan-memory"]
    assert plan["arguments"] == []
    result = CliRunner().invoke(application(), ["plan", str(k2), "--memory", "96"])
    assert result.exit_code == 1
    assert "error: plan-memory:" in result.stderr
    assert "--max-model-len" not in result.stdout


def test_the_text_shows_every_part_and_a_command_to_paste() -> None:
    result = CliRunner().invoke(
        application(), ["plan", str(demo_pack()), "--memory", "24", "--floor", "1", "--context", "512"]
    )
    assert result.exit_code == 0, result.stderr
    for part in ("weights", "KV cache", "to stay free", "headroom", "MemFree", "longest context that fits"):
        assert part in result.stdout
    *_, heading, flags = result.stdout.splitlines()
    assert f"glm53-exl3 serve {demo_pack()}" in heading
    assert "--kv-cache-memory-bytes" in flags


def test_the_demo_pack_is_planned_on_this_host() -> None:
    plan, code = plan_json(str(demo_pack()), "--context", "512", "--floor", "0.1")
    assert code == (0 if plan["fits"] else 1)
    assert plan["memory"]["total_bytes"] >= plan["memory"]["available_bytes"] > 0
    assert plan["kv_cache"]["block_tokens"] == 16


def test_a_draft_model_is_read_from_its_folder(k2: Path, tmp_path: Path) -> None:
    draft = shutil.copytree(demo_pack(), tmp_path / "draft")
    common = [str(k2), "--memory", "113", "--context", "8192", "--speculation", "dflash2", "--draft", str(draft)]
    plan, code = plan_json(*common)
    assert code == 0
    without, _ = plan_json(str(k2), "--memory", "113", "--context", "8192")
    assert 3_000_000 < plan["parts"]["weights"] - without["parts"]["weights"] < 4_000_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["--speculation", "dflash2"],
        ["--draft", "somewhere"],
        ["--discrete"],
        ["--speculation", "mtp", "--kv-dtype", "x"],
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(application(), ["plan", str(demo_pack()), *arguments])
    assert isinstance(result.exception, PlanError)
    assert result.exception.id == "plan-option"
    assert "glm53-exl3" in result.exception.hint
