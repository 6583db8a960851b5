"""A fault of a pack together with the files that are to blame."""

from __future__ import annotations

from collections.abc import Iterable

from glm53_exl3.errors import PackError


class DamageError(PackError):
    """A fault that says which files of the pack would have to be fetched again.

    Args:
        id, what, expected, found, hint: as for every :class:`~glm53_exl3.errors.Glm53Error`.
        files: names of files of the pack.
        tensors: names of tensors; whoever knows the inventory can say which shards hold them.
    """

    def __init__(
        self,
        id: str,
        what: str,
        *,
        expected: str = "",
        found: str = "",
        hint: str = "",
        files: Iterable[str] = (),
        tensors: Iterable[str] = (),
    ) -> None:
        super().__init__(id, what, expected=expected, found=found, hint=hint)
        self.files = tuple(files)
        self.tensors = tuple(tensors)
