"""Names, shapes, settings and shards of the format layer."""

import subprocess
import sys

import pytest

from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import CODEBOOKS, MARKER_VALUES, is_codebook, require_codebook
from glm53_exl3.format.names import ExpertName, layer_index, parse_expert, split_tensor
from glm53_exl3.format.quantization_config import parse_quantization_config
from glm53_exl3.format.shards import shard_range
from glm53_exl3.format.tensors import (
    bits_of_words,
    features_of_trellis,
    require_bits,
    require_rotatable,
    trellis_shape,
)


def test_markers_are_the_multipliers_as_signed_integers() -> None:
    assert MARKER_VALUES["mcg"] % 2**32 == 0xCBAC1FED
    assert MARKER_VALUES["mul1"] % 2**32 == 0x83DCD12D


def test_codebooks() -> None:
    assert all(is_codebook(name) for name in CODEBOOKS)
    assert not is_codebook("mcg ")
    with pytest.raises(FormatError, match="codebook 'abc' is not known"):
        require_codebook("abc")


@pytest.mark.parametrize("bits", range(1, 9))
def test_trellis_shape_and_back(bits: int) -> None:
    assert trellis_shape(4096, 2048, bits) == (256, 128, 16 * bits)
    assert features_of_trellis((256, 128, 16 * bits), "w") == (4096, 2048, bits)


@pytest.mark.parametrize(("words", "rate"), [(24, "1.5"), (40, "2.5"), (56, "3.5"), (8, "0.5")])
def test_half_rate_is_refused_by_name(words: int, rate: str) -> None:
    with pytest.raises(FormatError, match=f"w.trellis: half-rate trellis of {rate} bits") as caught:
        bits_of_words(words, "w.trellis")
    assert caught.value.id == "trellis-half-rate"


@pytest.mark.parametrize("words", [0, 1, 17, 144, -16])
def test_other_word_counts_are_refused(words: int) -> None:
    with pytest.raises(FormatError) as caught:
        bits_of_words(words, "w")
    assert caught.value.id == "bits-range"


@pytest.mark.parametrize("bits", [0, 9, 2.0, "2", None, True])
def test_bits_out_of_range(bits: object) -> None:
    with pytest.raises(FormatError, match="layer 3"):
        require_bits(bits, "layer 3")


@pytest.mark.parametrize("sizes", [(128, 64), (64, 128), (0, 128), (4096, 2000)])
def test_sizes_off_the_hadamard_block_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(FormatError, match="multiples of 128"):
        require_rotatable(*sizes, "w")


def test_trellis_needs_three_dimensions() -> None:
    with pytest.raises(FormatError, match="three dimensions"):
        features_of_trellis((256, 128), "w")


@pytest.mark.parametrize(
    ("module", "block", "layer", "expert", "projection"),
    [
        ("model.layers.3.mlp.experts.17.gate_proj", "model.layers.3.mlp.experts", 3, 17, "gate_proj"),
        (
            "model.language_model.layers.45.mlp.experts.287.down_proj",
            "model.language_model.layers.45.mlp.experts",
            45,
            287,
            "down_proj",
        ),
        ("layers.0.block_sparse.experts.0.up_proj", "layers.0.block_sparse.experts", 0, 0, "up_proj"),
    ],
)
def test_expert_names(module: str, block: str, layer: int, expert: int, projection: str) -> None:
    assert parse_expert(module) == ExpertName(block, layer, expert, projection)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "module",
    [
        "model.layers.3.mlp.shared_experts.gate_proj",
        "model.layers.3.mlp.gate_proj",
        "model.layers.3.mlp.experts.gate_up_proj",
        "model.layers.3.mlp.experts.x.gate_proj",
        "model.layers.3.mlp.experts.03.gate_proj",
        "model.layers.3.mlp.experts.\u0663.gate_proj",
        "model.layers.3.mlp.experts." + "1" * 5000 + ".gate_proj",
        "lm_head",
    ],
)
def test_other_modules_are_no_experts(module: str) -> None:
    assert parse_expert(module) is None


def test_layer_index_and_split() -> None:
    assert layer_index("language_model.model.layers.12.mlp.experts") == 12
    assert layer_index("model.layers.7") == 7
    assert layer_index("model.norm") is None
    assert layer_index("encoder.layers.9.decoder.layers.1.mlp.experts") == 1
    assert split_tensor("a.b.trellis") == ("a.b", "trellis")
    assert split_tensor("trellis") == ("", "trellis")


def test_quantization_config_of_a_mixed_pack() -> None:
    fields = parse_quantization_config(
        {"quant_method": "exl3", "bits": 2, "codebook": "mcg", "layer_bits": {"24": 3, "45": 3}, "mixed_k_note": "x"}
    )
    assert fields.stated_bits(24) == 3
    assert fields.stated_bits(25) == 2
    assert fields.codebook == "mcg"


def test_quantization_config_of_a_converter_pack() -> None:
    fields = parse_quantization_config({"quant_method": "exl3", "bits": 2.05, "head_bits": 6})
    assert fields.bits is None
    assert fields.average_bits == 2.05
    assert fields.stated_bits(3) is None
    assert parse_quantization_config({"quant_method": "exl3", "bits": 4.0}).bits == 4


@pytest.mark.parametrize(
    ("config", "error_id", "words"),
    [
        ({}, "quant-method", "quant_method is None"),
        ({"quant_method": "modelopt"}, "quant-method", "modelopt"),
        ({"quant_method": "exl3", "bits": 9}, "bits-range", "9 bits"),
        ({"quant_method": "exl3", "bits": "2"}, "bits-range", "'2' bits"),
        ({"quant_method": "exl3", "codebook": "x"}, "codebook-unknown", "'x'"),
        ({"quant_method": "exl3", "layer_bits": [2]}, "layer-bits", "list"),
        ({"quant_method": "exl3", "layer_bits": {"a": 2}}, "layer-bits", "'a'"),
        ({"quant_method": "exl3", "layer_bits": {"02": 2}}, "layer-bits", "'02'"),
        ({"quant_method": "exl3", "layer_bits": {"3": 0}}, "bits-range", r"layer_bits\[3\]"),
    ],
)
def test_quantization_config_refusals(config: dict[str, object], error_id: str, words: str) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        parse_quantization_config(config)
    assert caught.value.id == error_id
    assert caught.value.hint


def test_shards_cut_at_multiples_of_128() -> None:
    assert shard_range(2048, 4, 3, "w") == range(1536, 2048)
    assert [len(shard_range(512, 4, rank, "w")) for rank in range(4)] == [128] * 4


@pytest.mark.parametrize(
    ("size", "ranks", "usable"), [(256, 4, "1, 2"), (128, 2, "1"), (384, 2, "1"), (2048, 3, "1, 2")]
)
def test_other_cuts_are_refused_with_the_sizes_that_do(size: int, ranks: int, usable: str) -> None:
    with pytest.raises(FormatError, match=r"experts\.\*\.gate_proj") as caught:
        shard_range(size, ranks, 0, "experts.*.gate_proj")
    assert caught.value.id == "shard-cut"
    assert f"tensor-parallel size of {usable}," in caught.value.hint


@pytest.mark.parametrize("module", ["format.tensors", "pack.inventory", "cli.main", "serve.process", "demo.faq"])
def test_layers_that_must_not_need_torch_import_without_it(module: str) -> None:
    code = f"import sys; sys.modules.update(torch=None, vllm=None, numba=None); import glm53_exl3.{module}"
    subprocess.run([sys.executable, "-c", code], check=True)
