"""The installer at work: small wheels, real pip, a real environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.tiny_wheels import TOOLS, call, install, lock_of, made, pip_variables, write_wheel

MARK = ".installation-unfinished"
PINNED = {"torch": "2.13.0", "cuda": "13.0"}
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release {}, V{}.88'\n"
TOOLKIT = dict.fromkeys(
    (
        "nvvm/bin/cicc",
        "include/crt/host_config.h",
        "include/cuda_runtime.h",
        "include/cccl/cuda/std/type_traits",
        "include/cublas_v2.h",
        "include/nvrtc.h",
        "include/curand_kernel.h",
        "lib/libcudart.so.13",
    ),
    b"",
)


def toolkit(folder: Path, release: str = "13.0") -> Path:
    """The compiler's wheel."""
    files = {f"nvidia/cu13/{name}": content for name, content in TOOLKIT.items()}
    files["nvidia/cu13/bin/nvcc"] = NVCC.format(release, release).encode()
    return write_wheel(folder, "nvidia-cuda-nvcc", files=files, programs=["nvidia/cu13/bin/nvcc"])


def torch(folder: Path, version: str) -> Path:
    content = f"__version__ = '{version}'\n".encode()
    return write_wheel(folder, "torch", "2.13.0", files={"torch/__init__.py": b"", "torch/version.py": content})


def packages(target: Path) -> set[str]:
    command = [str(target / "bin" / "python"), "-m", "pip", "list", "--format", "freeze"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line for line in lines if not line.startswith(("pip==", "setuptools=="))}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@dataclass(frozen=True)
class History:
    """One target on which the same command was run three times: killed, refused by pip, completed."""

    house: Path
    target: Path
    variables: dict[str, str]
    after_kill: set[str]
    refused: subprocess.CompletedProcess[str]
    after_refusal: tuple[set[str], set[str]]
    completed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Making an environment takes most of the time of these tests, so that they share one."""
    folder = tmp_path_factory.mktemp("history")
    index = folder / "index"
    wheels = [write_wheel(index, "brush", requires=["paint"]), write_wheel(index, "paint", "2.5")]
    lock = lock_of([*wheels, torch(index, "2.13.0+cu130"), toolkit(index)], runtime="upstream")
    lock["exceptions"] = [{"distribution": "easel", "requires": "torch>=3", "reason": "it works all the same"}]
    easel = write_wheel(folder / "built", "easel", requires=["brush", "torch>=3"])
    house = made(folder / "house", lock, [easel])
    target, variables = folder / "an environment", pip_variables(index)

    kill_in_the_middle(house, target, variables)
    after_kill = names(target)
    (target / "lib" / "half").mkdir(parents=True)

    write_wheel(index, "paint", "2.5", files={"more.py": b"import os\n"})
    refused = install(house, target, **variables)
    after_refusal = names(target), packages(target)

    write_wheel(index, "paint", "2.5")
    # Settings for other installations must not move what is pinned here.
    write_wheel(index, "paint", "3.0")
    (folder / "constraints.txt").write_text("paint==3.0\n", encoding="utf-8")
    stray = {"PIP_CONSTRAINT": str(folder / "constraints.txt"), "PIP_USER": "1", "PYTHONPATH": str(folder)}
    completed = install(house, target, **variables, **stray)
    return History(house, target, variables, after_kill, refused, after_refusal, completed)


def kill_in_the_middle(house: Path, target: Path, variables: Mapping[str, str]) -> None:
    command = ["sh", str(house / "install.sh"), "--python", sys.executable, str(target)]
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not any(target.glob("lib/python*/site-packages")) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_file_of_the_index_with_another_hash_is_refused_by_pip(history: History) -> None:
    message = history.refused.stderr
    assert history.refused.returncode == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE" in message
    assert "error: pip-failed: pip did not install what requirements.txt names; it says above why" in message
    assert "hint: the same command begins anew" in message
    left, installed = history.after_refusal
    assert MARK in left
    assert installed == set()


def test_interrupted_installation_is_begun_anew_and_completed(history: History) -> None:
    assert MARK in history.after_kill
    assert history.completed.returncode == 0, history.completed.stderr
    assert packages(history.target) >= {"brush==1.0", "easel==1.0", "paint==2.5", "torch==2.13.0"}
    assert not names(history.target) & {MARK, "tmp"}
    assert not (history.target / "lib" / "half").exists()
    assert any(history.target.glob("lib/python*/site-packages/__pycache__/easel.*.pyc"))


def test_complete_environment_is_left_alone(history: History) -> None:
    before = names(history.target)
    assert "error: target-in-use" in install(history.house, history.target, **history.variables).stderr
    assert names(history.target) == before


def test_cuda_wheelhouse_comes_with_a_toolkit(history: History) -> None:
    target = history.target
    assert f"before a server is started: . '{target}'/cuda.sh\n" in history.completed.stdout
    assert f"next: '{target}'/bin/glm53-exl3 preflight --runtime upstream\n" in history.completed.stdout
    shell = f". '{target}/cuda.sh'; command -v nvcc; command -v python; nvcc --version"
    shell += '; echo "$CUDA_HOME $TORCH_CUDA_ARCH_LIST"'
    said = subprocess.run(["sh", "-euc", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    home = next(target.glob("lib/python*/site-packages/nvidia/cu13"))
    assert said[:2] == [f"{home}/bin/nvcc", f"{target}/bin/python"]
    assert "release 13.0" in said[2]
    assert said[3] == f"{home} 12.1a"
    assert (home / "lib64" / "libcudart.so").resolve() == home / "lib" / "libcudart.so.13"


def test_requirement_that_nothing_satisfies_is_named(history: History) -> None:
    site = next(history.target.glob("lib/python*/site-packages"))
    metadata = site / "brush-1.0.dist-info" / "METADATA"
    whole = metadata.read_text(encoding="utf-8")
    metadata.write_text(f"{whole}Requires-Dist: hair>=2\n", encoding="utf-8")
    code = "install.check_requirements(Path(python), [dict(distribution='Brush', requires='paint')], {})"
    done = call(code, python=str(history.target / "bin" / "python"))
    metadata.write_text(whole, encoding="utf-8")
    assert done.returncode == 1
    assert "error: requirements: packages miss others" in done.stderr
    assert "brush 1.0 requires hair, which is not installed." in done.stderr
    assert "easel 1.0 has requirement torch>=3, but you have torch 2.13.0." in done.stderr


def test_requirement_that_is_known_to_be_missing_is_let_pass(history: History) -> None:
    code = "install.check_requirements(Path(python), [dict(distribution='easel', requires='torch>=3')], {})"
    assert call(code, python=str(history.target / "bin" / "python")).returncode == 0


def test_pip_that_does_not_answer_is_no_agreement(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 7\n", encoding="utf-8")
    python.chmod(0o755)
    done = call("install.check_requirements(Path(python), [], {})", python=str(python))
    assert "found: pip check ended with 7 and said nothing" in done.stderr


@pytest.mark.parametrize("found", ["2.13.0+cpu", "2.13.0+cu128", "2.14.0+cu130", "none"])
def test_other_build_of_torch_is_refused_beside_cuda(tmp_path: Path, found: str) -> None:
    file = tmp_path / "lib" / "python3.12" / "site-packages" / "torch" / "version.py"
    file.parent.mkdir(parents=True)
    if found != "none":
        file.write_text(f"__version__ = '{found}'\n", encoding="utf-8")
    done = call("install.check_torch(Path(target), manifest)", target=str(tmp_path), manifest=PINNED)
    assert done.returncode == 1
    assert "error: torch-build: this is not the build of torch that the wheels were compiled against" in done.stderr
    assert f"  expected: 2.13.0+cu130\n  found: {found}\n" in done.stderr


def test_interruption_by_the_user_has_its_own_code(history: History, tmp_path: Path) -> None:
    code = "install.HERE = Path(house)\ndef stop(*_): raise KeyboardInterrupt\n"
    done = call(
        code + "install.install = stop\nsys.exit(install.main([target]))",
        house=str(history.house),
        target=str(tmp_path / "new"),
    )
    assert done.returncode == 130
    assert "error: interrupted: nothing is installed yet\n\nhint: the same command begins anew" in done.stderr


def unpacked_toolkit(environment: Path, release: str = "13.0", without: Sequence[str] = ()) -> Path:
    home = environment / "lib" / "python3.12" / "site-packages" / "nvidia" / "cu13"
    files: Mapping[str, bytes] = {**TOOLKIT, "bin/nvcc": NVCC.format(release, release).encode()}
    for name in files.keys() - set(without):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(files[name])
        (home / name).chmod(0o755)
    return home


def link_cuda(environment: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(TOOLS / "link_cuda.py"), str(environment)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_links_are_made_once_and_stay(tmp_path: Path) -> None:
    home = unpacked_toolkit(tmp_path)
    assert link_cuda(tmp_path).stdout == f"before a server is started: . {tmp_path}/cuda.sh\n"
    before = sorted(home.rglob("*"))
    assert link_cuda(tmp_path).returncode == 0
    assert sorted(home.rglob("*")) == before
    assert (home / "lib" / "libcudart.so").readlink() == Path("libcudart.so.13")


def test_wheel_that_the_toolkit_lacks_is_named(tmp_path: Path) -> None:
    unpacked_toolkit(tmp_path, without=["nvvm/bin/cicc", "include/cuda_runtime.h"])
    done = link_cuda(tmp_path)
    assert done.returncode == 1
    assert "error: cuda-home-incomplete" in done.stderr
    assert "nothing of nvidia-cuda-runtime, nvidia-nvvm\n" in done.stderr
    assert not (tmp_path / "cuda.sh").exists()


def test_environment_without_any_toolkit_is_refused(tmp_path: Path) -> None:
    done = link_cuda(tmp_path)
    assert done.returncode == 1
    assert f"error: cuda-home-incomplete: the wheels in {tmp_path} are no CUDA toolkit" in done.stderr


def test_compiler_of_another_release_is_refused(tmp_path: Path) -> None:
    unpacked_toolkit(tmp_path, "13.2")
    done = link_cuda(tmp_path)
    assert done.returncode == 1
    assert "error: nvcc-release: " in done.stderr
    assert "  expected: 13.0\n  found: 13.2\n" in done.stderr


def test_compiler_that_does_not_start_is_refused(tmp_path: Path) -> None:
    (unpacked_toolkit(tmp_path) / "bin" / "nvcc").chmod(0o644)
    done = link_cuda(tmp_path)
    assert done.returncode == 1
    assert "error: nvcc-broken: the CUDA compiler does not start: " in done.stderr


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no_such_module", "found: ModuleNotFoundError: No module named 'no_such_module'"),
        ("lacks_a_library", "found: ImportError: libcudart.so.13"),
        ("is_killed", "found: it ended with -9"),
    ],
)
def test_module_that_does_not_load_is_named(tmp_path: Path, module: str, message: str) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "lacks_a_library.py").write_text("raise ImportError('libcudart.so.13')\n", encoding="utf-8")
    (tmp_path / "is_killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n", encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncd {tmp_path}\nexec {sys.executable} -B "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    done = call("install.check_modules(Path(python), ['json', module], {})", python=str(python), module=module)
    assert done.returncode == 1
    assert f"error: module-broken: {module} does not load" in done.stderr
    assert message in done.stderr


def test_python_that_makes_no_environment_is_named(tmp_path: Path) -> None:
    code = "def fail(*_): raise install.subprocess.CalledProcessError(1, ['ensurepip'])\n"
    code += "install.venv.EnvBuilder.create = fail\ninstall.install(Path(target), {})"
    done = call(code, target=str(tmp_path / "new"))
    assert "error: venv-broken: this Python makes no virtual environment: Command '['ensurepip']'" in done.stderr
    assert names(tmp_path / "new") == {MARK}
