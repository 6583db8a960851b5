"""Rules on further arguments of vLLM, which would otherwise undo what `serve` takes care of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.extra_flags import value_of
from glm53_exl3.serve.profiles import PROFILES
from glm53_exl3.serve.rule import FORCE, Rule, Situation
from glm53_exl3.serve.runtime_flags import FORK_ONLY, UPSTREAM_ONLY
from glm53_exl3.serve.settings import Settings

#: Setting to use instead of a flag that `serve` passes itself.
FLAGS_OF_SETTINGS: Final[Mapping[str, str]] = {
    "--model": "PACK",
    "--served-model-name": "--served-name",
    "--host": "--host",
    "--port": "--port",
    "--max-model-len": "--context",
    "--max-num-seqs": "--sequences",
    "--max-num-batched-tokens": "--batched-tokens",
    "--kv-cache-dtype": "--kv-dtype",
    "--kv-cache-memory-bytes": "--kv-cache-bytes",
    "--gpu-memory-utilization": "--kv-cache-bytes, or --no-memory-plan",
    "--device-memory-utilization": "--kv-cache-bytes, or --no-memory-plan",
    "--enable-prefix-caching": "--prefix-caching",
    "--enforce-eager": "--enforce-eager",
    "--tensor-parallel-size": "--tensor-parallel",
    "--enable-expert-parallel": "--expert-parallel",
    "--nnodes": "--nodes",
    "--node-rank": "--node-rank",
    "--master-addr": "--master-address",
    "--master-port": "--master-port",
    "--load-format": "--load-format",
    "--limit-mm-per-prompt": "--images and --videos",
    "--chat-template": "--chat-template",
    "--tool-call-parser": "--tool-call-parser",
    "--enable-auto-tool-choice": "--tool-call-parser",
    "--reasoning-parser": "--reasoning-parser",
    "--cudagraph-capture-sizes": "--capture-sizes",
    "--max-cudagraph-capture-size": "--capture-sizes",
    "--quantization": "--profile",
    "--enable-flashinfer-autotune": "--profile",
    "--skip-mm-profiling": "--profile",
}
#: Of these, those by which `serve` checks the pack, finds the server and knows who can reach it.
ADDRESS_FLAGS: Final = ("--model", "--served-model-name", "--host", "--port")
#: Flags of vLLM by which speculation can be asked for beside ours.
SPECULATION_FLAGS: Final = ("--speculative-config", "--spec-method", "--spec-model", "--spec-tokens")
SECRET_FLAGS: Final = ("--api-key", "--hf-token")
#: With these vLLM does not answer plain HTTP on host and port, where `serve` asks it.
UNWATCHED_FLAGS: Final = (
    "--uds",
    "--headless",
    "--grpc",
    "--ssl-keyfile",
    "--ssl-certfile",
    # Without them /metrics has no gauges, and a healthy engine looks like a dead one.
    "--disable-log-stats",
)


def _speculation_twice(at: Situation, reason: str) -> SettingError | None:
    flag = at.first(SPECULATION_FLAGS)
    if flag is None or (at.settings.force and at.settings.speculation == "none"):
        return None
    return SettingError(
        "speculation-twice",
        f"{flag.written} asks vLLM for speculation beside --speculation {at.settings.speculation}: {reason}",
        expected="one of none, mtp and dflash2, by --speculation",
        found=flag.written,
        hint="--speculation mtp --speculative-tokens 2, or with another method --speculation none --force",
    )


def _attention_backend(at: Situation, reason: str) -> SettingError | None:
    backend = at.environment.get("VLLM_ATTENTION_BACKEND")
    flag = at.first(["--attention-backend"])
    if backend:
        found, hint = f"VLLM_ATTENTION_BACKEND={backend}", "unset VLLM_ATTENTION_BACKEND"
    elif flag is not None:
        found, hint = flag.written, f"leave {flag.written} out"
    elif value_of(at.flags, "--attention-config", "backend") is not None:
        found, hint = "a backend in --attention-config", "leave it out"
    else:
        return None
    return SettingError(
        "attention-backend",
        f"{found} sets one attention backend for all layers: {reason}",
        expected="none: each layer's is found by vLLM, the draft model's is TRITON_ATTN",
        found=found,
        hint=f"{hint}{FORCE}",
    )


def _moe_backend(at: Situation, reason: str) -> SettingError | None:
    direct = [value for flag in at.flags if flag.means("--moe-backend") for value in flag.values]
    stated = [*direct, value_of(at.flags, "--kernel-config", "moe_backend")]
    if not any("marlin" in str(value).lower() for value in stated):
        return None
    return SettingError(
        "moe-backend",
        f"Marlin is asked for as the backend of the experts: {reason}",
        expected="no --moe-backend",
        found="marlin",
        hint="leave --moe-backend out; --kernel chooses among the kernels for EXL3",
    )


def _flag_secret(at: Situation, reason: str) -> SettingError | None:
    flag = at.first(SECRET_FLAGS)
    if flag is None:
        return None
    return SettingError(
        "flag-secret",
        f"{flag.written} on the command line: {reason}",
        expected="--api-key-file" if flag.means("--api-key") else "no token: a pack on disk needs none",
        hint="--api-key-file FILE" if flag.means("--api-key") else f"leave {flag.written} out, and renew the token",
    )


def _flag_address(at: Situation, reason: str) -> SettingError | None:
    flag = at.first(ADDRESS_FLAGS)
    if flag is None:
        return None
    name = next(each for each in ADDRESS_FLAGS if flag.means(each))
    return SettingError(
        "flag-address",
        f"{flag.written} is given to vLLM: {reason}",
        expected=FLAGS_OF_SETTINGS[name],
        found=flag.written,
        hint=f"use {FLAGS_OF_SETTINGS[name]} before --",
    )


def _flag_repeated(at: Situation, reason: str) -> SettingError | None:
    owned = [flag for flag in FLAGS_OF_SETTINGS if not _left_to_the_user(flag, at.settings)]
    flag = at.first(owned)
    if flag is None:
        return None
    name = next(each for each in owned if flag.means(each))
    return SettingError(
        "flag-repeated",
        f"{flag.written} is given to vLLM, and serve passes {name} itself: {reason}",
        expected=FLAGS_OF_SETTINGS[name],
        found=flag.written,
        hint=f"use {FLAGS_OF_SETTINGS[name]}{FORCE}",
    )


def _left_to_the_user(flag: str, settings: Settings) -> bool:
    """Flags that another rule is about, or that these settings do not pass and no setting stands for."""
    if flag in ADDRESS_FLAGS:
        return True
    if flag in {"--gpu-memory-utilization", "--device-memory-utilization"}:
        return not settings.memory_plan
    if FLAGS_OF_SETTINGS[flag] == "--profile":
        return not any(flag.removeprefix("--") in passed for passed in PROFILES[settings.profile].arguments)
    return False


def _flag_hidden(at: Situation, reason: str) -> SettingError | None:
    # Whole, since many flags of vLLM end in -config and none is abbreviated to this.
    if not any(flag.name == "--config" for flag in at.flags):
        return None
    return SettingError(
        "flag-hidden",
        f"--config gives vLLM a file of flags: {reason}",
        expected="a settings file of serve, with vLLM's flags in extra",
        hint=f'extra = ["--flag", "value"] in the settings file{FORCE}',
    )


def _flag_unwatched(at: Situation, reason: str) -> SettingError | None:
    flag = at.first(UNWATCHED_FLAGS)
    if flag is None:
        return None
    return SettingError(
        "flag-unwatched",
        f"with {flag.written} vLLM would not answer plain HTTP with its metrics on host and port: {reason}",
        expected=f"no {flag.written}",
        hint="put a reverse proxy before the server for TLS or a socket",
    )


def _flag_runtime(at: Situation, reason: str) -> SettingError | None:
    runtime = at.settings.runtime
    foreign, other = (UPSTREAM_ONLY, "upstream") if runtime == "fork" else (FORK_ONLY, "fork")
    # Whole names only: an abbreviation may stand for a flag that both have.
    flag = next((flag for flag in at.flags if flag.name in foreign), None)
    if flag is None:
        return None
    return SettingError(
        "flag-runtime",
        f"{flag.written} is no flag of the runtime {runtime}: {reason}",
        expected=f"a flag of {runtime}",
        found=f"a flag of {other} only",
        hint=f"leave {flag.written} out, or --runtime {other}{FORCE}",
    )


FLAG_RULES: Final[tuple[Rule, ...]] = (
    Rule("flag-secret", "everybody on this machine can read it with ps, and vLLM 0.28.0 logs it", False, _flag_secret),
    Rule(
        "speculation-twice",
        "drafts of two methods are never combined, and the memory plan, the graphs and the draft model's backend "
        "TRITON_ATTN come from --speculation; with FLASH_ATTN the recipe saw the target's indexer fault at the first "
        "change of a cache page",
        False,
        _speculation_twice,
    ),
    Rule(
        "attention-backend",
        "the model's sparse attention has one backend on a GB10, its draft model works with TRITON_ATTN alone, and "
        "vLLM 0.28.0 to 0.32.0 does not even read VLLM_ATTENTION_BACKEND",
        True,
        _attention_backend,
    ),
    Rule("moe-backend", "Marlin reads no trellis, and the recipe rules it out", False, _moe_backend),
    Rule(
        "flag-address",
        "serve checks the pack, asks the server and judges who can reach it by its own settings",
        False,
        _flag_address,
    ),
    Rule("flag-repeated", "there would be two sources of one value", True, _flag_repeated),
    Rule("flag-hidden", "no rule could see what it sets", True, _flag_hidden),
    Rule("flag-runtime", "vLLM would refuse it after the time it takes to start", True, _flag_runtime),
    Rule("flag-unwatched", "serve could not tell whether it is ready or stalled", False, _flag_unwatched),
)
