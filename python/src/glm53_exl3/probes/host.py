"""The one interface through which facts about the host are read.

Checks never touch the machine: they judge facts, and facts come from a :class:`Host`. Tests put recorded hosts in
its place.
"""

from __future__ import annotations

import glob
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from glm53_exl3.probes.interpreter import RuntimeFacts

#: Without a persistence daemon the driver is loaded first, which takes seconds.
_COMMAND_SECONDS: Final = 8.0
_LIMITS: Final = {"open files": resource.RLIMIT_NOFILE, "address space": resource.RLIMIT_AS}


@dataclass(frozen=True)
class CommandOutput:
    """What a program printed.

    Attributes:
        returncode: exit status.
        stdout: standard output.
        stderr: standard error.
    """

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Limit:
    """A resource limit; None is unlimited.

    Attributes:
        soft: what holds now.
        hard: up to where a process may raise it.
    """

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class HeadReply:
    """What a server answered to a HEAD request.

    Attributes:
        error: why there was no answer, empty when there was one.
        server_time: its `Date` header in seconds since 1970, None when it sent none.
        local_time: this machine's clock at the same moment.
    """

    error: str
    server_time: float | None
    local_time: float


@dataclass(frozen=True)
class HubIdentity:
    """What the Hub says of the token of this machine.

    Attributes:
        source: where the token stands, empty when there is none.
        user: whose it is, empty when the Hub did not say.
        refused: whether the Hub refused it.
        error: why the Hub could not be asked, empty when it was.
    """

    source: str
    user: str
    refused: bool
    error: str


class Host(Protocol):
    """A machine, as far as a preflight looks at it."""

    def machine(self) -> str:
        """Architecture, as `aarch64`."""

    def kernel(self) -> str:
        """Name and release of the kernel, as `Linux 6.14.0-1013-nvidia`."""

    def variables(self) -> Mapping[str, str]:
        """The environment."""

    def read_text(self, path: str) -> str | None:
        """A text file, None when it cannot be read."""

    def paths(self, pattern: str) -> list[str]:
        """Paths that match a glob pattern, sorted."""

    def real_path(self, path: str) -> str:
        """The path with symbolic links resolved."""

    def age_seconds(self, path: str) -> float | None:
        """Time since a file was last written, None when it is not there."""

    def which(self, program: str) -> str | None:
        """Full path of a program: on PATH, or the path given when it is executable."""

    def run(self, *command: str) -> CommandOutput | None:
        """Run a program that ends by itself; None when it is not there.

        Raises:
            TimeoutError: it did not end in time.
        """

    def limit(self, name: str) -> Limit:
        """A resource limit: `open files` or `address space` (bytes)."""

    def free_bytes(self, path: str) -> int | None:
        """Free disk space for this user at a path or its nearest parent, in bytes."""

    def listen_error(self, address: str, port: int) -> str | None:
        """Why a TCP port cannot be listened on, None when it can."""

    def head(self, url: str) -> HeadReply:
        """Ask a server for nothing but its headers."""

    def hub_identity(self) -> HubIdentity:
        """Ask the Hub whose token this machine has; the token itself is never returned."""

    def runtime(self, executable: str, names: Collection[str] | None = None) -> RuntimeFacts:
        """Ask an interpreter what is installed in it and whether it works: for facts of these names, all by default."""


class LiveHost:
    """This machine."""

    def machine(self) -> str:
        """Architecture."""
        return os.uname().machine

    def kernel(self) -> str:
        """Name and release of the kernel."""
        return f"{os.uname().sysname} {os.uname().release}"

    def variables(self) -> Mapping[str, str]:
        """The environment."""
        return os.environ

    def read_text(self, path: str) -> str | None:
        """A text file, None when it cannot be read."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def paths(self, pattern: str) -> list[str]:
        """Paths that match a glob pattern, sorted."""
        return sorted(glob.glob(pattern))  # noqa: PTH207 - the pattern is absolute, which Path.glob refuses

    def real_path(self, path: str) -> str:
        """The path with symbolic links resolved."""
        return os.path.realpath(path)

    def age_seconds(self, path: str) -> float | None:
        """Time since a file was last written, None when it is not there."""
        try:
            return max(0.0, time.time() - Path(path).stat().st_mtime)
        except OSError:
            return None

    def which(self, program: str) -> str | None:
        """Full path of a program."""
        return shutil.which(program)

    def run(self, *command: str) -> CommandOutput | None:
        """Run a program that ends by itself; None when it is not there."""
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{command[0]} did not end in {_COMMAND_SECONDS:g} s") from error
        except OSError:
            return None
        return CommandOutput(done.returncode, done.stdout, done.stderr)

    def limit(self, name: str) -> Limit:
        """A resource limit."""
        soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(_LIMITS[name]))
        return Limit(soft, hard)

    def free_bytes(self, path: str) -> int | None:
        """Free disk space at a path or its nearest parent, in bytes."""
        folder = Path(path).absolute()
        for candidate in (folder, *folder.parents):
            try:
                return shutil.disk_usage(candidate).free
            except OSError:
                continue
        return None

    def listen_error(self, address: str, port: int) -> str | None:
        """Why a TCP port cannot be listened on, None when it can."""
        with socket.socket() as listener:
            # As servers do: a port in TIME_WAIT is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
            except OSError as error:
                return error.strerror or str(error)
        return None

    def head(self, url: str) -> HeadReply:
        """Ask a server for nothing but its headers."""
        from glm53_exl3.probes.network import head

        return head(url)

    def hub_identity(self) -> HubIdentity:
        """Ask the Hub whose token this machine has."""
        from glm53_exl3.probes.network import hub_identity

        return hub_identity()

    def runtime(self, executable: str, names: Collection[str] | None = None) -> RuntimeFacts:
        """Ask an interpreter what is installed in it and whether it works: for facts of these names, all by default."""
        from glm53_exl3.probes.interpreter import LIMITS, read_runtime

        return read_runtime(
            executable, {name: limit for name, limit in LIMITS.items() if names is None or name in names}
        )
