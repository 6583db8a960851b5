"""Which chat template a server uses."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.settings import Settings

TEMPLATE_FILE: Final = "chat_template.jinja"


def find_chat_template(settings: Settings) -> Path | None:
    """The template of the settings, else that of the pack; None leaves it to the tokenizer's configuration.

    Raises:
        SettingError: `chat-template`, the one of the settings is no file.
    """
    if settings.chat_template is None:
        path = settings.pack / TEMPLATE_FILE
        return path if path.is_file() else None
    if not settings.chat_template.is_file():
        raise SettingError(
            "chat-template",
            f"the chat template {settings.chat_template} is not there",
            expected="a file with a Jinja template",
            hint="leave --chat-template out to use the pack's own",
        )
    return settings.chat_template
