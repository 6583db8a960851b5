"""The check of a tree on a small one, whole and damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fork_tree.conftest import PINS, STAND_IN

Check = Callable[..., subprocess.CompletedProcess[str]]
TOOLS = {"cmake": "3.31.6", "ninja": "1.12.1", "setuptools-scm": "8.3.1", "setuptools-rust": "1.13.0"}
LOCKED = {
    "flashinfer-python": "0.6.18rc10",
    "jinja2": "3.1.6",
    "numpy": "2.4.2",
    "nvidia-cutlass-dsl": "4.6.2",
    "packaging": "26.4",
    "setuptools": "80.10.2",
    "torch": "2.13.0",
    "torchvision": "0.28.0",
    "transformers": "5.16.1",
}
EXTERNAL = "cmake/external_projects"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STAND_IN, tmp_path / "vllm"))


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return write_lock(tmp_path / "fork.json")


def write_lock(path: Path, locked: dict[str, str] = LOCKED, exceptions: tuple[dict[str, str], ...] = ()) -> Path:
    wanted = [{"requirement": "nvidia-cutlass-dsl[cu13]==4.6.2", "source": "test"}]
    wheels = {name: {"version": version} for name, version in locked.items()}
    data = {"requirements": wanted, "exceptions": list(exceptions), "systems": {"aarch64-linux": wheels}}
    path.write_text(json.dumps(data))
    return path


def options(tools: dict[str, str] = TOOLS) -> list[str]:
    return [part for name, version in tools.items() for part in ("--build-tool", f"{name}={version}")]


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_stand_in_agrees_with_the_pins(tree: Path, lock: Path, check_tree: Check) -> None:
    done = check_tree(tree, *options(), lock=lock)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "note: requirements/cuda.txt: asked flashinfer-python==0.6.17; "
        "0.6.18rc10 by decision (pins.json, runtimes.fork)\n"
    )


def test_stand_in_agrees_with_the_lock(check_tree: Check) -> None:
    done = check_tree(STAND_IN)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        (
            f"{EXTERNAL}/flashmla.cmake",
            "0397728d511c4e3d94ea3a01d8dda8654525a611",
            "a8f794d1251cbfd88a5011445dd5582289c727e4",
            f"{EXTERNAL}/flashmla.cmake: asked vllm-project/FlashMLA a8f794d1251cbfd88a5011445dd5582289c727e4; "
            "pinned vllm-project/FlashMLA 0397728d511c4e3d94ea3a01d8dda8654525a611; "
            "change sources.flashmla-src of pins.json; "
            "meanwhile: nix run .#serve-upstream",
        ),
        (
            "CMakeLists.txt",
            '"v4.4.2"',
            '"v4.7.1"',
            "CMakeLists.txt: asked NVIDIA/cutlass v4.7.1; pinned NVIDIA/cutlass v4.4.2",
        ),
        (
            "CMakeLists.txt",
            'set(CUTLASS_REVISION "v4.4.2")',
            "",
            "CMakeLists.txt: asked NVIDIA/cutlass ${CUTLASS_REVISION}",
        ),
        (
            f"{EXTERNAL}/deepgemm.cmake",
            "deepseek-ai/DeepGEMM",
            "vllm-project/DeepGEMM",
            f"{EXTERNAL}/deepgemm.cmake: asked vllm-project/DeepGEMM 8b1392b9",
        ),
        (
            f"{EXTERNAL}/deepgemm.cmake",
            '"third-party/fmt"',
            '"third-party/deep_jit"',
            f"{EXTERNAL}/deepgemm.cmake: asked submodules third-party/cutlass, third-party/deep_jit; "
            "pinned submodules third-party/cutlass, third-party/fmt",
        ),
        (
            f"{EXTERNAL}/tml_fa4.cmake",
            "TML_FA4_SRC_DIR",
            "FA4_FOLDER",
            f"{EXTERNAL}/tml_fa4.cmake: asked no folder of tml-fa4-src by TML_FA4_SRC_DIR; pinned TML_FA4_SRC_DIR; "
            "use FETCHCONTENT_SOURCE_DIR_TML_FA4 for tml-fa4-src",
        ),
        (
            f"{EXTERNAL}/triton_kernels.cmake",
            '"v3.5.1"',
            '"v3.6.0"',
            f"{EXTERNAL}/triton_kernels.cmake: asked triton-lang/triton v3.6.0; pinned triton-lang/triton v3.5.1",
        ),
        (
            "requirements/cuda.txt",
            "torch==2.13.0",
            "torch==2.14.0",
            "requirements/cuda.txt: asked torch==2.14.0; pinned torch==2.13.0",
        ),
        (
            "requirements/cuda.txt",
            "nvidia-cutlass-dsl[cu13]==4.6.2",
            "nvidia-cutlass-dsl[cu14]==4.6.2",
            "requirements/cuda.txt: asked nvidia-cutlass-dsl[cu14]==4.6.2; pinned nvidia-cutlass-dsl[cu13]==4.6.2",
        ),
        (
            "requirements/common.txt",
            "numpy",
            "numpy\ninstanttensor",
            "requirements/common.txt: asked instanttensor; pinned nothing",
        ),
        (
            "requirements/common.txt",
            "transformers >= 5.10.4",
            "transformers >= 5.17",
            "requirements/common.txt: asked transformers>=5.17; pinned transformers==5.16.1; run tools/locks",
        ),
        (
            "setup.py",
            "flashinfer-cubin",
            "nothing",
            "requirements/cuda.txt: asked flashinfer-cubin==0.6.17; pinned nothing",
        ),
        (
            "pyproject.toml",
            "setuptools-scm>=8.0",
            "setuptools-scm>=9",
            "pyproject.toml: asked setuptools-scm>=9; pinned setuptools-scm==8.3.1",
        ),
        (
            "pyproject.toml",
            '"jinja2"',
            '"jinja2", "grpcio-tools"',
            "pyproject.toml: asked grpcio-tools; pinned nothing",
        ),
    ],
)
def test_damage_is_one_line_that_names_both_sides(
    tree: Path, lock: Path, check_tree: Check, file: str, old: str, new: str, line: str
) -> None:
    change(tree / file, old, new)
    done = check_tree(tree, *options(), lock=lock)
    lines = [one for one in done.stdout.splitlines() if not one.startswith("note:")]
    assert done.returncode == 1
    assert len(lines) == 1, done.stdout
    assert lines[0].startswith(line)
    assert "error: fork-tree-differs: " in done.stderr
    assert "found: 1, listed above" in done.stderr


def test_source_that_nobody_pinned_is_named(tree: Path, lock: Path, check_tree: Check) -> None:
    declared = "FetchContent_Declare(new # why\n  GIT_REPOSITORY https://github.com/a/b.git GIT_TAG 1234)\n"
    (tree / EXTERNAL / "new.cmake").write_text(declared)
    done = check_tree(tree, *options(), lock=lock)
    assert f"{EXTERNAL}/new.cmake: asked a/b 1234; pinned nothing; add it to sources of pins.json" in done.stdout
    assert done.returncode == 1


def test_second_source_in_a_pinned_file_is_named(tree: Path, lock: Path, check_tree: Check) -> None:
    path = tree / "CMakeLists.txt"
    path.write_text(
        path.read_text() + "FetchContent_Declare(zip URL https://example.invalid/a.zip URL_HASH SHA256=ab)\n"
    )
    done = check_tree(tree, *options(), lock=lock)
    assert "CMakeLists.txt: asked https://example.invalid/a.zip SHA256=ab; pinned nothing" in done.stdout


def test_pinned_source_that_the_tree_does_not_ask_for_is_named(tree: Path, lock: Path, check_tree: Check) -> None:
    (tree / EXTERNAL / "qutlass.cmake").unlink()
    done = check_tree(tree, *options(), lock=lock)
    assert f"{EXTERNAL}/qutlass.cmake: asked no source; pinned IST-DASLab/qutlass as qutlass-src; drop" in done.stdout
    assert done.returncode == 1


def test_exception_of_the_lock_turns_a_difference_into_a_note(tree: Path, tmp_path: Path, check_tree: Check) -> None:
    without = {name: version for name, version in LOCKED.items() if name != "torchvision"}
    exception = {"distribution": "vllm", "requires": "torchvision==0.28.0", "reason": "text only"}
    lock = write_lock(tmp_path / "lock.json", without, (exception,))
    done = check_tree(tree, *options(), lock=lock)
    assert "note: requirements/cuda.txt: asked torchvision==0.28.0; nothing by decision (text only)" in done.stdout
    assert done.returncode == 0
    assert check_tree(tree, *options(), lock=write_lock(tmp_path / "strict.json", without)).returncode == 1


def test_override_of_flashinfer_holds_for_the_pinned_version_only(
    tree: Path, tmp_path: Path, check_tree: Check
) -> None:
    lock = write_lock(tmp_path / "lock.json", LOCKED | {"flashinfer-python": "0.6.19"})
    done = check_tree(tree, *options(), lock=lock)
    assert "requirements/cuda.txt: asked flashinfer-python==0.6.17; pinned flashinfer-python==0.6.19" in done.stdout


def test_missing_build_tool_is_named(tree: Path, lock: Path, check_tree: Check) -> None:
    tools = {name: version for name, version in TOOLS.items() if name != "setuptools-rust"}
    done = check_tree(tree, *options(tools), lock=lock)
    assert "pyproject.toml: asked setuptools-rust>=1.9.0; pinned nothing; change the build tools" in done.stdout


def test_every_pinned_source_names_what_the_derivation_needs() -> None:
    sources = json.loads(PINS.read_text())["sources"]
    for name, pin in sources.items():
        assert name.endswith("-src")
        assert len(pin["revision"]) == 40
        if "submodule_of" in pin:
            assert "cmake_variable" not in pin
            assert "cmake_variable" in sources[pin["submodule_of"]]
            assert pin["path"]
        else:
            assert pin["git_tag"] == pin["revision"] or pin["git_tag"].startswith("v")
        assert (STAND_IN.parent / name.removesuffix("-src")).is_dir(), name
