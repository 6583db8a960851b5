"""The JSON text of a safetensors header, taken apart.

A pack of 150,000 tensors has 20 MB of headers, and `json.loads` makes half a million objects of them, which takes
longer than all checks together. Every writer that uses the safetensors library gives the same text but for names
and numbers: no blanks, `dtype`, `shape` and `data_offsets` in this order. Such a text is cut at its quotation marks
and each column of pieces is checked as a whole; any other text goes to `json`, with the same result.
"""

from __future__ import annotations

import json
from itertools import repeat
from typing import Any, Final, NamedTuple, NoReturn

_METADATA: Final = "__metadata__"
#: Pieces of one entry: name :{ dtype : BF16 , shape :[1,2], data_offsets :[0,4]},
_PIECES: Final = 10
#: Backslash and control characters.
_IRREGULAR: Final = b"\\\x7f" + bytes(range(32))
_CONSTANT: Final = {1: ":{", 2: "dtype", 3: ":", 5: ",", 6: "shape", 8: "data_offsets"}


class TensorColumns(NamedTuple):
    """Entries of a header, one list an attribute; nothing but their types has been checked.

    Attributes:
        names, dtypes: as written.
        shapes: non-negative whole numbers.
        starts, ends: non-negative whole numbers, bytes from where the data begin.
    """

    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    starts: list[int]
    ends: list[int]


class DoubledNameError(ValueError):
    """A name that stands twice in one object."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def parse_header(raw: bytes) -> TensorColumns:
    """The entries of a header in its order, without its metadata.

    Raises:
        DoubledNameError: a name stands twice.
        ValueError: the text is not that of a header.
        RecursionError: it is nested too deeply.
    """
    return _parse_regular(raw) or _parse_any(raw.decode("utf-8"))


def _parse_regular(raw: bytes) -> TensorColumns | None:
    """The columns of a text as the library writes it, None for any other text."""
    # Without backslashes every quotation mark begins or ends a text.
    if not raw.isascii() or len(raw.translate(None, _IRREGULAR)) != len(raw):
        return None
    pieces = raw.decode("ascii").split('"')
    first = _skip_metadata(pieces)
    num_entries, rest = divmod(len(pieces) - first, _PIECES)
    if first == 0 or num_entries == 0 or rest:
        return None
    columns = [pieces[first + column :: _PIECES] for column in range(_PIECES)]
    if any(columns[column].count(text) != num_entries for column, text in _CONSTANT.items()):
        return None
    names, shapes, numbers = columns[0], _shapes(columns[7]), _offsets(columns[9])
    unique = set(names)
    if shapes is None or numbers is None or len(unique) != num_entries or _METADATA in unique:
        return None
    return TensorColumns(names, columns[4], shapes, numbers[0::2], numbers[1::2])


def _skip_metadata(pieces: list[str]) -> int:
    """Where the first name of a tensor is, 0 when the text does not begin as the library begins it."""
    if pieces[:2] != ["{", _METADATA]:
        return int(pieces[0] == "{")
    # "__metadata__" :{ "key" : "value" , "key" : "value" },
    end = next((number for number in range(6, len(pieces), 4) if pieces[number] == "},"), 0)
    regular = pieces[2] == ":{" and set(pieces[4:end:4]) == {":"} and set(pieces[6:end:4]) <= {","}
    keys = pieces[3:end:4]
    return end + 1 if regular and len(set(keys)) == len(keys) else 0


def _shapes(pieces: list[str]) -> list[tuple[int, ...]] | None:
    """Shapes of pieces like `:[1,2],`; few of them differ."""
    known: dict[str, tuple[int, ...]] = {}
    for piece in set(pieces):
        numbers = _numbers(piece[2:-2]) if piece[:2] == ":[" and piece[-2:] == "]," else None
        if numbers is None:
            return None
        known[piece] = tuple(numbers)
    return [known[piece] for piece in pieces]


def _offsets(pieces: list[str]) -> list[int] | None:
    """Starts and ends, in turn, of pieces like `:[0,4]},`, the last of which ends in `]}}` and blanks."""
    pieces[-1] = pieces[-1].rstrip(" ")
    joined = "".join(pieces)
    if joined[:2] != ":[" or joined[-3:] != "]}}":
        return None
    numbers = _numbers(joined[2:-3].replace("]},:[", ","))
    # One comma between the two numbers of each, and one after all but the last.
    commas = set(map(str.count, pieces[:-1], repeat(",")))
    if numbers is None or len(numbers) != 2 * len(pieces) or not commas <= {2}:
        return None
    return numbers


def _numbers(text: str) -> list[int] | None:
    """Whole numbers between commas, None for anything else."""
    if not text:
        return []
    if not (text.isascii() and text.replace(",", "").isdecimal()):
        return None
    try:
        numbers: list[int] = json.loads(f"[{text}]")
    except ValueError:
        return None
    return numbers


def _parse_any(text: str) -> TensorColumns:
    header = json.loads(text, object_pairs_hook=_refuse_twice, parse_float=_no_number, parse_constant=_no_number)
    if not isinstance(header, dict):
        raise ValueError("it is no object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(type(value) is str for value in metadata.values()):
        raise ValueError(f"{_METADATA} is no map of texts")
    columns = TensorColumns([], [], [], [], [])
    for name, entry in header.items():
        if not name.isprintable():
            raise ValueError(f"a tensor is named {name!a}")
        try:
            dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{name} cannot be read: {error!r}") from error
        if type(dtype) is not str or type(shape) is not list or type(entry["data_offsets"]) is not list:
            raise ValueError(f"{name}: dtype {dtype!r}, shape {shape!r}, bytes {start!r} to {end!r}")
        if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
            raise ValueError(f"{name}: shape {shape!r}, bytes {start!r} to {end!r}")
        for column, value in zip(columns, (name, dtype, tuple(shape), start, end), strict=True):
            column.append(value)  # type: ignore[attr-defined]
    return columns


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise DoubledNameError(name)
            seen.add(name)
    return result


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"the number {text}")
