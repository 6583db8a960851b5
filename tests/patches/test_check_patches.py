"""tools/check_patches.py on trees: what applies, what is there, what does not fit, and what is written."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from patches.made_up import check, difference, reports, verdicts, write

GREETING = "def greet():\n    word = 'hello'\n    return word\n\n\ndef leave():\n    word = 'bye'\n    return word\n"
FILE = "vllm/greeting.py"
LOUD = GREETING.replace("'hello'", "'HELLO'")
APPLIES, THERE, MISMATCH = "applies", "there", "mismatch"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "vllm").mkdir(parents=True)
    (folder / FILE).write_text(GREETING)
    return folder


def diff(old: str, new: str, before: str = GREETING, context: int = 1) -> str:
    assert before.count(old) == 1
    return difference(FILE, before, before.replace(old, new), context)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_patch_that_fits_applies_at_its_line_and_is_written_only_on_demand(tree: Path, tmp_path: Path) -> None:
    patches = write(tmp_path / "p", p1_greet=diff("'bye'", "'farewell'"))
    (tree / FILE).write_text("import os\n\n\n" + GREETING)
    hunk = {"file": FILE, "hunk": 1, "state": APPLIES, "line": 9, "why": ""}
    patch = {"patch": "0001-greet-otherwise.patch", "verdict": APPLIES, "reason": "", "hunks": [hunk]}
    assert reports(patches, tree) == {"0001": patch}
    assert (tree / FILE).read_text() == "import os\n\n\n" + GREETING
    assert check(patches, "--tree", tree, "--apply").returncode == 0
    assert (tree / FILE).read_text() == "import os\n\n\n" + GREETING.replace("bye", "farewell")
    assert list(contents(tree)) == [FILE]


def test_report_for_people_names_verdict_and_place_of_each_hunk(tree: Path, tmp_path: Path) -> None:
    done = check(write(tmp_path / "p", p1_greet=diff("'bye'", "'farewell'")), "--tree", tree)
    assert done.stdout == f"0001-greet-otherwise.patch: applies\n  {FILE} hunk 1: applies at line 6\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_second_application_finds_everything_there_and_changes_nothing(tree: Path, tmp_path: Path) -> None:
    patches = write(
        tmp_path / "p",
        p1_insert=diff("    word = 'hello'\n", "    word = 'hello'\n    word += '!'\n"),
        # Changes a line that the first one made, so the lines of the first are in the tree no longer.
        p2_change=diff(
            "    word += '!'\n", "    word += '?'\n", GREETING.replace("hello'\n", "hello'\n    word += '!'\n")
        ),
        p3_remove=diff("    word = 'bye'\n", ""),
    )
    assert verdicts(patches, tree, "--apply") == {"0001": APPLIES, "0002": APPLIES, "0003": APPLIES}
    once = contents(tree)
    assert once[FILE].decode() == GREETING.replace("hello'\n", "hello'\n    word += '?'\n").replace(
        "    word = 'bye'\n", ""
    )
    assert verdicts(patches, tree, "--apply") == {"0001": THERE, "0002": THERE, "0003": THERE}
    assert contents(tree) == once


def test_writing_leaves_other_links_to_the_file_and_keeps_its_mode(tree: Path, tmp_path: Path) -> None:
    (tree / FILE).chmod(0o750)
    os.link(tree / FILE, tmp_path / "other")
    assert check(write(tmp_path / "p", p1_greet=diff("bye", "farewell")), "--tree", tree, "--apply").returncode == 0
    assert (tmp_path / "other").read_text() == GREETING
    assert (tree / FILE).stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GREETING.replace("'hello'", "'hi'"), "line 2 should be \"word = 'hello'\" and is \"word = 'hi'\""),
        # Context that differs is what fuzz would forgive.
        (GREETING.replace("def greet", "def hail"), "line 1 should be 'def greet():' and is 'def hail():'"),
        (GREETING + "\n" + GREETING, "its old lines stand 2 times in the file, at lines 1, 10"),
        (GREETING + LOUD, "its old lines stand at line 1, its new ones at line 9; more context would tell them apart"),
        ("def greet():\n    word = 'hello'\n", "line 3 should be 'return word' and is the end of the file"),
        ("nothing\n", "the file has none of its old lines; the first is 'def greet():'"),
        (None, "the tree has no such file"),
    ],
)
def test_hunk_that_does_not_fit_is_named_with_the_closest_place(
    tree: Path, tmp_path: Path, text: str | None, why: str
) -> None:
    patches = write(
        tmp_path / "p", p1_greet=diff("hello", "HELLO"), p2_new=difference("a.txt", "a\nb\nc\n", "a\nB\nc\n")
    )
    (tree / "a.txt").write_text("a\nb\nc\n")
    (tree / FILE).unlink()
    if text is not None:
        (tree / FILE).write_text(text)
    before = contents(tree)
    done = check(patches, "--tree", tree, "--apply")
    assert done.returncode == 1
    assert (
        f"error: patch-does-not-apply: 0001-greet-otherwise.patch does not fit {tree}; it changes {FILE}" in done.stderr
    )
    assert f"found: {FILE} hunk 1: " in done.stderr
    assert why in done.stderr
    assert "hint: nix run .#serve-upstream" in done.stderr
    assert "0002-new-otherwise.patch: applies" in done.stdout
    assert contents(tree) == before


def test_hunks_in_another_order_than_in_the_file_do_not_fit(tree: Path, tmp_path: Path) -> None:
    patches = write(tmp_path / "p", p1_greet=difference(FILE, GREETING, LOUD.replace("bye", "BYE")))
    first, second = GREETING.split("\n\n\n")
    (tree / FILE).write_text(f"{second}\n\n{first}\n")
    (hunk,) = [one for one in reports(patches, tree)["0001"]["hunks"] if one["state"] == MISMATCH]
    assert "before the end of the hunk above" in hunk["why"]


def test_only_the_named_patches_are_judged_and_written(tree: Path, tmp_path: Path) -> None:
    patches = write(tmp_path / "p", p1_bad=diff("hello", "HELLO").replace("hello", "hullo"), p2_good=diff("bye", "BYE"))
    assert verdicts(patches, tree) == {"0001": MISMATCH, "0002": APPLIES}
    assert verdicts(patches, tree, "--only", "0002-good-otherwise.patch", "--apply") == {"0002": APPLIES}
    assert (tree / FILE).read_text() == GREETING.replace("bye", "BYE")


def test_later_patch_is_judged_without_what_an_earlier_mismatch_would_have_changed(tree: Path, tmp_path: Path) -> None:
    # The first hunk of the first patch fits, its second does not: neither may be seen by the second patch.
    both = difference(FILE, GREETING, LOUD.replace("bye", "BYE")).replace("-    word = 'bye'", "-    word = 'ciao'")
    patches = write(tmp_path / "p", p1_both=both, p2_same=diff("hello", "hallo"))
    assert verdicts(patches, tree) == {"0001": MISMATCH, "0002": APPLIES}


def test_fix_of_upstream_is_there_by_the_text_of_drop_when(tree: Path, tmp_path: Path) -> None:
    (tree / FILE).write_text("WORD = 'bonjour'\n")
    patches = write(tmp_path / "p", p1_greet=diff("hello", "HELLO"))
    report = reports(patches, tree, "--apply")["0001"]
    assert (report["verdict"], report["reason"]) == (THERE, f'{FILE} has "bonjour"')
    assert report["hunks"][0]["state"] == MISMATCH
    assert (tree / FILE).read_text() == "WORD = 'bonjour'\n"


def test_hunks_that_are_there_are_left_and_the_others_applied(tree: Path, tmp_path: Path) -> None:
    patches = write(tmp_path / "p", p1_both=difference(FILE, GREETING, LOUD.replace("bye", "BYE")))
    (tree / FILE).write_text(LOUD)
    report = reports(patches, tree, "--apply")["0001"]
    assert report["verdict"] == APPLIES
    assert [(one["state"], one["line"]) for one in report["hunks"]] == [(THERE, 1), (APPLIES, 6)]
    assert (tree / FILE).read_text() == LOUD.replace("bye", "BYE")


def test_lines_that_only_begin_or_end_alike_are_not_the_old_lines(tree: Path, tmp_path: Path) -> None:
    text = GREETING.replace("    return word\n\n\n", "    return words\n\n\n")
    (tree / FILE).write_text(text)
    assert verdicts(write(tmp_path / "p", p1_greet=diff("hello", "HELLO")), tree) == {"0001": MISMATCH}


def test_result_that_is_no_python_is_refused(tree: Path, tmp_path: Path) -> None:
    patches = write(tmp_path / "p", p1_greet=diff("    word = 'hello'\n", "    word = ('hello'\n"))
    done = check(patches, "--tree", tree, "--apply")
    assert done.returncode == 1
    assert f"found: {FILE} is no Python afterwards: " in done.stderr
    assert (tree / FILE).read_text() == GREETING


def test_patch_that_would_not_be_recognized_once_applied_is_refused(tree: Path, tmp_path: Path) -> None:
    (tree / "list.txt").write_text("b\nb\nc\n")
    patches = write(tmp_path / "p", p1_list="--- a/list.txt\n+++ b/list.txt\n@@ -2,2 +2,3 @@\n+c\n b\n c\n")
    done = check(patches, "--tree", tree, "--apply")
    assert "list.txt hunk 1 would not be recognized once it is applied; it needs more context" in done.stderr
    assert (tree / "list.txt").read_text() == "b\nb\nc\n"


def test_bytes_beside_the_hunk_stay_as_they_are(tree: Path, tmp_path: Path) -> None:
    odd = b"\xe9\r\n\x0c\xe2\x80\xa8\n"
    (tree / "odd.txt").write_bytes(odd + b"a\nb\nc\nend without newline")
    patches = write(tmp_path / "p", p1_odd=difference("odd.txt", "a\nb\nc\n", "a\nB\nc\n"))
    assert check(patches, "--tree", tree, "--apply").returncode == 0
    assert (tree / "odd.txt").read_bytes() == odd + b"a\nB\nc\nend without newline"


def test_result_is_that_of_gnu_patch_without_fuzz(tmp_path: Path) -> None:
    chance = random.Random(20261201)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    diffs = {}
    for number in range(1, 61):
        # Few words, so that places are alike.
        lines = [chance.choice("abcdef") * chance.randint(1, 4) + "\n" for _ in range(60)]
        changed = list(lines)
        for place in sorted(chance.sample(range(6, 54), 3), reverse=True):
            changed[place : place + chance.choice([0, 1, 2])] = ["new\n"] * chance.choice([0, 1, 2])
        before, after = "".join(lines), "".join(changed)
        diffs[f"p{number}_random"] = difference(f"f{number:04}", before, after, chance.choice([1, 2, 3]))
        shifted = chance.choice([0, 0, 7])
        (ours / f"f{number:04}").write_text("".join([f"{one}\n" for one in range(shifted)] + lines))
    patches = write(tmp_path / "p", **{key: diff for key, diff in diffs.items() if diff})
    for refused in {
        line.split(": ")[2].split(":")[0] for line in check(patches).stderr.splitlines() if "error" in line
    }:
        (patches / refused).unlink()
    names = sorted(path.name for path in patches.glob("*.patch"))
    (patches / "series").write_text("\n".join(names))
    shutil.copytree(ours, theirs)
    found = verdicts(patches, ours)
    fitting = [name for name in names if found[name[:4]] == APPLIES]
    assert 20 < len(fitting) < len(names)
    only = [option for name in fitting for option in ("--only", name)]
    assert check(patches, "--tree", ours, "--apply", *only).returncode == 0
    for name in fitting:
        command = ["patch", "-p1", "--fuzz=0", "--batch", "--forward", "--no-backup-if-mismatch", "--quiet"]
        subprocess.run([*command, "--input", str(patches / name)], cwd=theirs, check=True, capture_output=True)
    assert contents(ours) == contents(theirs)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--apply"], 2, "--apply needs --tree DIR"),
        (["--tree", "/nowhere"], 2, "/nowhere is no folder"),
        (["--tree", ".", "--only", "0009-x-y.patch"], 1, "error: patch-unknown: the series has no 0009-x-y.patch"),
        (["--tree", ".", "--only", "0009"], 1, "error: patch-unknown: the series has no 0009"),
        (["--pins", "/nowhere.json"], 2, "/nowhere.json is no file"),
    ],
)
def test_wrong_usage_is_refused(tmp_path: Path, options: list[str], code: int, message: str) -> None:
    done = check(write(tmp_path / "p", p1_greet=diff("hello", "HELLO")), *options)
    assert done.returncode == code
    assert message in done.stderr
