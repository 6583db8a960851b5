"""Choices a user can make about kernels, read from the environment.

The environment reaches every process that vLLM starts; a command line option of a plugin does not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from glm53_exl3.errors import KernelError

#: Which backend runs the experts.
KERNEL_VARIABLE: Final = "GLM53_EXL3_KERNEL"
#: When the reference backend decodes: once at load, or again for every batch.
DECODE_VARIABLE: Final = "GLM53_EXL3_DECODE"

Backend = Literal["auto", "native", "exllamav3", "reference"]
Decode = Literal["load", "call"]
_Choice = TypeVar("_Choice", bound=str)


@dataclass(frozen=True)
class KernelSettings:
    """Settings of the kernels.

    Attributes:
        backend: `auto` tries those that run here and takes the fastest right one.
        decode: `load` keeps the decoded weights, 16 bits each or 32 on a CPU; `call` decodes the experts a batch needs
            and keeps only the trellis.
    """

    backend: Backend = "auto"
    decode: Decode = "load"


def kernel_settings(environment: Mapping[str, str] = os.environ, *, backend: Backend | None = None) -> KernelSettings:
    """Settings from environment variables.

    Args:
        environment: of the process.
        backend: a choice that goes before that of the environment, None for none.

    Raises:
        KernelError: `setting-value` for a value that is not one of the choices.
    """
    return KernelSettings(
        backend=backend or _choice(environment, KERNEL_VARIABLE, get_args(Backend)),
        decode=_choice(environment, DECODE_VARIABLE, get_args(Decode)),
    )


def _choice(environment: Mapping[str, str], variable: str, choices: tuple[_Choice, ...]) -> _Choice:
    value = environment.get(variable, choices[0])
    for choice in choices:
        if value == choice:
            return choice
    raise KernelError(
        "setting-value",
        f"{variable}={value}",
        expected=" or ".join(choices),
        hint=f"unset {variable}, or set it to {choices[0]}",
    )
