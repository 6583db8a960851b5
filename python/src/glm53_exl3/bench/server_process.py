"""The process that listens on a port of this machine: its flags and its environment, from `/proc`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
_DEFAULT_PORT: Final = 8000
_NUMBER: Final = re.compile(r"-\d")
#: What comes before `serve`: the program, its wrapper in Nix, or the module.
_PROGRAM: Final = re.compile(
    r"(?:.*/)?(?:\.?vllm(?:-wrapped)?|vllm/entrypoints/cli/main\.py)|vllm\.entrypoints\.cli\.main"
)
_API_SERVER: Final = re.compile(r"vllm\.entrypoints\.openai\.api_server|.*/vllm/entrypoints/openai/api_server\.py")
_FIRST_WORDS: Final = 6
_SECRET_WORD: Final = re.compile(r"(?:^|[-_.])(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(?:$|[-_.=])", re.IGNORECASE)
#: Where a server listens says nothing of how fast it is.
_PLACE_FLAGS: Final = frozenset({"--host", "--port", "--uds"})
#: Variables that change what a server computes or how fast.
_PREFIXES: Final = ("GLM53_EXL3_", "EXL3_", "VLLM_", "FLASHINFER_")
_NAMES: Final = frozenset({"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})


@dataclass(frozen=True)
class ServerProcess:
    """A vLLM server on this machine.

    Attributes:
        pid: its process id.
        model: the model as its command line names it; empty when it does not.
        flags: of its command line by name, values joined by a blank, `true` for one without. Those with a secret and
            those that say where it listens are left out.
        environment: variables that change what it does, as it was started with them, without secrets; None when this
            user may not read them.
    """

    pid: int
    model: str
    flags: Mapping[str, str]
    environment: Mapping[str, str] | None


def find_server(port: int, proc: Path = PROC) -> ServerProcess | str:
    """The vLLM that listens on a port of this machine, or why none was found.

    The sockets of another user's process cannot be read; then the port in its command line tells.
    """
    sockets = _listening_sockets(port, proc)
    if not sockets:
        return f"nothing listens on port {port} here"
    commands = {pid: command for pid in _pids(proc) if (command := _command(pid, proc))}
    holders = [pid for pid in commands if _holds(pid, sockets, proc)]
    for pid in holders:
        server: int | None = pid
        # With several API servers a child listens, under a title of its own.
        while server and not is_vllm(commands.get(server, [])):
            server = _parent(server, proc)
        if server:
            return _describe(server, commands[server], proc)
    if not holders:
        for pid, command in commands.items():
            if is_vllm(command) and _port(command) == port:
                return _describe(pid, command, proc)
        return f"this user may not see which process listens on port {port}"
    return f"what listens on port {port} is not vLLM: {' '.join(commands[holders[0]])[:60]}"


def is_vllm(command: Sequence[str]) -> bool:
    """Whether a command line starts a vLLM server."""
    return _serve_arguments(command) is not None


def parse_flags(command: Sequence[str]) -> tuple[str, dict[str, str]]:
    """`(model, flags)` of a vLLM command line, as :class:`ServerProcess` has them."""
    arguments = _serve_arguments(command) or []
    model, name = "", ""
    flags: dict[str, list[str]] = {}
    for argument in arguments:
        if argument.startswith("-") and not _NUMBER.match(argument):
            flag, equals, value = argument.partition("=")
            # vLLM takes either spelling. Short flags have no underscores.
            name = flag.replace("_", "-")
            flags.setdefault(name, []).extend([value] if equals else [])
        elif name:
            flags[name].append(argument)
        else:
            model = argument
    # `vllm serve` has the model first; the older entry point has a flag for it.
    model = " ".join(flags.pop("--model", [])) or model
    kept = {name: " ".join(values) or "true" for name, values in flags.items() if name not in _PLACE_FLAGS}
    return model, {name: value for name, value in sorted(kept.items()) if not _SECRET_WORD.search(name)}


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment changes how a server runs, without secrets."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and not _SECRET_WORD.search(name)
    }


def _serve_arguments(command: Sequence[str]) -> list[str] | None:
    """What follows `vllm serve` or vLLM's API server module, None where neither is."""
    for index, word in enumerate(command[:_FIRST_WORDS]):
        if _API_SERVER.fullmatch(word) or (word == "serve" and index and _PROGRAM.fullmatch(command[index - 1])):
            return list(command[index + 1 :])
    return None


def _port(command: Sequence[str]) -> int:
    arguments = _serve_arguments(command) or []
    for index, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name == "--port":
            value = value or "".join(arguments[index + 1 : index + 2])
            return int(value) if value.isdecimal() else 0
    return _DEFAULT_PORT


def _describe(pid: int, command: Sequence[str], proc: Path) -> ServerProcess:
    model, flags = parse_flags(command)
    words = _words(proc / str(pid) / "environ")
    environment = None
    if words is not None:
        environment = relevant_variables(dict(word.split("=", 1) for word in words if "=" in word))
    return ServerProcess(pid, model, flags, environment)


def _listening_sockets(port: int, proc: Path) -> set[str]:
    """Inodes of the sockets that listen on a port. Columns of `/proc/net/tcp`: proc(5)."""
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(columns[9])
    return inodes


def _pids(proc: Path) -> list[int]:
    return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())


def _command(pid: int, proc: Path) -> list[str]:
    return _words(proc / str(pid) / "cmdline") or []


def _words(path: Path) -> list[str] | None:
    try:
        return path.read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return None


def _holds(pid: int, sockets: set[str], proc: Path) -> bool:
    wanted = {f"socket:[{inode}]" for inode in sockets}
    try:
        return any(str(link.readlink()) in wanted for link in (proc / str(pid) / "fd").iterdir())
    except OSError:
        # Another user's process, or one that has just ended or closed a file.
        return False


def _parent(pid: int, proc: Path) -> int | None:
    try:
        after_name = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(after_name[1]) or None
    except (OSError, IndexError, ValueError):
        return None
