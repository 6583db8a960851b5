"""Inputs of the flake, which Nix wants written out in flake.nix and flake.lock, made from the pins and held to them.

    inputs.py --check      one line for each difference, exit code 1 when there is one
    inputs.py --write      rewrite flake.lock and the inputs in flake.nix

Sources are locked by revision alone: their hash can be computed only where GitHub can be reached, and the revision
already names the content. `nix flake lock` on such a machine may add `narHash` to them; that is not a difference.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?<=  inputs = \{\n).*?(?=  \};\n)", re.DOTALL)


@dataclass(frozen=True)
class Input:
    """One input of the flake.

    Attributes:
        name: of the input.
        repository: on GitHub, as owner/name.
        revision: of git.
        hash: of the tree as Nix computes it, empty where none is pinned.
        last_modified: of the commit, in seconds since 1970; 0 where none is pinned.
        is_flake: whether it has outputs of its own; sources have none.
    """

    name: str
    repository: str
    revision: str
    hash: str = ""
    last_modified: int = 0
    is_flake: bool = False

    @property
    def address(self) -> str:
        """As written in flake.nix."""
        return f"github:{self.repository}/{self.revision}"

    def node(self) -> dict[str, Any]:
        """Its node of flake.lock."""
        owner, repository = self.repository.split("/")
        original = {"owner": owner, "repo": repository, "rev": self.revision, "type": "github"}
        locked: dict[str, Any] = dict(original)
        if self.hash:
            locked |= {"lastModified": self.last_modified, "narHash": self.hash}
        node: dict[str, Any] = {"locked": dict(sorted(locked.items())), "original": original}
        return node if self.is_flake else {"flake": False, **node}


def inputs(pins: Mapping[str, Any]) -> list[Input]:
    """Inputs that the pins ask for, in the order in which flake.nix names them."""
    nixpkgs, fork, exllamav3 = pins["nixpkgs"], pins["runtimes"]["fork"]["vllm"], pins["exllamav3"]
    return [
        Input(
            "nixpkgs",
            nixpkgs["repository"],
            nixpkgs["revision"],
            nixpkgs["hash"],
            nixpkgs["last_modified"],
            is_flake=True,
        ),
        Input("vllm-src", fork["repository"], fork["revision"]),
        Input("exllamav3-src", exllamav3["repository"], exllamav3["revision"]),
    ]


def lock(wanted: list[Input]) -> dict[str, Any]:
    """The whole of flake.lock."""
    nodes = {one.name: one.node() for one in wanted}
    nodes["root"] = {"inputs": {name: name for name in sorted(nodes)}}
    return {"nodes": dict(sorted(nodes.items())), "root": "root", "version": 7}


def block(wanted: list[Input]) -> str:
    """What stands between the braces of `inputs` in flake.nix."""
    lines = []
    for one in wanted:
        lines.append(f'    {one.name}.url = "{one.address}";')
        if not one.is_flake:
            lines.append(f"    {one.name}.flake = false;")
    return "\n".join(lines) + "\n"


def differences(wanted: list[Input], flake: str, locked: Mapping[str, Any]) -> list[str]:
    """One sentence for each way in which flake.nix or flake.lock differs from the pins."""
    found = []
    match = _BLOCK.search(flake)
    written = dict(re.findall(r'^    ([a-z0-9-]+)\.url = "([^"]+)";$', match[0], re.MULTILINE)) if match else {}
    nodes = {name: node for name, node in locked["nodes"].items() if name != "root"}
    for one in wanted:
        if written.get(one.name) != one.address:
            found.append(f"flake.nix: {one.name} is {written.get(one.name, 'missing')}, pins.json says {one.address}")
        found += _node_differences(one, nodes.get(one.name))
    names = {one.name for one in wanted}
    found += [f"flake.nix: {name} is not in pins.json" for name in sorted(written.keys() - names)]
    found += [f"flake.lock: {name} is not in pins.json" for name in sorted(nodes.keys() - names)]
    if sorted(locked["nodes"]["root"]["inputs"]) != sorted(nodes):
        found.append("flake.lock: the inputs of `root` are not its nodes")
    return found


def _node_differences(one: Input, node: Mapping[str, Any] | None) -> list[str]:
    if node is None:
        return [f"flake.lock: {one.name} is missing"]
    wanted = one.node()
    found = []
    for part in ("locked", "original"):
        # A machine that reaches GitHub may have added what it computed.
        for key, value in wanted[part].items():
            there = node[part].get(key)
            if there != value:
                found.append(f"flake.lock: {part}.{key} of {one.name} is {there}, pins.json says {value}")
    if node.get("flake", True) is not one.is_flake:
        found.append(f"flake.lock: {one.name} {'is' if one.is_flake else 'is not'} a flake")
    return found


def main() -> int:
    """Exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true")
    what.add_argument("--write", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args()
    wanted = inputs(json.loads((options.root / "nix" / "pins.json").read_text(encoding="utf-8")))
    flake, locked = options.root / "flake.nix", options.root / "flake.lock"
    if options.write:
        text = flake.read_text(encoding="utf-8")
        flake.write_text(_BLOCK.sub(lambda _: block(wanted), text, count=1), encoding="utf-8")
        locked.write_text(json.dumps(lock(wanted), indent=2) + "\n", encoding="utf-8")
        return 0
    found = differences(wanted, flake.read_text(encoding="utf-8"), json.loads(locked.read_text(encoding="utf-8")))
    if found:
        print(*(f"error: input-differs: {line}" for line in found), sep="\n", file=sys.stderr)
        print("\nhint: python tools/flake/inputs.py --write", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
