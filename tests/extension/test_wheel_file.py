"""The wheel: same bytes for the same module, a true record, the licences of what is in it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from extension.building import STUB, TOOL
from extension.pinned_wheels import PINS, ROOT


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Any, ...]]:
    monkeypatch.syspath_prepend(str(TOOL))
    import exllamav3_kernels
    import failure
    import native_kernels
    import pinned
    import source_tree
    import toolchain
    import wheel_file

    pins = pinned.read_pins(pinned.PINS_FILE)
    source = pinned.read_kernel_source(pinned.PINS_FILE)
    exllamav3 = exllamav3_kernels.exllamav3_product(source_tree.open_tree(STUB, source, None), source)
    tools = toolchain.Toolchain(
        nvcc=Path("nvcc"),
        nvcc_release="13.0.88",
        cuda_include=Path("include"),
        host_compiler="g++",
        target="aarch64-unknown-linux-gnu",
        torch=Path("torch"),
        python_include=Path("include"),
        python_tag="cp312",
        cudart=None,
    )
    module = tmp_path / f"glm53_exl3_exllamav3_ext{tools.module_suffix}"
    module.write_bytes(b"\x7fELF and so on")
    yield wheel_file, failure, module, {"exllamav3": exllamav3, "native": native_kernels.native_product()}, tools, pins
    for path in TOOL.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_the_wheel_has_the_pinned_version_and_the_tag_of_the_target(parts: tuple[Any, ...], tmp_path: Path) -> None:
    wheel_file, _, module, products, tools, pins = parts
    wheel = wheel_file.write_wheel(module, products["exllamav3"], tools, pins, tmp_path)
    version = PINS["exllamav3"]["version"]
    assert wheel.name == f"glm53_exl3_exllamav3_ext-{version}-cp312-cp312-linux_aarch64.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.namelist()[0] == "glm53_exl3_exllamav3_ext.cpython-312-aarch64-linux-gnu.so"
        metadata = Parser().parsestr(archive.read(f"glm53_exl3_exllamav3_ext-{version}.dist-info/METADATA").decode())
        for licence in metadata.get_all("License-File"):
            assert archive.read(f"glm53_exl3_exllamav3_ext-{version}.dist-info/licenses/{licence}")
    assert metadata["License-Expression"] == "MIT AND Apache-2.0"
    assert len(metadata.get_all("License-File")) == 2
    assert metadata["Requires-Python"] == "==3.12.*"
    assert metadata["Requires-Dist"] == f"torch=={PINS['torch']}"
    assert PINS["exllamav3"]["revision"] in metadata.get_payload()


def test_the_wheel_of_our_own_kernels_is_ours_alone(parts: tuple[Any, ...], tmp_path: Path) -> None:
    wheel_file, _, module, products, tools, pins = parts
    module = module.rename(tmp_path / f"glm53_exl3_kernels{tools.module_suffix}")
    wheel = wheel_file.write_wheel(module, products["native"], tools, pins, tmp_path)
    version = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]["version"]
    assert wheel.name == f"glm53_exl3_kernels-{version}-cp312-cp312-linux_aarch64.whl"
    information = f"glm53_exl3_kernels-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(f"{information}/METADATA").decode())
        licence = archive.read(f"{information}/licenses/glm53-exl3/LICENSE")
    assert names[0] == "glm53_exl3_kernels.cpython-312-aarch64-linux-gnu.so"
    assert [name for name in names if "licenses" in name] == [f"{information}/licenses/glm53-exl3/LICENSE"]
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["glm53-exl3/LICENSE"]
    assert metadata["Requires-Dist"] == f"torch=={PINS['torch']}"
    assert "exllamav3" not in metadata.as_string()


def test_the_record_holds_every_member_with_its_hash(parts: tuple[Any, ...], tmp_path: Path) -> None:
    wheel_file, _, module, products, tools, pins = parts
    with zipfile.ZipFile(wheel_file.write_wheel(module, products["exllamav3"], tools, pins, tmp_path)) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith("RECORD")]
        rows = [row.split(",") for row in archive.read(name).decode().splitlines()]
        assert [row[0] for row in rows] == archive.namelist()
        for member, digest, size in rows[:-1]:
            data = archive.read(member)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={expected}", len(data)), member
        assert rows[-1] == [name, "", ""]


def test_the_wheel_is_dated_by_the_environment_alone(
    parts: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel_file, _, module, products, tools, pins = parts
    written = {}
    for name, epoch in (("first", "1700000000"), ("again", "1700000000"), ("later", "1800000000"), ("early", "0")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        (tmp_path / name).mkdir()
        written[name] = wheel_file.write_wheel(module, products["exllamav3"], tools, pins, tmp_path / name).read_bytes()
    assert written["first"] == written["again"]
    assert len(set(written.values())) == 3


def test_without_the_licence_of_the_kernels_no_wheel(parts: tuple[Any, ...], tmp_path: Path) -> None:
    wheel_file, failure, module, products, tools, pins = parts
    bare = dataclasses.replace(
        products["exllamav3"], licences={"exllamav3/LICENSE": "", "glm53-exl3/LICENSE": "Apache"}
    )
    with pytest.raises(failure.BuildError, match="error: tree-licence: the tree has no LICENSE"):
        wheel_file.write_wheel(module, bare, tools, pins, tmp_path)
    assert not list(tmp_path.glob("*.whl"))
