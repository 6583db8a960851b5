"""What is in a wheelhouse, and what is refused before one is written."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from support.tiny_wheels import MACHINE, MIT, PYTHON, SYSTEM, lock_of, made, make, write_wheel

PINS = json.loads((Path(__file__).parents[2] / "nix" / "pins.json").read_text(encoding="utf-8"))


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return write_wheel(tmp_path / "built", "easel", requires=["brush"], terms={"LICENSE": MIT, "cutlass/COPYING": "B"})


@pytest.fixture
def index(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "index"
    return [write_wheel(folder, "brush", requires=["paint-box"]), write_wheel(folder, "paint-box", "2.5rc1")]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_requirements_have_the_hash_of_each_wheel_of_the_lock(tmp_path: Path, built: Path, index: list[Path]) -> None:
    lock = lock_of([*index, write_wheel(tmp_path / "index", "wheel")])
    lock["systems"][SYSTEM]["wheel"]["build_only"] = True
    text = (made(tmp_path / "house", lock, [built]) / "requirements.txt").read_text(encoding="utf-8")
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in index]
    assert text.splitlines()[1:] == [
        "--only-binary :all:",
        f"brush==1.0 --hash=sha256:{digests[0]}",
        f"paint-box==2.5rc1 --hash=sha256:{digests[1]}",
    ]


def test_sha256sum_accepts_the_sums_of_every_file(tmp_path: Path, built: Path, index: list[Path]) -> None:
    house = made(tmp_path / "house", lock_of(index), [built])
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=house, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summed = {line.removesuffix(": OK") for line in done.stdout.splitlines()}
    assert summed == contents(house).keys() - {"SHA256SUMS"}
    assert {f"wheels/{built.name}", "NOTICE", "install.sh", "install.py", "requirements.txt"} <= summed


def test_same_input_gives_the_same_bytes(tmp_path: Path, built: Path, index: list[Path]) -> None:
    other = write_wheel(tmp_path / "built", "canvas")
    first = made(tmp_path / "one", lock_of(index), [built, other])
    second = made(tmp_path / "two", lock_of(index), [other, built])
    assert contents(first) == contents(second)


def test_notice_names_each_wheel_with_its_licence_file(tmp_path: Path, built: Path, index: list[Path]) -> None:
    other = write_wheel(tmp_path / "built", "canvas", "3.1", licence="BSD-3-Clause")
    house = made(tmp_path / "house", lock_of(index), [built, other])
    text = (house / "NOTICE").read_text(encoding="utf-8")
    assert "  canvas 3.1: BSD-3-Clause; licences/wheels/canvas/\n" in text
    assert "  easel 1.0: MIT; licences/wheels/easel/\n" in text
    assert "not affiliated with or endorsed by Z.ai, NVIDIA, the vLLM project or ExLlamaV3" in text
    assert (house / "licences/wheels/easel/LICENSE").read_text(encoding="utf-8") == MIT
    assert (house / "licences/wheels/easel/cutlass/COPYING").read_text(encoding="utf-8") == "B"


def test_notice_of_the_fork_names_the_sources_with_their_revisions(tmp_path: Path, built: Path) -> None:
    for name in ("vllm", "cutlass"):
        (tmp_path / "licenses" / name).mkdir(parents=True)
        (tmp_path / "licenses" / name / "LICENSE.txt").write_text(name, encoding="utf-8")
    house = made(tmp_path / "house", lock_of([], runtime="fork"), [built], "--compiled-in", str(tmp_path / "licenses"))
    text = (house / "NOTICE").read_text(encoding="utf-8")
    cutlass = PINS["sources"]["cutlass-src"]
    assert f"  cutlass, NVIDIA/cutlass at {cutlass['revision']}; licences/compiled-in/cutlass/\n" in text
    assert f"ZJY0516/vllm at {PINS['runtimes']['fork']['vllm']['revision']}" in text
    assert f"turboderp-org/exllamav3 at {PINS['exllamav3']['revision']}" in text
    for folder in re.findall(r"; (licences/\S+/)\n", text):
        assert any((house / folder).iterdir()), folder


def test_upstream_names_no_vllm_as_compiled(tmp_path: Path, built: Path) -> None:
    house = made(tmp_path / "house", lock_of([], runtime="upstream"), [built])
    text = (house / "NOTICE").read_text(encoding="utf-8")
    assert PINS["exllamav3"]["revision"] in text
    assert "fork" not in text


def test_licence_given_by_name_goes_with_a_wheel_that_has_none(tmp_path: Path) -> None:
    terms = tmp_path / "terms"
    terms.mkdir()
    (terms / "LICENSE").write_text("ours", encoding="utf-8")
    (terms / "readme.md").write_text("no terms", encoding="utf-8")
    bare = write_wheel(tmp_path / "built", "easel", terms={})
    house = made(tmp_path / "house", lock_of([]), [bare], "--licences", f"easel={terms}")
    assert [path.name for path in (house / "licences/wheels/easel").iterdir()] == ["LICENSE"]


def refused(output: Path, *arguments: object, system: str = SYSTEM) -> str:
    done = make(output, *arguments, system=system)  # type: ignore[arg-type]
    assert done.returncode == 1
    assert not output.exists()
    return done.stderr


def test_wheel_without_a_licence_is_refused(tmp_path: Path) -> None:
    bare = write_wheel(tmp_path / "built", "easel", terms={})
    message = refused(tmp_path / "house", lock_of([]), [bare])
    assert "error: licence-missing: no licence file of the wheel easel" in message
    assert "hint: --licences easel=FOLDER" in message


def test_source_without_a_licence_is_refused(tmp_path: Path, built: Path) -> None:
    (tmp_path / "licenses" / "flashkda").mkdir(parents=True)
    lock = lock_of([], runtime="fork")
    message = refused(tmp_path / "house", lock, [built], "--compiled-in", str(tmp_path / "licenses"))
    assert "error: licence-missing: no licence file of the source flashkda" in message
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "LICENSE").write_text("MIT", encoding="utf-8")
    options = ["--compiled-in", str(tmp_path / "licenses"), "--licences", f"flashkda={tmp_path / 'given'}"]
    assert (made(tmp_path / "house", lock, [built], *options) / "licences/compiled-in/flashkda/LICENSE").is_file()


def test_licence_of_nothing_is_refused(tmp_path: Path, built: Path) -> None:
    message = refused(tmp_path / "house", lock_of([]), [built], "--licences", f"easle={tmp_path}")
    assert "error: licence-unused: --licences easle=... belongs to no wheel and no source" in message


@pytest.mark.parametrize("tags", ["py3-none-linux_riscv64", f"cp310-cp310-linux_{MACHINE}", "py2-none-any"])
def test_wheel_for_something_else_is_refused(tmp_path: Path, tags: str) -> None:
    wheel = write_wheel(tmp_path / "built", "easel", tags=tags)
    message = refused(tmp_path / "house", lock_of([]), [wheel])
    assert f"error: wheel-tags: {wheel.name} is not for {PYTHON} on {SYSTEM}" in message


@pytest.mark.parametrize("tags", [f"{PYTHON}-{PYTHON}-linux_{MACHINE}", f"cp38-abi3-linux_{MACHINE}"])
def test_wheel_for_this_machine_is_taken(tmp_path: Path, tags: str) -> None:
    wheel = write_wheel(tmp_path / "built", "easel", tags=tags)
    assert (made(tmp_path / "house", lock_of([]), [wheel]) / "wheels" / wheel.name).is_file()


def test_wheel_that_the_lock_has_too_is_refused(tmp_path: Path, index: list[Path]) -> None:
    wheel = write_wheel(tmp_path / "built", "Paint.Box", "9")
    assert "error: wheel-in-lock: paint-box is a wheel" in refused(tmp_path / "house", lock_of(index), [wheel])


def test_two_wheels_of_a_distribution_are_refused(tmp_path: Path, built: Path) -> None:
    other = write_wheel(tmp_path / "built", "easel", "1.1")
    assert "error: wheel-twice: 2 wheels are of easel" in refused(tmp_path / "house", lock_of([]), [built, other])


def test_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "easel-1.0-py3-none-any.whl"
    assert "error: wheel-unreadable: " in refused(tmp_path / "house", lock_of([]), [wheel])
    wheel.write_bytes(b"PK")
    assert "error: wheel-unreadable: " in refused(tmp_path / "house", lock_of([]), [wheel])


def test_system_without_a_lock_is_refused(tmp_path: Path, built: Path) -> None:
    lock = lock_of([], system="aarch64-linux")
    message = refused(tmp_path / "house", lock, [built], system="riscv64-linux")
    assert "error: system-unknown: the lock of demo has no wheels for riscv64-linux" in message
    assert "expected: aarch64-linux" in message


def test_output_with_something_in_it_is_left_alone(tmp_path: Path, built: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "mine").touch()
    done = make(house, lock_of([]), [built])
    assert done.returncode == 1
    assert "error: output-in-use" in done.stderr
    assert [path.name for path in house.iterdir()] == ["mine"]


def test_c_libraries_that_wheels_ask_for_are_written_down(tmp_path: Path) -> None:
    folder, platform = tmp_path / "wheels", f"linux_{MACHINE}"
    content = b"\0GLIBC_2.4\0GLIBC_2.38\0x\0GLIBCXX_3.4.32\0GLIBC_9.9 in a sentence\0"
    wheel = write_wheel(
        folder, "easel", files={"easel_c.so": content, "in/other.so": b"GLIBC_2.3\0"}, tags=f"py3-none-{platform}"
    )
    two = write_wheel(folder, "brush", tags=f"py3-none-manylinux_2_27_{MACHINE}.manylinux_2_39_{MACHINE}")
    manifest = json.loads((made(tmp_path / "one", lock_of([two]), [wheel]) / "wheelhouse.json").read_text())
    assert manifest["needs"] == {"GLIBC": "2.38", "GLIBCXX": "3.4.32"}
    assert manifest["modules"] == ["easel_c"]
    newer = write_wheel(folder, "paint", tags=f"py3-none-manylinux_2_39_{MACHINE}")
    manifest = json.loads((made(tmp_path / "two", lock_of([newer]), [wheel]) / "wheelhouse.json").read_text())
    assert manifest["needs"]["GLIBC"] == "2.39"


def test_files_can_be_read_and_removed_although_the_wheels_are_read_only(tmp_path: Path, built: Path) -> None:
    built.chmod(0o444)
    house = made(tmp_path / "house", lock_of([]), [built])
    assert all(mode & 0o644 == 0o644 for _, mode in contents(house).values())
    assert (house / "install.sh").stat().st_mode & 0o111 == 0o111
