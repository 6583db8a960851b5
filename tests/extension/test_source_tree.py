"""What the build refuses before it looks for a compiler."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from extension.building import STUB, build
from extension.pinned_wheels import PINS

QUANT = Path("exllamav3") / "exllamav3_ext" / "quant"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STUB, tmp_path / "tree"))


def refused(tree: Path, *arguments: str) -> str:
    done = build("exllamav3", "--source", tree, "--output", tree / "out", "--check", *arguments)
    assert done.returncode == 1, done.stdout
    assert not (tree / "out").exists()
    assert "\nhint: " in done.stderr
    return done.stderr


def test_a_whole_tree_passes_and_names_the_pinned_revision(tree: Path) -> None:
    done = build("exllamav3", "--source", tree, "--output", tree / "out", "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"kernels of turboderp-org/exllamav3 1.4.4, {PINS['exllamav3']['revision']}: 24 units\n"


def test_a_tree_without_kernels_is_refused(tmp_path: Path) -> None:
    message = refused(tmp_path)
    assert message.startswith("error: tree-kernels:")
    assert "lacks 25 of 25 files of the kernels, first quant/exl3_moe.cuh" in message


def test_one_missing_instance_is_named(tree: Path) -> None:
    (tree / QUANT / "comp_units" / "exl3_moe_inst_k3_cb2.cu").unlink()
    assert "lacks 1 of 25 files of the kernels, first quant/comp_units/exl3_moe_inst_k3_cb2.cu" in refused(tree)


@pytest.mark.parametrize(
    ("old", "new", "arity"),
    [
        ("int active", "int active, int count_lo, int count_hi, int m_tile, int, int", 35),  # as in 1.5.0
        ("float limit, /* of the activation, 0 for none */\n    int active", "float limit", 29),  # as in 0.0.43
        ("exl3_moe(", "exl3_moe_other(", 0),
    ],
)
def test_another_number_of_arguments_is_refused(tree: Path, old: str, new: str, arity: int) -> None:
    header = tree / QUANT / "exl3_moe.cuh"
    text = header.read_text()
    assert text.count(old) == 1
    header.write_text(text.replace(old, new))
    message = refused(tree)
    assert message.startswith("error: tree-arity:")
    assert f"takes {arity} arguments\n  expected: 30, as exllamav3 1.4.4 has" in message


def test_another_release_is_refused_unless_it_is_named(tree: Path) -> None:
    (tree / "exllamav3" / "version.py").write_text('__version__ = "1.4.5"\n')
    message = refused(tree)
    assert message.startswith("error: tree-version:")
    assert "  expected: 1.4.4\n  found: 1.4.5\n" in message
    assert "--revision 1.4.5" in message
    named = build("exllamav3", "--source", tree, "--output", tree / "out", "--check", "--revision", "v1.4.5")
    assert named.returncode == 0
    assert "exllamav3 1.4.5, v1.4.5:" in named.stdout


def test_a_tree_that_says_no_version_is_refused(tree: Path) -> None:
    (tree / "exllamav3" / "version.py").unlink()
    assert "version.py does not say a version" in refused(tree)


def test_x86_code_behind_an_include_is_refused(tree: Path) -> None:
    (tree / QUANT / "fence.h").write_text("#include <immintrin.h>\n")
    with (tree / QUANT / "exl3_devctx.cu").open("a") as unit:
        unit.write('#include "fence.h"\n')
    message = refused(tree)
    assert message.startswith("error: tree-x86:")
    assert "fence.h needs an x86 compiler\n  found: immintrin.h" in message


def test_the_pins_can_be_the_part_that_matters(tree: Path, tmp_path: Path) -> None:
    part = {key: PINS[key] for key in ("cuda", "torch", "gpu", "exllamav3")}
    (tmp_path / "pins.json").write_text(json.dumps(part))
    done = build("exllamav3", "--source", tree, "--output", tree, "--check", "--pins", tmp_path / "pins.json")
    assert done.returncode == 0, done.stderr
