"""What a fetch leaves behind, and what it keeps."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.folder import PackFolder
from glm53_exl3.pack.manifest import MANIFEST_FILE, read_manifest
from glm53_exl3.pins import PackPin
from support.fetching import (
    COMMIT_A,
    COMMIT_B,
    SHARD_1,
    SHARD_2,
    Fetcher,
    Gatekeeper,
    Recorder,
    noise,
    pack_files,
    snapshot,
)
from support.hub_server import LISTING, Fault, Hub

FILES = pack_files()
ASIDE = Path(".glm53-exl3") / "aside"


def damage(path: Path) -> None:
    """Change one byte so that neither size nor time tells."""
    before = path.stat()
    contents = bytearray(path.read_bytes())
    contents[100] ^= 1
    path.write_bytes(contents)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def refused(error_id: str, fetcher: Fetcher, **arguments: object) -> HubError:
    with pytest.raises(HubError) as caught:
        fetcher(**arguments)
    assert caught.value.id == error_id, caught.value
    assert caught.value.hint
    return caught.value


def test_every_file_arrives_and_the_manifest_proves_it(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    recorder = Recorder()
    outcome = fetcher(recorder=recorder)
    size = sum(map(len, FILES.values()))
    assert (outcome.num_downloaded, outcome.bytes_downloaded, outcome.not_compared) == (4, size, "")
    assert recorder.progressed == recorder.totals == {"downloading 4 files": size}
    assert set(snapshot(fetcher.directory)) == {*FILES, MANIFEST_FILE}
    assert fetcher.holds(FILES)
    manifest = read_manifest(fetcher.directory)
    assert manifest is not None
    assert (manifest.repository, manifest.revision, manifest.commit) == ("me/pack", "main", COMMIT_A)
    assert (manifest.licence, manifest.complete, manifest.num_bytes) == ("mit", True, size)
    assert {file.path: file.sha256 for file in manifest.files} == {
        path: hashlib.sha256(contents).hexdigest() for path, contents in FILES.items()
    }


def test_the_manifest_is_there_before_the_first_file(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    seen = []
    hub.misbehave("config.json", Fault(before=lambda: seen.append(read_manifest(fetcher.directory))))
    fetcher()
    assert [(manifest.commit, manifest.complete) for manifest in seen] == [(COMMIT_A, False)]
    assert {file.path: file.sha256 for file in seen[0].files}[SHARD_1] == hashlib.sha256(FILES[SHARD_1]).hexdigest()


def test_files_are_of_one_commit_although_the_branch_moves(hub: Hub, fetcher: Fetcher) -> None:
    repository = hub.add("me/pack", FILES)
    repository.commits[COMMIT_B] = {path: b"moved" + contents for path, contents in FILES.items()}
    hub.misbehave(LISTING, Fault(before=lambda: repository.branches.update(main=COMMIT_B)))
    outcome = fetcher()
    assert outcome.commit.commit == COMMIT_A
    assert fetcher.holds(FILES)
    assert {request.revision for request in hub.requests if request.path != LISTING} == {COMMIT_A}


def test_a_second_fetch_asks_for_the_listing_only_and_writes_nothing(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher()
    before = {path: path.stat().st_mtime_ns for path in fetcher.directory.rglob("*")}
    hub.forget()
    recorder = Recorder()
    assert fetcher(recorder=recorder).num_downloaded == 0
    assert [request.path for request in hub.requests] == [LISTING]
    assert recorder.progressed == {}
    assert {path: path.stat().st_mtime_ns for path in fetcher.directory.rglob("*")} == before


def test_the_token_goes_to_the_hub_and_not_to_its_storage(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES, token="hf_right")
    fetcher.token = "hf_right"
    fetcher()
    assert {request.storage: request.authorized for request in hub.requests} == {False: True, True: False}


def test_files_downloaded_by_other_means_are_kept(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    (fetcher.directory / "notes").mkdir(parents=True)
    for path in (SHARD_1, "notes/empty.txt"):
        (fetcher.directory / path).write_bytes(FILES[path])
    recorder = Recorder()
    assert fetcher(recorder=recorder).num_downloaded == 2
    assert recorder.progressed["checking 2 files"] == len(FILES[SHARD_1])
    assert hub.asked(SHARD_1) == []
    assert fetcher.holds(FILES)


def test_files_with_other_contents_are_set_aside_and_not_lost(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher.directory.mkdir()
    mine = {"config.json": b"edited by its owner", SHARD_1: noise(len(FILES[SHARD_1]), 9), SHARD_2: b"short"}
    for path, contents in mine.items():
        (fetcher.directory / path).write_bytes(contents)
    recorder = Recorder()
    assert fetcher(recorder=recorder).num_downloaded == 4
    assert fetcher.holds(FILES)
    for path, contents in mine.items():
        aside = fetcher.directory / ASIDE / f"{path}.1"
        assert aside.read_bytes() == contents
        assert f"{path} was replaced; what was there before is {aside}" in recorder.notes


def test_a_new_commit_keeps_what_has_the_same_contents(hub: Hub, fetcher: Fetcher) -> None:
    repository = hub.add("me/pack", FILES)
    fetcher()
    repository.commits[COMMIT_B] = FILES | {SHARD_2: noise(700_000, 5)}
    repository.branches["main"] = COMMIT_B
    hub.forget()
    recorder = Recorder()
    assert fetcher(recorder=recorder).num_downloaded == 1
    assert {request.path for request in hub.requests} == {LISTING, SHARD_2}
    assert f"held commit {COMMIT_A[:12]}; main is {COMMIT_B[:12]} now" in recorder.text
    # Both shards are known by their hashes; the two files in git, which have none at the Hub, are read again.
    assert recorder.totals["checking 2 files"] == len(FILES["config.json"])
    assert fetcher.holds(repository.commits[COMMIT_B])
    assert (fetcher.directory / ASIDE / f"{SHARD_2}.1").read_bytes() == FILES[SHARD_2]


def test_a_folder_of_another_repository_is_refused_and_left_alone(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.add("me/other", {"config.json": b"other"})
    fetcher()
    before = snapshot(fetcher.directory)
    error = refused("other-repository", fetcher, name="me/other")
    assert (error.expected, error.found) == ("me/other", "me/pack")
    assert error.hint == f"glm53-exl3 fetch me/other --dir {fetcher.directory.with_name('other')}"
    assert snapshot(fetcher.directory) == before


def test_surplus_shards_are_refused_and_the_hint_cures_it(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher.directory.mkdir()
    surplus = fetcher.directory / "model-00003-of-00003.safetensors"
    surplus.write_bytes(b"of another quantization")
    error = refused("file-surplus", fetcher)
    assert error.found == surplus.name
    assert hub.asked(SHARD_1) == []
    subprocess.run(error.hint, shell=True, check=True)
    assert fetcher().num_downloaded == 4
    assert fetcher.directory.with_name("pack.surplus").joinpath(surplus.name).read_bytes() == b"of another quantization"


@pytest.mark.parametrize(
    "path", ["../escaped", "/etc/escaped", "a/../../escaped", "a//b", "./a", "a\\b", "c:evil", "a\nb", "x" * 300, ""]
)
def test_names_that_leave_the_folder_are_refused_before_anything_is_written(
    hub: Hub, fetcher: Fetcher, path: str
) -> None:
    hub.add("me/pack", FILES | {path: b"evil"})
    error = refused("file-name", fetcher)
    assert repr(path) in error.what
    assert not fetcher.directory.exists()
    assert [request.path for request in hub.requests] == [LISTING]


def test_our_own_names_in_a_repository_are_not_taken_and_that_is_said(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES | {MANIFEST_FILE: b"{}", ".glm53-exl3/aside/x": b"x"})
    recorder = Recorder()
    assert fetcher(recorder=recorder).num_downloaded == 4
    assert len([note for note in recorder.notes if "is not taken" in note]) == 2
    assert set(snapshot(fetcher.directory)) == {*FILES, MANIFEST_FILE}


def test_a_folder_in_the_place_of_a_file_is_named(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    (fetcher.directory / SHARD_1).mkdir(parents=True)
    assert str(fetcher.directory / SHARD_1) in refused("file-in-the-way", fetcher).what


def test_a_file_in_the_place_of_a_folder_is_named(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher.directory.mkdir()
    (fetcher.directory / "notes").write_bytes(b"mine")
    error = refused("file-in-the-way", fetcher)
    assert error.hint == f"mv {fetcher.directory / 'notes'} {fetcher.directory / 'notes.mine'}"


def test_a_link_that_leads_out_of_the_folder_is_not_followed(hub: Hub, fetcher: Fetcher, tmp_path: Path) -> None:
    hub.add("me/pack", FILES)
    outside = tmp_path / "outside"
    outside.mkdir()
    fetcher.directory.mkdir()
    (fetcher.directory / "notes").symlink_to(outside)
    assert "a link out of the folder" in refused("file-in-the-way", fetcher).what
    assert list(outside.iterdir()) == []


def test_a_link_to_a_file_with_the_right_contents_is_kept(hub: Hub, fetcher: Fetcher, tmp_path: Path) -> None:
    hub.add("me/pack", FILES)
    fetcher.directory.mkdir()
    elsewhere = tmp_path / "shard"
    elsewhere.write_bytes(FILES[SHARD_1])
    (fetcher.directory / SHARD_1).symlink_to(elsewhere)
    assert fetcher().num_downloaded == 3
    assert (fetcher.directory / SHARD_1).is_symlink()


def test_files_with_equal_contents_do_not_disturb_each_other(hub: Hub, fetcher: Fetcher) -> None:
    files = {f"copy-{number}.bin": FILES[SHARD_1] for number in range(4)}
    hub.add("me/pack", files)
    assert fetcher().num_downloaded == 4
    assert fetcher.holds(files)


def test_a_file_is_read_again_only_when_its_time_or_size_changed(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher()
    (fetcher.directory / SHARD_2).touch()
    recorder = Recorder()
    fetcher(recorder=recorder)
    assert recorder.progressed == {"checking 1 files": len(FILES[SHARD_2])}
    recorder = Recorder()
    fetcher(recorder=recorder)
    assert recorder.progressed == {}


def test_repair_finds_what_size_and_time_do_not_tell(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher()
    damage(fetcher.directory / SHARD_1)
    assert fetcher().num_downloaded == 0
    hub.forget()
    recorder = Recorder()
    assert fetcher(repair=True, recorder=recorder).num_downloaded == 1
    assert {request.path for request in hub.requests} == {LISTING, SHARD_1}
    assert f"{SHARD_1} has other contents than in commit {COMMIT_A[:12]}" in recorder.notes
    assert fetcher.holds(FILES)
    assert (fetcher.directory / ASIDE / f"{SHARD_1}.1").stat().st_size == len(FILES[SHARD_1])


def test_repair_stays_at_the_commit_of_the_manifest(hub: Hub, fetcher: Fetcher) -> None:
    repository = hub.add("me/pack", FILES)
    fetcher()
    repository.commits[COMMIT_B] = {"config.json": b"new"}
    repository.branches["main"] = COMMIT_B
    assert fetcher(repair=True).commit.commit == COMMIT_A
    manifest = read_manifest(fetcher.directory)
    assert manifest is not None
    assert (manifest.revision, manifest.complete) == ("main", True)


def test_checking_that_is_interrupted_does_not_begin_again(hub: Hub, fetcher: Fetcher) -> None:
    files = {f"model-{number}.safetensors": noise(300_000, number) for number in range(6)}
    hub.add("me/pack", files)
    fetcher.directory.mkdir()
    for path, contents in files.items():
        (fetcher.directory / path).write_bytes(contents)
    hashed = []

    def interrupt(title: str, num_bytes: int) -> None:
        hashed.append(num_bytes)
        if len(hashed) == 4:
            raise SystemExit(130)

    with pytest.raises(SystemExit):
        fetcher(recorder=Recorder(on_progress=interrupt))
    manifest = read_manifest(fetcher.directory)
    assert manifest is not None
    known = [file for file in manifest.files if file.verified_mtime_ns is not None]
    assert len(known) >= 1
    assert not manifest.complete
    recorder = Recorder()
    assert fetcher(recorder=recorder).num_downloaded == 0
    assert recorder.totals == {f"checking {6 - len(known)} files": 300_000 * (6 - len(known))}


def test_too_little_room_is_refused_before_anything_is_written(
    hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/pack", FILES)
    usage = shutil.disk_usage(fetcher.directory.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=50 << 20))
    error = refused("disk-full", fetcher)
    assert (error.expected, error.found) == ("65.3 MiB free", "50.0 MiB free")
    assert not fetcher.directory.exists()


def test_room_is_needed_only_for_what_is_missing(hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("me/pack", FILES)
    fetcher()
    (fetcher.directory / "config.json").unlink()
    usage = shutil.disk_usage(fetcher.directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=(64 << 20) + 27))
    assert fetcher().num_downloaded == 1


def test_a_disk_that_fills_up_is_named_and_the_rest_resumes(
    hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/pack", FILES)
    fetcher.parallel = 1
    fsync = os.fsync

    def full_at_the_first_shard(descriptor: int) -> None:
        if os.fstat(descriptor).st_size >= 700_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_at_the_first_shard)
        error = refused("disk-full", fetcher)
    assert error.found.startswith("No space left on device while writing ")
    assert error.found.endswith("; 683.6 KiB of 1.3 MiB are there, and the same command resumes")
    hub.forget()
    fetcher()
    assert fetcher.holds(FILES)
    assert hub.asked(SHARD_1) == []


def test_two_fetches_into_one_folder_do_not_run_at_once(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    with PackFolder(fetcher.directory).locked():
        refused("fetch-running", fetcher)
    assert fetcher().num_downloaded == 4


def test_a_fetch_that_ended_between_plan_and_lock_is_noticed(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)

    class Slow(Gatekeeper):
        def before_download(self, num_bytes: int) -> None:
            fetcher()

    assert "just now" in refused("fetch-running", fetcher, gate=Slow()).what
    assert fetcher().num_downloaded == 0
    assert not (fetcher.directory / ASIDE).exists()


def test_a_folder_that_may_not_be_written_is_named(hub: Hub, fetcher: Fetcher, tmp_path: Path) -> None:
    hub.add("me/pack", FILES)
    blocking = tmp_path / "file"
    blocking.write_bytes(b"")
    fetcher.directory = blocking / "pack"
    assert refused("target-unusable", fetcher).found == "Not a directory"


def test_the_gate_is_asked_once_and_before_the_first_byte(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES, licence="cc-by-nc-nd-4.0")
    gate = Gatekeeper(accepts=False)
    refused("licence-not-accepted", fetcher, gate=gate)
    assert not fetcher.directory.exists()
    assert gate.terms[0].objections == (
        "cc-by-nc-nd-4.0 forbids commercial use",
        "cc-by-nc-nd-4.0 forbids to redistribute changed versions",
    )
    gate = Gatekeeper()
    fetcher(gate=gate)
    assert (len(gate.terms), gate.downloads) == (1, [sum(map(len, FILES.values()))])
    gate = Gatekeeper(accepts=False)
    fetcher(gate=gate)
    assert (gate.terms, gate.downloads) == ([], [])


def test_a_pin_is_compared_with_what_the_hub_says(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES, licence="apache-2.0")
    pin = PackPin("tiny", "me/pack", COMMIT_A, "pack", "cc-by-nc-4.0", 3, 5)
    fetcher.packs = {"tiny": pin}
    recorder, gate = Recorder(), Gatekeeper()
    fetcher("TINY", recorder=recorder, gate=gate)
    assert [request.revision for request in hub.asked(LISTING)] == [COMMIT_A]
    assert "this release knows tiny with 3 shards of 5 bytes; this commit has 2 of 1,400,000" in recorder.text
    assert gate.terms[0].objections == ("cc-by-nc-4.0 forbids commercial use",)
    assert gate.terms[0].notes == ("the Hub states the licence apache-2.0, this release knows cc-by-nc-4.0",)


def test_a_manifest_that_cannot_be_read_is_named_with_its_remedy(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher()
    manifest = fetcher.directory / MANIFEST_FILE
    manifest.write_text(re.sub(COMMIT_A, "nonsense", manifest.read_text()))
    with pytest.raises(Exception, match="manifest-invalid") as caught:
        fetcher()
    assert "remove glm53-exl3-manifest.json" in caught.value.hint
    manifest.unlink()
    hub.forget()
    assert fetcher().num_downloaded == 0
    assert hub.asked(SHARD_1) == []
