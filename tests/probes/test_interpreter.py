"""The interpreter of the runtime, asked for real: what hangs, dies or is missing is named and nothing else is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from glm53_exl3 import __version__
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.exllamav3 import extension
from glm53_exl3.kernels.extension import require_arch
from glm53_exl3.kernels.native import extension as native
from glm53_exl3.probes import plugin, runtime
from glm53_exl3.probes.in_runtime import report
from glm53_exl3.probes.in_runtime.report import count_arguments
from glm53_exl3.probes.interpreter import LIMITS, Fact, read_runtime

LONG = dict.fromkeys(LIMITS, 30.0)
EXTENSION = "glm53_exl3_exllamav3_ext"
TORCH = "__version__ = '2.13.0+cu130'\nclass version:\n    cuda = '13.0'\n"
#: First line of the docstring that pybind11 3.0 wrote for a function of these 30 arguments.
DOCSTRING = (
    "exl3_moe("
    + ", ".join(f"arg{number}: object" for number in range(9))
    + "".join(f", arg{number}: typing.SupportsInt | typing.SupportsIndex" for number in range(9, 13))
    + "".join(f", arg{number}: object" for number in range(13, 22))
    + "".join(f", arg{number}: bool" for number in range(22, 28))
    + ", arg28: typing.SupportsFloat | typing.SupportsIndex, arg29: typing.SupportsInt | typing.SupportsIndex) -> None"
)


class Native:
    """Stands for a function of an extension: no signature, only a docstring."""

    def __init__(self, docstring: str | None) -> None:
        self.__doc__ = docstring


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of everything installed, with a torch of a few lines."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def write_extension(folder: Path, arguments: int, *, symbols: str = "") -> None:
    names = ", ".join(f"a{number}" for number in range(arguments))
    text = f"def exl3_moe({names}): pass\n" + (symbols or "exl3_moe_max_concurrency = run_layer = print\n")
    (folder / f"{EXTENSION}.py").write_text(text)


def test_this_interpreter_reports_itself() -> None:
    facts = read_runtime(sys.executable, {"python": 30.0, "distributions": 30.0})
    assert facts.value("python")["version"] == list(sys.version_info[:3])
    assert facts.value("distributions")["versions"]["glm53-exl3"] == "0.1.0"
    ours = [point for point in facts.value("distributions")["plugins"] if point["name"] == "glm53_exl3"]
    assert ours == [{"name": "glm53_exl3", "value": "glm53_exl3.engine:register", "distribution": "glm53-exl3"}]


def test_hanging_import_is_killed_and_named(modules: Path) -> None:
    (modules / "torch.py").write_text("import time\ntime.sleep(60)\n")
    started = time.monotonic()
    facts = read_runtime(sys.executable, {**LONG, "torch": 1.0})
    assert time.monotonic() - started < 20
    assert facts.facts["torch"].hung
    assert facts.value("distributions")["versions"]["glm53-exl3"] == "0.1.0"
    result = runtime.check_torch(facts)
    assert (result.status, result.measured) == ("fail", "looking for torch did not end in 1 s")
    assert result.hint == f"run it by hand: {sys.executable} -c 'import torch'"
    assert plugin.check_extension(facts).measured == "needs torch"
    assert plugin.check_kpool(facts).status == "skip"


def test_import_that_kills_the_interpreter_does_not_hide_what_comes_after(modules: Path) -> None:
    (modules / f"{EXTENSION}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (modules / "vllm.py").write_text("__version__ = '0.32.0'\n")
    facts = read_runtime(sys.executable, dict.fromkeys(("torch", "extension", "vllm"), 30.0))
    assert facts.facts["extension"].error == "ended the interpreter (signal 11)"
    assert facts.value("vllm") == {"version": "0.32.0", "commit": ""}
    result = plugin.check_extension(facts)
    assert (result.status, result.measured) == ("fail", "looking for extension ended the interpreter (signal 11)")


def test_library_that_prints_and_exits_is_no_trouble(modules: Path) -> None:
    (modules / "torch.py").write_text(f"print('hello'); print('{{\"fact\": \"torch\"}}')\n{TORCH}")
    (modules / "vllm.py").write_text("raise SystemExit('no GPU')\n")
    facts = read_runtime(sys.executable, dict.fromkeys(("torch", "vllm", "distributions"), 30.0))
    assert facts.value("torch") == {"version": "2.13.0+cu130", "cuda": "13.0"}
    assert facts.facts["vllm"].error == "SystemExit: no GPU"
    assert "torch" in facts.value("distributions")["versions"]


def test_missing_interpreter_is_named(tmp_path: Path) -> None:
    facts = read_runtime(str(tmp_path / "python"), LONG)
    result = runtime.check_headers(facts)
    assert result.status == "fail"
    assert result.measured == f"{tmp_path}/python does not start: No such file or directory"
    assert "--python PATH" in result.hint


def test_program_that_is_no_python_is_named() -> None:
    facts = read_runtime("/bin/false", {"python": 5.0, "torch": 5.0})
    assert {name: fact.error for name, fact in facts.facts.items()} == {
        "python": "ended the interpreter (exit 1)",
        "torch": "ended the interpreter (exit 1)",
    }


@pytest.mark.parametrize(("arguments", "status"), [(30, "ok"), (35, "fail"), (29, "fail")])
def test_arity_of_the_extension_is_compared_with_the_pin(modules: Path, arguments: int, status: str) -> None:
    write_extension(modules, arguments)
    result = plugin.check_extension(read_runtime(sys.executable, {"torch": 30.0, "extension": 30.0}))
    assert result.status == status
    assert f"exl3_moe takes {arguments} arguments" in result.measured
    assert status == "ok" or "the plugin passes 30" in result.measured


def test_extension_without_a_symbol_is_named(modules: Path) -> None:
    write_extension(modules, 30, symbols="run_layer = 1\n")
    result = plugin.check_extension(read_runtime(sys.executable, {"torch": 30.0, "extension": 30.0}))
    assert result.measured == f"{modules}/{EXTENSION}.py lacks exl3_moe_max_concurrency"


def test_symbols_are_those_that_the_plugin_asks_for() -> None:
    assert extension._FUNCTIONS == report.SYMBOLS
    assert native._FUNCTIONS == report.NATIVE_SYMBOLS
    assert (extension.MODULE, native.MODULE) == (report.EXTENSION, report.NATIVE)


@pytest.mark.parametrize(
    ("text", "status", "measured"),
    [
        (f"run_layer = scratch_bytes = print\nversion = {__version__!r}\n", "ok", f"version {__version__}"),
        ("run_layer = scratch_bytes = print\nversion = '0.0.9'\n", "fail", "is of version 0.0.9, the plugin of"),
        ("run_layer = scratch_bytes = print\n", "fail", "is of no stated version, the plugin of"),
        (f"run_layer = print\nversion = {__version__!r}\n", "fail", "lacks scratch_bytes"),
        ("import other_library\n", "fail", "ModuleNotFoundError: No module named 'other_library'"),
    ],
)
def test_native_kernels_have_to_be_of_this_version(modules: Path, text: str, status: str, measured: str) -> None:
    (modules / f"{native.MODULE}.py").write_text(text)
    result = plugin.check_native(read_runtime(sys.executable, {"torch": 30.0, "native": 30.0}))
    assert result.status == status
    assert measured in result.measured
    assert status == "ok" or "tools/extension/build.py native" in result.hint


def test_one_of_the_two_extensions_is_enough_unless_the_other_kills_who_imports_it(modules: Path) -> None:
    (modules / f"{native.MODULE}.py").write_text(f"run_layer = scratch_bytes = print\nversion = {__version__!r}\n")
    limits = dict.fromkeys(("torch", "extension", "native"), 30.0)
    statuses = [result.status for result in plugin.check_kernels(read_runtime(sys.executable, limits))]
    assert statuses == ["warn", "ok"]
    (modules / f"{EXTENSION}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    statuses = [result.status for result in plugin.check_kernels(read_runtime(sys.executable, limits))]
    assert statuses == ["fail", "ok"]
    write_extension(modules, 30)
    (modules / f"{native.MODULE}.py").unlink()
    statuses = [result.status for result in plugin.check_kernels(read_runtime(sys.executable, limits))]
    assert statuses == ["ok", "warn"]
    (modules / f"{EXTENSION}.py").unlink()
    statuses = [result.status for result in plugin.check_kernels(read_runtime(sys.executable, limits))]
    assert statuses == ["fail", "fail"]


@pytest.mark.parametrize("archs", ["12.1a", "9.0a 12.1a", "9.0a;12.1a", "12.1"])
def test_extension_for_these_gpus_is_right_for_preflight_and_plugin(modules: Path, archs: str) -> None:
    write_extension(modules, 30, symbols=f"exl3_moe_max_concurrency = run_layer = print\narch_list = {archs!r}\n")
    facts = read_runtime(sys.executable, {"torch": 30.0, "extension": 30.0})
    for capability in ((12, 1), (12, 0)):
        name = f"{capability[0]}.{capability[1]}"
        seen = replace(facts, facts={**facts.facts, "cuda": Fact({"available": True, "capability": name})})
        module = ModuleType(EXTENSION)
        module.arch_list = archs  # type: ignore[attr-defined]
        if plugin.check_extension(seen).status == "ok":
            require_arch(module, capability)
        else:
            with pytest.raises(KernelError):
                require_arch(module, capability)
        assert plugin.check_extension(seen).status == ("ok" if capability == (12, 1) else "fail")


def test_extension_that_does_not_say_its_arity_is_not_called_right(modules: Path) -> None:
    (modules / f"{EXTENSION}.py").write_text(
        "class Native: pass\nexl3_moe = exl3_moe_max_concurrency = run_layer = Native()\n"
    )
    result = plugin.check_extension(read_runtime(sys.executable, {"torch": 30.0, "extension": 30.0}))
    assert (result.status, result.measured) == ("skip", "exl3_moe does not say how many arguments it takes")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_undefined_symbol_is_named_as_another_torch(modules: Path) -> None:
    source = modules / "extension.c"
    source.write_text(f"void c10_missing(void);\nvoid *PyInit_{EXTENSION}(void) {{ c10_missing(); return 0; }}\n")
    library = modules / f"{EXTENSION}{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    result = plugin.check_extension(read_runtime(sys.executable, {"torch": 30.0, "extension": 30.0}))
    assert result.status == "fail"
    assert result.measured.startswith("built for another torch than 2.13.0+cu130: ImportError: ")
    assert "undefined symbol: c10_missing" in result.measured


@pytest.mark.parametrize(
    ("docstring", "arguments"),
    [
        (DOCSTRING + "\n\nexl3_moe\n", 30),
        ("f(arg0: collections.abc.Sequence[tuple[int, int]], arg1: object) -> None", 2),
        ("f() -> int", 0),
        ("no signature here", None),
        ("", None),
        (None, None),
    ],
)
def test_arguments_are_counted_from_the_docstring_of_pybind11(docstring: str | None, arguments: int | None) -> None:
    assert count_arguments(Native(docstring)) == arguments
