"""The program that starts everything else: driver, compiler and caches, on NixOS and on DGX OS."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "nix" / "packages" / "launcher.sh"
DRIVER = "libcuda.so.580.95.05"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A machine with an environment whose program prints what it was given."""
    program = tmp_path / "environment" / "bin" / "glm53-exl3"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "argument: %s\\n" "$@"\nenv\n', encoding="utf-8")
    program.chmod(0o755)
    return tmp_path


def driver(folder: Path, *others: str) -> Path:
    """A folder with a driver and with other libraries."""
    folder.mkdir(parents=True)
    for name in (DRIVER, "libnvidia-ml.so.1", *others):
        (folder / name).touch()
    (folder / "libcuda.so.1").symlink_to(DRIVER)
    return folder


def launch(place: Path, *arguments: str, cuda: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the launcher as nix/packages/program.nix writes it."""
    lines = [
        "set -euo pipefail",
        f"environment={place}/environment",
        "program=bin/glm53-exl3",
        "fixed=(serve --runtime upstream)",
        "tools=/nix/store/tools/bin:/nix/store/cuda/bin",
        f"cuda_home='{'/nix/store/cuda' if cuda else ''}'",
        "arch_list=12.1a",
        "host_compiler=/nix/store/gcc",
        "runtime=abc",
        SCRIPT.read_text(encoding="utf-8"),
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place / "home"),
        "GLM53_EXL3_DRIVER": str(place / "run" / "lib"),
        "GLM53_EXL3_DRIVER_FOLDERS": str(place / "usr" / "lib"),
        **variables,
    }
    return subprocess.run(
        ["bash", "-c", "\n".join(lines), "launcher", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def seen(done: subprocess.CompletedProcess[str]) -> Mapping[str, str]:
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_program_gets_its_fixed_arguments_first_and_the_users_untouched(place: Path) -> None:
    driver(place / "run" / "lib")
    given = ["a pack", "--", "$HOME", ""]
    lines = launch(place, *given).stdout.splitlines()
    assert [line[10:] for line in lines if line.startswith("argument: ")] == ["serve", "--runtime", "upstream", *given]


def test_driver_of_nixos_is_taken_where_it_is(place: Path) -> None:
    driver(place / "usr" / "lib")
    folder = driver(place / "run" / "lib")
    variables = seen(launch(place, LD_LIBRARY_PATH="/users"))
    assert variables["LD_LIBRARY_PATH"] == f"{folder}:/users"
    assert variables["TRITON_LIBCUDA_PATH"] == str(folder)
    assert not (place / "home").exists()


def test_driver_of_another_system_is_linked_without_its_libc(place: Path) -> None:
    folder = driver(place / "usr" / "lib", "libc.so.6", "libstdc++.so.6")
    variables = seen(launch(place))
    links = Path(variables["TRITON_LIBCUDA_PATH"])
    assert links == place / "home" / ".cache" / "glm53-exl3" / "driver" / DRIVER
    assert variables["LD_LIBRARY_PATH"] == str(links)
    assert {link.name for link in links.iterdir()} == {DRIVER, "libcuda.so.1", "libnvidia-ml.so.1"}
    assert (links / "libcuda.so.1").resolve() == folder / DRIVER


def test_links_follow_an_update_of_the_driver(place: Path) -> None:
    folder = driver(place / "usr" / "lib")
    before = seen(launch(place))["TRITON_LIBCUDA_PATH"]
    (folder / DRIVER).unlink()
    (folder / "libcuda.so.590.10").touch()
    (folder / "libcuda.so.1").unlink()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.590.10")
    after = seen(launch(place))["TRITON_LIBCUDA_PATH"]
    assert after != before
    assert (Path(after) / "libcuda.so.1").resolve().name == "libcuda.so.590.10"


def test_missing_driver_is_named_and_left_to_preflight(place: Path) -> None:
    done = launch(place)
    assert "TRITON_LIBCUDA_PATH" not in seen(done)
    assert "warning: driver-missing: no libcuda.so.1" in done.stderr
    assert str(place / "usr" / "lib") in done.stderr


def test_compiler_is_ours_whatever_the_user_has(place: Path) -> None:
    driver(place / "run" / "lib")
    users = {
        "CUDA_HOME": "/usr/local/cuda-12.8",
        "CXX": "clang++",
        "PYTHONPATH": "/users",
        "FLASHINFER_CUDA_ARCH_LIST": "9.0",
    }
    variables = seen(launch(place, **users))
    assert variables["CUDA_HOME"] == "/nix/store/cuda"
    assert variables["CXX"] == "/nix/store/gcc/bin/c++"
    assert variables["NVCC_PREPEND_FLAGS"] == "-ccbin /nix/store/gcc/bin/c++"
    assert variables["TRITON_PTXAS_PATH"] == "/nix/store/cuda/bin/ptxas"
    assert variables["PATH"].startswith("/nix/store/tools/bin:/nix/store/cuda/bin:")
    assert "PYTHONPATH" not in variables
    assert variables["TORCH_CUDA_ARCH_LIST"] == "12.1a"
    assert variables["FLASHINFER_CUDA_ARCH_LIST"] == "9.0"


def test_caches_are_in_the_users_folder_and_apart_for_each_environment(place: Path) -> None:
    driver(place / "run" / "lib")
    variables = seen(launch(place, XDG_CACHE_HOME=str(place / "cache"), VLLM_CACHE_ROOT="/var/cache/vllm"))
    assert variables["TRITON_CACHE_DIR"] == f"{place}/cache/glm53-exl3/abc/triton"
    assert variables["FLASHINFER_WORKSPACE_BASE"] == f"{place}/cache/glm53-exl3/abc/flashinfer"
    assert variables["VLLM_CACHE_ROOT"] == "/var/cache/vllm"


def test_program_of_the_driver_is_found_in_a_unit_of_nixos(place: Path) -> None:
    driver(place / "run" / "lib")
    assert seen(launch(place))["PATH"].endswith(":/run/current-system/sw/bin")


def test_without_a_home_nothing_is_loaded_from_a_folder_of_everyones(place: Path) -> None:
    done = launch(place, HOME="")
    assert done.returncode == 1
    assert "error: home-missing" in done.stderr
    assert "hint: export HOME=" in done.stderr


def test_without_a_gpu_neither_driver_nor_cuda_is_looked_for(place: Path) -> None:
    done = launch(place, cuda=False)
    assert "CUDA_HOME" not in seen(done)
    assert done.stderr == ""
