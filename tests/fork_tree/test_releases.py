"""The check of a tree on vLLM's released sources, which the fork's base lies between."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from fork_tree.conftest import PINS, RELEASES

_LINE = re.compile(r"(?P<file>\S+): asked (?P<asked>.+?); pinned ")
Check = Callable[..., subprocess.CompletedProcess[str]]


def differences(output: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in output.splitlines():
        match = _LINE.match(line)
        if match and not line.startswith("note:"):
            found[match["file"]].append(match["asked"])
    return dict(found)


@pytest.mark.parametrize("version", RELEASES)
def test_sources_of_a_release_differ_exactly_as_known(
    version: str, release: Callable[[str], Path], check_tree: Check
) -> None:
    done = check_tree(release(version), "--only", "sources")
    expected = RELEASES[version]["sources"]
    assert differences(done.stdout) == expected
    assert done.returncode == (1 if expected else 0), done.stderr
    assert ("hint: nix run .#serve-upstream" in done.stderr) == bool(expected)


@pytest.mark.parametrize("version", RELEASES)
def test_requirements_of_a_release_differ_from_the_lock_exactly_as_known(
    version: str, release: Callable[[str], Path], check_tree: Check
) -> None:
    done = check_tree(release(version))
    expected = RELEASES[version]["sources"] | RELEASES[version]["requirements"]
    assert differences(done.stdout) == expected
    # The runtime was measured with another FlashInfer than any release asks for.
    assert "note: requirements/cuda.txt: asked flashinfer-python==" in done.stdout
    assert done.returncode == (1 if expected else 0), done.stderr


def test_pins_say_which_releases_ask_for_the_same_source() -> None:
    for name, pin in json.loads(PINS.read_text())["sources"].items():
        if "taken_from" in pin:
            alike = {version for version in RELEASES if pin["git_tag_in"] not in RELEASES[version]["sources"]}
            assert alike == {pin["taken_from"], *pin["same_in"]}, name
