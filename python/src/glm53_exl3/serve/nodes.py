"""Several machines that serve one model: which address the others reach this one by."""

from __future__ import annotations

import contextlib
import socket


def own_address(master_address: str) -> str | None:
    """The address of this machine on the way to machine 0, None when there is no way to it.

    Asks the kernel for a route and sends nothing. On machine 0 it is the address of the link itself.
    """
    with contextlib.suppress(OSError):
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(master_address, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return None
