"""`glm53-exl3 serve`: one flag for each setting, made from `serve.settings`, and the exit codes of a service."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from glm53_exl3.cli.console import stderr, stdout
from glm53_exl3.errors import CanaryError, Glm53Error, PlanError
from glm53_exl3.serve.settings import SettingSpec, settings_schema

if TYPE_CHECKING:
    from glm53_exl3.plan.planner import MemoryPlan
    from glm53_exl3.serve.api_key import ApiKey
    from glm53_exl3.serve.argv import ServerCommand
    from glm53_exl3.serve.settings import Settings

_TYPES: Final[dict[str, Any]] = {
    "string": str | None,
    "integer": int | None,
    "number": float | None,
    "boolean": bool | None,
    "path": Path | None,
    "integers": list[int] | None,
}
#: Longest that the checks before vLLM may take: two imports of vLLM, and 91 GiB read where the cache is to be warmed.
_GATE_SECONDS: Final = 900.0
_HELP: Final = """Serve a pack, and be ready only once it answers sanely.

Runs preflight, checks the headers of the pack, plans memory, starts vLLM and asks it a first question. What follows
-- goes to vLLM untouched. Exits with vLLM's code once vLLM runs; before and beside that 65 means that pack, settings
or preflight refuse, 69 a wrong first answer, 70 a bug of ours, 75 too little memory, 76 a stall.
"""


def _command_of_settings() -> Callable[..., None]:
    """The command, with one option for each setting."""

    def command(**given: Any) -> None:
        run(given)

    command.__doc__ = _HELP
    parameters = [
        _parameter("pack", Path | None, typer.Argument(metavar="PACK", help="Folder of the pack.")),
        _parameter("extra", list[str] | None, typer.Argument(metavar="[-- VLLM ARGUMENTS]", help="For vLLM.")),
        _parameter("settings_file", Path | None, typer.Option("--settings", help="TOML file with the same keys.")),
        _parameter("show", bool, typer.Option("--print", help="Print command and environment and exit."), False),
    ]
    parameters += [_of_setting(spec) for spec in settings_schema() if spec.key not in ("pack", "extra")]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def run(given: dict[str, Any]) -> None:
    """Serve, and exit with the code of the outcome."""
    from glm53_exl3.serve.supervisor import ServeExit

    try:
        code = _serve(given)
    except (typer.BadParameter, typer.Exit):
        raise
    except Glm53Error as error:
        stderr.print(_in_terms_of_serve(error, given.get("pack") or "PACK").render(), markup=False)
        code = _code_of(error)
    except Exception:
        traceback.print_exc()
        stderr.print("\nerror: internal: this is a bug of glm53-exl3\n\nhint: report it with the lines above")
        code = ServeExit.BUG
    raise typer.Exit(code)


def _serve(given: dict[str, Any]) -> int:
    from glm53_exl3.serve.api_key import read_api_key
    from glm53_exl3.serve.gate import open_gate
    from glm53_exl3.serve.notify import Notifier
    from glm53_exl3.serve.rules import check_rules
    from glm53_exl3.serve.setting_values import merge_settings
    from glm53_exl3.serve.settings import KEYS
    from glm53_exl3.serve.settings_file import read_settings_file

    file_path, show = given.pop("settings_file"), given.pop("show")
    _sort_arguments(given)
    # An option that may be given several times is an empty list when it was not.
    flags = {key: given[name] for key, name in KEYS.items() if given.get(name) not in (None, [])}
    settings = merge_settings(flags, read_settings_file(file_path) if file_path else {})
    api_key = read_api_key(settings.api_key_file, os.environ)
    check_rules(settings, os.environ, has_key=api_key is not None)
    if show:
        return _print(settings, api_key)
    notifier = Notifier(os.environ)
    notifier.status("checking host, runtime and pack")
    notifier.extend_start(_GATE_SECONDS)
    plan = open_gate(settings, _say)
    return _supervise(settings, _command(settings, plan, api_key), api_key)


def _sort_arguments(given: dict[str, Any]) -> None:
    """Without PACK, which a settings file may name, the first word after -- has landed there."""
    if given["pack"] is not None and str(given["pack"]).startswith("-"):
        given["extra"] = [str(given["pack"]), *(given["extra"] or [])]
        given["pack"] = None
    if given["extra"] and not given["extra"][0].startswith("-"):
        raise typer.BadParameter(f"{given['extra'][0]!r} is one argument too many; vLLM's flags come after --")


def _print(settings: Settings, api_key: ApiKey | None) -> int:
    from glm53_exl3.pack import files
    from glm53_exl3.plan.planner import plan_memory
    from glm53_exl3.plan.sources import read_plan_sources
    from glm53_exl3.probes.memory import read_host_memory
    from glm53_exl3.serve.argv import plan_request, render_command
    from glm53_exl3.serve.backend import chosen_kernels
    from glm53_exl3.serve.supervisor import ServeExit

    plan = None
    files.read_json(settings.pack / files.CONFIG_FILE)
    if settings.memory_plan:
        sources = read_plan_sources(settings.pack, settings.draft)
        plan = plan_memory(plan_request(settings, chosen_kernels(settings, os.environ)), *sources, read_host_memory())
    problems = plan.problems if plan is not None else ()
    # What does not fit here may fit on the machine that the command is for.
    shown = replace(settings, force=True) if problems else settings
    stdout.file.write(render_command(_command(shown, plan, api_key)) + "\n")
    for problem in problems:
        stderr.print(_in_terms_of_serve(problem, settings.pack).render(), markup=False)
    return ServeExit.MEMORY if problems else 0


def _command(settings: Settings, plan: MemoryPlan | None, api_key: ApiKey | None) -> ServerCommand:
    from glm53_exl3.serve.argv import build_command
    from glm53_exl3.serve.chat_template import find_chat_template
    from glm53_exl3.serve.gate import num_cores
    from glm53_exl3.serve.nodes import own_address

    return build_command(
        settings,
        plan,
        inherited=os.environ,
        api_key=api_key,
        chat_template=find_chat_template(settings),
        num_cores=num_cores(),
        node_address=own_address(settings.master_address) if settings.master_address else None,
    )


def _supervise(settings: Settings, command: ServerCommand, api_key: ApiKey | None) -> int:
    from glm53_exl3.plan.memory import GIB
    from glm53_exl3.serve.boot_canary import ask_one_token, run_canary
    from glm53_exl3.serve.notify import Notifier
    from glm53_exl3.serve.senses import engine_state, is_healthy, is_listening
    from glm53_exl3.serve.settings import phase_limits
    from glm53_exl3.serve.supervisor import Senses, Supervisor, Vigilance

    key = None if api_key is None else api_key.value
    senses = Senses(
        healthy=lambda: is_healthy(command.url, command.served_name, command.headers),
        engine=lambda: engine_state(command.url),
        canary=(lambda: run_canary(command.url, command.served_name, settings.pack, key)) if settings.canary else None,
        machine_0=(lambda: is_listening(str(settings.master_address), settings.master_port))
        if settings.headless
        else None,
        probe=lambda: ask_one_token(command.url, command.served_name, key),
    )
    vigilance = Vigilance(
        # The plan leaves the whole floor; what the host itself takes and gives back must not end a server.
        floor_bytes=int(settings.floor * GIB / 2),
        # Another machine has the metrics, and watches this one through them.
        watchdog_seconds=0 if settings.headless else settings.watchdog,
        stop_seconds=settings.limit_stop,
        phase_limits=phase_limits(settings),
        headless=settings.headless,
    )
    supervisor = Supervisor(vigilance, senses, Notifier(os.environ), _say)
    sys.stdout.flush()
    return supervisor.run(command.argv, command.whole_environment(os.environ))


def _say(line: str) -> None:
    stderr.print(f"glm53-exl3: {line}", markup=False)


def _in_terms_of_serve(error: Glm53Error, pack: object) -> Glm53Error:
    """The same error; what `plan` advises is an option of `serve` too."""
    if isinstance(error, PlanError):
        error.hint = error.hint.replace("glm53-exl3 plan PACK", f"glm53-exl3 serve {pack}")
    return error


def _code_of(error: Glm53Error) -> int:
    from glm53_exl3.serve.supervisor import ServeExit

    if error.id == "plan-memory":
        return ServeExit.MEMORY
    return ServeExit.CANARY if isinstance(error, CanaryError) else ServeExit.REFUSED


def _of_setting(spec: SettingSpec) -> inspect.Parameter:
    flag = f"--{spec.key}"
    names = [f"{flag}/--no-{spec.key}"] if spec.kind == "boolean" else [flag]
    text = spec.help if not spec.choices else f"{spec.help} One of {', '.join(spec.choices)}."
    return _parameter(spec.key.replace("-", "_"), _TYPES[spec.kind], typer.Option(*names, help=text))


def _parameter(name: str, kind: Any, declared: Any, default: Any = None) -> inspect.Parameter:
    # Nothing given must stay distinguishable from a default, which the profile or the file may set.
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=Annotated[kind, declared]
    )


serve = _command_of_settings()
