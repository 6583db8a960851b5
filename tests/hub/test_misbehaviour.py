"""A Hub that misbehaves: each case ends in the right state and with the right message."""

from __future__ import annotations

import json
import time

import pytest

from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.folder import PackFolder
from glm53_exl3.hub.retry import RetryPolicy
from glm53_exl3.pack.manifest import read_manifest
from support.fetching import COMMIT_A, SHARD_1, SHARD_2, Fetcher, Recorder, noise, pack_files
from support.hub_server import LISTING, Fault, Hub, git_sha1

FILES = pack_files()
SIZE = len(FILES[SHARD_1])
BUSY = Fault(status=503)


def failure(error_id: str, fetcher: Fetcher, recorder: Recorder | None = None) -> HubError:
    with pytest.raises(HubError) as caught:
        fetcher(recorder=recorder)
    assert caught.value.id == error_id, caught.value
    assert caught.value.hint
    return caught.value


def starts(hub: Hub, path: str) -> list[int]:
    return [request.start for request in hub.asked(path)]


def test_a_connection_cut_in_the_middle_resumes_where_it_stopped(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(cut=300_000), Fault(cut=100_000))
    recorder = Recorder()
    fetcher(recorder=recorder)
    assert fetcher.holds(FILES)
    assert starts(hub, SHARD_1) == [0, 300_000, 400_000]
    assert hub.bytes_sent[SHARD_1] == SIZE
    assert recorder.progressed == recorder.totals


def test_any_number_of_cuts_is_survived_as_long_as_something_arrives(hub: Hub, fetcher: Fetcher) -> None:
    contents = noise(12 * 300_000)
    hub.add("me/pack", {SHARD_1: contents})
    hub.misbehave(SHARD_1, *[Fault(cut=300_000)] * 12)
    fetcher()
    assert (fetcher.directory / SHARD_1).read_bytes() == contents
    assert len(hub.asked(SHARD_1)) > RetryPolicy().attempts


def test_a_hub_that_brings_nothing_more_ends_it_and_the_same_command_resumes(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(cut=600_000), *[Fault(cut=0)] * 5)
    error = failure("hub-unreachable", fetcher)
    assert "6 times in a row" in error.found
    assert "are there, and the same command resumes" in error.found
    manifest = read_manifest(fetcher.directory)
    assert manifest is not None
    assert not manifest.complete
    hub.forget()
    fetcher()
    assert fetcher.holds(FILES)
    assert starts(hub, SHARD_1) == [600_000]
    assert hub.bytes_sent[SHARD_1] == SIZE - 600_000


def test_a_server_that_ignores_ranges_begins_again_and_ends_right(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(cut=600_000), Fault(whole=True))
    recorder = Recorder()
    fetcher(recorder=recorder)
    assert fetcher.holds(FILES)
    assert recorder.progressed == recorder.totals


def test_a_server_that_always_sends_the_same_beginning_is_given_up(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, *[Fault(cut=600_000, whole=True)] * 20)
    failure("hub-unreachable", fetcher)
    assert len(hub.asked(SHARD_1)) == RetryPolicy().attempts


@pytest.mark.parametrize("fault", [Fault(wrong=True), Fault(longer=True)])
def test_wrong_contents_once_are_downloaded_again(hub: Hub, fetcher: Fetcher, fault: Fault) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, fault)
    recorder = Recorder()
    fetcher(recorder=recorder)
    assert fetcher.holds(FILES)
    assert f"{SHARD_1} arrived with wrong contents; downloading it once more" in recorder.notes
    assert starts(hub, SHARD_1) == [0, 0]
    assert recorder.progressed == recorder.totals


def test_wrong_contents_twice_are_refused_and_the_other_files_arrive(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(wrong=True), Fault(wrong=True))
    error = failure("file-hash", fetcher)
    assert error.what == f"{SHARD_1} of me/pack arrived with wrong contents, 2 times"
    manifest = read_manifest(fetcher.directory)
    assert manifest is not None
    assert error.expected == f"sha256 {manifest.files[1].sha256}"
    assert error.found.startswith("sha256 ")
    assert not (fetcher.directory / SHARD_1).exists()
    assert fetcher.holds({path: contents for path, contents in FILES.items() if path != SHARD_1})
    hub.forget()
    fetcher()
    assert fetcher.holds(FILES)
    assert {request.path for request in hub.requests} == {LISTING, SHARD_1}


def test_wrong_contents_of_a_file_in_git_are_refused_by_its_blob_id(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave("config.json", Fault(wrong=True), Fault(wrong=True))
    assert failure("file-hash", fetcher).expected == f"git blob {git_sha1(FILES['config.json'])}"
    assert not (fetcher.directory / "config.json").exists()


def test_a_partial_file_that_is_not_the_beginning_is_noticed(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(cut=600_000), *[Fault(cut=0)] * 5)
    failure("hub-unreachable", fetcher)
    (partial,) = (path for path in fetcher.directory.rglob("partial/*") if path.stat().st_size == 600_000)
    partial.write_bytes(noise(600_000, 77))
    fetcher()
    assert fetcher.holds(FILES)


def test_nothing_is_left_of_partial_files_in_the_end(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    with PackFolder(fetcher.directory).locked():
        (fetcher.directory / ".glm53-exl3/partial/of-an-older-commit").write_bytes(b"x")
    fetcher()
    assert not (fetcher.directory / ".glm53-exl3").exists()


@pytest.mark.parametrize(
    "headers", [(("Retry-After", "1"),), (("RateLimit", '"resolvers";r=0;t=1'), ("Retry-After", "70"))]
)
def test_too_many_requests_waits_as_long_as_asked(
    hub: Hub, fetcher: Fetcher, headers: tuple[tuple[str, str], ...]
) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(status=429, headers=headers))
    recorder, began = Recorder(), time.monotonic()
    fetcher(recorder=recorder)
    assert 1.0 <= time.monotonic() - began < 30.0
    assert fetcher.holds(FILES)
    assert "(HTTP status 429); attempt 2 in 1 s" in recorder.text


def test_a_wait_longer_than_a_quarter_of_an_hour_is_not_waited(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(status=429, headers=(("Retry-After", "3600"),)))
    assert failure("hub-busy", fetcher).found.startswith("HTTP status 429, 1 time in a row, asking to wait 1:00:00; ")


def test_server_errors_are_tried_again_and_given_up_in_the_end(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, BUSY, Fault(status=500), Fault(status=502), Fault(status=504))
    fetcher()
    assert fetcher.holds(FILES)
    (fetcher.directory / SHARD_1).unlink()
    hub.misbehave(SHARD_1, *[BUSY] * 6)
    error = failure("hub-busy", fetcher)
    assert error.found.startswith("HTTP status 503, 6 times in a row; ")
    assert "the storage of" in error.what


def test_an_address_of_storage_that_ran_out_is_asked_for_again(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(status=403))
    fetcher()
    assert fetcher.holds(FILES)
    assert [request.storage for request in hub.requests if request.path == SHARD_1] == [False, True, False, True]


def test_a_stalled_connection_is_left_and_resumed(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(SHARD_1, Fault(hold=600_000))
    fetcher.timeout_seconds = 0.5
    recorder = Recorder()
    fetcher(recorder=recorder)
    assert fetcher.holds(FILES)
    assert starts(hub, SHARD_1) == [0, 600_000]
    assert hub.bytes_sent[SHARD_1] == SIZE
    assert "ReadTimeout" in recorder.text


def test_a_file_that_is_listed_and_not_there_keeps_no_other_from_arriving(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave("config.json", Fault(status=404))
    error = failure("hub-answer", fetcher)
    assert "config.json of me/pack" in error.what
    assert fetcher.holds({SHARD_1: FILES[SHARD_1], SHARD_2: FILES[SHARD_2]})


def test_a_busy_listing_is_asked_for_again(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(LISTING, BUSY, Fault(status=429, headers=(("Retry-After", "0"),)))
    fetcher()
    assert len(hub.asked(LISTING)) == 3


@pytest.mark.parametrize(
    "body",
    [
        b"<html>log in to the network</html>",
        b"[]",
        b"null",
        b"{}",
        json.dumps({"id": "me/pack", "sha": COMMIT_A, "siblings": []}).encode(),
        json.dumps({"id": "me/pack", "sha": "main", "siblings": [{"rfilename": "a"}]}).encode(),
        json.dumps({"id": "me/pack", "sha": COMMIT_A, "siblings": [{"rfilename": "a"}]}).encode(),
        json.dumps({"id": "me/pack", "sha": COMMIT_A, "siblings": [{"rfilename": "a", "size": -1}]}).encode(),
        json.dumps({"id": "me/pack", "sha": COMMIT_A, "siblings": [{"rfilename": "a", "size": 1}]}).encode(),
        json.dumps({"id": "me/pack", "sha": COMMIT_A, "siblings": 7}).encode(),
    ],
)
def test_a_listing_that_is_none_is_refused(hub: Hub, fetcher: Fetcher, body: bytes) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(LISTING, Fault(status=200, body=body))
    failure("hub-answer", fetcher)
    assert not fetcher.directory.exists()


def test_an_unknown_repository_is_named(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pakc", FILES)
    error = failure("repository-unknown", fetcher)
    assert error.what == f"me/pack does not exist at {hub.url}, or it is private"
    assert error.found == "no token was sent"


def test_a_private_repository_needs_a_token_with_access(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES, token="hf_right")
    failure("repository-unknown", fetcher)
    fetcher.token = "hf_other"
    error = failure("repository-unknown", fetcher)
    assert error.found == "the token gives no access to it"
    assert "hf_other" not in error.render()
    fetcher.token = "hf_right"
    assert fetcher().num_downloaded == 4


def test_a_token_that_is_not_valid_is_refused_by_name(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher.token = "hf_expired"
    error = failure("token-refused", fetcher)
    assert "hf_expired" not in error.render()
    assert "hf auth login" in error.hint


@pytest.mark.parametrize(("token", "found"), [(None, "no token"), ("hf_x", "a token of a user who did not")])
def test_a_gated_repository_says_where_to_accept_its_terms(
    hub: Hub, fetcher: Fetcher, token: str | None, found: str
) -> None:
    hub.add("me/pack", FILES, gated=True)
    fetcher.token = token
    error = failure("repository-gated", fetcher)
    assert error.found == found
    assert f"{hub.url}/me/pack" in error.hint


def test_an_unknown_revision_is_named(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    with pytest.raises(HubError) as caught:
        fetcher("me/pack@v9")
    assert (caught.value.id, caught.value.what) == ("revision-unknown", "me/pack has no revision 'v9'")


def test_access_that_is_forbidden_is_not_tried_again(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    hub.misbehave(LISTING, Fault(status=403, headers=(("X-Error-Message", "your address is blocked"),)))
    assert failure("hub-refused", fetcher).found == "your address is blocked"
    assert len(hub.asked(LISTING)) == 1


def test_a_server_that_echoes_the_token_does_not_get_it_printed(hub: Hub, fetcher: Fetcher) -> None:
    hub.add("me/pack", FILES)
    fetcher.token = "hf_secret"
    hub.misbehave(LISTING, Fault(status=403, headers=(("X-Error-Message", "Bearer hf_secret is blocked"),)))
    assert failure("hub-refused", fetcher).found == "Bearer <token> is blocked"


def test_an_endpoint_that_is_no_address_is_named(fetcher: Fetcher) -> None:
    fetcher.url = "hub.example"
    assert "hub.example" in failure("hub-endpoint", fetcher).what
