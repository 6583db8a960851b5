"""What `serve` refuses before anything starts, and why. Pure.

The rules of the recipe (vcruz305/GLM-5.3-Flash-EXL3-K2-DGX-Spark-recipe), those of a server that is safe by default,
and one source of truth for every flag. Some can be forced: then the user's word counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.extra_flags import extra_flags
from glm53_exl3.serve.flag_rules import FLAG_RULES
from glm53_exl3.serve.rule import Rule, Situation
from glm53_exl3.serve.setting_rules import SETTING_RULES
from glm53_exl3.serve.settings import Settings

#: A secret on the command line is told first, before anything else is changed about that command line.
RULES: Final[tuple[Rule, ...]] = (*FLAG_RULES, *SETTING_RULES)


def broken_rules(settings: Settings, environment: Mapping[str, str], *, has_key: bool) -> list[SettingError]:
    """Every rule that these settings break, without those that `force` lifts."""
    situation = Situation(settings, environment, has_key, tuple(extra_flags(settings.extra)))
    standing = (rule for rule in RULES if not (settings.force and rule.can_be_forced))
    return [error for rule in standing if (error := rule.check(situation, rule.reason)) is not None]


def check_rules(settings: Settings, environment: Mapping[str, str], *, has_key: bool) -> None:
    """Refuse settings that break a rule.

    Args:
        settings: of the server.
        environment: that vLLM would inherit.
        has_key: whether clients have to send an API key.

    Raises:
        SettingError: the first broken rule, see `RULES`.
    """
    for error in broken_rules(settings, environment, has_key=has_key):
        raise error
