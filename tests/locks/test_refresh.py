"""The refreshing command, with another index in place of the real one."""

from __future__ import annotations

import json
from pathlib import Path

import lock_making
import package_index
import pytest
import refresh
from packaging.metadata import Metadata
from runtime_files import read
from wheel_files import Wheel

from support.tiny_locks import SYSTEM, entry, tiny_pins

METADATA = {
    "plain": ["pigment; python_version >= '3.12'", "sound"],
    "pigment": [],
}


def listed(name: str) -> package_index.Listed:
    return package_index.Listed(Wheel.from_entry("1.0", entry(name, "1.0", [])), f"index/{name}", 1000)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one runtime, `demo`, and an index that has two distributions."""
    (tmp_path / "nix/locks/requirements").mkdir(parents=True)
    lines = [f'systems = ["{SYSTEM}"]', "[[group]]", 'source = "hand"', 'requirements = ["plain"]']
    lines += ["[[exception]]", 'distribution = "plain"', 'requires = "sound"', 'reason = "it is silent"']
    (tmp_path / "nix/locks/requirements/demo.toml").write_text("\n".join(lines))
    (tmp_path / "pins.json").write_text(json.dumps(tiny_pins()))

    def resolve(*_: object) -> dict[str, str]:
        return {"plain": "1.0", "pigment": "1.0"}

    def metadata(file: package_index.Listed) -> Metadata:
        raw = {"metadata_version": "2.1", "name": file.wheel.name, "version": "1.0"}
        return Metadata.from_raw({**raw, "requires_dist": METADATA[file.wheel.name]}, validate=False)

    monkeypatch.setattr(lock_making, "PINS", tmp_path / "pins.json")
    monkeypatch.setattr(lock_making, "lock_path", lambda runtime: tmp_path / f"nix/locks/{runtime}.json")
    monkeypatch.setattr(refresh, "lock_path", lambda runtime: tmp_path / f"nix/locks/{runtime}.json")
    monkeypatch.setattr(refresh, "RUNTIMES", ("demo",))
    monkeypatch.setattr(lock_making, "resolve", resolve)
    monkeypatch.setattr(lock_making, "wheels_of", lambda versions, target: {name: listed(name) for name in versions})
    monkeypatch.setattr(lock_making, "metadata", metadata)
    monkeypatch.setattr(lock_making, "read", lambda runtime: read(runtime, tmp_path))
    return tmp_path


@pytest.mark.parametrize("arguments", [[], ["demo"], ["--upgrade"]])
def test_a_lock_is_written_whole(repository: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    refresh.main(arguments)
    lock = json.loads((repository / "nix/locks/demo.json").read_text(encoding="utf-8"))
    assert lock["requirements"] == [{"requirement": "plain", "source": "hand"}]
    assert lock["exceptions"] == [{"distribution": "plain", "requires": "sound", "reason": "it is silent"}]
    plain = entry("plain", "1.0", ["pigment", "sound"])
    assert lock["systems"] == {SYSTEM: {"pigment": entry("pigment", "1.0", []), "plain": plain}}
    assert capsys.readouterr().out == f"demo {SYSTEM}: 2 wheels, 0.00 GB\n"


def test_a_closure_that_uv_and_the_walk_see_differently_is_not_written(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METADATA, "plain", ["sound"])
    with pytest.raises(SystemExit, match=r"demo, aarch64-linux: only uv or only the walk has \['pigment'\]"):
        refresh.main(["demo"])
    assert not (repository / "nix/locks/demo.json").exists()


def test_an_unknown_runtime_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        refresh.main(["demo", "forked"])
    assert "no lock is called forked; there are demo, and pins" in capsys.readouterr().err
    assert not (repository / "nix/locks/demo.json").exists()
