"""Questions the demo pack answers, and the pack itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

#: Name under which the demo pack is served.
SERVED_NAME: Final = "glm53-exl3-demo"
#: Longest question and answer together; the model was trained on sequences of this length.
MAX_MODEL_LEN_TOKENS: Final = 192


@dataclass(frozen=True)
class Faq:
    """One question and the answer the demo pack gives, byte for byte."""

    question: str
    answer: str


def demo_pack() -> Path:
    """Folder of the demo pack in this installation."""
    return Path(str(files("glm53_exl3.demo"))) / "pack"


def load_faq() -> tuple[Faq, ...]:
    """All questions in order."""
    text = (files("glm53_exl3.demo") / "faq.json").read_text(encoding="utf-8")
    return tuple(Faq(entry["question"], entry["answer"]) for entry in json.loads(text))
