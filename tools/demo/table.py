"""What the canary lets pass and what it catches, as a Markdown table; docs/canary.md holds the whole one.

    python tools/demo/table.py                       every bit rate and every damage
    python tools/demo/table.py --bits 2 --damages    what the tests repeat

Exits with 1 when a pack of 2 to 8 bits fails or a damage passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bless import make_pack
from glm53_exl3.demo.canary import Answer, Canary, load_canary
from glm53_exl3.demo.faq import demo_pack
from reference import answers_of
from runs import run_in_vllm

LOWEST_BITS_THAT_MUST_PASS = 2


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was run.
        must_pass: None when only reported.
        exact: answers with the right words, of `total`.
        total: answers.
        change: largest difference of a log-probability among answers with the right words.
        failures: answers that the canary refuses.
    """

    name: str
    must_pass: bool | None
    exact: int
    total: int
    change: float
    failures: int

    @property
    def verdict(self) -> str:
        """In words."""
        return "passes" if self.failures == 0 else "fails"

    @property
    def as_it_should(self) -> bool:
        """Whether the verdict is the wanted one."""
        return self.must_pass is None or self.must_pass == (self.failures == 0)

    def markdown(self) -> str:
        """A line of Markdown."""
        change = f"{self.change:.4g}" if self.exact else "-"
        return f"| {self.name} | {self.exact}/{self.total} | {change} | {self.verdict} |"


HEADER = "| run | right words | largest change of log-probability among them | canary |\n| --- | --- | --- | --- |"


def judge(name: str, must_pass: bool | None, canary: Canary, answers: list[Answer]) -> Row:
    """Compare answers with the canary."""
    right = {answer.question: answer for answer in canary.answers}
    same = [answer for answer in answers if answer.answer == right[answer.question].answer]
    change = max((abs(answer.logprob - right[answer.question].logprob) for answer in same), default=0.0)
    return Row(name, must_pass, len(same), len(answers), change, len(canary.failures(answers)))


def bit_rate_rows(rates: list[int], tolerance: float) -> Iterator[Row]:
    """The checkpoint quantized at each rate, against its own float32 reference."""
    for bits in rates:
        with tempfile.TemporaryDirectory() as folder:
            pack = Path(folder) / "pack"
            make_pack(pack, bits)
            canary = Canary(tolerance, answers_of(pack))
            must_pass = True if bits >= LOWEST_BITS_THAT_MUST_PASS else None
            for _, answers in run_in_vllm(pack):
                yield judge(f"K={bits}, all layers", must_pass, canary, answers)


def damage_rows(canary: Canary) -> Iterator[Row]:
    """The demo pack as it is, with each damage, and as it is again."""
    for name, answers in run_in_vllm(demo_pack(), "--damages"):
        intact = name.startswith(("as it is", "mended"))
        yield judge("the demo pack" if intact else name, intact, canary, answers)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, nargs="*", default=list(range(1, 9)))
    parser.add_argument("--damages", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    canary = load_canary(demo_pack())
    print(HEADER, flush=True)
    wrong: list[Row] = []
    spread = 0.0

    def rows() -> Iterator[Row]:
        if options.damages:
            yield from damage_rows(canary)
        yield from bit_rate_rows(options.bits, canary.tolerance)

    for row in rows():
        print(row.markdown(), flush=True)
        spread = max(spread, row.change) if row.must_pass else spread
        if not row.as_it_should:
            wrong.append(row)
    print(f"\nLargest change of the packs that must pass: {spread:.5f}")
    for row in wrong:
        print(f"error: {row.name} {row.verdict}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
