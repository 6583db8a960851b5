"""Without the Hub: what is there is used when it is known to be whole, and never silently."""

from __future__ import annotations

import pytest

from glm53_exl3.hub.errors import HubError
from glm53_exl3.pack.manifest import read_manifest
from support.fetching import COMMIT_A, COMMIT_B, SHARD_1, Fetcher, Recorder, pack_files, snapshot
from support.hub_server import LISTING, Fault, Hub

FILES = pack_files()
NOWHERE = "http://127.0.0.1:9"


def failure(error_id: str, fetcher: Fetcher, **arguments: object) -> HubError:
    with pytest.raises(HubError) as caught:
        fetcher(**arguments)
    assert caught.value.id == error_id, caught.value
    assert caught.value.hint
    return caught.value


@pytest.fixture
def fetched(hub: Hub, fetcher: Fetcher) -> Fetcher:
    hub.add("me/pack", FILES)
    fetcher()
    hub.forget()
    return fetcher


def test_a_whole_pack_is_used_and_nothing_is_read_or_asked(hub: Hub, fetched: Fetcher) -> None:
    (fetched.directory / SHARD_1).touch()
    recorder = Recorder()
    outcome = fetched(offline=True, recorder=recorder)
    assert (outcome.commit.commit, outcome.not_compared) == (COMMIT_A, "--offline was given")
    assert recorder.progressed == {}
    assert hub.requests == []


def test_a_hub_out_of_reach_is_not_fatal_for_a_whole_pack(fetched: Fetcher) -> None:
    fetched.url = NOWHERE
    outcome = fetched()
    assert outcome.commit.commit == COMMIT_A
    assert outcome.not_compared.startswith(f"no answer from {NOWHERE} for me/pack (ConnectError: ")


def test_a_busy_hub_is_not_fatal_for_a_whole_pack(hub: Hub, fetched: Fetcher) -> None:
    hub.misbehave(LISTING, *[Fault(status=503)] * 3)
    assert "HTTP status 503, 3 times in a row" in fetched().not_compared


def test_an_answer_of_the_hub_is_not_taken_for_its_absence(hub: Hub, fetched: Fetcher) -> None:
    del hub.repositories["me/pack"]
    failure("repository-unknown", fetched)


def test_a_missing_file_is_named(fetched: Fetcher) -> None:
    (fetched.directory / SHARD_1).unlink()
    error = failure("pack-incomplete", fetched, offline=True)
    assert error.what.startswith("1 of 4 files of me/pack are missing, damaged or not known to be right, and --offline")
    assert error.found == f"all but {SHARD_1}"


def test_a_short_file_is_named(fetched: Fetcher) -> None:
    with (fetched.directory / SHARD_1).open("r+b") as file:
        file.truncate(10)
    fetched.url = NOWHERE
    assert failure("pack-incomplete", fetched).found == f"all but {SHARD_1}"


def test_without_a_manifest_nothing_is_claimed(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    failure("hub-offline", fetcher, offline=True)
    fetcher.url = NOWHERE
    error = failure("hub-unreachable", fetcher)
    assert "6 times in a row" in error.found
    assert not fetcher.directory.exists()


def test_another_commit_is_not_taken_for_the_wanted_one(fetched: Fetcher) -> None:
    error = failure("other-commit", fetched, offline=True, revision=COMMIT_B)
    assert error.found == f"commit {COMMIT_A} of revision main"
    failure("other-commit", fetched, offline=True, revision="v2")
    assert fetched(offline=True, revision=COMMIT_A[:8]).commit.commit == COMMIT_A


def test_repair_reads_everything_and_names_what_is_damaged(fetched: Fetcher) -> None:
    assert fetched(offline=True, repair=True).num_downloaded == 0
    path = fetched.directory / SHARD_1
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    before = snapshot(fetched.directory)[SHARD_1]
    assert failure("pack-incomplete", fetched, offline=True, repair=True).found == f"all but {SHARD_1}"
    assert snapshot(fetched.directory)[SHARD_1] == before
    # What was found damaged is not complete any more for the next, either.
    assert failure("pack-incomplete", fetched, offline=True).found == f"all but {SHARD_1}"


def test_a_fetch_that_ended_before_its_last_word_is_completed_without_the_hub(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher()
    manifest = fetcher.directory / "glm53-exl3-manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    assert fetcher(offline=True).not_compared == "--offline was given"
    completed = read_manifest(fetcher.directory)
    assert completed is not None
    assert completed.complete


def test_a_file_whose_hash_was_never_known_is_not_called_right(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave("config.json", Fault(status=404))
    failure("hub-answer", fetcher)
    (fetcher.directory / "config.json").write_bytes(FILES["config.json"])
    assert failure("pack-incomplete", fetcher, offline=True).found == "all but config.json"
    assert fetcher().num_downloaded == 0
