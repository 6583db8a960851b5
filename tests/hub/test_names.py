"""What a user may ask for, and where a fetch puts it."""

from __future__ import annotations

import pytest

from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.names import parse_wanted
from glm53_exl3.pins import load_pins

PACKS = load_pins().packs
DRAFT = PACKS["DFlash2"]


@pytest.mark.parametrize("typed", ["K2", "k2", "K2K3-MIX", "dflash2"])
def test_a_name_is_matched_without_regard_to_case(typed: str) -> None:
    wanted = parse_wanted(typed, None, PACKS)
    assert wanted.pin is not None
    assert wanted.pin.name.casefold() == typed.casefold()
    assert wanted.repository == wanted.pin.repository
    assert not wanted.explicit


def test_a_name_stands_for_the_pinned_commit_where_there_is_one() -> None:
    assert parse_wanted("DFlash2", None, PACKS).revision == DRAFT.commit
    assert parse_wanted("K2", None, PACKS).revision == (PACKS["K2"].commit or "main")


def test_a_revision_that_is_named_comes_before_the_pin() -> None:
    for wanted in (parse_wanted("DFlash2@main", None, PACKS), parse_wanted("DFlash2", "main", PACKS)):
        assert (wanted.revision, wanted.explicit) == ("main", True)


def test_a_repository_spelled_out_is_its_branch_main_and_keeps_its_pin_for_the_licence() -> None:
    wanted = parse_wanted(DRAFT.repository.upper(), None, PACKS)
    assert (wanted.revision, wanted.pin) == ("main", DRAFT)
    wanted = parse_wanted("me/My_pack.v1@refs/pr/3", None, PACKS)
    assert (wanted.repository, wanted.revision, wanted.basename) == ("me/My_pack.v1", "refs/pr/3", "My_pack.v1")
    assert wanted.pin is None


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("K3", "K2"),
        ("k2k3", "K2K3-mix"),
        ("dflash", "DFlash2"),
        ("GLM-5.3-Flash-EXL3-K2", "K2"),
        ("vcruz305/GLM-5.3/Flash-EXL3-K2", "K2"),
        ("../K2", "K2"),
        ("owner/../repo", "K2"),
        ("", "K2"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(typed: str, nearest: str) -> None:
    with pytest.raises(HubError) as caught:
        parse_wanted(typed, None, PACKS)
    assert caught.value.id == "pack-unknown"
    assert caught.value.hint == f"glm53-exl3 fetch {nearest}"
    assert "K2, K2K3-mix, DFlash2" in caught.value.expected


@pytest.mark.parametrize("revision", ["", " ", "a\nb", " main", "a b", "a\x00"])
def test_a_revision_that_names_nothing_is_refused(revision: str) -> None:
    for typed, option in ((f"K2@{revision}", None), ("K2", revision)):
        with pytest.raises(HubError, match="revision-empty"):
            parse_wanted(typed, option, PACKS)


def test_two_revisions_are_refused() -> None:
    with pytest.raises(HubError, match="revision-twice"):
        parse_wanted("K2@main", "main", PACKS)


@pytest.mark.parametrize(
    ("revision", "fetched", "same"),
    [
        ("main", "main", True),
        ("a" * 40, "main", True),
        ("aaaaaaa", "main", True),
        ("aaaaaa", "main", False),
        ("main", "v2", False),
        ("b" * 40, "main", False),
        ("v2", "main", False),
    ],
)
def test_a_folder_holds_what_is_wanted_by_revision_or_commit(revision: str, fetched: str, same: bool) -> None:
    assert parse_wanted("K2", revision, PACKS).means(fetched, "a" * 40) == same
