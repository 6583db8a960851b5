"""The `quantization_config` of an EXL3 pack, read from `config.json`.

Packs of routed experts only carry `bits` (the base K), `codebook` and, when K differs between layers,
`layer_bits`. Packs of the exllamav3 converter carry `bits` as the average over all tensors: a float there says
nothing about one layer. So K always comes from the trellis; these fields are only compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import Codebook, require_codebook
from glm53_exl3.format.tensors import MAX_BITS, MIN_BITS, require_bits

QUANT_METHOD: Final = "exl3"
KEY: Final = "quantization_config"
BITS: Final = "bits"
LAYER_BITS: Final = "layer_bits"
CODEBOOK: Final = "codebook"
SCOPE: Final = "scope"

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,5}")


@dataclass(frozen=True)
class QuantizationFields:
    """What a pack states about itself.

    Attributes:
        bits: K of every layer without an entry in `layer_bits`; None when absent or an average.
        average_bits: the float average of a converter pack; None otherwise.
        layer_bits: K by layer index.
        codebook: None when the pack does not state it.
    """

    bits: int | None = None
    average_bits: float | None = None
    layer_bits: Mapping[int, int] = field(default_factory=dict)
    codebook: Codebook | None = None

    def stated_bits(self, layer: int) -> int | None:
        """K that the pack states for a layer, or None when it states none."""
        return self.layer_bits.get(layer, self.bits)


def parse_quantization_config(config: Mapping[str, Any]) -> QuantizationFields:
    """Read the fields of a `quantization_config`.

    Raises:
        FormatError: `quant-method` when the pack says it is something else; `bits-range`, `layer-bits` or
            `codebook-unknown` for a value that cannot be meant.
    """
    method = config.get("quant_method")
    if method != QUANT_METHOD:
        raise FormatError(
            "quant-method",
            f"quantization_config.quant_method is {method!r}",
            expected=repr(QUANT_METHOD),
            found=repr(method),
            hint='set "quant_method": "exl3" in the quantization_config of config.json if its experts are EXL3',
        )
    raw = config.get(BITS)
    exact = raw if isinstance(raw, int) else None
    average = raw if isinstance(raw, float) and MIN_BITS <= raw <= MAX_BITS else None
    if average is not None and average.is_integer():
        exact, average = int(average), None
    if exact is not None:
        require_bits(exact, f"{KEY}.{BITS}")
    elif raw is not None and average is None:
        require_bits(raw, f"{KEY}.{BITS}")
    codebook = config.get(CODEBOOK)
    return QuantizationFields(
        bits=exact,
        average_bits=average,
        layer_bits=_parse_layer_bits(config.get(LAYER_BITS)),
        codebook=None if codebook is None else require_codebook(codebook),
    )


def _parse_layer_bits(raw: object) -> dict[int, int]:
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise FormatError(
            "layer-bits",
            f"{KEY}.{LAYER_BITS} is {type(raw).__name__}",
            expected='a map from layer index to bits, for example {"24": 3}',
            hint="fetch config.json of the pack again",
        )
    result: dict[int, int] = {}
    for key, bits in raw.items():
        text = str(key)
        if not _INDEX.fullmatch(text):
            raise FormatError(
                "layer-bits",
                f"{KEY}.{LAYER_BITS} has the key {key!r}",
                expected="a layer index",
                hint="fetch config.json of the pack again",
            )
        result[int(text)] = require_bits(bits, f"{KEY}.{LAYER_BITS}[{text}]")
    return result
