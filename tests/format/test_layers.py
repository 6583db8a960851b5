"""Imports go one way: format, decode, kernels, engine; only engine knows vLLM."""

import ast
from pathlib import Path

import glm53_exl3

SOURCE = Path(glm53_exl3.__file__).parent
#: What each part of the package may import of the package. `errors` and `pins` are free for all.
ALLOWED = {
    "errors.py": set(),
    "pins.py": set(),
    "format": {"format"},
    "pack": {"pack", "format"},
    "decode": {"decode", "format"},
    "kernels": {"kernels", "decode", "format"},
    "engine": {"engine", "kernels", "pack", "format"},
    "quantize": {"quantize", "decode", "pack", "format"},
    "probes": {"probes", "pack", "format"},
    "plan": {"plan", "probes", "kernels", "pack", "format"},
    "hub": {"hub", "pack", "format"},
    "serve": {"serve", "demo", "plan", "probes", "kernels", "pack", "format"},
    "demo": {"demo"},
    "bench": {"bench", "serve", "probes", "pack", "format"},
    "bench_kernels": {"bench_kernels", "bench", "kernels", "decode", "probes", "format"},
    "cli": {
        "cli",
        "bench",
        "bench_kernels",
        "demo",
        "serve",
        "quantize",
        "plan",
        "hub",
        "probes",
        "kernels",
        "pack",
        "format",
    },
}
#: What parts that start without torch may take of `kernels`.
WITHOUT_TORCH = {
    "glm53_exl3.kernels.settings",
    "glm53_exl3.kernels.exllamav3.shape",
    "glm53_exl3.kernels.native.scratch",
}
TORCH = {"decode", "kernels", "engine", "quantize", "bench_kernels"}


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def parts() -> list[tuple[str, Path]]:
    files = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
    return [(path.relative_to(SOURCE).parts[0], path) for path in files]


def test_every_part_is_listed() -> None:
    assert {part for part, _ in parts()} == set(ALLOWED)


def test_imports_go_one_way() -> None:
    for part, path in parts():
        ours = {name.split(".")[1] for name in imported_modules(path) if name.startswith("glm53_exl3.")}
        assert ours - {"errors", "pins"} <= ALLOWED[part], path


def test_parts_without_torch_take_only_the_plain_modules_of_kernels() -> None:
    for part, path in parts():
        taken = {name for name in imported_modules(path) if name.startswith("glm53_exl3.kernels")}
        assert part in TORCH or taken <= WITHOUT_TORCH, path
    for module in WITHOUT_TORCH:
        path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        ours = {name for name in imported_modules(path) if name.startswith("glm53_exl3.")}
        assert ours <= {*WITHOUT_TORCH, "glm53_exl3.errors", "glm53_exl3.pins"}, path
        assert "torch" not in imported_modules(path), path


def test_only_engine_imports_vllm_and_only_upper_layers_torch() -> None:
    for part, path in parts():
        roots = {name.split(".")[0] for name in imported_modules(path)}
        assert "vllm" not in roots or part == "engine", path
        assert "torch" not in roots or part in TORCH, path
        assert "exllamav3" not in roots, path


def test_files_stay_short() -> None:
    for _, path in parts():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
