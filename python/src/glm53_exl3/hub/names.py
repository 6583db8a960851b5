"""What a user may ask for: the name of a pin, or a repository and revision."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from glm53_exl3.hub.errors import HubError
from glm53_exl3.pins import PackPin

DEFAULT_REVISION: Final = "main"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT_PREFIX = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True)
class Wanted:
    """What to fetch.

    Attributes:
        typed: what the user typed, for commands in hints.
        repository: Hugging Face repository as owner/name.
        revision: branch, tag or commit to resolve.
        explicit: whether the user named the revision.
        pin: the pin of this repository, None when there is none.
    """

    typed: str
    repository: str
    revision: str
    explicit: bool
    pin: PackPin | None

    @property
    def basename(self) -> str:
        """Name of the repository without its owner."""
        return self.repository.rpartition("/")[2]

    def means(self, revision: str, commit: str) -> bool:
        """Whether a folder holds what is wanted, given which revision was fetched and which commit that was."""
        if self.revision in (revision, commit):
            return True
        return _COMMIT_PREFIX.fullmatch(self.revision) is not None and commit.startswith(self.revision)


def parse_wanted(typed: str, revision: str | None, packs: Mapping[str, PackPin]) -> Wanted:
    """Understand `NAME`, `owner/repo`, each with an optional `@revision`.

    A name stands for the pinned commit where there is one; a repository spelled out stands for its branch `main`.

    Args:
        typed: what the user typed.
        revision: value of `--revision`.
        packs: pins by name.

    Raises:
        HubError: `pack-unknown`, `revision-twice` or `revision-empty`.
    """
    name, at, suffix = typed.partition("@")
    if at and revision is not None:
        raise HubError(
            "revision-twice",
            f"a revision is in {typed!r} and in --revision {revision}",
            hint=f"glm53-exl3 fetch {name} --revision {revision}",
        )
    asked = suffix if at else revision
    if asked is not None and (not asked.isprintable() or asked.split() != [asked]):
        raise HubError(
            "revision-empty",
            f"the revision {asked!r} names no branch, tag or commit",
            hint=f"glm53-exl3 fetch {name}@{DEFAULT_REVISION}",
        )
    by_name = {pin.name.casefold(): pin for pin in packs.values()}
    if pin := by_name.get(name.casefold()):
        return Wanted(typed, pin.repository, asked or pin.commit or DEFAULT_REVISION, asked is not None, pin)
    if not _REPOSITORY.fullmatch(name):
        raise _unknown(name, packs)
    by_repository = {pin.repository.casefold(): pin for pin in packs.values()}
    return Wanted(typed, name, asked or DEFAULT_REVISION, asked is not None, by_repository.get(name.casefold()))


def _unknown(name: str, packs: Mapping[str, PackPin]) -> HubError:
    known = {spelling.casefold(): pin.name for pin in packs.values() for spelling in (pin.name, pin.repository)}
    known |= {pin.repository.rpartition("/")[2].casefold(): pin.name for pin in packs.values()}
    close = difflib.get_close_matches(name.casefold(), known, n=3, cutoff=0.4)
    nearest = list(dict.fromkeys(known[spelling] for spelling in close))
    return HubError(
        "pack-unknown",
        f"there is no pack {name!r}",
        expected=f"{', '.join(packs)}, or owner/repo[@revision]",
        found=f"{name!r}, nearest to {', '.join(nearest)}" if nearest else repr(name),
        hint=f"glm53-exl3 fetch {nearest[0] if nearest else next(iter(packs))}",
    )
