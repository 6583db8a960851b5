"""Recorded hosts: what a machine answered, instead of the machine."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm53_exl3.probes.host import CommandOutput, HeadReply, HubIdentity, Limit
from glm53_exl3.probes.interpreter import Fact, RuntimeFacts

HOSTS = Path(__file__).parents[1] / "data" / "hosts"
LOCAL_TIME = 1_800_000_000.0


@dataclass(frozen=True)
class RecordedHost:
    """A host out of `tests/data/hosts`, see the README there."""

    record: Mapping[str, Any]

    def machine(self) -> str:
        return self.record["machine"]

    def kernel(self) -> str:
        return self.record["kernel"]

    def variables(self) -> Mapping[str, str]:
        return self.record["variables"]

    def read_text(self, path: str) -> str | None:
        return self.record["files"].get(path)

    def paths(self, pattern: str) -> list[str]:
        # As glob does: a star stays within one folder.
        known = [*self.record["files"], *self.record["ages_seconds"]]
        return sorted(
            path for path in known if path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)
        )

    def real_path(self, path: str) -> str:
        for link, target in self.record["links"].items():
            if path == link or path.startswith(f"{link}/"):
                return target + path.removeprefix(link)
        return path

    def age_seconds(self, path: str) -> float | None:
        return self.record["ages_seconds"].get(path)

    def which(self, program: str) -> str | None:
        programs = self.record["programs"]
        if "/" in program:
            return program if program in programs else None
        folders = self.record["variables"]["PATH"].split(":")
        return next((path for folder in folders if (path := f"{folder}/{program}") in programs), None)

    def run(self, *command: str) -> CommandOutput | None:
        program = self.which(command[0])
        if program is None:
            return None
        answer = self.record["commands"][" ".join((program, *command[1:]))]
        if answer == "hangs":
            raise TimeoutError(f"{command[0]} did not end in 4 s")
        return CommandOutput(answer.get("returncode", 0), answer.get("stdout", ""), answer.get("stderr", ""))

    def limit(self, name: str) -> Limit:
        return Limit(*self.record["limits"][name])

    def free_bytes(self, path: str) -> int | None:
        return self.record["free_bytes"]

    def listen_error(self, address: str, port: int) -> str | None:
        return self.record["taken_ports"].get(str(port))

    def head(self, url: str) -> HeadReply:
        answer = self.record["head"]
        skew = answer["skew_seconds"]
        return HeadReply(answer["error"], None if skew is None else LOCAL_TIME - skew, LOCAL_TIME)

    def hub_identity(self) -> HubIdentity:
        return HubIdentity(**self.record["hub_identity"])

    def runtime(self, executable: str, names: Collection[str] | None = None) -> RuntimeFacts:
        recorded = self.record["runtime"]
        facts = {name: Fact(**fact) for name, fact in recorded.items() if names is None or name in names}
        return RuntimeFacts(executable, facts)


def merged(record: Any, delta: Any) -> Any:
    """`record` with a JSON merge patch (RFC 7396) applied: null removes, objects merge, all else replaces."""
    if not isinstance(delta, Mapping):
        return delta
    result = dict(record) if isinstance(record, Mapping) else {}
    for key, value in delta.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def healthy_record() -> dict[str, Any]:
    """The record of a healthy Spark."""
    return json.loads((HOSTS / "healthy-spark.json").read_text(encoding="utf-8"))


def broken_records() -> dict[str, dict[str, Any]]:
    """By name: what differs from the healthy Spark, and what the preflight has to say of it."""
    return json.loads((HOSTS / "broken.json").read_text(encoding="utf-8"))
