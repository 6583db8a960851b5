"""Which licences have to be accepted."""

from __future__ import annotations

import pytest

from glm53_exl3.hub.licences import terms_of
from glm53_exl3.pins import load_pins


@pytest.mark.parametrize(
    "licence",
    ["mit", "apache-2.0", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-3.0", "agpl-3.0", "lgpl-2.1", "gpl", "isc"],
)
def test_free_licences_need_no_consent(licence: str) -> None:
    assert terms_of(licence).objections == ()


@pytest.mark.parametrize(
    ("licence", "objections"),
    [
        ("cc-by-nc-4.0", ("cc-by-nc-4.0 forbids commercial use",)),
        ("cc-by-nc-sa-4.0", ("cc-by-nc-sa-4.0 forbids commercial use",)),
        ("cc-by-nd-4.0", ("cc-by-nd-4.0 forbids to redistribute changed versions",)),
        (
            "cc-by-nc-nd-4.0",
            (
                "cc-by-nc-nd-4.0 forbids commercial use",
                "cc-by-nc-nd-4.0 forbids to redistribute changed versions",
            ),
        ),
        ("other", ("the terms of other are not known to this program: read them",)),
        ("llama3", ("the terms of llama3 are not known to this program: read them",)),
        ("mit-or-not", ("the terms of mit-or-not are not known to this program: read them",)),
        ("", ("the repository states no licence",)),
        ("mit, cc-by-nc-4.0", ("cc-by-nc-4.0 forbids commercial use",)),
    ],
)
def test_others_are_named_with_what_they_forbid(licence: str, objections: tuple[str, ...]) -> None:
    assert terms_of(licence).objections == objections


def test_the_terms_of_other_are_named_where_the_card_names_them() -> None:
    assert terms_of("other", None, "https://terms.example").objections == (
        "the terms of other (https://terms.example) are not known to this program: read them",
    )


def test_the_stricter_of_hub_and_pin_counts() -> None:
    terms = terms_of("mit", "cc-by-nc-4.0")
    assert terms.objections == ("cc-by-nc-4.0 forbids commercial use",)
    assert terms.notes == ("the Hub states the licence mit, this release knows cc-by-nc-4.0",)
    assert terms_of("cc-by-nc-4.0", "mit").objections == ("cc-by-nc-4.0 forbids commercial use",)
    assert terms_of("mit", "mit").notes == ()


def test_of_our_pins_only_the_draft_has_to_be_accepted() -> None:
    strict = {pin.name for pin in load_pins().packs.values() if terms_of(pin.licence, pin.licence).objections}
    assert strict == {"DFlash2"}
