"""Documents that must keep up with the sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "python" / "src" / "glm53_exl3"
#: Not raised under this name: how a bug of ours is printed.
PRINTED_ONLY = {"internal"}


def raised_ids() -> set[str]:
    """First argument of every call of an error class that is a literal."""
    ids: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
                first = node.args[0] if len(node.args) > 1 else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    ids.add(first.value)
    return ids


def test_every_error_id_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE))
    assert documented == raised_ids() - PRINTED_ONLY
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", error_id) for error_id in documented)


def test_links_of_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_paths_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"(?:pytest|python) ((?:tests/\S+ ?)+)", text.replace("`", " ")):
        for part in path.split():
            assert (ROOT / part).exists(), part


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_fenced_settings_of_the_readme_are_those_of_the_package() -> None:
    from glm53_exl3.hub.folder import PACKS_VARIABLE
    from glm53_exl3.kernels import settings

    text = (ROOT / "README.md").read_text()
    known = {settings.KERNEL_VARIABLE, settings.DECODE_VARIABLE, PACKS_VARIABLE}
    assert set(re.findall(r"GLM53_EXL3_[A-Z]+", text)) == known


def rows_of_troubleshooting() -> list[str]:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    return [
        line for line in text.splitlines() if line.startswith("| ") and "---" not in line and "| test |" not in line
    ]


def test_every_report_has_a_row_with_a_test_or_needs_a_gpu() -> None:
    numbers = [match[1] for row in rows_of_troubleshooting() if (match := re.match(r"\| (\d+) \|", row))]
    assert numbers == [str(number) for number in range(1, 28)]
    for row in rows_of_troubleshooting():
        last = row.rstrip(" |").rpartition("| ")[2]
        assert last == "needs a GPU" or last.startswith("`tests/"), row


def test_tests_of_the_troubleshooting_exist() -> None:
    for row in rows_of_troubleshooting():
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row):
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


def test_checks_of_the_troubleshooting_exist() -> None:
    known = raised_ids()
    known |= set(re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "docs" / "preflight.md").read_text(), re.MULTILINE))
    for row in rows_of_troubleshooting():
        for name in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", row):
            assert name in known or name == "glm53-exl3", f"{name} in {row[:80]}"
