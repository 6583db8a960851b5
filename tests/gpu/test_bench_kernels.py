"""`bench kernels` on a GPU: every backend in CUDA graphs, right, and a wrong one found there too."""

from __future__ import annotations

import pytest
import torch

from glm53_exl3.bench_kernels import backends
from glm53_exl3.bench_kernels.backends import Backend, Built, known_backends
from glm53_exl3.bench_kernels.grouped_gemm import method_for
from glm53_exl3.bench_kernels.measure import measure
from glm53_exl3.bench_kernels.report import head_lines, table_lines
from glm53_exl3.bench_kernels.result import require_right
from glm53_exl3.bench_kernels.settings import KernelBenchSettings, Options, read_options
from glm53_exl3.bench_kernels.timing import Call, copy_bandwidth, time_graph
from glm53_exl3.errors import Glm53Error


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def settings(**changed: object) -> KernelBenchSettings:
    small = {"experts": 12, "tokens": "1,7,64", "repeat": 6}
    return read_options(Options(profile="small", **{**small, **changed}), "small")  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", ["2", "2,3,4"])
@pytest.mark.parametrize("routing", ["uniform", "skewed", "same"])
def test_every_backend_is_right_and_timed(bits: str, routing: str) -> None:
    asked = settings(bits=bits, routing=routing)
    found = measure(asked, device(), list(known_backends(device()).values()), lambda line: None)
    require_right(found)
    assert not found.left_out
    # A layer of this size stays in any L2 cache, so that several take turns.
    assert found.layers > 1
    for row in found.rows:
        assert {name: cell.clock for name, cell in row.cells.items()} == {
            "native": "graph",
            "exllamav3": "graph",
            "exl3_moe": "graph",
            "decoded": "graph",
            "reference": "wall",
        }
        assert row.gemm is not None, found.gemm
        assert row.cells["exllamav3"].microseconds.count == 6
        assert all(cell.error > 0 for cell in row.cells.values())
        # Outputs of grouped products mean nothing; see decoded_gemm.py.
        compared = [name for name, cell in row.cells.items() if cell.tolerance is not None]
        grouped = method_for(device()) == "torch._grouped_mm"
        assert compared == [name for name in row.cells if name != "decoded" or not grouped]
    assert f"driver {found.machine['gpu']['driver']}" in head_lines(found)[0]
    assert "exllamav3 over exl3_moe" in table_lines(found)[1]


def test_batches_beyond_the_scratch_are_right() -> None:
    found = measure(settings(tokens="5000"), device(), list(known_backends(device()).values()), lambda line: None)
    require_right(found)


@pytest.mark.parametrize("codebook", ["mcg", "mul1", "3inst"])
def test_decoded_experts_and_a_product_each_give_the_outputs_of_the_layer(
    codebook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "method_for", lambda device: "a loop of matmuls")
    asked = settings(codebook=codebook, bits="2,3,4", backend=("decoded",))
    found = measure(asked, device(), [known_backends(device())["decoded"]], lambda line: None)
    require_right(found)
    assert all(row.cells["decoded"].tolerance == 5e-3 for row in found.rows)


def test_3inst_has_no_kernels_of_exllamav3() -> None:
    asked = settings(codebook="3inst", tokens="1")
    found = measure(asked, device(), list(known_backends(device()).values()), lambda line: None)
    require_right(found)
    assert set(found.left_out) == {"exllamav3", "exl3_moe"}


def test_a_backend_that_forgets_a_row_is_found() -> None:
    right, nobody = known_backends(device())["exllamav3"], torch.zeros(1, dtype=torch.long, device="cuda")

    def build(layers: object, max_tokens: int, top_k: int) -> Built:
        built = right.build(layers, max_tokens, top_k)  # type: ignore[arg-type]

        def prepare(number: int, batch: object) -> Call:
            call = built.prepare(number, batch)  # type: ignore[arg-type]
            return Call(lambda: call.run().index_fill(0, nobody, 0))

        return Built(prepare, "broken")

    found = measure(settings(), device(), [Backend("broken", build, captured=True)], lambda line: None)
    with pytest.raises(Glm53Error, match="broken at T=1 by"):
        require_right(found)


def test_a_graph_is_replayed_once_after_its_reset() -> None:
    total = torch.zeros(1, device="cuda")
    timed = time_graph([Call(lambda: total.add_(1), lambda: total.zero_() and None)] * 3, 5)
    assert timed.outputs[0].item() == 3
    assert timed.microseconds.count == 5
    assert timed.microseconds.p10 > 0


def test_bandwidth_is_that_of_a_gpu() -> None:
    found = copy_bandwidth(device())
    assert 1e11 < found.p50 < 2e13
