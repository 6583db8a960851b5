"""No header, index or config, however malformed, gives anything but a typed error or tensors that lie in the file."""

import contextlib
import json
import os
import struct
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from glm53_exl3.errors import Glm53Error
from glm53_exl3.pack import header_text
from glm53_exl3.pack.files import read_index, read_json
from glm53_exl3.pack.header_text import parse_header
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.pack.safetensors_header import DTYPE_BITS, StoredTensor, read_header
from support.packs import PackRecipe, write_pack

HEADER_IDS = {"shard-header", "shard-truncated", "shard-oversized", "shard-pointer", "tensor-doubled"}
EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextlib.contextmanager
def written(content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        path.write_bytes(content)
        yield path


def framed(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def outcome(content: bytes) -> list[StoredTensor] | Glm53Error:
    """What reading a file of this content gives, after checking that it is one of the two allowed things."""
    tensors, refusal = [], None
    with written(content) as path:
        try:
            tensors = read_header(path)
        except Glm53Error as error:
            refusal = error
    if refusal is not None:
        assert refusal.id in HEADER_IDS
        assert refusal.hint
        refusal.render().encode("utf-8")
        assert len(refusal.render()) < 2000
        return refusal
    data_start = 8 + int.from_bytes(content[:8], "little")
    ends = [data_start + tensor.start + tensor.num_bytes for tensor in tensors]
    assert all(tensor.start >= 0 and tensor.num_bytes >= 0 for tensor in tensors)
    assert max(ends, default=data_start) == len(content)
    assert sum(tensor.num_bytes for tensor in tensors) == len(content) - data_start
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    assert all(tensor.name.isprintable() and tensor.dtype in DTYPE_BITS for tensor in tensors)
    assert all(type(length) is int for tensor in tensors for length in tensor.shape)
    return tensors


# Values that a field may have by accident or malice.
SIZES = st.one_of(
    st.integers(-2, 9),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**300, 10**4000, True, False, None, 1.0, 0.5, "8", [], {}]),
    st.just(float("nan")),
    st.just(float("inf")),
)
DTYPES = st.one_of(st.sampled_from([*DTYPE_BITS, "Q5", "", "bf16"]), st.sampled_from([None, 1, [], {}, True]))
ENTRIES = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "dtype": DTYPES,
            "shape": st.one_of(st.lists(SIZES, max_size=4), SIZES),
            "data_offsets": st.one_of(st.lists(SIZES, max_size=3), SIZES),
            "more": SIZES,
        },
    ),
    SIZES,
)
NAMES = st.one_of(st.text(max_size=12), st.sampled_from(["a", "a.weight", "__metadata__", "\x1b[2J", "\ud800", "a:b"]))


@EXAMPLES
@given(st.binary(max_size=400))
def test_any_bytes(content: bytes) -> None:
    outcome(content)


@EXAMPLES
@given(st.binary(max_size=200), st.binary(max_size=40), st.integers(0, 2**64 - 1) | st.none())
def test_any_header_with_right_or_wrong_length(header: bytes, data: bytes, length: int | None) -> None:
    outcome(framed(header, data, length))


@EXAMPLES
@given(st.dictionaries(NAMES, ENTRIES, max_size=5), st.integers(0, 40), st.booleans(), st.booleans())
def test_any_json_in_the_shape_of_a_header(
    header: dict[str, Any], data_bytes: int, compact: bool, escaped: bool
) -> None:
    separators = (",", ":") if compact else None
    text = json.dumps(header, separators=separators, ensure_ascii=escaped)
    outcome(framed(text.encode("utf-8", "surrogatepass"), bytes(data_bytes)))


@st.composite
def sound_tensors(draw: st.DrawFn) -> dict[str, np.ndarray]:
    names = draw(st.lists(st.from_regex(r"[a-z][a-z.:,é]{0,9}", fullmatch=True), unique=True, min_size=1, max_size=6))
    dtypes = st.sampled_from([np.int16, np.float16, np.int32, np.uint8, np.bool_])
    shapes = st.lists(st.integers(0, 4), max_size=3)
    return {name: np.zeros(draw(shapes), draw(dtypes)) for name in names}


@EXAMPLES
@given(sound_tensors(), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3) | st.none())
def test_what_the_safetensors_library_writes_is_read_as_it_reads_it(
    tensors: dict[str, np.ndarray], metadata: dict[str, str] | None
) -> None:
    content = save(tensors, metadata)
    found = outcome(content)
    assert isinstance(found, list)
    assert {tensor.name: tensor.shape for tensor in found} == {name: array.shape for name, array in tensors.items()}
    assert {tensor.name: tensor.num_bytes for tensor in found} == {n: array.nbytes for n, array in tensors.items()}


@EXAMPLES
@given(sound_tensors(), st.data())
def test_a_changed_byte_gives_a_typed_error_or_tensors_in_the_file(
    tensors: dict[str, np.ndarray], data: st.DataObject
) -> None:
    content = bytearray(save(tensors))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["set", "insert", "delete"])):
            case "set":
                content[position] = data.draw(st.integers(0, 255))
            case "insert":
                content.insert(position, data.draw(st.sampled_from(b'"\\:,{}[]0 \n')))
            case _:
                del content[position]
    found = outcome(bytes(content))
    if isinstance(found, list):
        # What is taken for sound here must not be refused by the library that loads it.
        with written(bytes(content)) as path, safe_open(path, "numpy") as file:
            assert sorted(file.keys()) == sorted(tensor.name for tensor in found)


PIECES = st.sampled_from(
    ["", ":{", "dtype", ":", ",", "shape", ":[2],", ":[1,2],", "data_offsets", ":[0,4]},", "},", "a"]
)


@EXAMPLES
@given(sound_tensors(), st.data())
def test_both_parsers_agree(tensors: dict[str, np.ndarray], data: st.DataObject) -> None:
    raw = save(tensors, {"format": "np"})
    pieces = raw[8 : 8 + int.from_bytes(raw[:8], "little")].decode().split('"')
    for _ in range(data.draw(st.integers(0, 2))):
        pieces[data.draw(st.integers(0, len(pieces) - 1))] = data.draw(
            PIECES
            | st.sampled_from([":[0,4,4]},", ":[4]},", ":[0,1.0]},", ":[0,true]},", ":[00,4]},", ":[-0,4]}}", "},"])
        )
    header = '"'.join(pieces).encode()
    regular = header_text._parse_regular(header)
    if regular is not None:
        assert regular == header_text._parse_any(header.decode())


def test_the_usual_text_takes_the_short_way() -> None:
    raw = save({"b": np.zeros(2, np.int16), "a.weight": np.zeros((2, 3), np.float16)}, {"format": "pt", "x": "y"})
    header = raw[8 : 8 + int.from_bytes(raw[:8], "little")]
    regular = header_text._parse_regular(header)
    assert regular is not None
    assert regular == header_text._parse_any(header.decode())
    assert regular.names == ["a.weight", "b"]


SCALAR = '{"dtype":"U8","shape":[],"data_offsets":[0,1]}'


@pytest.mark.parametrize(
    "header",
    [
        "[" * 5000,
        '{"a":' * 5000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' + "9" * 5000 + "}",
        '{"a":{"dtype":"U8","shape":[' + "9" * 5000 + '],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"F4","shape":[' + "9" * 4000 + '],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,NaN]}}',
        '{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","shape":[true],"data_offsets":[false,true]}}',
        '{"a":{"dtype":"U8","shape":{},"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","shape":[],"data_offsets":"01"}}',
        '{"a":{"dtype":"U8","shape":[],"data_offsets":[1,0]}}',
        '{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,-1]}}',
        '{"a":{"dtype":"U8","shape":[18446744073709551617],"data_offsets":[0,1]}}',
        f'{{"a":{SCALAR},"a":{SCALAR}}}',
        f'{{"a":5,"a":{SCALAR}}}',
        f'{{"a":{SCALAR},"\\u0061":{SCALAR}}}',
        '{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}',
        f'{{"__metadata__":{{"x":"1","x":"2"}},"a":{SCALAR}}}',
        f'{{"__metadata__":{{"x":1}},"a":{SCALAR}}}',
        f'{{"__metadata__":[],"a":{SCALAR}}}',
        f'{{"\\ud800":{SCALAR}}}',
        f'{{"\\u001b[2J":{SCALAR}}}',
        f'{{"a\x7f":{SCALAR}}}',
        f'{{"a\n":{SCALAR}}}',
        f'\ufeff{{"a":{SCALAR}}}',
        "",
        " ",
        "null",
        "{",
        '"',
    ],
)
def test_malformed_header_is_refused(header: str) -> None:
    assert isinstance(outcome(framed(header.encode("utf-8"), b"\0")), Glm53Error)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "latin-1"])
def test_header_of_another_encoding_is_refused(encoding: str) -> None:
    assert isinstance(outcome(framed(f'{{"é":{SCALAR}}}'.encode(encoding), b"\0")), Glm53Error)


def test_library_refuses_what_is_refused_here_for_strictness() -> None:
    for header in (f'{{"a":5,"a":{SCALAR}}}', f'{{"__metadata__":{{"x":1}},"a":{SCALAR}}}'):
        with written(framed(header.encode(), b"\0")) as path, pytest.raises(SafetensorError):
            safe_open(path, "numpy").__enter__()


@pytest.mark.parametrize("length", [1, 93, 99_999_999, 100_000_001, 2**63, 2**64 - 1])
def test_stated_length_beyond_the_file_costs_no_memory(length: int) -> None:
    with written(framed(b"{}", b"\0" * 90, length)) as path:
        tracemalloc.start()
        try:
            with pytest.raises(Glm53Error) as caught:
                read_header(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert caught.value.id in HEADER_IDS
    assert peak < 100_000


@pytest.mark.parametrize("unit", ["[],", '"a":{},', "0,", f'"a":{SCALAR},'])
def test_memory_stays_in_proportion_to_the_header(unit: str) -> None:
    size = 1_000_000
    inner = unit * (size // len(unit))
    header = f"[{inner}0]" if unit.startswith(("[", "0")) else f'{{{inner}"z":{SCALAR}}}'
    with written(framed(header.encode())) as path:
        tracemalloc.start()
        try:
            with pytest.raises(Glm53Error):
                read_header(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 60 * size


def test_nothing_is_read_behind_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    content = save({"a": np.ones(1000, np.int16)})
    asked: list[int] = []
    os_read = os.read

    def counting(descriptor: int, size: int) -> bytes:
        asked.append(size)
        return os_read(descriptor, size)

    with written(content) as path:
        monkeypatch.setattr(os, "read", counting)
        read_header(path)
    assert sum(asked) == len(content) - 2000


# The other two files of a pack, and files that are none.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def small_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pack(tmp_path_factory.mktemp("pack"), PackRecipe(bits={1: 2}, stated={"quant_method": "exl3"}))


@contextlib.contextmanager
def exchanged(path: Path, content: bytes) -> Iterator[None]:
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(original)


def read_or_refuse(pack: Path) -> None:
    try:
        inventory = read_inventory(pack)
    except Glm53Error as error:
        error.render().encode("utf-8")
        return
    for fault in inventory.faults:
        fault.render().encode("utf-8")


@EXAMPLES
@given(JSON | st.dictionaries(st.sampled_from(["weight_map", "metadata"]), JSON))
def test_any_index(small_pack: Path, index: Any) -> None:
    with exchanged(small_pack / "model.safetensors.index.json", json.dumps(index).encode()):
        read_or_refuse(small_pack)


@EXAMPLES
@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20) | st.just("model-00001-of-00001.safetensors")))
def test_any_weight_map(small_pack: Path, weight_map: dict[str, str]) -> None:
    with exchanged(small_pack / "model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode()):
        read_or_refuse(small_pack)


CONFIG_KEYS = [
    "architectures", "text_config", "quantization_config", "hidden_size", "moe_intermediate_size", "n_routed_experts",
    "num_hidden_layers", "num_experts_per_tok", "mlp_layer_types", "first_k_dense_replace", "mlp_only_layers",
    "decoder_sparse_step", "num_nextn_predict_layers", "vocab_size", "tie_word_embeddings", "model_type",
]  # fmt: skip


@EXAMPLES
@given(st.data())
def test_any_config(small_pack: Path, data: st.DataObject) -> None:
    config = json.loads((small_pack / "config.json").read_text())
    for key in data.draw(st.lists(st.sampled_from(CONFIG_KEYS), min_size=1, max_size=3)):
        config[key] = data.draw(JSON)
    for key in data.draw(st.lists(st.sampled_from(["bits", "codebook", "layer_bits", "quant_method"]), max_size=2)):
        if isinstance(config["quantization_config"], dict):
            config["quantization_config"][key] = data.draw(JSON)
    with exchanged(small_pack / "config.json", json.dumps(config).encode()):
        read_or_refuse(small_pack)


@EXAMPLES
@given(st.binary(max_size=60))
def test_any_bytes_as_index_or_config(small_pack: Path, content: bytes) -> None:
    for name in ("model.safetensors.index.json", "config.json"):
        with exchanged(small_pack / name, content):
            read_or_refuse(small_pack)


def refused(reader: Any, path: Path) -> Glm53Error:
    """The error of reading something; reading must come back although nobody writes into a pipe."""
    caught: list[Exception] = []

    def read() -> None:
        try:
            reader(path)
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "reading hangs"
    assert len(caught) == 1
    assert isinstance(caught[0], Glm53Error)
    return caught[0]


@pytest.mark.parametrize("reader", [read_header, read_json])
def test_what_is_no_file_is_refused(tmp_path: Path, reader: Any) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "plain").write_text("x")
    expected = {
        "folder": ("file-unreadable", "folder"),
        "pipe": ("file-unreadable", "pipe"),
        "loop": ("file-unreadable", "symbolic links"),
        "dangling": ("file-missing", "link to a file that is not there"),
        "device": ("file-unreadable", "device"),
        "nowhere": ("file-missing", "is missing"),
        "plain/below": ("file-missing", "is missing"),
        "x" * 5000: ("file-unreadable", "too long"),
        "nul\0": ("file-unreadable", "null"),
    }
    for name, (error_id, words) in expected.items():
        error = refused(reader, tmp_path / name)
        assert (error.id, words in error.what) == (error_id, True), error


@pytest.mark.parametrize("reader", [read_header, read_json])
def test_file_without_permission_is_refused_with_the_remedy(reader: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "locked.safetensors"
        path.write_text("{}")
        path.chmod(0)
        Path(folder).chmod(0o755)
        with without_privileges():
            error = refused(reader, path)
    assert error.id == "file-unreadable"
    assert "Permission denied" in error.what
    assert error.hint == f"chmod u+r {path}"


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """As an ordinary user, whom permissions bind; in all threads that begin within."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_json_file_beyond_every_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(Glm53Error) as caught:
        read_index(tmp_path)
    assert caught.value.id == "file-json"


def test_parse_header_gives_the_name_that_stands_twice() -> None:
    with pytest.raises(header_text.DoubledNameError) as caught:
        parse_header(f'{{"b":{SCALAR},"a":{SCALAR},"a":{SCALAR}}}'.encode())
    assert caught.value.name == "a"
