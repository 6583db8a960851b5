"""Free TCP ports."""

from __future__ import annotations

import socket

from glm53_exl3.errors import ServerError
from glm53_exl3.serve.settings import LOOPBACK


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_free(port: int, host: str = LOOPBACK) -> int:
    """`port`, when nothing listens on it at the address `host`.

    Raises:
        ServerError: `port-taken`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServerError(
                "port-taken",
                f"port {port} of {host} cannot be listened on: {error.strerror}",
                hint=f"stop what listens on {port}, or take another with --port",
            ) from error
    return port
