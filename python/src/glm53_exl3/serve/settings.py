"""The settings of `serve`: one dataclass that flags, settings file and NixOS options share.

A field `kv_dtype` is the flag `--kv-dtype`, the key `kv-dtype` of the file and the option of that name. Its metadata
are the one source of help texts, bounds and the table in docs/serve.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from glm53_exl3.kernels.settings import KERNEL_VARIABLE, Backend
from glm53_exl3.pins import RuntimeName
from glm53_exl3.serve import boot
from glm53_exl3.serve.profiles import DEFAULT_PROFILE, PROFILES, Profile, ProfileName, SpeculationName

Kind = Literal["string", "integer", "number", "boolean", "path", "strings", "integers"]
LOOPBACK: Final = "127.0.0.1"
_CHAT: Final = PROFILES[DEFAULT_PROFILE]
_LIMITS: Final = {phase.name: int(phase.limit_seconds) for phase in boot.PHASES}
_MOST_SECONDS: Final = 86_400
#: More than any context or pool of this model; catches bytes given for GiB and the like.
_MOST_TOKENS: Final = 1 << 20


def _about(
    kind: Kind,
    text: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    by_default: str = "",
) -> dict[str, Any]:
    """Metadata of a field, as :class:`SettingSpec` describes them."""
    return {
        "kind": kind,
        "help": text,
        "unit": unit,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "by_default": by_default,
    }


def _limit(phase: str) -> dict[str, Any]:
    """Metadata of the limit of a phase of the start."""
    article = "the " if phase == "canary" else ""
    progress = " without progress" if phase == "loading weights" else ""
    text = f"Longest that {article}{phase} may take{progress}."
    return _about("integer", text, unit="seconds", minimum=1, maximum=_MOST_SECONDS)


@dataclass(frozen=True)
class Settings:
    """How a pack is served. Made by `setting_values.merge_settings`, which fills in the values of the profile."""

    pack: Path = field(
        default=Path(), metadata=_about("path", "Folder of the pack.", by_default="none, it has to be given")
    )
    profile: ProfileName = field(
        default=DEFAULT_PROFILE,
        metadata=_about("string", "Values that go together: see the profiles.", choices=tuple(PROFILES)),
    )
    runtime: RuntimeName = field(
        default=_CHAT.runtime, metadata=_about("string", "Which vLLM runs.", choices=("fork", "upstream"))
    )
    context: int = field(
        default=_CHAT.context,
        metadata=_about("integer", "Prompt and answer together.", unit="tokens", minimum=1, maximum=_MOST_TOKENS),
    )
    sequences: int = field(
        default=_CHAT.sequences, metadata=_about("integer", "Requests at once.", minimum=1, maximum=1024)
    )
    speculation: SpeculationName = field(
        default=_CHAT.speculation,
        metadata=_about("string", "Where drafted tokens come from.", choices=("none", "mtp", "dflash2")),
    )
    speculative_tokens: int = field(
        default=0,
        metadata=_about(
            "integer",
            "Drafted tokens a step.",
            minimum=0,
            maximum=16,
            by_default="2 with mtp, 3 with dflash2, 0 without",
        ),
    )
    draft: Path | None = field(default=None, metadata=_about("path", "Folder of the draft model, for dflash2."))
    draft_quantization: Literal["none", "fp8"] = field(
        default="none",
        metadata=_about("string", "How the draft model is quantized while it loads.", choices=("none", "fp8")),
    )
    capture_sizes: tuple[int, ...] = field(
        default=(),
        metadata=_about(
            "integers",
            "Tokens of the CUDA graphs to capture.",
            minimum=1,
            maximum=8192,
            by_default="those of speculation, tokens and sequences",
        ),
    )
    kv_dtype: str = field(
        default=_CHAT.kv_dtype,
        metadata=_about(
            "string",
            "Type of the KV cache.",
            choices=("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"),
        ),
    )
    kv_cache_bytes: int | None = field(
        default=_CHAT.kv_cache_bytes,
        metadata=_about(
            "integer", "Size of the KV cache.", unit="bytes", minimum=1 << 20, by_default="what the memory plan gives"
        ),
    )
    memory_plan: bool = field(
        default=_CHAT.memory_plan,
        metadata=_about("boolean", "Plan memory before the start; without, vLLM measures by itself."),
    )
    floor: float = field(
        default=_CHAT.floor,
        metadata=_about(
            "number",
            "Host memory that the plan leaves free; when half of it is left, the server is ended.",
            unit="GiB",
            minimum=0,
            maximum=1024,
        ),
    )
    prefix_caching: bool = field(
        default=_CHAT.prefix_caching, metadata=_about("boolean", "Keep the KV cache of finished prefixes.")
    )
    batched_tokens: int = field(
        default=_CHAT.batched_tokens,
        metadata=_about("integer", "Tokens of one step.", unit="tokens", minimum=16, maximum=65_536),
    )
    enforce_eager: bool = field(
        default=_CHAT.enforce_eager, metadata=_about("boolean", "Without torch.compile and CUDA graphs.")
    )
    kernel: Backend | None = field(
        default=None,
        metadata=_about(
            "string",
            "Which backend runs the experts; auto takes the fastest right one on a GPU.",
            choices=get_args(Backend),
            by_default=f"{KERNEL_VARIABLE} of the environment, else auto",
        ),
    )
    tensor_parallel: int = field(
        default=1,
        metadata=_about(
            "integer", "GPUs or ranks that share the model; the memory plan knows one.", minimum=1, maximum=8
        ),
    )
    expert_parallel: bool = field(
        default=False, metadata=_about("boolean", "Ranks hold whole experts instead of slices of all.")
    )
    nodes: int = field(
        default=1,
        metadata=_about(
            "integer", "Machines that share the model, each with its part of the ranks.", minimum=1, maximum=8
        ),
    )
    node_rank: int = field(
        default=0,
        metadata=_about(
            "integer", "Which of the machines this is; 0 has the API, the others none.", minimum=0, maximum=7
        ),
    )
    master_address: str | None = field(
        default=None,
        metadata=_about(
            "string",
            "Address of machine 0 on the link between them.",
            minimum=1,
            by_default="none, several machines need it",
        ),
    )
    master_port: int = field(
        default=29_501,
        metadata=_about("integer", "Port of machine 0 where the ranks find each other.", minimum=1, maximum=65_535),
    )
    images: int | None = field(
        default=_CHAT.images, metadata=_about("integer", "Images that one request may have.", minimum=0, maximum=64)
    )
    videos: int | None = field(
        default=_CHAT.videos, metadata=_about("integer", "Videos that one request may have.", minimum=0, maximum=16)
    )
    host: str = field(default=LOOPBACK, metadata=_about("string", "Address to listen on.", minimum=1))
    port: int = field(default=8000, metadata=_about("integer", "Port to listen on.", minimum=1, maximum=65_535))
    served_name: str = field(
        default=_CHAT.served_name, metadata=_about("string", "Name of the model for clients.", minimum=1)
    )
    api_key_file: Path | None = field(
        default=None,
        metadata=_about("path", "File with the API key.", by_default="the systemd credential api-key, or VLLM_API_KEY"),
    )
    allow_open: bool = field(
        default=False, metadata=_about("boolean", "Listen beyond this machine without an API key.")
    )
    chat_template: Path | None = field(
        default=None,
        metadata=_about("path", "Chat template.", by_default="chat_template.jinja of the pack, when it has one"),
    )
    tool_call_parser: str = field(
        default=_CHAT.tool_call_parser, metadata=_about("string", "vLLM's parser of tool calls; empty for no tools.")
    )
    reasoning_parser: str = field(
        default=_CHAT.reasoning_parser,
        metadata=_about("string", "vLLM's parser of reasoning; empty leaves it in the answer."),
    )
    load_format: str = field(
        default=_CHAT.load_format, metadata=_about("string", "vLLM's loader of weights.", minimum=1)
    )
    page_cache: Literal["auto", "keep", "drop", "warm"] = field(
        default="auto",
        metadata=_about(
            "string", "What to do with cached pages of the pack.", choices=("auto", "keep", "drop", "warm")
        ),
    )
    preflight: bool = field(default=_CHAT.preflight, metadata=_about("boolean", "Run preflight first."))
    canary: bool = field(default=True, metadata=_about("boolean", "Be ready only after a sane answer."))
    force: bool = field(default=False, metadata=_about("boolean", "Go on where a rule forbids what can be forced."))
    watchdog: int = field(
        default=_CHAT.watchdog,
        metadata=_about(
            "integer",
            "Longest that requests may run without a token before the server is ended; 0 for ever.",
            unit="seconds",
            minimum=0,
            maximum=_MOST_SECONDS,
        ),
    )
    limit_import: int = field(default=_LIMITS["importing vLLM"], metadata=_limit("importing vLLM"))
    limit_engine: int = field(default=_LIMITS["starting the engine"], metadata=_limit("starting the engine"))
    limit_weights: int = field(default=_LIMITS["loading weights"], metadata=_limit("loading weights"))
    limit_compile: int = field(default=_LIMITS["compiling"], metadata=_limit("compiling"))
    limit_kv_cache: int = field(default=_LIMITS["allocating the KV cache"], metadata=_limit("allocating the KV cache"))
    limit_graphs: int = field(default=_LIMITS["capturing graphs"], metadata=_limit("capturing graphs"))
    limit_warm_up: int = field(default=_LIMITS["warming up"], metadata=_limit("warming up"))
    limit_api: int = field(default=_LIMITS["starting the API"], metadata=_limit("starting the API"))
    limit_canary: int = field(default=_LIMITS["canary"], metadata=_limit("canary"))
    limit_stop: int = field(
        default=30,
        metadata=_about(
            "integer", "Time that vLLM gets to end by itself.", unit="seconds", minimum=1, maximum=_MOST_SECONDS
        ),
    )
    extra: tuple[str, ...] = field(
        default=(), metadata=_about("strings", "Further arguments of vllm serve; also what follows --.")
    )

    @property
    def headless(self) -> bool:
        """Whether this machine only runs ranks of a server whose API is on machine 0."""
        return self.node_rank > 0

    @property
    def local_ranks(self) -> int:
        """Ranks that run on this machine."""
        return self.tensor_parallel // self.nodes


#: Name of each phase of the start by the field with its limit.
PHASE_OF_LIMIT: Final[Mapping[str, str]] = {
    "limit_import": "importing vLLM",
    "limit_engine": "starting the engine",
    "limit_weights": "loading weights",
    "limit_compile": "compiling",
    "limit_kv_cache": "allocating the KV cache",
    "limit_graphs": "capturing graphs",
    "limit_warm_up": "warming up",
    "limit_api": "starting the API",
    "limit_canary": "canary",
}


def phase_limits(settings: Settings) -> dict[str, float]:
    """Seconds by name of a phase, as `boot.Boot` takes them."""
    return {phase: float(getattr(settings, name)) for name, phase in PHASE_OF_LIMIT.items()}


def key_of(name: str) -> str:
    """Key and flag of a field: `kv_dtype` is `kv-dtype`."""
    return name.replace("_", "-")


#: Field by key.
KEYS: Final[Mapping[str, str]] = {key_of(each.name): each.name for each in fields(Settings)}


def profile_values(profile: Profile) -> dict[str, Any]:
    """What a profile sets, by field."""
    return {name: getattr(profile, name) for name in PROFILE_FIELDS}


#: Fields whose default depends on the profile.
PROFILE_FIELDS: Final = tuple(each.name for each in fields(Profile) if each.name in KEYS.values())


@dataclass(frozen=True)
class SettingSpec:
    """One setting as data, for help texts, documents and option declarations.

    Attributes:
        key: of the file; the flag is `--key`, and `--no-key` for what is on.
        kind: type of the value; `strings` and `integers` are lists.
        help: one sentence.
        unit: of a number, empty when it counts things.
        choices: all values of a string, empty when any will do.
        minimum, maximum: bounds of a number, of each of a list, or of the length of a string.
        default: value without profile; None when there is none or it depends on the profile.
        by_profile: default by profile, empty when it is the same in all.
        by_default: what holds when nothing is given and no value says it.
    """

    key: str
    kind: Kind
    help: str
    unit: str
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    default: Any
    by_profile: Mapping[str, Any]
    by_default: str


def settings_schema() -> list[SettingSpec]:
    """Every setting in the order of the documents. Values are those that JSON has: paths as text, lists as lists."""
    return [_spec(key, name) for key, name in KEYS.items()]


def setting_spec(name: str) -> SettingSpec:
    """The setting of one field."""
    return _spec(key_of(name), name)


def _spec(key: str, name: str) -> SettingSpec:
    declared = next(each for each in fields(Settings) if each.name == name)
    described = declared.metadata
    depends = name in PROFILE_FIELDS
    return SettingSpec(
        key=key,
        kind=described["kind"],
        help=described["help"],
        unit=described["unit"],
        choices=described["choices"],
        minimum=described["minimum"],
        maximum=described["maximum"],
        default=None if depends or described["by_default"] else _plain(declared.default),
        by_profile={profile: getattr(values, name) for profile, values in PROFILES.items()} if depends else {},
        by_default=described["by_default"],
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
