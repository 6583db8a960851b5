"""Rules of patches/README.md as tools/check_patches.py keeps them: on the patches of the repository and on bad ones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from patches.conftest import CHECK, PATCHES
from patches.made_up import HEADER, PIN, check, difference, write

BEFORE = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n"
GOOD = difference("a.txt", BEFORE, BEFORE.replace("five", "FIVE"), context=3)
NAME = "0001-greet-otherwise.patch"
#: Kind of fault, the place it is reported at, what is changed in a good patch, and part of the message.
BAD: dict[str, tuple[str, str, str, str, str]] = {
    "field missing": ("header-fields", NAME, "Why: greetings are\n short\n", "", "found: Subject, Upstream-Status"),
    "field twice": ("header-fields", NAME, "Why:", "Subject: again\nWhy:", "found: Subject, Subject, Why"),
    "fields swapped": (
        "header-fields",
        NAME,
        "Upstream-Status: Pending\n",
        "",
        "expected: Subject, Why, Upstream-Status, Applies-To, Drop-When",
    ),
    "field unknown": ("header-fields", NAME, "Why:", "Date: today\nWhy:", "found: Subject, Date, Why"),
    "line of no field": ("header-fields", NAME, "Why:", "some prose\nWhy:", "found: Subject, (some prose), Why"),
    "field empty": ("header-empty", NAME, "Subject: greet otherwise", "Subject:", "Subject says nothing"),
    "subject too long": ("header-subject", NAME, "greet otherwise", "g" * 73, "at most 72 characters"),
    "subject with full stop": ("header-subject", NAME, "greet otherwise", "greet otherwise.", "no full stop"),
    "status of another kind": ("header-status", NAME, "Pending", "Denied", "found: Denied"),
    "status without link": ("header-status", NAME, "Pending", "Backport", "Backport [owner/repo#N]"),
    "status without reason": ("header-status", NAME, "Pending", "Inappropriate []", "Inappropriate [reason]"),
    "another revision": ("header-revision", NAME, PIN, "ZJY0516/vllm 0000", f"expected: {PIN}"),
    "no condition": ("header-drop", NAME, 'has "bonjour"', "speaks French", 'expected: FILE has "TEXT"'),
    "absent test": (
        "header-evidence",
        NAME,
        "test_check_patches.py",
        "test_none.py",
        "found: tests/patches/test_none.py",
    ),
    "no test": (
        "header-evidence",
        NAME,
        "tests/patches/test_check_patches.py",
        "it",
        "names nothing that shows the defect",
    ),
    "no blank line": ("header-end", f"{NAME}:7", "without it\n\n", "without it\n", "no blank line ends the header"),
    "no diff": ("diff-empty", f"{NAME}:7", GOOD, "", "a unified diff behind the header"),
    "paths without a and b": ("diff-file", f"{NAME}:8", "--- a/a.txt", "--- a.txt", "--- a/PATH and +++ b/PATH"),
    "renamed file": ("diff-file", f"{NAME}:8", "+++ b/a.txt", "+++ b/b.txt", "found: a/a.txt, b/b.txt"),
    "new file": ("diff-file", f"{NAME}:8", "--- a/a.txt", "--- /dev/null", "found: /dev/null, b/a.txt"),
    "deleted file": ("diff-file", f"{NAME}:8", "+++ b/a.txt", "+++ /dev/null", "found: a/a.txt, /dev/null"),
    "path above the tree": ("diff-file", f"{NAME}:8", "/a.txt", "/../a.txt", "leaves the tree"),
    "path from the root": ("diff-file", f"{NAME}:8", "/a.txt", "//a.txt", "leaves the tree"),
    "text after the diff": ("diff-line", f"{NAME}:19", " eight\n", " eight\nmy regards\n", "found: my regards"),
    "end without newline": (
        "diff-line",
        f"{NAME}:19",
        " eight\n",
        " eight\n\\ No newline at end of file\n",
        "No newline",
    ),
    "counts of the old lines": ("diff-count", f"{NAME}:10", "-2,7", "-2,6", "found: 7 and 7"),
    "counts of the new lines": ("diff-count", f"{NAME}:10", "+2,7", "+2,8", "expected: 7 and 8"),
    "hunk without range": ("diff-hunk", f"{NAME}:10", "@@ -2,7 +2,7 @@", "@@ here @@", "expected: @@ -N,N +N,N @@"),
    "hunk without change": ("diff-hunk", f"{NAME}:10", "+FIVE", "+five", "changes nothing"),
    "hunk of additions alone": (
        "diff-hunk",
        f"{NAME}:10",
        GOOD[GOOD.index("@@") :],
        "@@ -2,0 +3 @@\n+x\n",
        "has no place",
    ),
    "removal without context after it": (
        "diff-hunk",
        f"{NAME}:10",
        GOOD[GOOD.index("@@") :],
        "@@ -2,2 +2,1 @@\n-two\n three\n",
        "cannot be told once applied",
    ),
    "much context": (
        "diff-context",
        f"{NAME}:10",
        GOOD,
        difference("a.txt", BEFORE, BEFORE.replace("five", "FIVE"), context=4),
        "found: 4 before, 4 after",
    ),
    "less context after": (
        "diff-context",
        f"{NAME}:10",
        " eight\n",
        "",
        "expected: 3 lines after the change as before it, or fewer before",
    ),
    "carriage return": ("patch-lines", NAME, "+FIVE\n", "+FIVE\r\n", "a line ends in a carriage return"),
}


def test_patches_of_the_repository_keep_the_rules() -> None:
    done = check(PATCHES)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\d+ patches keep the rules\n", done.stdout)


@pytest.mark.parametrize(
    "status",
    [
        "Pending",
        "Pending; nobody asked",
        "Backport [vllm-project/vllm#1] in 0.31.0",
        "Submitted [a/b#2]",
        "Inappropriate [another GPU]",
    ],
)
def test_good_patch_keeps_the_rules(tmp_path: Path, status: str) -> None:
    folder = write(tmp_path / "p", p1_greet=GOOD)
    (folder / NAME).write_text(HEADER.replace("Pending", status) + GOOD)
    done = check(folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 patches keep the rules\n", "")


@pytest.mark.parametrize("case", BAD)
def test_bad_patch_is_reported_with_its_place(tmp_path: Path, case: str) -> None:
    kind, where, old, new, message = BAD[case]
    text = HEADER + GOOD
    assert old in text
    changed = text.replace(old, new)
    if case == "fields swapped":
        changed = changed.replace("Why:", "Upstream-Status: Pending\nWhy:")
    folder = write(tmp_path / "p", p1_greet="")
    (folder / NAME).write_bytes(changed.encode())
    done = check(folder)
    assert done.returncode == 1
    assert f"error: {kind}: {where}: " in done.stderr
    assert message in done.stderr
    assert "hint: patches/README.md has the rules" in done.stderr


def test_nothing_is_applied_by_a_series_that_breaks_the_rules(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", p1_greet=GOOD, p2_bad=GOOD.replace("-2,7", "-2,6"))
    (tmp_path / "a.txt").write_text(BEFORE)
    done = check(folder, "--tree", tmp_path, "--apply")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: diff-count: 0002-bad-otherwise.patch:10: " in done.stderr
    assert (tmp_path / "a.txt").read_text() == BEFORE


def test_faults_of_all_patches_are_reported_together(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", p1_a=GOOD, p2_b=GOOD.replace("-2,7", "-2,6"))
    (folder / "0001-a-otherwise.patch").write_text(HEADER.replace("Pending", "Denied").replace(PIN, "x") + GOOD)
    found = re.findall(r"error: (\S+): (\S+): ", check(folder).stderr)
    assert found == [
        ("header-status", "0001-a-otherwise.patch"),
        ("header-revision", "0001-a-otherwise.patch"),
        ("diff-count", "0002-b-otherwise.patch:10"),
    ]


def test_tests_and_documents_of_headers_are_not_asked_for_without_evidence(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", p1_greet=GOOD)
    (folder / NAME).write_text(HEADER.replace("test_check_patches", "test_none") + GOOD)
    assert check(folder).returncode == 1
    assert check(folder, "--without-evidence").returncode == 0


def _listed(folder: Path, *names: str) -> None:
    (folder / "series").write_text("".join(f"{name}\n" for name in names))


def _renamed(folder: Path, name: str) -> None:
    (folder / NAME).rename(folder / name)
    _listed(folder, name)


SECOND = "0002-greet-otherwise.patch"
SERIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "unlisted": (lambda folder: _listed(folder, SECOND), f"series-unlisted: {NAME}: "),
    "absent": (lambda folder: _listed(folder, NAME, SECOND, "0003-a-b.patch"), "series-absent: series:3: no such file"),
    "twice": (lambda folder: _listed(folder, NAME, SECOND, NAME), "series-repeated: series:3: "),
    "descending": (lambda folder: _listed(folder, SECOND, NAME), "series-order: series:2: numbers do not ascend"),
    "number twice": (
        lambda folder: (
            shutil.copy(folder / NAME, folder / "0001-a-b.patch"),
            _listed(folder, NAME, "0001-a-b.patch", SECOND),
        ),
        "series-order: series:2: ",
    ),
    "no verb": (lambda folder: _renamed(folder, "0001-greet.patch"), "series-name: series:1: "),
    "no number": (lambda folder: _renamed(folder, "greet-otherwise.patch"), "series-name: series:1: "),
    "no series": (lambda folder: (folder / "series").unlink(), "series-missing: "),
    "no folder": (shutil.rmtree, "series-missing: "),
    "no text": (lambda folder: (folder / NAME).write_bytes(b"\xff\xfe"), f"patch-encoding: {NAME}: "),
}


@pytest.mark.parametrize("case", SERIES)
def test_series_and_folder_that_disagree_are_reported(tmp_path: Path, case: str) -> None:
    change, message = SERIES[case]
    folder = write(tmp_path / "p", p1_greet=GOOD, p2_greet=GOOD)
    change(folder)
    done = check(folder)
    assert done.returncode == 1
    assert f"error: {message}" in done.stderr


def test_comments_and_blank_lines_of_a_series_name_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", p1_greet=GOOD)
    (folder / "series").write_text(f"# {SECOND}\r\n\n{NAME} \t\r\n")
    assert check(folder).returncode == 0


def test_every_kind_of_fault_has_a_case() -> None:
    sources = [CHECK, *sorted((CHECK.parent / "patchset").glob("*.py"))]
    kinds = {
        one for path in sources for one in re.findall(r'"((?:header|diff|series|patch)-[a-z]+)"', path.read_text())
    }
    tested = {case[0] for case in BAD.values()} | {message.split(":")[0] for _, message in SERIES.values()}
    assert kinds == tested
