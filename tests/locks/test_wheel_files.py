"""Names, tags and hashes of wheels."""

from __future__ import annotations

import base64
import hashlib

import pytest
from wheel_files import TARGETS, Wheel, is_sri, sri

SPARK = TARGETS["aarch64-linux"]
DIGEST = hashlib.sha256(b"wheel").hexdigest()


def rank(tags: str) -> int | None:
    return Wheel.from_filename(f"name-1-{tags}.whl", DIGEST).rank(SPARK)


def test_the_parts_of_a_file_name_make_it_again() -> None:
    name = "nvidia_nvvm-13.0.88-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"
    wheel = Wheel.from_filename(name, DIGEST)
    assert wheel.filename == name
    assert wheel.name == "nvidia-nvvm"
    assert Wheel.from_entry(wheel.version, wheel.entry()) == wheel


@pytest.mark.parametrize("name", ["torch-2.13.0.tar.gz", "name-1-7build-py3-none-any.whl", "name-1-py3-none-any"])
def test_a_name_that_a_lock_cannot_say_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"not NAME-VERSION-PYTHON-ABI-PLATFORM\.whl"):
        Wheel.from_filename(name, DIGEST)


@pytest.mark.parametrize(
    "better_first",
    [
        ("cp312-cp312-manylinux_2_39_aarch64", "cp312-cp312-manylinux_2_28_aarch64"),
        ("cp312-cp312-manylinux2014_aarch64", "cp312-abi3-manylinux_2_39_aarch64"),
        ("cp312-abi3-manylinux_2_28_aarch64", "cp38-abi3-manylinux_2_28_aarch64"),
        ("cp38-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64", "py3-none-any"),
        ("py3-none-manylinux_2_27_aarch64", "py2.py3-none-any"),
    ],
)
def test_the_more_special_wheel_ranks_first(better_first: tuple[str, str]) -> None:
    better, worse = (rank(tags) for tags in better_first)
    assert better is not None
    assert worse is not None
    assert better < worse


@pytest.mark.parametrize(
    "tags",
    [
        "cp312-cp312-manylinux_2_40_aarch64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp313-cp313-manylinux_2_28_aarch64",
        "cp312-cp312-musllinux_1_2_aarch64",
        "cp313-abi3-manylinux_2_28_aarch64",
    ],
)
def test_a_wheel_for_elsewhere_has_no_rank(tags: str) -> None:
    assert rank(tags) is None


def test_sri_is_the_base64_of_the_digest() -> None:
    assert base64.b64decode(sri(DIGEST).removeprefix("sha256-")).hex() == DIGEST
    assert is_sri(sri(DIGEST))
    for wrong in (DIGEST, "sha512-" + sri(DIGEST)[7:], sri(DIGEST)[:-4], "sha256-!" + sri(DIGEST)[8:]):
        assert not is_sri(wrong), wrong
