"""What vLLM's log says: which phase of the start it is in, and which of our errors ended it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from glm53_exl3.errors import ServerError

IMPORTING: Final = "importing vLLM"
#: Phases of a start in order, with text by which vLLM 0.32.0 announces each.
PHASES: Final[tuple[tuple[str, str], ...]] = (
    (IMPORTING, ""),
    ("starting the engine", r"Initializing a V\d LLM engine"),
    ("loading weights", r"Starting to load model|Loading weights|Loading safetensors"),
    ("allocating the KV cache", r"Model loading took|Loading weights took|GPU KV cache size|CPU KV cache|# CPU blocks"),
    ("warming up", r"Graph capturing|[Ww]arming up|init engine .* took"),
    ("starting the API", r"Starting vLLM (API )?server|Started server process"),
)

#: What vLLM puts before a line: `(EngineCore pid=12) ERROR 11-30 12:00:00 [core.py:843] `.
_PROCESS = re.compile(r"^(\([^)]*pid=\d+\) )?")
_PREFIX = re.compile(_PROCESS.pattern + r"(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?")
#: As a traceback shows it; compilers and servers also write lines with `error:`.
_ERROR = re.compile(r"glm53_exl3\.errors\.[A-Z]\w+: error: (?P<id>[a-z0-9]+(?:-[a-z0-9]+)*): (?P<what>.+)$")
#: Other processes write between the lines of one error.
_LINES_OF_AN_ERROR: Final = 40
_DETAIL = re.compile(r"^\s*(?P<key>expected|found|hint): (?P<text>.+)$")


def phase_index(line: str) -> int | None:
    """Index in `PHASES` of the phase that a log line announces, or None."""
    for index, (_, pattern) in reversed(list(enumerate(PHASES))):
        if pattern and re.search(pattern, line):
            return index
    return None


def find_error(lines: Sequence[str]) -> ServerError | None:
    """The last of this project's own errors in a log, so that a failed start is reported by its cause."""
    found: ServerError | None = None
    for index, line in enumerate(lines):
        match = _ERROR.search(line)
        if match:
            process = _process(line)
            following = lines[index + 1 : index + _LINES_OF_AN_ERROR]
            details = _details(line for line in following if _process(line) == process)
            found = ServerError(
                match["id"],
                match["what"].strip(),
                expected=details.get("expected", ""),
                found=details.get("found", ""),
                hint=details.get("hint", ""),
            )
    return found


def _process(line: str) -> str:
    match = _PROCESS.match(line)
    return (match[1] or "") if match else ""


def _details(lines: Iterable[str]) -> dict[str, str]:
    details: dict[str, str] = {}
    for line in lines:
        match = _DETAIL.match(_PREFIX.sub("", line))
        if match:
            details.setdefault(match["key"], match["text"].strip())
        elif _PREFIX.sub("", line).strip():
            break
    return details
