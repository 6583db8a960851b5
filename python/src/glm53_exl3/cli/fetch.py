"""`glm53-exl3 fetch`: a pack or draft from the Hugging Face Hub, whole, proven and of one commit."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from glm53_exl3.cli.console import stderr, stdout

if TYPE_CHECKING:
    from glm53_exl3.hub.client import HubClient
    from glm53_exl3.hub.fetch import Fetch, FetchOptions, Outcome
    from glm53_exl3.hub.licences import Terms
    from glm53_exl3.hub.names import Wanted
    from glm53_exl3.hub.report import Reporter
    from glm53_exl3.hub.source import Finder, Source
    from glm53_exl3.pins import RuntimeName

#: More than this to download, and the runtime is checked first: drafts and demos are cheap to have fetched in vain.
_LARGE_BYTES: Final = 1 << 30
#: The first to read the Hub's rate limits.
_OLDEST_LIBRARY: Final = (1, 3)


def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="K2, K2K3-mix, DFlash2, owner/repo or owner/repo@REVISION.")
    ],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder of the pack; below GLM53_EXL3_PACKS or ~/models by default."),
    ] = None,
    parallel: Annotated[int, typer.Option(help="Files downloaded at once.", min=1, max=64)] = 8,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with an access token; the credential hub-token, HF_TOKEN or the Hub's own file by default."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Hash every file; fetch the damaged again.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only check what is there.")] = False,
    runtime: Annotated[
        Literal["fork", "upstream"], typer.Option(help="Which runtime is to serve it; checked before 1 GiB and more.")
    ] = "fork",
    anyway: Annotated[bool, typer.Option("--anyway", help="Go on although the runtime is not ready.")] = False,
    no_runtime: Annotated[
        bool, typer.Option("--no-runtime", help="Check the host alone: the runtime is elsewhere or comes later.")
    ] = False,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Accept a licence with restrictions.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
) -> None:
    """Fetch a pack; what is there is kept, what was begun is resumed, every file is proven by its hash.

    The folder is printed on standard output. Ctrl-C leaves a state that the same command resumes.
    """
    from glm53_exl3.hub.names import parse_wanted
    from glm53_exl3.pins import load_pins

    wanted = parse_wanted(name, revision, load_pins().packs)
    _require_library()
    from glm53_exl3.cli.fetch_progress import reporter
    from glm53_exl3.hub.fetch import FetchOptions
    from glm53_exl3.hub.folder import default_folder

    target = (directory or default_folder(wanted.basename)).expanduser().absolute()
    output = reporter(stderr, quiet=quiet)
    work = _prepare(FetchOptions(wanted, target, parallel, repair), token_file, offline, output)
    if dry_run:
        _describe(work, target, runtime, with_runtime=not no_runtime)
        return
    gate = _Gate(wanted, output, runtime, anyway=anyway, accepted=accept_licence, with_runtime=not no_runtime)
    outcome = work.run(gate)
    _conclude(outcome, output)
    stdout.print(str(target), markup=False)


def _prepare(options: FetchOptions, token_file: Path | None, offline: bool, output: Reporter) -> Fetch:
    """Find out what there is and what has to be done, and tell."""
    from glm53_exl3.hub.fetch import Fetch
    from glm53_exl3.hub.source import Finder
    from glm53_exl3.hub.units import in_bytes

    wanted, target = options.wanted, options.directory
    finder = Finder(wanted, target, options.repair, options.policy, time.sleep, output.note)
    source, client = _find(finder, token_file, offline)
    work = Fetch(options, source, client, output)
    commit, plan = source.commit, work.plan
    output.note(f"{wanted.repository}, {commit.revision} = commit {commit.commit}")
    output.note(f"licence: {work.terms.licence or 'none stated'}")
    for text in (*work.terms.notes, *(work.terms.objections if plan.missing else ())):
        output.note(f"  {text}")
    output.note(f"{target}: {in_bytes(plan.bytes_there)} of {in_bytes(commit.num_bytes)} are there")
    return work


def _require_library() -> None:
    from glm53_exl3.hub.errors import HubError

    oldest = ".".join(map(str, _OLDEST_LIBRARY))
    found = "nothing"
    if importlib.util.find_spec("huggingface_hub") is not None:
        found = importlib.metadata.version("huggingface_hub")
        if tuple(int(part) for part in found.split(".")[:2]) >= _OLDEST_LIBRARY:
            return
    raise HubError(
        "hub-missing",
        f"{sys.executable} has no huggingface_hub that can be used; it comes with vLLM",
        expected=f"huggingface_hub {oldest} or newer",
        found=found,
        hint=f"{sys.executable} -m pip install 'huggingface_hub>={oldest}'",
    )


def _find(finder: Finder, token_file: Path | None, offline: bool) -> tuple[Source, HubClient | None]:
    from huggingface_hub import constants

    from glm53_exl3.hub.client import HubClient
    from glm53_exl3.hub.token import read_token

    if offline:
        return finder.offline("--offline was given"), None
    if constants.HF_HUB_OFFLINE:
        return finder.offline("HF_HUB_OFFLINE is set"), None
    client = HubClient(read_token(token_file))
    return finder.online(client), client


def _describe(work: Fetch, target: Path, runtime: RuntimeName, *, with_runtime: bool) -> None:
    """Print the plan and write nothing."""
    plan, commit = work.plan, work.plan.commit
    there = sum(file.num_bytes for file in plan.trusted)
    unchecked = sum(file.num_bytes for file in plan.unchecked)
    lines = [
        f"repository   {commit.repository}",
        f"commit       {commit.commit}",
        f"licence      {work.terms.licence or 'none stated'}{', has to be accepted' if work.terms.objections else ''}",
        f"folder       {target}",
        f"free disk    {work.free_bytes:,} B",
        f"there        {there:,} B in {len(plan.trusted)} files that were found right before",
        f"to check     {unchecked:,} B in {len(plan.unchecked)} files of the right size",
        f"to download  {plan.bytes_to_download:,} B in {len(plan.missing)} files",
    ]
    for line in lines:
        stdout.print(line, markup=False)
    states = dict.fromkeys(plan.trusted, "there") | dict.fromkeys(plan.unchecked, "to check")
    for file in commit.files:
        begun = plan.partial_bytes.get(file.path, 0)
        state = states.get(file, f"to download from {begun:,}" if begun else "to download")
        stdout.print(f"  {file.num_bytes:>15,} B  {file.path}  {state}", markup=False)
    if plan.bytes_to_download > _LARGE_BYTES:
        _show_runtime_failures(runtime, with_runtime=with_runtime)


def _conclude(outcome: Outcome, output: Reporter) -> None:
    from glm53_exl3.hub.units import in_bytes

    commit = outcome.commit
    if outcome.not_compared:
        output.note(f"commit {commit.commit} is complete; not compared with the Hub: {outcome.not_compared}")
    elif outcome.num_downloaded:
        output.note(
            f"commit {commit.commit} is complete: {outcome.num_downloaded} files, "
            f"{in_bytes(outcome.bytes_downloaded)} downloaded"
        )
    else:
        output.note(f"commit {commit.commit} is complete; nothing was downloaded")


class _Gate:
    """Asks the user, or the options, what has to be settled before a download."""

    def __init__(
        self,
        wanted: Wanted,
        output: Reporter,
        runtime: RuntimeName,
        *,
        anyway: bool,
        accepted: bool,
        with_runtime: bool = True,
    ) -> None:
        self._wanted = wanted
        self._output = output
        self._runtime = runtime
        self._anyway = anyway
        self._accepted = accepted
        self._with_runtime = with_runtime
        self._checked = False

    def accept_terms(self, terms: Terms) -> None:
        """Have a licence accepted, once."""
        from glm53_exl3.hub.errors import HubError

        if not self._accepted and sys.stdin.isatty() and sys.stderr.isatty():
            question = f"{self._wanted.repository}: {'; '.join(terms.objections)}. Accept?"
            self._accepted = typer.confirm(question, default=False, err=True)
        if not self._accepted:
            raise HubError(
                "licence-not-accepted",
                f"the licence of {self._wanted.repository} has restrictions that have to be accepted",
                found="; ".join(terms.objections),
                hint=f"read it, then: {_same_command('--accept-licence')}",
            )

    def before_download(self, num_bytes: int) -> None:
        """Check the runtime before much is downloaded, once."""
        from glm53_exl3.hub.errors import HubError

        if num_bytes <= _LARGE_BYTES or self._checked:
            return
        self._checked = True
        what = "runtime" if self._with_runtime else "machine"
        self._output.note(f"checking whether the {what} could serve it ...")
        num_failures = _show_runtime_failures(self._runtime, with_runtime=self._with_runtime)
        if num_failures and not self._anyway:
            raise HubError(
                "runtime-not-ready",
                f"{num_failures} check{'s' if num_failures > 1 else ''} of the {what} failed, so what would be "
                "downloaded could not be served yet",
                hint=f"glm53-exl3 preflight says more; to download all the same: {_same_command('--anyway')}",
            )


def _same_command(option: str) -> str:
    return shlex.join(["glm53-exl3", *sys.argv[1:], option])


def _show_runtime_failures(runtime: RuntimeName, *, with_runtime: bool) -> int:
    """Print what keeps machine and runtime from serving a pack; returns how much that is."""
    from glm53_exl3.probes.preflight import runtime_failures

    failures = runtime_failures(runtime, with_runtime=with_runtime)
    for check in failures:
        stderr.print(f"FAIL  {check.title}: {check.measured}", markup=False)
        if check.hint:
            stderr.print(f"      {check.hint}", markup=False)
    return len(failures)
