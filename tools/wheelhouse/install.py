"""Install a wheelhouse into a new virtual environment: install.py DIR

Machine, interpreter, system libraries, free disk and the hash of every file are checked before anything is written.
What is downloaded is checked by pip against requirements.txt. An interrupted installation is begun anew by the same
command; what pip had downloaded completely comes out of its cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Nothing may appear in the wheelhouse, which may also be read-only.
sys.dont_write_bytecode = True

from checks import UNFINISHED, check_files, check_libraries, check_machine, check_target  # noqa: E402
from install_error import InstallError, listed  # noqa: E402
from link_cuda import link_cuda  # noqa: E402

HERE = Path(__file__).resolve().parent
#: Settings of pip that say where files come from. Others would change what is installed or where.
_PIP_SETTINGS = frozenset(
    "PIP_" + name
    for name in (
        *("INDEX_URL", "EXTRA_INDEX_URL", "NO_INDEX", "FIND_LINKS", "TRUSTED_HOST", "CERT", "CLIENT_CERT", "PROXY"),
        *("TIMEOUT", "DEFAULT_TIMEOUT", "RETRIES", "CACHE_DIR", "NO_CACHE_DIR", "CONFIG_FILE", "KEYRING_PROVIDER"),
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command: 0 installed, 1 refused by name, 2 wrong usage, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="install.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, metavar="DIR", help="virtual environment to be made")
    parser.add_argument("--check", action="store_true", help="check and install nothing")
    options = parser.parse_args(arguments)
    target = options.target.expanduser().absolute()
    try:
        check_files(HERE)
        manifest = json.loads((HERE / "wheelhouse.json").read_text(encoding="utf-8"))
        check_machine(manifest)
        check_libraries(manifest["needs"])
        check_target(target, manifest["wheel_bytes"])
        if options.check:
            print("everything is in order; nothing was installed")
            return 0
        install(target, manifest)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nerror: interrupted: nothing is installed yet\n\nhint: the same command begins anew", file=sys.stderr)
        return 130
    _tell(target, manifest)
    return 0


def _tell(target: Path, manifest: dict[str, Any]) -> None:
    place = shlex.quote(str(target))
    print(f"\ninstalled in {target}")
    if manifest["cuda"]:
        print(f"before a server is started: . {place}/cuda.sh")
        print(f"next: {place}/bin/glm53-exl3 preflight --runtime {manifest['runtime']}")
    else:
        print(f"next: {place}/bin/glm53-exl3 demo")


def install(target: Path, manifest: dict[str, Any]) -> None:
    """Make the environment, fill it, and look at the result.

    Raises:
        InstallError: a step failed; the folder stays, marked as unfinished.
    """
    begin(target)
    try:
        venv.EnvBuilder(with_pip=True).create(target)
    except subprocess.CalledProcessError as error:
        raise InstallError("venv-broken", f"this Python makes no virtual environment: {error}") from error
    python = target / "bin" / "python"
    # On the same disk, whose room was checked; the usual folder is often kept in memory.
    temporary = target / "tmp"
    temporary.mkdir()
    environment = _environment(temporary)
    # Compiled by all cores afterwards.
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-compile"]
    requirements = ["--require-hashes", "--requirement", str(HERE / "requirements.txt")]
    _run([*pip, *requirements], environment, "what requirements.txt names")
    wheels = [str(HERE / "wheels" / name) for name in manifest["wheels"]]
    _run([*pip, "--no-index", *wheels], environment, "the wheels of this folder")
    if manifest["cuda"]:
        check_torch(target, manifest)
        link_cuda(target, manifest["cuda"], manifest["arch_list"])
    check_requirements(python, manifest["exceptions"], environment)
    check_modules(python, manifest["modules"], environment)
    # Some packages hold templates that are no Python; they stay uncompiled.
    command = [str(python), "-m", "compileall", "-q", "-j", "0", str(target / "lib")]
    subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)
    shutil.rmtree(temporary)
    (target / UNFINISHED).unlink()


def begin(target: Path) -> None:
    """Make the folder, or empty what an interrupted installation left in it.

    Half of a package may be there, which pip would take for all of it.

    Raises:
        InstallError: it cannot be made.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / UNFINISHED).touch()
    except OSError as error:
        raise InstallError("target-not-writable", f"{target} cannot be made: {error}", hint="another folder") from error
    for path in list(target.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != UNFINISHED:
            path.unlink()


def _environment(temporary: Path) -> dict[str, str]:
    """Variables for pip and Python, without those that bring in other packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    kept |= {name: os.environ[name] for name in _PIP_SETTINGS if name in os.environ}
    return {**kept, "TMPDIR": str(temporary)}


def _run(command: Sequence[str], environment: dict[str, str], what: str) -> None:
    if subprocess.run(command, env=environment, check=False).returncode:
        raise InstallError(
            "pip-failed", f"pip did not install {what}; it says above why", hint="the same command begins anew"
        )


def check_torch(target: Path, manifest: dict[str, Any]) -> None:
    """Refuse another build of torch than the wheels were compiled against.

    Raises:
        InstallError: it is another, or there is none.
    """
    file = next(target.glob("lib/python*/site-packages/torch/version.py"), None)
    text = file.read_text(encoding="utf-8") if file else ""
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    expected = f"{manifest['torch']}+cu{manifest['cuda'].replace('.', '')}"
    found = version[1] if version else "none"
    if found != expected:
        raise InstallError(
            "torch-build",
            "this is not the build of torch that the wheels were compiled against",
            expected=expected,
            found=found,
            hint="make the wheelhouse from a lock that has it",
        )


def check_requirements(python: Path, exceptions: Sequence[dict[str, str]], environment: dict[str, str]) -> None:
    """Refuse an environment in which a package misses another, but for the known cases.

    Raises:
        InstallError: one does.
    """
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    known = {(_name(one["distribution"]), _name(one["requires"])) for one in exceptions}
    unknown = []
    for line in done.stdout.splitlines() if done.returncode else []:
        asks = re.match(r"(\S+) \S+ (?:requires|has requirement) ([A-Za-z0-9._-]+)", line)
        if asks is None or (_name(asks[1]), _name(asks[2])) not in known:
            unknown.append(line)
    if done.returncode and not done.stdout.strip():
        unknown.append(done.stderr.strip() or f"pip check ended with {done.returncode} and said nothing")
    if unknown:
        raise InstallError(
            "requirements",
            "packages miss others",
            found=listed(unknown),
            hint="make the wheelhouse from a lock that agrees with its wheels",
        )


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0] if match else requirement).lower()


def check_modules(python: Path, modules: Sequence[str], environment: dict[str, str]) -> None:
    """Load what was compiled: it has to find its libraries here. No GPU is touched.

    Raises:
        InstallError: one does not load.
    """
    for module in modules:
        # Whatever it is linked with, torch loads it first.
        code = f"import importlib.util\nif importlib.util.find_spec('torch'): import torch\nimport {module}"
        done = subprocess.run([str(python), "-c", code], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1]
            raise InstallError("module-broken", f"{module} does not load", found=reason)


if __name__ == "__main__":
    sys.exit(main())
