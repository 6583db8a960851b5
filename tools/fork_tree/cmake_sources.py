"""Sources that a CUDA build of vLLM downloads while CMake configures, read from its CMake files.

A reader of the few commands that matter, not an interpreter of CMake: `set` with literal values, `if` on the target
device, and the declarations of FetchContent and ExternalProject. What it cannot resolve stays as `${NAME}` and so
never equals a pin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Read beside CMakeLists.txt. cmake/cpu_extension.cmake declares sources too, but only for VLLM_TARGET_DEVICE=cpu.
FOLDER = "cmake/external_projects"
_OTHER_DEVICES = {"rocm", "hip", "cpu", "xpu"}
_DECLARATIONS = {"fetchcontent_declare", "fetchcontent_populate", "externalproject_add"}
_COMMAND = re.compile(r"([A-Za-z_]\w*)[ \t]*\(")
_ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|(#[^\n]*)|([()])|([^\s"()#]+)', re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_KEYWORD = re.compile(r"[A-Z][A-Z_]+")


@dataclass(frozen=True)
class FetchedSource:
    """A source that CMake downloads.

    Attributes:
        file: CMake file that declares it, relative to the tree.
        content: name under which it is declared.
        repository: `owner/name` on GitHub, or the whole address of anything else.
        tag: tag or commit; of an archive its checksum, or nothing.
        submodules: named paths; None where all of them are taken, or where it is no git repository.
    """

    file: str
    content: str
    repository: str
    tag: str
    submodules: tuple[str, ...] | None


def fetched_sources(tree: Path) -> list[FetchedSource]:
    """All sources of `tree`, by file.

    Raises:
        FileNotFoundError: the tree has no CMakeLists.txt.
    """
    files = [tree / "CMakeLists.txt", *sorted((tree / FOLDER).glob("*.cmake"))]
    return [source for path in files for source in _of_file(path, path.relative_to(tree).as_posix())]


def _of_file(path: Path, name: str) -> Iterator[FetchedSource]:
    variables: dict[str, str] = {}
    branches: list[_Branch] = []
    for command, arguments in _commands(path.read_text(encoding="utf-8")):
        if command == "if":
            branches.append(_Branch(_is_other_device(arguments)))
        elif command == "elseif":
            branches[-1].alternative(_is_other_device(arguments))
        elif command == "else":
            branches[-1].alternative(False)
        elif command == "endif":
            branches.pop()
        elif any(branch.of_other_device for branch in branches):
            continue
        elif command == "set" and len(arguments) >= 2:
            variables[arguments[0]] = _resolve(arguments[1], variables)
        elif command in _DECLARATIONS:
            yield from _declared([_resolve(argument, variables) for argument in arguments], name)


@dataclass
class _Branch:
    of_other_device: bool

    def alternative(self, of_other_device: bool) -> None:
        self.of_other_device = of_other_device


def _is_other_device(condition: list[str]) -> bool:
    plain = len(condition) == 3 and condition[1] == "STREQUAL"
    return plain and condition[2].lower() in _OTHER_DEVICES


def _declared(arguments: list[str], file: str) -> Iterator[FetchedSource]:
    options = _options(arguments[1:])
    content = arguments[0]
    if "GIT_REPOSITORY" in options:
        submodules = options.get("GIT_SUBMODULES")
        yield FetchedSource(
            file,
            content,
            _short(" ".join(options["GIT_REPOSITORY"])),
            " ".join(options.get("GIT_TAG", [])),
            None if submodules is None else tuple(submodules),
        )
    elif "URL" in options:
        yield FetchedSource(file, content, " ".join(options["URL"]), " ".join(options.get("URL_HASH", [])), None)


def _options(arguments: list[str]) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    values: list[str] = []
    for argument in arguments:
        if _KEYWORD.fullmatch(argument) and argument not in {"TRUE", "FALSE", "ON", "OFF"}:
            values = options.setdefault(argument, [])
        elif argument:
            values.append(argument)
    return options


def _short(address: str) -> str:
    return re.sub(r"^https://github\.com/|\.git$", "", address)


def _resolve(text: str, variables: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    position = 0
    while True:
        newline = _skip_space_and_comments(text, position)
        match = _COMMAND.match(text, newline)
        if match is None:
            if newline >= len(text):
                return
            position = newline + 1
            continue
        arguments, position = _arguments(text, match.end())
        yield match[1].lower(), arguments


def _skip_space_and_comments(text: str, position: int) -> int:
    match = re.compile(r"(?:\s+|#[^\n]*)*").match(text, position)
    return match.end() if match else position


def _arguments(text: str, position: int) -> tuple[list[str], int]:
    arguments: list[str] = []
    depth = 1
    for match in _ARGUMENT.finditer(text, position):
        quoted, comment, bracket, plain = match.groups()
        if bracket:
            depth += 1 if bracket == "(" else -1
            if depth == 0:
                return arguments, match.end()
        elif comment is None:
            arguments.append(quoted if plain is None and quoted is not None else plain or "")
    return arguments, len(text)
