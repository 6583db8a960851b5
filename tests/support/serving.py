"""Settings, plans and commands of `serve` for tests: every combination that is servable."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from glm53_exl3.plan.geometry import model_geometry
from glm53_exl3.plan.memory import GIB, PackWeights
from glm53_exl3.plan.planner import MemoryPlan, plan_memory
from glm53_exl3.probes.memory import HostMemory
from glm53_exl3.serve.argv import ServerCommand, build_command, plan_request
from glm53_exl3.serve.profiles import PROFILES
from glm53_exl3.serve.setting_values import merge_settings
from glm53_exl3.serve.settings import Settings

PACK = "/models/GLM-5.3-Flash-EXL3-K2"
DRAFT = "/models/GLM-5.3-Flash-DFlash2"
#: The sizes of GLM-5.3-Flash, and about those of the K2 pack.
MODEL = model_geometry(
    {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "text_config": {
            "model_type": "glm5_next_text",
            "vocab_size": 154_880,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 45,
            "num_nextn_predict_layers": 1,
            "index_kpool": 4,
            "max_position_embeddings": 1_048_576,
        },
    }
)
WEIGHTS = PackWeights(resident_bytes=95_518_000_000, mtp_bytes=2_210_000_000)
HOST = HostMemory(int(121.69 * GIB), 113 * GIB, 113 * GIB, 0, 0, 0)


def settings_of(**flags: Any) -> Settings:
    """Settings from flags whose names are written as fields."""
    return merge_settings({"pack": PACK} | {name.replace("_", "-"): value for name, value in flags.items()}, {})


def plan_of(settings: Settings) -> MemoryPlan:
    """A plan for these settings on a healthy GB10."""
    return plan_memory(plan_request(settings), MODEL, WEIGHTS, HOST)


def command_of(settings: Settings, **options: Any) -> ServerCommand:
    """The command of these settings, with a plan where they want one, under a stable name of the interpreter."""
    plan = plan_of(settings) if settings.memory_plan else None
    return build_command(settings, plan, python="python3", **options)


def combinations() -> list[Settings]:
    """Every profile with every speculation on every runtime; the demo pack has no layer to speculate with."""
    made: list[Settings] = []
    for profile, speculation, runtime in product(PROFILES, ("none", "mtp", "dflash2"), ("fork", "upstream")):
        if profile == "demo" and speculation != "none":
            continue
        made.append(
            settings_of(
                profile=profile,
                speculation=speculation,
                runtime=runtime,
                draft=Path(DRAFT) if speculation == "dflash2" else None,
                # What the rules let through only then: DFlash2 on upstream.
                force=speculation == "dflash2" and runtime == "upstream",
            )
        )
    return made


def name_of(settings: Settings) -> str:
    """Name of a combination."""
    return f"{settings.profile}-{settings.speculation}-{settings.runtime}"
