"""Profiles of `serve` as data: what to set for a chat, a long document, the longest context, and the demo pack.

Figures in the comments are those of the recipe (vcruz305/GLM-5.3-Flash-EXL3-K2-DGX-Spark-recipe, one GB10, August and
September 2026); docs/serve.md has them in context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from glm53_exl3.demo.faq import MAX_MODEL_LEN_TOKENS, SERVED_NAME
from glm53_exl3.pins import RuntimeName

SpeculationName = Literal["none", "mtp", "dflash2"]
ProfileName = Literal["chat", "long", "max", "demo"]

#: Drafted tokens a step. Of MTP, two gave 15.7 to 16.5 tokens a second against 14.8 with one; more only help
#: structured text. Of DFlash2, three gave 12.8 against 11.5 with seven.
DEFAULT_TOKENS: Final[Mapping[SpeculationName, int]] = {"none": 0, "mtp": 2, "dflash2": 3}
#: Sizes of CUDA graphs, in tokens, that the recipe captures. What counts is that k + 1 is among them: the tokens that a
#: step with k drafted ones verifies.
CAPTURE_SIZES: Final[Mapping[SpeculationName, tuple[int, ...]]] = {
    "none": (),
    "mtp": (1, 2, 3, 4, 5, 6, 8, 12),
    "dflash2": (1, 2, 4, 8, 16),
}


@dataclass(frozen=True)
class Profile:
    """Values that go together. Every attribute but the first three is the default of the setting of its name.

    Attributes:
        name: as in `--profile`.
        purpose: one line for a list of profiles.
        arguments: flags of vLLM that belong to the model and are no settings.
    """

    name: ProfileName
    purpose: str
    arguments: tuple[str, ...]
    runtime: RuntimeName
    context: int
    sequences: int
    speculation: SpeculationName
    prefix_caching: bool
    batched_tokens: int
    kv_dtype: str
    kv_cache_bytes: int | None
    floor: float
    memory_plan: bool
    preflight: bool
    enforce_eager: bool
    images: int | None
    videos: int | None
    served_name: str
    tool_call_parser: str
    reasoning_parser: str
    load_format: str
    watchdog: int


def _glm53_flash(
    name: ProfileName,
    purpose: str,
    *,
    context: int,
    speculation: SpeculationName,
    prefix_caching: bool,
    watchdog: int,
) -> Profile:
    """A profile of GLM-5.3-Flash on a GB10; the three differ in what is asked for here."""
    return Profile(
        name=name,
        purpose=purpose,
        # As in the recipe. With the size of the KV cache given there is nothing to profile images for.
        arguments=("--quantization", "exl3", "--no-enable-flashinfer-autotune", "--skip-mm-profiling"),
        runtime="fork",
        context=context,
        sequences=1,
        speculation=speculation,
        prefix_caching=prefix_caching,
        batched_tokens=2048,
        kv_dtype="fp8",
        kv_cache_bytes=None,
        # Long prompts end the host before MemAvailable is zero; the plan has the same floor.
        floor=8.0,
        memory_plan=True,
        preflight=True,
        enforce_eager=False,
        images=4,
        videos=1,
        served_name="GLM-5.3-Flash-EXL3",
        tool_call_parser="glm47",
        reasoning_parser="glm45",
        load_format="glm53_exl3",
        watchdog=watchdog,
    )


PROFILES: Final[Mapping[ProfileName, Profile]] = {
    profile.name: profile
    for profile in (
        _glm53_flash(
            "chat",
            "Chats and tools, 8,192 tokens.",
            context=8192,
            speculation="mtp",
            prefix_caching=True,
            watchdog=180,
        ),
        # vLLM counts the tokens of a prompt when it has read all of it: 65,173 took 108 s, 258,048 took 427 to 464 s,
        # and nothing moves meanwhile.
        _glm53_flash(
            "long",
            "Documents and code, 65,536 tokens.",
            context=65_536,
            speculation="mtp",
            prefix_caching=True,
            watchdog=600,
        ),
        # Without drafts the first token of 258,048 comes 36 s earlier and 13.8 GiB stay available instead of 10.6.
        # Keeping prefixes would double the pool.
        _glm53_flash(
            "max",
            "One request of up to 262,144 tokens.",
            context=262_144,
            speculation="none",
            prefix_caching=False,
            watchdog=1800,
        ),
        Profile(
            name="demo",
            purpose="The demo pack, on a CPU or a GPU.",
            arguments=(),
            runtime="upstream",
            context=MAX_MODEL_LEN_TOKENS,
            sequences=16,
            speculation="none",
            prefix_caching=True,
            batched_tokens=2048,
            kv_dtype="auto",
            kv_cache_bytes=64 << 20,
            floor=0.25,
            memory_plan=False,
            preflight=False,
            # So that a GPU without the extension serves it too, by the reference, which no CUDA graph can hold.
            enforce_eager=True,
            images=None,
            videos=None,
            served_name=SERVED_NAME,
            tool_call_parser="",
            reasoning_parser="",
            load_format="glm53_exl3",
            watchdog=180,
        ),
    )
}
DEFAULT_PROFILE: Final[ProfileName] = "chat"


def capture_sizes(speculation: SpeculationName, tokens: int, sequences: int) -> tuple[int, ...]:
    """Tokens of the CUDA graphs to capture, ascending; empty leaves them to vLLM.

    A decoding step of n requests has n * (tokens + 1) tokens, and vLLM replays a graph only for such a multiple
    (vllm/config/vllm.py of 0.32.0), so these are added to the recipe's sizes, for as many n as vLLM itself takes.
    """
    if speculation == "none":
        return ()
    counts = {n for n in (1, 2, 4, *range(8, sequences, 8)) if n <= sequences} | {sequences}
    return tuple(sorted({*CAPTURE_SIZES[speculation], *(n * (tokens + 1) for n in counts)}))
