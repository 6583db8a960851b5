"""Which licences have to be accepted before anything is downloaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

#: Licence ids of the Hub that allow commercial use and redistribution, also of changed versions.
_FREE: Final = re.compile(
    r"mit|isc|apache-2\.0|0bsd|bsd|bsd-[23]-clause(-clear)?|bsl-1\.0|zlib|ncsa|postgresql|unlicense|wtfpl|artistic-2\.0"
    r"|(a|l)?gpl(-[23]\.[01])?|gfdl|mpl-2\.0|epl-[12]\.0|eupl-1\.[12]|ecl-2\.0|osl-3\.0|afl-3\.0|ofl-1\.1|lppl-1\.3c"
    r"|ms-pl|mulanpsl-2\.0|cc0-1\.0|cc-by(-sa)?-[234]\.[05]|odbl|odc-by|pddl|etalab-2\.0|cdla-permissive-[12]\.0"
)
_NON_COMMERCIAL = re.compile(r"(^|-)(nc|noncommercial)(-|$)")
_NO_DERIVATIVES = re.compile(r"(^|-)nd(-|$)")


@dataclass(frozen=True)
class Terms:
    """The licence of what is to be fetched.

    Attributes:
        licence: its id in lower case; empty when none is stated.
        objections: why it has to be accepted, one sentence each; empty when it need not be.
        notes: what else there is to say.
    """

    licence: str
    objections: tuple[str, ...]
    notes: tuple[str, ...] = ()


def terms_of(licence: str, pinned: str | None = None, link: str = "") -> Terms:
    """What a licence asks for.

    Args:
        licence: ids as the Hub states them, comma-separated when there are several; empty for none.
        pinned: id that this release knows for the repository; the stricter of the two counts.
        link: name or address of the terms of a licence that is `other`.
    """
    notes = []
    ids = [part.strip() for part in licence.split(",") if part.strip()]
    objections = [text for each in ids for text in _objections(each, link)]
    if not ids:
        objections.append("the repository states no licence")
    if pinned is not None and pinned != licence:
        notes.append(f"the Hub states the licence {licence or '(none)'}, this release knows {pinned}")
        objections += _objections(pinned, "")
    return Terms(licence, tuple(dict.fromkeys(objections)), tuple(notes))


def _objections(licence: str, link: str) -> list[str]:
    if _FREE.fullmatch(licence):
        return []
    found = []
    if _NON_COMMERCIAL.search(licence):
        found.append(f"{licence} forbids commercial use")
    if _NO_DERIVATIVES.search(licence):
        found.append(f"{licence} forbids to redistribute changed versions")
    if not found:
        found.append(f"the terms of {licence}{f' ({link})' if link else ''} are not known to this program: read them")
    return found
