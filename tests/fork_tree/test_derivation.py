"""The fork's derivations, evaluated and as far as possible built with the stub of nixpkgs.

The sources derivation is built for real: patches, the check of the tree and the laying out of sources are the same on
every machine. What compiles is for a GB10 only; of it the variables are used, on the CMake files of vLLM 0.29.0.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fork_tree.conftest import PINS, ROOT, STAND_IN
from support.programs import require_program

SCOPE = Path(__file__).parent / "data" / "scope.nix"


@pytest.fixture(autouse=True)
def _needs_nix() -> None:
    require_program("nix-build")


FORK = json.loads(PINS.read_text())["runtimes"]["fork"]["vllm"]
PATCH = f"""Subject: greet otherwise
Why: the greeting is short
Upstream-Status: Pending
Applies-To: {FORK["repository"]} {FORK["revision"]}
Drop-When: vllm/greeting.py has "bonjour"; tests/fork_tree/test_derivation.py passes without it

--- a/vllm/greeting.py
+++ b/vllm/greeting.py
@@ -3,2 +3,2 @@
-GREETING = "hello"
+GREETING = "good day"
 NUMBER = 1
"""


def arguments(given: dict[str, Path]) -> list[str]:
    return [part for name, path in given.items() for part in ("--arg", name, str(path))]


def build(**given: Path) -> subprocess.CompletedProcess[str]:
    command = ["nix-build", str(SCOPE), "-A", "source", "--no-out-link", "--option", "substituters", ""]
    return subprocess.run([*command, *arguments(given)], capture_output=True, text=True)


def evaluate(attribute: str, system: str = "aarch64-linux", **given: Path) -> str:
    command = [
        "nix-instantiate",
        "--eval",
        "--strict",
        "--json",
        str(SCOPE),
        "-A",
        attribute,
        "--argstr",
        "system",
        system,
    ]
    done = subprocess.run([*command, *arguments(given)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout))


def patches(folder: Path, text: str = PATCH, series: str = "0001-greet-otherwise.patch\n") -> Path:
    folder.mkdir()
    (folder / "0001-greet-otherwise.patch").write_text(text)
    (folder / "series").write_text(series)
    return folder


@pytest.fixture
def no_patches(tmp_path: Path) -> Path:
    """The stand-in tree has none of the code that the patches of the repository change."""
    folder = tmp_path / "none"
    folder.mkdir()
    (folder / "series").write_text("# none\n")
    return folder


def tree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STAND_IN, tmp_path / "vllm-tree"))


def test_sources_are_laid_out_with_their_submodules(no_patches: Path) -> None:
    done = build(patchFolder=no_patches)
    assert done.returncode == 0, done.stderr
    result = Path(done.stdout.strip())
    pins = json.loads(PINS.read_text())["sources"]
    for name, pin in pins.items():
        place = result / "sources" / pin.get("submodule_of", name) / pin.get("path", pin.get("folder", ""))
        stand_in = STAND_IN.parent / name.removesuffix("-src") / ("" if "path" in pin else pin.get("folder", ""))
        missing = {one.name for one in stand_in.iterdir()} - {one.name for one in place.iterdir()}
        assert not missing, name
    assert (result / "sources/fmha-sm100-src/python/fmha_sm100/cutlass/tools/util/include").is_dir()
    assert (result / "licenses/cutlass/LICENSE.txt").is_file()
    assert (result / "licenses/vllm/LICENSE").is_file()
    assert "graft vllm" in (result / "vllm" / "MANIFEST.in").read_text()


def test_patches_of_the_series_are_in_the_tree(tmp_path: Path) -> None:
    done = build(patchFolder=patches(tmp_path / "vllm"))
    assert done.returncode == 0, done.stderr
    assert 'GREETING = "good day"' in (Path(done.stdout.strip()) / "vllm/vllm/greeting.py").read_text()


def test_patch_that_does_not_fit_stops_the_build(tmp_path: Path) -> None:
    done = build(patchFolder=patches(tmp_path / "vllm", PATCH.replace('-GREETING = "hello"', '-GREETING = "hi"')))
    assert done.returncode != 0
    assert (
        "error: patch-does-not-apply: 0001-greet-otherwise.patch does not fit .; it changes vllm/greeting.py"
        in done.stderr
    )
    assert "hunk 1: closest is line 3; there line 3 should be 'GREETING = \"hi\"'" in done.stderr
    assert "hint: nix run .#serve-upstream" in done.stderr


def test_patch_that_breaks_the_rules_stops_the_build(tmp_path: Path) -> None:
    done = build(patchFolder=patches(tmp_path / "vllm", PATCH.replace(FORK["revision"], "0" * 40)))
    assert done.returncode != 0
    assert "error: header-revision: 0001-greet-otherwise.patch: " in done.stderr


def test_unlisted_patch_stops_evaluation(tmp_path: Path) -> None:
    done = build(patchFolder=patches(tmp_path / "vllm", series="# none\n"))
    assert done.returncode != 0
    assert "has 0001-greet-otherwise.patch, which" in done.stderr
    assert "series does not list; add a line or remove the file" in done.stderr


def test_tree_that_asks_for_another_source_stops_the_build(tmp_path: Path, no_patches: Path) -> None:
    changed = tree(tmp_path)
    path = changed / "cmake/external_projects/flashkda.cmake"
    path.write_text(path.read_text().replace("ee0be888cd0e972f9409bf53756f8c38c6652173", "0" * 40))
    done = build(vllm=changed, patchFolder=no_patches)
    assert done.returncode != 0
    assert (
        f"flashkda.cmake: asked vllm-project/FlashKDA {'0' * 40}; pinned vllm-project/FlashKDA ee0be888" in done.stderr
    )
    assert "error: fork-tree-differs: " in done.stderr


def test_number_of_patches_stands_in_version_and_description(tmp_path: Path, no_patches: Path) -> None:
    one = patches(tmp_path / "vllm")
    assert evaluate("fork.version", patchFolder=no_patches) == "0.28.1.dev0+g878631b60.p0"
    assert evaluate("fork.version", patchFolder=one) == "0.28.1.dev0+g878631b60.p1"
    listed = [line for line in (ROOT / "patches/vllm/series").read_text().splitlines() if line.endswith(".patch")]
    assert f"(878631b60, patches applied: {len(listed)})" in evaluate("fork.meta.description")
    assert "(878631b60, patches applied: 1)" in evaluate("fork.meta.description", patchFolder=one)


def test_fork_is_compiled_for_the_pinned_architecture() -> None:
    pins = json.loads(PINS.read_text())
    done = subprocess.run(
        ["nix-instantiate", str(SCOPE), "-A", "fork", "--argstr", "system", "aarch64-linux"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        ["nix", "--extra-experimental-features", "nix-command", "show-derivation", done.stdout.strip()],
        capture_output=True,
        text=True,
        check=True,
    )
    (derivation,) = json.loads(shown.stdout).values()
    environment = derivation["env"]
    assert derivation["system"] == "aarch64-linux"
    assert environment["TORCH_CUDA_ARCH_LIST"] == environment["FLASHINFER_CUDA_ARCH_LIST"] == pins["gpu"]["arch_list"]
    assert (environment["NVCC_THREADS"], environment["VLLM_REQUIRE_RUST_FRONTEND"]) == ("1", "0")
    assert "-DFETCHCONTENT_FULLY_DISCONNECTED=ON" in environment["CMAKE_ARGS"]
    for name, pin in pins["sources"].items():
        variable = pin.get("cmake_variable", "")
        if variable.startswith("FETCHCONTENT_"):
            assert re.search(rf"-D{variable}=/nix/store/\S+/sources/{name}(\s|$)", environment["CMAKE_ARGS"]), name
        elif variable:
            assert f"/sources/{name}" in environment[variable], name


def test_vllm_takes_every_source_from_its_folder_without_network(
    release: Callable[[str], Path], tmp_path: Path, no_patches: Path
) -> None:
    cmake = _cmake(tmp_path)
    released = release("0.29.0")
    given = {"vllm": released, "patchFolder": no_patches}
    environment = {
        pin["cmake_variable"]: evaluate(f"fork.{pin['cmake_variable']}", **given)
        for pin in json.loads(PINS.read_text())["sources"].values()
        if not pin.get("cmake_variable", "FETCHCONTENT_").startswith("FETCHCONTENT_")
    }
    options = [one for one in evaluate("fork.CMAKE_ARGS", **given).split() if "FETCHCONTENT" in one]
    built = build(**given)
    assert built.returncode == 0, built.stderr
    # The same sources laid out on this machine: the paths above are those of the aarch64 derivation, not built here.
    here = built.stdout.strip()
    source = re.compile(r"/nix/store/[a-z0-9]{32}-vllm-fork-source-[0-9a-f]+")
    environment = {name: source.sub(here, value) for name, value in environment.items()}
    options = [source.sub(here, option) for option in options]
    shutil.copy(Path(__file__).parent / "data" / "CMakeLists.txt", tmp_path)
    tools = _tools_without_git(tmp_path / "bin")
    clean = {"PATH": str(tools), "HOME": str(tmp_path), **environment}
    configured = subprocess.run(
        [*cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DTREE={released}", *options],
        env=clean,
        capture_output=True,
        text=True,
    )
    assert configured.returncode == 0, configured.stderr
    # FlashMLA is for other GPUs; flash-attention's own file stands in here.
    assert re.findall(r"COMPILES (\w+)", configured.stdout) == ["_flashkda_C", "_qutlass_C"]
    assert "DeepGEMM CUDA architectures: 12.0f" in configured.stdout
    assert "FlashMLA will not compile: unsupported CUDA architecture 12.0" in configured.stdout
    installed = tmp_path / "installed"
    for component in ("triton_kernels", "_deep_gemm_C", "fmha_sm100", "_flashmla_C", "tml_fa4", "_vllm_fa4_cutedsl_C"):
        command = [*cmake, "--install", tmp_path / "build", "--prefix", installed, "--component", component]
        subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    copied = installed / "vllm" / "vllm_flash_attn" / "cute"
    assert not copied.is_symlink()
    assert "vllm.vllm_flash_attn.cute" in (copied / "__init__.py").read_text()
    assert "vllm.third_party.tml_fa4" in (installed / "vllm/third_party/tml_fa4/__init__.py").read_text()
    assert (installed / "vllm/third_party/deep_gemm/include/cutlass/cutlass.h").is_file()


def _cmake(tmp_path: Path) -> list[str | Path]:
    """CMake of a wheel: vLLM asks for a newer one than Debian has."""
    folder = ROOT / ".cache" / "cmake"
    if not list(folder.glob("cmake-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), "cmake==3.31.10"], check=True)
    (wheel,) = folder.glob("cmake-3.31.10-*.whl")
    shutil.unpack_archive(wheel, tmp_path / "cmake", "zip")
    program = tmp_path / "cmake" / "cmake" / "data" / "bin" / "cmake"
    program.chmod(0o755)
    return [program]


def _tools_without_git(folder: Path) -> Path:
    folder.mkdir()
    for name in ("sh", "make", "uname", "python3"):
        found = shutil.which(name, path=os.defpath)
        assert found, name
        (folder / name).symlink_to(found)
    return folder
