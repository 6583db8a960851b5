"""An environment made of wheels alone: small libraries of our own compilation, in wheels as others publish them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.programs import require_program
from support.tiny_wheels import write_wheel

TOOL = Path(__file__).parents[2] / "tools" / "environment" / "assemble.py"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = pytest.mark.usefixtures("tools")


@pytest.fixture(scope="session")
def tools() -> None:
    for tool in ("cc", "readelf", "patchelf"):
        require_program(tool)


def compile_library(path: Path, *needs: Path, name: str = "", flags: tuple[str, ...] = ()) -> Path:
    """A shared library that asks for others by their sonames and knows no folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    symbol = (name or path.name).split(".")[0]
    calls = "".join(f"int {need.name.split('.')[0]}(void); " for need in needs)
    total = "".join(f" + {need.name.split('.')[0]}()" for need in needs)
    source.write_text(f"{calls}int {symbol}(void) {{ return 1{total}; }}\n", encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-soname,{path.name}", "-o", str(path), str(source)]
    subprocess.run([*command, *map(str, needs), *flags], check=True)
    source.unlink()
    return path


def wheel_of(folder: Path, name: str, files: Mapping[str, bytes], scripts: str = "") -> Path:
    """A wheel with these files and programs."""
    points = {f"{name}-1.0.dist-info/entry_points.txt": f"[console_scripts]\n{scripts}\n".encode()} if scripts else {}
    return write_wheel(folder, name, files={**files, **points})


def assemble(prefix: Path, wheels: list[Path], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--prefix", str(prefix), "--python", sys.executable, *options, "--wheels"]
    return subprocess.run([*command, *map(str, wheels)], capture_output=True, text=True, check=False)


def search_path(library: Path) -> list[str]:
    text = subprocess.run(
        ["patchelf", "--print-rpath", str(library)], capture_output=True, text=True, check=True
    ).stdout
    return text.strip().split(":")


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    """`alpha` asks for a library of `beta`, one of the system and the driver; neither knows where they are."""
    build = tmp_path / "build"
    beta = compile_library(build / "libbeta.so.1")
    system = compile_library(tmp_path / "system" / "libsystem.so.2")
    driver = compile_library(build / "libcuda.so.1")
    alpha = compile_library(build / "libalpha.so", beta, system, driver)
    code = (
        "import ctypes, pathlib\n"
        "def main():\n"
        "    print(ctypes.CDLL(pathlib.Path(__file__).parent / 'lib' / 'libalpha.so').libalpha())\n"
    )
    driver_folder = tmp_path / "driver"
    driver_folder.mkdir()
    driver.rename(driver_folder / driver.name)
    folder = tmp_path / "wheels"
    return [
        wheel_of(
            folder,
            "alpha",
            {"alpha/__init__.py": code.encode(), "alpha/lib/libalpha.so": alpha.read_bytes()},
            "alpha = alpha:main",
        ),
        wheel_of(folder, "beta", {"vendor/beta/lib/libbeta.so.1": beta.read_bytes()}),
    ]


def options(tmp_path: Path) -> tuple[str, ...]:
    return "--library-path", str(tmp_path / "system"), "--driver-path", str(tmp_path / "driver")


def test_every_library_is_found_whatever_the_loader_searches(tmp_path: Path, wheels: list[Path]) -> None:
    prefix = tmp_path / "environment"
    done = assemble(prefix, wheels, *options(tmp_path))
    assert done.returncode == 0, done.stderr
    alpha = prefix / "lib" / f"python{VERSION}" / "site-packages" / "alpha" / "lib" / "libalpha.so"
    assert search_path(alpha) == ["$ORIGIN/../../vendor/beta/lib", str(tmp_path / "system"), str(tmp_path / "driver")]
    ran = subprocess.run([prefix / "bin" / "alpha"], capture_output=True, text=True, check=True, env={})
    assert ran.stdout == "4\n"


def test_environment_is_the_programs_own(tmp_path: Path, wheels: list[Path]) -> None:
    prefix = tmp_path / "environment"
    assemble(prefix, wheels, *options(tmp_path))
    shown = subprocess.run(
        [prefix / "bin" / "python", "-c", "import sys, alpha; print(sys.prefix); print(alpha.__cached__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert shown[0] == str(prefix)
    assert Path(shown[1]).exists(), "not compiled: every start would parse all packages again"


def test_run_path_that_a_wheel_brings_stays_first(tmp_path: Path, wheels: list[Path]) -> None:
    build = tmp_path / "build"
    inner = compile_library(build / "libinner.so.1")
    system = tmp_path / "system" / "libsystem.so.2"
    outer = compile_library(build / "libouter.so", inner, system, flags=("-Wl,-rpath,$ORIGIN/own",))
    wheel = wheel_of(
        tmp_path / "wheels",
        "gamma",
        {"gamma/libouter.so": outer.read_bytes(), "gamma/own/libinner.so.1": inner.read_bytes()},
    )
    prefix = tmp_path / "environment"
    assert assemble(prefix, [wheel], *options(tmp_path)).returncode == 0
    site = prefix / "lib" / f"python{VERSION}" / "site-packages"
    assert search_path(site / "gamma" / "libouter.so") == ["$ORIGIN/own", str(tmp_path / "system")]


@pytest.mark.parametrize(("flag", "kind"), [("--disable-new-dtags", "RPATH"), ("--enable-new-dtags", "RUNPATH")])
def test_kind_of_a_run_path_stays(tmp_path: Path, wheels: list[Path], flag: str, kind: str) -> None:
    system = tmp_path / "system" / "libsystem.so.2"
    outer = compile_library(tmp_path / "build" / "libouter.so", system, flags=("-Wl,-rpath,$ORIGIN/own", f"-Wl,{flag}"))
    wheel = wheel_of(tmp_path / "wheels", "gamma", {"gamma/libouter.so": outer.read_bytes()})
    prefix = tmp_path / "environment"
    assert assemble(prefix, [wheel], *options(tmp_path)).returncode == 0
    library = prefix / "lib" / f"python{VERSION}" / "site-packages" / "gamma" / "libouter.so"
    shown = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert f"({kind})" in shown
    assert search_path(library) == ["$ORIGIN/own", str(tmp_path / "system")]


def test_folder_of_the_machine_that_made_a_wheel_is_no_place_to_find_a_library(tmp_path: Path) -> None:
    build = tmp_path / "build"
    inner = compile_library(build / "libinner.so.1")
    outer = compile_library(build / "libouter.so", inner, flags=(f"-Wl,-rpath,{build}",))
    wheel = wheel_of(tmp_path / "wheels", "gamma", {"gamma/libouter.so": outer.read_bytes()})
    done = assemble(tmp_path / "environment", [wheel])
    assert done.returncode == 1
    assert "libouter.so needs libinner.so.1" in done.stderr


def test_library_that_nothing_provides_is_named(tmp_path: Path, wheels: list[Path]) -> None:
    done = assemble(tmp_path / "environment", wheels[:1], *options(tmp_path))
    assert done.returncode == 1
    assert "error: library-missing: lib/" in done.stderr
    assert "alpha/lib/libalpha.so needs libbeta.so.1, which no wheel and no given folder has" in done.stderr


def test_library_may_be_missing_for_a_reason(tmp_path: Path, wheels: list[Path]) -> None:
    rules = tmp_path / "rules.json"
    libraries = {"*/alpha/lib/*": {"libbeta.so.1": "not on one Spark"}}
    rules.write_text(json.dumps({"missing_libraries": libraries}), encoding="utf-8")
    prefix = tmp_path / "environment"
    done = assemble(prefix, wheels[:1], *options(tmp_path), "--rules", str(rules))
    assert done.returncode == 0, done.stderr
    report = json.loads((prefix / "share" / "glm53-exl3" / "environment.json").read_text(encoding="utf-8"))
    assert report["wheels"] == ["alpha-1.0-py3-none-any.whl"]
    assert [(one["library"], one["reason"]) for one in report["without"]] == [("libbeta.so.1", "not on one Spark")]


def test_library_that_is_opened_by_name_is_made_findable(tmp_path: Path, wheels: list[Path]) -> None:
    build = tmp_path / "build"
    outer, inner = compile_library(build / "libouter.so"), compile_library(build / "libinner.so.1")
    wheel = wheel_of(
        tmp_path / "wheels",
        "gamma",
        {"gamma/libouter.so": outer.read_bytes(), "inner/libinner.so.1": inner.read_bytes()},
    )
    rules = tmp_path / "rules.json"
    opened = {"*/gamma/libouter.so": ["libinner.so.1", "libnowhere.so"]}
    rules.write_text(json.dumps({"opened_libraries": opened}), encoding="utf-8")
    prefix = tmp_path / "environment"
    assert assemble(prefix, [wheel], "--rules", str(rules)).returncode == 0
    site = prefix / "lib" / f"python{VERSION}" / "site-packages"
    assert search_path(site / "gamma" / "libouter.so")[0] == "$ORIGIN/../inner"


def test_two_wheels_with_different_bytes_for_one_file_are_refused(tmp_path: Path) -> None:
    first = wheel_of(tmp_path, "one", {"shared/__init__.py": b"", "shared/a.py": b"1"})
    second = wheel_of(tmp_path, "two", {"shared/__init__.py": b"", "shared/a.py": b"2"})
    done = assemble(tmp_path / "environment", [first, second])
    assert done.returncode == 1
    assert (
        done.stderr
        == "error: file-conflict: shared/a.py differs between one-1.0-py3-none-any.whl and two-1.0-py3-none-any.whl\n"
    )
    assert not (tmp_path / "environment").exists()
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"different_files": {"shared/a.py": "nobody imports it"}}), encoding="utf-8")
    assert assemble(tmp_path / "environment", [first, second], "--rules", str(rules)).returncode == 0


def test_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, "one", {"one.py": b"x = 1\n"})
    damaged = wheel.read_bytes().replace(b"x = 1", b"x = 2")
    wheel.write_bytes(damaged)
    assert assemble(tmp_path / "environment", [wheel]).returncode == 1


def test_loader_of_programs_is_replaced(tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
    program = tmp_path / "program"
    subprocess.run(["cc", str(source), "-o", str(program)], check=True)
    wheel = wheel_of(tmp_path, "tool", {"tool-1.0.data/scripts/tool": program.read_bytes()})
    prefix = tmp_path / "environment"
    assert assemble(prefix, [wheel], "--loader", "/nix/store/glibc/ld.so").returncode == 0
    shown = subprocess.run(["patchelf", "--print-interpreter", prefix / "bin" / "tool"], capture_output=True, text=True)
    assert shown.stdout == "/nix/store/glibc/ld.so\n"
