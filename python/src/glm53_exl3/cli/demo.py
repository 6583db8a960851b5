"""`glm53-exl3 demo`: serve the demo pack on loopback, ask it a question, end it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from glm53_exl3.cli.console import stderr, stdout
from glm53_exl3.demo import faq
from glm53_exl3.demo.canary import Answer, load_canary
from glm53_exl3.errors import ServerError
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.serve.argv import ServerCommand, build_command
from glm53_exl3.serve.chat import openai_client, stream_answer
from glm53_exl3.serve.ports import free_port, require_free
from glm53_exl3.serve.process import ServerProcess
from glm53_exl3.serve.setting_values import merge_settings
from glm53_exl3.serve.settings import Settings

_DEFAULT_QUESTION: Final = "What is EXL3?"
_START_SECONDS: Final = 300.0


def demo(
    question: Annotated[str, typer.Argument(help="What to ask; --list shows what the model was taught.")] = (
        _DEFAULT_QUESTION
    ),
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running until Ctrl-C.")] = False,
    port: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1; a free one by default.", min=1, max=65535)
    ] = None,
    list_questions: Annotated[bool, typer.Option("--list", help="List the questions and exit.")] = False,
) -> None:
    """Ask the demo pack a question, through the real vLLM server and the EXL3 plugin, on a CPU or a GPU."""
    if list_questions:
        for entry in faq.load_faq():
            stdout.print(entry.question, markup=False)
        return
    pack = faq.demo_pack()
    read_inventory(pack).require_sound()
    command = demo_command(demo_settings(pack, require_free(port) if port else free_port()))
    log_path = Path(tempfile.mkdtemp(prefix="glm53-exl3-demo-")) / "vllm.log"
    stderr.print(f"vLLM's output goes to {log_path}")
    started = time.monotonic()
    with ServerProcess(command, log_path, lambda phase: _show_phase(phase, started)) as server:
        server.wait_healthy(_START_SECONDS)
        _show_phase("ready", started)
        _ask(command, pack, question)
        if keep:
            _keep_serving(server)
    shutil.rmtree(log_path.parent)


def demo_settings(pack: Path, port: int) -> Settings:
    """How the demo pack is served: the profile of `serve`, on loopback."""
    return merge_settings({"profile": "demo", "pack": pack, "port": port}, {})


def demo_command(settings: Settings) -> ServerCommand:
    """The command for these settings in this environment."""
    return build_command(settings, inherited=os.environ, num_cores=len(os.sched_getaffinity(0)))


def _ask(command: ServerCommand, pack: Path, question: str) -> None:
    stderr.print(f"\nQ: {question}\nA: ", end="", markup=False)
    text, logprob = "", 0.0
    for piece in stream_answer(openai_client(command.url), command.served_name, question):
        stdout.file.write(piece.text)
        stdout.file.flush()
        text, logprob = text + piece.text, logprob + piece.logprob
    stdout.file.write("\n")
    stdout.file.flush()
    canary = load_canary(pack)
    if canary.expected(question) is None:
        stderr.print("(not a question of the FAQ, so no answer is known to be right; see --list)")
        return
    wrong = canary.failures([Answer(question, text, logprob)])
    if wrong:
        raise ServerError(
            "answer-wrong",
            f"the demo pack did not give the answer it was taught: {wrong[0]}",
            hint="open an issue with your CPU or GPU and the log: this runtime computes wrongly, or rounds unlike the "
            "CPU on which the tolerance was measured",
        )
    stderr.print("(the right words, with the right probability)")


def _keep_serving(server: ServerProcess) -> None:
    stderr.print(f"\nserving {server.command.served_name} at {server.command.url}/v1 until Ctrl-C")
    server.wait_ended()


def _show_phase(phase: str, started: float) -> None:
    stderr.print(f"[{time.monotonic() - started:5.1f} s] {phase}", markup=False)
