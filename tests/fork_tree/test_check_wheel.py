"""The check of the compiled wheel: which GPU its extensions run on."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fork_tree.conftest import ROOT

SCRIPT = ROOT / "tools" / "fork_tree" / "check_wheel.py"
_spec = importlib.util.spec_from_file_location("check_wheel", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
check_wheel = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_wheel)
#: Answers as cuobjdump 13 and readelf gave them, for an extension whose contents are the name of its answer. Code that
#: was compiled for sm_120f is listed as sm_120.
CUOBJDUMP = r"""#!/bin/sh
case "$1 $(cat "$2")" in
  "--list-elf good") echo "ELF file    1: _C.1.sm_120.cubin"; echo "ELF file    2: _C.2.sm_120.cubin" ;;
  "--list-elf exact") echo "ELF file    1: _moe.1.sm_121a.cubin" ;;
  "--list-elf other") echo "ELF file    1: _C.1.sm_90a.cubin"; echo "ELF file    2: _C.2.sm_120a.cubin" ;;
  "--list-ptx ptx") echo "PTX file    1: _fa2.1.sm_80.ptx" ;;
  *broken) echo "cuobjdump fatal   : Could not open input file '$2'" >&2; exit 1 ;;
  *host) echo "cuobjdump info    : File '$2' does not contain device code" >&2; exit 255 ;;
  *) echo "cuobjdump info    : No PTX file found to extract from '$2'. You may try with -all option." >&2; exit 255 ;;
esac
"""
READELF = """#!/bin/sh
echo "  0x0010:   Name: GLIBC_2.17  Flags: none  Version: 4"
echo "  0x0020:   Name: GLIBC_2.38  Flags: none  Version: 5"
echo "  0x0030:   Name: GLIBCXX_3.4.9  Flags: none  Version: 3"
"""


def check(tmp_path: Path, extensions: dict[str, str], *patterns: str) -> subprocess.CompletedProcess[str]:
    wheel = tmp_path / "vllm-0-cp312-cp312-linux_aarch64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        for name, answer in extensions.items():
            archive.writestr(name, answer)
    for name, text in (("cuobjdump", CUOBJDUMP), ("readelf", READELF)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    tools = ["--cuobjdump", str(tmp_path / "cuobjdump"), "--readelf", str(tmp_path / "readelf")]
    required = [part for pattern in patterns for part in ("--require", pattern)]
    command = [sys.executable, str(SCRIPT), str(wheel), "--capability", "12.1", *tools, *required]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("architecture", "runs"),
    [
        ("sm_120", True),
        ("sm_121", True),
        ("sm_120f", True),
        ("sm_121f", True),
        ("sm_121a", True),
        ("sm_120a", False),
        ("sm_90", False),
        ("sm_90a", False),
        ("sm_80", False),
        ("sm_100f", False),
        ("sm_110", False),
    ],
)
def test_machine_code_runs_on_its_own_family_from_its_version_on(architecture: str, runs: bool) -> None:
    assert check_wheel.runs_on(architecture, "12.1") is runs


@pytest.mark.parametrize(
    ("architecture", "compiles"),
    [("sm_80", True), ("sm_121", True), ("sm_90a", False), ("sm_120a", False), ("sm_120f", True), ("sm_100f", False)],
)
def test_plain_ptx_is_compiled_for_everything_newer(architecture: str, compiles: bool) -> None:
    assert check_wheel.compiles_for(architecture, "12.1") is compiles


def test_newer_minor_version_does_not_run_on_an_older_gpu() -> None:
    assert not check_wheel.runs_on("sm_121", "12.0")
    assert not check_wheel.compiles_for("sm_121", "12.0")


def test_report_says_what_each_extension_runs_on_and_needs(tmp_path: Path) -> None:
    wheel = {
        "vllm/_C_stable_libtorch.abi3.so": "good",
        "vllm/_moe_C_stable_libtorch.abi3.so": "exact",
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": "ptx",
        "vllm/spinloop.abi3.so": "host",
    }
    done = check(tmp_path, wheel, "_C_*.so", "_moe_C_*.so")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["capability"] == "12.1"
    assert report["extensions"]["vllm/_C_stable_libtorch.abi3.so"] == {
        "machine_code": ["sm_120"],
        "ptx": [],
        "runs": True,
        "compiled_by_driver": False,
        "needs": {"GLIBC": "2.38", "GLIBCXX": "3.4.9"},
    }
    flash = report["extensions"]["vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"]
    assert (flash["machine_code"], flash["runs"], flash["compiled_by_driver"]) == ([], False, True)
    assert report["extensions"]["vllm/spinloop.abi3.so"]["machine_code"] == []


def test_extension_for_other_gpus_is_named(tmp_path: Path) -> None:
    done = check(tmp_path, {"vllm/_C_stable_libtorch.abi3.so": "other"}, "_C_*.so")
    assert done.returncode == 1
    assert (
        "error: kernels-missing: vllm/_C_stable_libtorch.abi3.so has no machine code that runs on 12.1; "
        "it has sm_120a, sm_90a" in done.stderr
    )


def test_ptx_alone_is_not_enough_for_a_required_extension(tmp_path: Path) -> None:
    done = check(tmp_path, {"vllm/_C_x.so": "ptx"}, "_C_*.so")
    assert "vllm/_C_x.so has no machine code that runs on 12.1; it has none" in done.stderr
    assert done.returncode == 1


def test_extension_that_is_missing_is_named(tmp_path: Path) -> None:
    done = check(tmp_path, {"vllm/_C_stable_libtorch.abi3.so": "good"}, "_C_*.so", "_moe_C_*.so")
    assert done.returncode == 1
    assert "the wheel has no extension _moe_C_*.so; it has vllm/_C_stable_libtorch.abi3.so" in done.stderr


def test_failure_of_cuobjdump_does_not_pass_for_no_device_code(tmp_path: Path) -> None:
    done = check(tmp_path, {"vllm/_C_x.so": "good", "vllm/other.so": "broken"}, "_C_*.so")
    assert done.returncode == 1
    assert "--list-elf other.so failed: cuobjdump fatal   : Could not open input file" in done.stderr
