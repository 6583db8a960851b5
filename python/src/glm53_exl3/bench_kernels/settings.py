"""What `bench kernels` is asked to time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_args

from glm53_exl3.bench.errors import BenchError
from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.format.tensors import HADAMARD
from glm53_exl3.kernels.exllamav3.shape import MAX_TOP_K

Profile = Literal["glm-5.3-flash", "small"]
Routing = Literal["uniform", "skewed", "same"]
#: The kernel of exllamav3 alone, which no engine calls: its rows are sorted and zeroed before the clock starts.
BARE: Final = "exl3_moe"
#: Decoding to 16 bits and dense products.
DECODED: Final = "decoded"

_MOST_TOKENS: Final = 65536
_MOST_EXPERTS: Final = 4096
_MOST_REPEATS: Final = 1000
_MOST_WIDTH: Final = 65536
_Choice = TypeVar("_Choice", bound=str)


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer of routed experts.

    Attributes:
        hidden: width of the activations, a multiple of 128.
        intermediate: width between up and down, a multiple of 128.
        experts: routed experts.
        top_k: experts a token.
    """

    hidden: int
    intermediate: int
    experts: int
    top_k: int


#: Shape and batches of each profile; the small one is for a CPU.
PROFILES: Final[Mapping[Profile, tuple[LayerShape, tuple[int, ...]]]] = {
    "glm-5.3-flash": (
        LayerShape(4096, 2048, 288, 8),
        (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    ),
    "small": (LayerShape(512, 256, 16, 4), (1, 4, 16, 64)),
}


@dataclass(frozen=True)
class KernelBenchSettings:
    """One measurement.

    Attributes:
        shape: of the layer.
        tokens: batch sizes, in this order.
        bits: of gate, up and down.
        codebook: of all three.
        limit: SwiGLU limit, 0 for none.
        backends: names; None for all that run here.
        repeat: replays that count, at most: slow ones are repeated less.
        routing: `uniform`; `skewed`, where the expert of rank r is chosen in proportion to 1 / (r + 1); `same`, where
            all tokens of a call go to the same top_k experts.
        seed: of weights, activations and routing.
    """

    shape: LayerShape
    tokens: tuple[int, ...]
    bits: tuple[int, int, int]
    codebook: Codebook
    limit: float
    backends: tuple[str, ...] | None
    repeat: int
    routing: Routing
    seed: int

    def to_json(self) -> dict[str, Any]:
        """As the receipt has it."""
        return {
            "hidden": self.shape.hidden,
            "intermediate": self.shape.intermediate,
            "experts": self.shape.experts,
            "top_k": self.shape.top_k,
            "tokens": list(self.tokens),
            "bits": list(self.bits),
            "codebook": self.codebook,
            "limit": self.limit,
            "backends": None if self.backends is None else list(self.backends),
            "repeat": self.repeat,
            "routing": self.routing,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Options:
    """The options of the command as they were typed; None where nothing was."""

    profile: str | None = None
    tokens: str | None = None
    bits: str = "2"
    codebook: str = "mcg"
    hidden: int | None = None
    intermediate: int | None = None
    experts: int | None = None
    top_k: int | None = None
    limit: float = 10.0
    backend: tuple[str, ...] = ()
    repeat: int = 30
    routing: str = "uniform"
    seed: int = 0


def read_options(options: Options, default_profile: Profile) -> KernelBenchSettings:
    """Settings from options.

    Args:
        options: as typed.
        default_profile: where none is named.

    Raises:
        BenchError: `kernel-bench-option`, with the name of the option.
    """
    named: Profile = default_profile
    if options.profile is not None:
        named = _choice("--profile", options.profile, get_args(Profile))
    shape, tokens = PROFILES[named]
    experts = _count("--experts", options.experts, shape.experts, _MOST_EXPERTS)
    top_k = options.top_k if options.top_k is not None else min(shape.top_k, experts)
    return KernelBenchSettings(
        shape=LayerShape(
            _width("--hidden", options.hidden, shape.hidden),
            _width("--intermediate", options.intermediate, shape.intermediate),
            experts,
            _count("--top-k", top_k, top_k, min(MAX_TOP_K, experts)),
        ),
        tokens=tokens if options.tokens is None else _tokens(options.tokens),
        bits=_bits(options.bits),
        codebook=_choice("--codebook", options.codebook, get_args(Codebook)),
        limit=_limit(options.limit),
        backends=tuple(dict.fromkeys(options.backend)) or None,
        repeat=_count("--repeat", options.repeat, options.repeat, _MOST_REPEATS),
        routing=_choice("--routing", options.routing, get_args(Routing)),
        seed=_seed(options.seed),
    )


def _refuse(option: str, value: object, expected: str, hint: str) -> BenchError:
    return BenchError("kernel-bench-option", f"{option} {value}", expected=expected, hint=hint)


def _choice(option: str, value: str, choices: tuple[_Choice, ...]) -> _Choice:
    for choice in choices:
        if value == choice:
            return choice
    raise _refuse(option, value, " or ".join(choices), f"{option} {choices[0]}")


def _count(option: str, value: int | None, default: int, most: int) -> int:
    found = default if value is None else value
    if not 1 <= found <= most:
        raise _refuse(option, found, f"1 to {most}", f"{option} {min(max(found, 1), most)}")
    return found


def _width(option: str, value: int | None, default: int) -> int:
    found = default if value is None else value
    if found % HADAMARD or not HADAMARD <= found <= _MOST_WIDTH:
        nearest = min(max(found // HADAMARD, 1) * HADAMARD, _MOST_WIDTH)
        raise _refuse(
            option,
            found,
            f"a multiple of {HADAMARD}, the block of the rotations, up to {_MOST_WIDTH}",
            f"{option} {nearest}",
        )
    return found


def _limit(value: float) -> float:
    # Comparisons with nan are false, so that this refuses it too.
    if not 0 <= value < float("inf"):
        raise _refuse("--limit", value, "0 for none, or a positive number", "--limit 10")
    return value


def _seed(value: int) -> int:
    if not 0 <= value < 2**31:
        raise _refuse("--seed", value, f"0 to {2**31 - 1}", "--seed 0")
    return value


def _numbers(text: str) -> tuple[int, ...] | None:
    parts = text.split(",")
    return tuple(int(part) for part in parts) if all(part.strip().isdecimal() for part in parts) else None


def _tokens(text: str) -> tuple[int, ...]:
    found = _numbers(text)
    if found is None or len(set(found)) != len(found) or not all(1 <= each <= _MOST_TOKENS for each in found):
        raise _refuse("--tokens", text, f"numbers from 1 to {_MOST_TOKENS}, each once", "--tokens 1,2,4,8")
    return found


def _bits(text: str) -> tuple[int, int, int]:
    found = _numbers(text)
    if found is None or len(found) not in (1, 3) or not all(1 <= each <= 8 for each in found):
        raise _refuse("--bits", text, "one number from 1 to 8, or three for gate, up and down", "--bits 2")
    gate, up, down = found if len(found) == 3 else found * 3
    return gate, up, down
