"""systemd's notification protocol (`sd_notify(3)`): one datagram of lines to the socket that NOTIFY_SOCKET names.

Written here because no maintained library has it: systemd-python needs libsystemd to build, sdnotify has had no
release since 2016.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Final

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"


class Notifier:
    """Tells the service manager what state the server is in; silent where there is none.

    Args:
        environment: of this process; a leading `@` of the socket's name means the abstract namespace.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get(SOCKET_VARIABLE, "")
        self._address = "\0" + name[1:] if name.startswith("@") else name

    def ready(self) -> None:
        """The server answers rightly."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The server is being ended."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={' '.join(text.split())}")

    def extend_start(self, seconds: float) -> None:
        """Ask for so much more time before the start counts as failed."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def _send(self, line: str) -> None:
        if not self._address:
            return
        # A service manager that is gone must not end a server that runs.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect(self._address)
            client.sendall(line.encode())
