"""A rule of `serve`, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.extra_flags import ExtraFlag
from glm53_exl3.serve.settings import Settings

#: End of the hint of a rule that can be forced.
FORCE: Final = "; --force goes on without this rule"


@dataclass(frozen=True)
class Situation:
    """What the rules look at.

    Attributes:
        settings: of the server.
        environment: of this process, which vLLM inherits.
        has_key: whether there is an API key.
        flags: those of `settings.extra`.
    """

    settings: Settings
    environment: Mapping[str, str]
    has_key: bool
    flags: tuple[ExtraFlag, ...]

    def first(self, names: Iterable[str]) -> ExtraFlag | None:
        """The first further argument that vLLM may take for one of these flags."""
        return next((flag for flag in self.flags if any(flag.means(name) for name in names)), None)


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id: of the error.
        reason: why it is one, a sentence.
        can_be_forced: whether `force` lifts it.
        check: the error, or None.
    """

    id: str
    reason: str
    can_be_forced: bool
    check: Callable[[Situation, str], SettingError | None]
