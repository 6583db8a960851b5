"""`glm53-exl3 bench kernels` and `python -m glm53_exl3.bench_kernels` as a user runs them, on the CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import typer

from glm53_exl3.bench_kernels import __main__ as plain
from glm53_exl3.bench_kernels import command
from glm53_exl3.bench_kernels.backends import Backend, Built, known_backends
from glm53_exl3.bench_kernels.timing import Call
from glm53_exl3.cli import main as whole
from glm53_exl3.kernels.interface import PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel

PROGRAM = Path(sys.executable).with_name("glm53-exl3")
SMALL = ["--hidden", "256", "--intermediate", "128", "--experts", "6", "--top-k", "2", "--repeat", "2"]
#: A GPU of the machine is not what is tested here.
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def run(*arguments: str | Path, module: bool = False) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "glm53_exl3.bench_kernels"] if module else [PROGRAM, "bench", "kernels"]
    return subprocess.run([*start, *arguments], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)


def test_a_table_and_a_receipt(tmp_path: Path) -> None:
    out = tmp_path / "receipt.json"
    done = run(*SMALL, "--tokens", "1,7", "--bits", "2,3,4", "--out", out)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "layer    hidden 256, intermediate 128, experts 6, top 2, bits 2-3-4, mcg, limit 10"
    rows = [line.split() for line in lines if re.match(r" *[17] ", line)]
    assert [row[0] for row in rows] == ["1", "7"]
    assert "reference: timed" in done.stderr
    document = json.loads(out.read_text())
    assert document["settings"]["bits"] == [2, 3, 4]
    assert [row["tokens"] for row in document["rows"]] == [1, 7]
    times = [row["backends"]["reference"]["microseconds"] for row in document["rows"]]
    assert all(0 < time["p10"] <= time["p50"] <= time["p90"] for time in times)
    again = run(*SMALL, "--out", out)
    assert again.returncode == 1
    assert again.stderr.startswith("error: receipt-exists: ")


def test_the_module_does_the_same_without_typer_and_rich(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(typer=None, rich=None, numba=None, vllm=None, glm53_exl3_exllamav3_ext=None)\n"
    )
    code += "from glm53_exl3.bench_kernels.__main__ import main\n"
    code += f"sys.exit(main({[*SMALL, '--tokens', '1', '--json']!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["backends"]["reference"]["clock"] == "wall"


def test_on_a_cpu_nothing_of_a_gpu_is_loaded() -> None:
    code = "import sys, torch\nfrom glm53_exl3.bench_kernels.__main__ import main\n"
    code += f"assert main({[*SMALL, '--tokens', '1']!r}) == 0\nassert not torch.cuda.is_initialized()\n"
    code += "loaded = [name for name in sys.modules if name.endswith(('exllamav3_ext', '.bare_exl3_moe'))]\n"
    code += "assert not loaded, loaded"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (("--bits", "9"), "error: kernel-bench-option: --bits 9\n  expected: one number from 1 to 8"),
        (("--hidden", "100"), "error: kernel-bench-option: --hidden 100\n  expected: a multiple of 128"),
        (("--backend", "native"), "error: kernel-bench-backend: no backend native on cpu\n  expected: reference\n"),
        (("--backend", "exl3_moe"), "error: kernel-bench-backend: no backend exl3_moe on cpu\n"),
        (("--out", "/nonexistent/receipt.json"), "error: receipt-write: "),
    ],
)
def test_a_mistake_exits_with_1_before_anything_is_timed(
    arguments: tuple[str, ...],
    start: str,
    module: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert started(arguments, module, monkeypatch) == 1
    output = capsys.readouterr()
    assert output.err.startswith(start)
    assert "\n\nhint: " in output.err
    assert output.out == ""


def started(arguments: Sequence[str], module: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of a run in this process."""
    if module:
        return plain.main(arguments)
    monkeypatch.setattr(sys, "argv", ["glm53-exl3", "bench", "kernels", *arguments])
    monkeypatch.setattr(whole.signal, "signal", lambda *given: None)
    with pytest.raises(SystemExit) as ended:
        whole.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("module", [False, True])
def test_a_broken_kernel_exits_with_1_after_table_and_receipt(
    module: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(ReferenceKernel):
        """Loses the last token of a batch."""

        def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
            output = super().__call__(x, topk_ids, topk_weights)
            output[-1] = 0
            return output

    def build(layers: Sequence[PackedLayer], max_tokens: int, top_k: int) -> Built:
        kernel = Broken(layers[0], torch.float32, "load")
        return Built(lambda number, batch: Call(lambda: kernel(batch.x, batch.ids, batch.weights)), "broken")

    def with_broken(device: torch.device) -> dict[str, Backend]:
        return {"native": Backend("native", build, captured=True), **known_backends(device)}

    monkeypatch.setattr(command, "known_backends", with_broken)
    out = tmp_path / "receipt.json"
    assert started([*SMALL, "--tokens", "4", "--out", str(out)], module, monkeypatch) == 1
    output = capsys.readouterr()
    assert "WRONG" in output.out
    assert "error: kernel-wrong: outputs differ from the reference: native at T=4 by " in output.err
    assert "reference at" not in output.err
    cells = json.loads(out.read_text())["rows"][0]["backends"]
    assert cells["native"]["error"] > 0.1
    assert cells["reference"]["error"] < 5e-3


def test_usage_exits_with_2() -> None:
    assert run("--repeat", "x").returncode == 2
    assert run("--repeat", "x", module=True).returncode == 2


def test_both_commands_have_the_same_options_and_defaults() -> None:
    bench = typer.main.get_command(whole.application("bench")).commands["bench"]  # type: ignore[attr-defined]
    theirs = {
        name: tuple(parameter.default or ()) if parameter.multiple else parameter.default
        for parameter in bench.commands["kernels"].params
        for name in parameter.opts
    }
    ours = {
        name: tuple(action.default) if action.default == [] else action.default
        for action in plain.parser()._actions
        for name in action.option_strings
        if name not in ("-h", "--help")
    }
    assert ours == theirs


def test_bench_compare_refuses_its_receipt_by_name(tmp_path: Path) -> None:
    out = tmp_path / "receipt.json"
    assert run(*SMALL, "--tokens", "1", "--out", out).returncode == 0
    done = subprocess.run([PROGRAM, "bench", "compare", out, out], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("error: receipt-invalid: ")
    assert "found: a receipt of bench kernels" in done.stderr
