"""Units run without systemd: their commands, with nothing but the environment, folders and credentials they name."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.nixos_module import words

#: What every service has from systemd.
PATH = "/usr/local/bin:/usr/bin:/bin"
#: Where systemd would make the folders of the units.
ROOTS = ("/var/cache/glm53-exl3", "/var/lib/glm53-exl3")


@dataclass
class Started:
    """A unit as systemd would have it, below a folder of the test."""

    commands: list[list[str]]
    environment: dict[str, str]
    heard: list[str] = field(default_factory=list)


def start_of(unit: str, folder: Path) -> Started:
    """Commands and environment of a unit, with its folders and credentials made below `folder`."""
    for root in ROOTS:
        unit = unit.replace(root, f"{folder}{root}")
    settings = dict.fromkeys(re.findall(r"^(\w+)=", unit, re.MULTILINE))
    for kind, root in (("CacheDirectory", "cache"), ("StateDirectory", "lib")):
        if kind in settings:
            (folder / "var" / root / re.findall(rf"^{kind}=(.*)", unit, re.MULTILINE)[0]).mkdir(parents=True)
    stated = [words(f"x {line}")[1] for line in re.findall(r"^Environment=(.*)", unit, re.MULTILINE)]
    credentials = folder / "credentials"
    credentials.mkdir(mode=0o700)
    for name, path in re.findall(r"^LoadCredential=([^:]+):(.*)", unit, re.MULTILINE):
        (credentials / name).write_bytes(Path(path.replace("%%", "%")).read_bytes())
        (credentials / name).chmod(0o400)
    environment = {"PATH": PATH, "CREDENTIALS_DIRECTORY": str(credentials)}
    environment |= dict(each.split("=", 1) for each in stated)
    return Started([words(line) for line in re.findall(r"^ExecStart=(.*)", unit, re.MULTILINE)], environment)


@contextmanager
def service_manager(started: Started, folder: Path) -> Iterator[None]:
    """Listens to what a service with Type=notify says."""
    address = str(folder / "notify")
    over = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(0.2)

        def listen() -> None:
            while not over.is_set():
                try:
                    started.heard.append(manager.recv(4096).decode())
                except TimeoutError:
                    continue

        listener = threading.Thread(target=listen)
        listener.start()
        started.environment["NOTIFY_SOCKET"] = address
        try:
            yield
        finally:
            over.set()
            listener.join()
