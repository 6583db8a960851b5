"""Free TCP ports."""

from __future__ import annotations

import socket

from glm53_exl3.errors import ServerError
from glm53_exl3.serve.argv import LOOPBACK


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_free(port: int) -> int:
    """`port`, when nothing listens on it.

    Raises:
        ServerError: `port-taken`.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ServerError(
                "port-taken",
                f"port {port} cannot be listened on: {error.strerror}",
                hint=f"stop what listens on {port}, or take another with --port",
            ) from error
    return port
