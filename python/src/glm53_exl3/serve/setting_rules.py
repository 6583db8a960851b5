"""Rules on settings that contradict each other, or what the model was measured with. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.extra_flags import value_of
from glm53_exl3.serve.profiles import capture_sizes
from glm53_exl3.serve.rule import FORCE, Rule, Situation


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`. Of names only localhost counts as such."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _speculation_tokens(at: Situation, reason: str) -> SettingError | None:
    tokens, name = at.settings.speculative_tokens, at.settings.speculation
    if (name == "none") == (tokens == 0):
        return None
    return SettingError(
        "speculation-tokens",
        f"--speculation {name} with {tokens} speculative tokens: {reason}",
        expected="0 without speculation, 1 or more with it",
        found=str(tokens),
        hint="leave --speculative-tokens out",
    )


def _speculation_sequences(at: Situation, reason: str) -> SettingError | None:
    if at.settings.speculation == "none" or at.settings.sequences == 1:
        return None
    return SettingError(
        "speculation-sequences",
        f"{at.settings.sequences} sequences with --speculation {at.settings.speculation}: {reason}",
        expected="--sequences 1 with speculation",
        found=f"--sequences {at.settings.sequences}",
        hint=f"--sequences 1, or --speculation none{FORCE}",
    )


def _draft_missing(at: Situation, reason: str) -> SettingError | None:
    if at.settings.speculation != "dflash2" or at.settings.draft is not None:
        return None
    return SettingError(
        "draft-missing",
        f"--speculation dflash2 without --draft: {reason}",
        expected="--draft DIR",
        hint="glm53-exl3 fetch DFlash2, then glm53-exl3 serve PACK --speculation dflash2 --draft DIR",
    )


def _draft_unused(at: Situation, reason: str) -> SettingError | None:
    if at.settings.draft is None or at.settings.speculation == "dflash2":
        return None
    return SettingError(
        "draft-unused",
        f"--draft {at.settings.draft} with --speculation {at.settings.speculation}: {reason}",
        expected="--draft only with --speculation dflash2",
        hint="--speculation dflash2, or leave --draft out",
    )


def _draft_is_pack(at: Situation, reason: str) -> SettingError | None:
    draft = at.settings.draft
    if draft is None or _normal(draft) != _normal(at.settings.pack):
        return None
    return SettingError(
        "draft-is-pack",
        f"--draft {draft} is the pack itself: {reason}",
        expected="the folder of the DFlash2 draft model",
        hint="glm53-exl3 fetch DFlash2; for the pack's own MTP layer --speculation mtp",
    )


def _normal(path: Path) -> Path:
    # Without looking at the disk: two names of one folder are told apart by the draft's architecture later.
    return Path(*(part for part in path.absolute().parts if part != "."))


def _draft_runtime(at: Situation, reason: str) -> SettingError | None:
    if at.settings.speculation != "dflash2" or at.settings.runtime == "fork":
        return None
    return SettingError(
        "draft-runtime",
        f"--speculation dflash2 on the runtime {at.settings.runtime}: {reason}",
        expected="--runtime fork",
        found=f"--runtime {at.settings.runtime}",
        hint=f"--runtime fork, or --speculation mtp{FORCE}",
    )


def _capture_sizes(at: Situation, reason: str) -> SettingError | None:
    settings = at.settings
    if settings.speculation == "none" or settings.enforce_eager:
        return None
    verified = settings.speculative_tokens + 1
    sizes = _stated_sizes(at)
    if verified in sizes:
        return None
    return SettingError(
        "capture-sizes",
        f"no CUDA graph of {verified} tokens is to be captured: {reason}",
        expected=f"sizes with {verified}, one more than the speculative tokens",
        found=" ".join(map(str, sizes)) or "none",
        hint="leave the sizes out, or add "
        + " ".join(map(str, capture_sizes(settings.speculation, settings.speculative_tokens, settings.sequences))),
    )


def _stated_sizes(at: Situation) -> list[int]:
    """Sizes that vLLM would capture: those of further arguments come last and win."""
    settings = at.settings
    sizes: Iterable[Any] = settings.capture_sizes or capture_sizes(
        settings.speculation, settings.speculative_tokens, settings.sequences
    )
    for flag in at.flags:
        if flag.means("--cudagraph-capture-sizes"):
            sizes = flag.values
    in_config = value_of(at.flags, "--compilation-config", "cudagraph_capture_sizes")
    if in_config is not None:
        sizes = in_config if isinstance(in_config, list) else [in_config]
    return [int(size) for size in sizes if str(size).isdecimal()]


def _open_without_key(at: Situation, reason: str) -> SettingError | None:
    if at.settings.headless or is_loopback(at.settings.host) or at.has_key or at.settings.allow_open:
        return None
    return SettingError(
        "open-without-key",
        f"--host {at.settings.host} without an API key: {reason}",
        expected="an API key, or a host that is this machine only",
        found=f"--host {at.settings.host}",
        hint="(umask 077; openssl rand -hex 32 > api-key), then --api-key-file api-key; or --allow-open",
    )


def _plan_ranks(at: Situation, reason: str) -> SettingError | None:
    if at.settings.tensor_parallel == 1 or not at.settings.memory_plan:
        return None
    return SettingError(
        "plan-ranks",
        f"a memory plan for {at.settings.tensor_parallel} ranks: {reason}",
        expected="--tensor-parallel 1, or --no-memory-plan",
        found=f"--tensor-parallel {at.settings.tensor_parallel}",
        hint="--no-memory-plan; vLLM then measures, and takes --gpu-memory-utilization after --",
    )


def _node_rank(at: Situation, reason: str) -> SettingError | None:
    rank, nodes = at.settings.node_rank, at.settings.nodes
    if rank < nodes:
        return None
    return SettingError(
        "node-rank",
        f"--node-rank {rank} of {nodes} node{'s' if nodes > 1 else ''}: {reason}",
        expected=f"0 to {nodes - 1}",
        found=str(rank),
        hint=f"--nodes {rank + 1} or more on every machine, or another --node-rank",
    )


def _master_address(at: Situation, reason: str) -> SettingError | None:
    nodes, address = at.settings.nodes, at.settings.master_address
    if (nodes > 1) == (address is not None):
        return None
    return SettingError(
        "master-address",
        f"--nodes {nodes} with {'no master address' if address is None else f'--master-address {address}'}: {reason}",
        expected="--master-address with several nodes and only then",
        found="none" if address is None else address,
        hint="--master-address ADDRESS of machine 0" if address is None else "--nodes 2, or leave --master-address out",
    )


def _node_shares(at: Situation, reason: str) -> SettingError | None:
    ranks, nodes = at.settings.tensor_parallel, at.settings.nodes
    if ranks % nodes == 0:
        return None
    return SettingError(
        "node-shares",
        f"--tensor-parallel {ranks} on {nodes} nodes: {reason}",
        expected=f"a multiple of {nodes}",
        found=str(ranks),
        hint=f"--tensor-parallel {nodes}",
    )


SETTING_RULES: Final[tuple[Rule, ...]] = (
    Rule("speculation-tokens", "vLLM needs a number of drafted tokens to speculate", False, _speculation_tokens),
    Rule(
        "speculation-sequences",
        "the recipe qualifies speculation for one sequence only, and each sequence holds up to 13 blocks of state",
        True,
        _speculation_sequences,
    ),
    Rule("draft-missing", "DFlash2 drafts with a model of its own", False, _draft_missing),
    Rule("draft-unused", "only DFlash2 has a draft model, and it is never combined with MTP", False, _draft_unused),
    Rule("draft-is-pack", "the pack has no DFlash2 weights", False, _draft_is_pack),
    Rule(
        "draft-runtime",
        "vLLM 0.32.0 has the draft model and the taps it needs, but nobody is known to have run it with "
        "GLM-5.3-Flash, and vllm-project/vllm pull request 56983 names KV pages that cannot be padded; the recipe "
        "measured the fork",
        True,
        _draft_runtime,
    ),
    Rule(
        "capture-sizes",
        "a step verifies that many tokens, and without a graph of that size each is padded or runs eagerly",
        False,
        _capture_sizes,
    ),
    Rule(
        "open-without-key",
        "whoever reaches the port could use the model and read its metrics",
        False,
        _open_without_key,
    ),
    Rule("node-rank", "the machines are counted from 0, and 0 has the API", False, _node_rank),
    Rule("master-address", "the ranks of all machines meet at machine 0", False, _master_address),
    Rule("node-shares", "vLLM gives each machine the same number of ranks", False, _node_shares),
    Rule("plan-ranks", "the plan divides the memory of one host for one rank", False, _plan_ranks),
)
