"""A whole measurement: find out the conditions, choose the prompts, measure level by level."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from glm53_exl3.bench import conditions as of
from glm53_exl3.bench.answer import Exchange
from glm53_exl3.bench.endpoint import Endpoint, served_model, vllm_version
from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench.exchange import ask
from glm53_exl3.bench.load import Level, LevelPlan, Request, measure_level, requests_per_run
from glm53_exl3.bench.prompts import GeneratedPrompts, Prompts, Questions, words_for
from glm53_exl3.bench.receipt import Receipt
from glm53_exl3.bench.server_process import find_server
from glm53_exl3.probes.host import Host, LiveHost

_SALT_BYTES: Final = 16


@dataclass(frozen=True)
class Load:
    """What clients do.

    Attributes:
        concurrency: clients at the same time, one number for each level.
        prompt_tokens: of generated prompts, the chat template included.
        max_tokens: longest answer. Answers to generated prompts are as long as this.
        questions: what to ask instead of generated prompts.
        runs: runs of a level that count.
        warm_up_runs: runs before them.
        requests: requests that a level has at least; None for one of each client in each run.
        seed: of generated prompts, and of who leaves.
        leave_share: share of clients that leave in the middle of an answer, 0 to 1.
        timeout_seconds: longest that a request may take.
        extra_body: further keys of each request.
    """

    concurrency: tuple[int, ...]
    prompt_tokens: int
    max_tokens: int
    questions: Questions | None
    runs: int
    warm_up_runs: int
    requests: int | None
    seed: int
    leave_share: float
    timeout_seconds: float
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, concurrency: int) -> LevelPlan:
        """How one level is measured."""
        return LevelPlan(
            concurrency=concurrency,
            requests_per_run=requests_per_run(concurrency, self.requests, self.runs),
            warm_up_runs=self.warm_up_runs,
            runs=self.runs,
            leave_share=self.leave_share,
            seed=self.seed,
        )


class Bench:
    """A server, looked at once, ready to be measured.

    Args:
        endpoint: the server.
        load: what clients do.
        model: to ask for; None takes the first that the server lists.
        pack: folder of the pack; None takes the one that the server's command line names.
        host: this machine.

    Raises:
        BenchError: see `served_model`; `context-exceeded`, `prompt-tokens`, `first-request-failed`.
        PackError: the pack cannot be read.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        load: Load,
        *,
        model: str | None = None,
        pack: Path | None = None,
        host: Host | None = None,
    ) -> None:
        self._host = host or LiveHost()
        self._load = load
        served = served_model(endpoint, model)
        process = find_server(endpoint.port) if endpoint.is_loopback else f"{endpoint.host} is not this machine"
        self.server = of.Server(endpoint, served, vllm_version(endpoint), process)
        self._pack = of.pack_folder(pack, self.server)
        pack_conditions = of.pack_conditions(self._pack)
        self._body = self._common_body()
        self._prompts = self._choose_prompts()
        self.conditions: dict[str, Any] = {
            "server": of.server_conditions(self.server),
            "pack": pack_conditions,
            "machine": of.machine_conditions(self._host, runs_server=not isinstance(process, str)),
            "client": self._client_conditions(),
        }

    @property
    def doubts(self) -> list[str]:
        """What will make the figures less than they could be: one sentence each."""
        found: list[str] = []
        if isinstance(self.server.process, str):
            found.append(f"flags and environment of the server are not known: {self.server.process}")
        load, cores = of.load_average(self._host), self.conditions["machine"]["cores"]
        if load is not None and cores is not None and load > cores:
            found.append(f"this machine is busy (load {load:g} on {cores} cores), so the figures will spread")
        return found

    def run(self, on_run: Callable[[LevelPlan, int], None], on_level: Callable[[Level], None]) -> Receipt:
        """Measure all levels.

        Args:
            on_run: called before each run with its level and its number, negative while warming up.
            on_level: called with each level that is done.
        """
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        facts = of.facts(self.server, self._pack, self._host)
        levels: list[Level] = []
        for concurrency in self._load.concurrency:
            levels.append(self._measure(self._load.plan(concurrency), on_run))
            on_level(levels[-1])
        return Receipt(date, facts, self.conditions, tuple(levels))

    def _measure(self, plan: LevelPlan, on_run: Callable[[LevelPlan, int], None]) -> Level:
        def send(request: Request) -> Exchange:
            text = self._prompts.text(plan.concurrency, request.number)
            return self._ask(text, self._load.max_tokens, request.leave_after_events)

        return measure_level(plan, send, lambda run: on_run(plan, run))

    def _ask(self, text: str, max_tokens: int, leave_after_events: int | None = None) -> Exchange:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **self._body}
        timeout = self._load.timeout_seconds
        return ask(self.server.endpoint, body, timeout_seconds=timeout, leave_after_events=leave_after_events)

    def _common_body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.server.model.name, "temperature": 0.0}
        if self.server.vllm_version is not None:
            # Nothing that another measurement has left in the prefix cache may answer.
            body["cache_salt"] = secrets.token_hex(_SALT_BYTES)
            if self._load.questions is None:
                body["ignore_eos"] = True
        return {**body, **self._load.extra_body}

    def _choose_prompts(self) -> Prompts:
        load, context = self._load, self.server.model.max_model_len_tokens
        if load.questions is not None:
            self._first_tokens(load.questions.text(1, 0))
            return load.questions
        wanted = load.prompt_tokens + load.max_tokens
        if context is not None and wanted > context:
            half = context // 2
            raise BenchError(
                "context-exceeded",
                f"a prompt of {load.prompt_tokens} tokens and an answer of {load.max_tokens} do not fit the context",
                expected=f"at most {context} together",
                found=str(wanted),
                hint=f"--prompt-tokens {half - half // 8} --max-tokens {half}",
            )
        num_words = words_for(
            load.prompt_tokens, lambda words: self._first_tokens(GeneratedPrompts(words, load.seed).text(0, words))
        )
        return GeneratedPrompts(num_words, load.seed)

    def _first_tokens(self, text: str) -> int:
        """Tokens of a prompt, by a request for one token; finds out early what would fail every request."""
        exchange = self._ask(text, 1)
        if exchange.prompt_tokens is None:
            raise BenchError(
                "first-request-failed",
                f"{self.server.endpoint.url} did not answer the first request: {exchange.outcome}",
                expected="a streamed answer with the number of its tokens (stream_options.include_usage)",
                found=exchange.detail,
                hint="look at the log of the server; --model, --extra-body and --questions decide what is asked",
            )
        return exchange.prompt_tokens

    def _client_conditions(self) -> dict[str, Any]:
        load = self._load
        return {
            **of.program_conditions(self._host),
            "prompts": "generated" if load.questions is None else "questions",
            "prompts_sha256": self._prompts.digest(),
            "prompt_tokens": load.prompt_tokens if load.questions is None else None,
            "max_tokens": load.max_tokens,
            "ignore_eos": bool(self._body.get("ignore_eos", False)),
            "temperature": self._body["temperature"],
            "extra_body": dict(load.extra_body),
            "requests": load.requests,
            "runs": load.runs,
            "warm_up_runs": load.warm_up_runs,
            "seed": load.seed,
            "leave_share": load.leave_share,
            "timeout_seconds": load.timeout_seconds,
        }
