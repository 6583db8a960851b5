"""What would be built on a Spark, read from the derivations: fetches, architectures, sources, wrappers."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.nix_flake import ROOT, derivations, evaluate

PINS = json.loads((ROOT / "nix" / "pins.json").read_text(encoding="utf-8"))
Graph = Mapping[str, Mapping[str, Any]]


@cache
def graph(tree: Path, name: str, system: str = "aarch64-linux") -> Graph:
    return derivations(tree, evaluate(tree, f"packages.{system}.{name}.drvPath"))


def lock(name: str, system: str = "aarch64-linux") -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = json.loads((ROOT / "nix" / "locks" / f"{name}.json").read_text())["systems"][
        system
    ]
    return entries


def file_name(entry: Mapping[str, str]) -> str:
    return "-".join(entry[part] for part in ("distribution", "version", "python", "abi", "platform")) + ".whl"


def fetched(derivation: Graph) -> dict[str, str]:
    """File name and hash of everything that comes from outside."""
    return {
        each["env"]["name"]: "sha256-" + base64.b64encode(bytes.fromhex(each["outputs"]["out"]["hash"])).decode()
        for each in derivation.values()
        if "hash" in each["outputs"]["out"]
    }


def one(derivation: Graph, name: str) -> Mapping[str, Any]:
    found = [each for path, each in derivation.items() if each["env"].get("pname", each["env"]["name"]) == name]
    assert len(found) == 1, f"{len(found)} derivations are called {name}"
    return found[0]


@pytest.mark.parametrize(("package", "runtime"), [("serve", "fork"), ("serve-upstream", "upstream"), ("demo", "demo")])
def test_every_wheel_of_the_lock_is_fetched_by_its_hash(tree: Path, package: str, runtime: str) -> None:
    found = fetched(graph(tree, package))
    # What only a build needs reaches the fork's own derivation, as far as it is used there.
    wheels = [entry for entry in lock(runtime).values() if not entry.get("build_only")]
    assert len(wheels) > 150
    for entry in wheels:
        assert found.get(file_name(entry)) == entry["hash"], file_name(entry)


@pytest.mark.parametrize("package", ["serve", "serve-upstream", "demo", "preflight", "wheelhouse"])
def test_everything_built_is_for_the_spark(tree: Path, package: str) -> None:
    built = {
        path: each["system"] for path, each in graph(tree, package).items() if "hash" not in each["outputs"]["out"]
    }
    assert built
    assert set(built.values()) == {"aarch64-linux"}


def test_two_runtimes_differ_in_vllm_and_flashinfer_and_share_torch(tree: Path) -> None:
    fork, upstream = fetched(graph(tree, "serve")), fetched(graph(tree, "serve-upstream"))
    assert any(name.startswith("vllm-0.32.0-") for name in upstream)
    assert not any(name.startswith("vllm-0") for name in fork)
    assert "flashinfer_python-0.6.18rc10-py3-none-any.whl" in fork
    assert "flashinfer_python-0.7.0.post1-py3-none-any.whl" in upstream
    assert "flashinfer_python-0.7.0.post1-py3-none-any.whl" not in fork
    torch = next(name for name in fork if name.startswith("torch-2.13.0-"))
    assert fork[torch] == upstream[torch] == PINS["wheels"]["torch"]["2.13.0"]["aarch64-linux"]["hash"]


def test_upstream_compiles_kernels_and_no_vllm(tree: Path) -> None:
    names = {each["env"].get("pname") for each in graph(tree, "serve-upstream").values()}
    assert names >= {"glm53-exl3-exllamav3-extension", "glm53-exl3-native-extension"}
    assert "vllm-fork" not in names


def test_demo_and_preflight_need_no_gpu_code(tree: Path) -> None:
    for package in ("demo", "preflight", "fetch"):
        names = {each["env"].get("pname") for each in graph(tree, package).values()}
        assert not any(str(name).endswith("-extension") for name in names), package
        assert not names & {"vllm-fork", "glm53-exl3-cuda-home"}, package


def test_preflight_is_small(tree: Path) -> None:
    assert not any(name.startswith(("torch-", "nvidia_", "vllm")) for name in fetched(graph(tree, "preflight")))


def test_kernels_are_compiled_for_the_gb10_from_the_pinned_tree(tree: Path) -> None:
    extension = one(graph(tree, "serve"), "glm53-exl3-exllamav3-extension")["env"]
    assert '--arch "12.1a"' in extension["buildPhase"]
    assert extension["version"] == PINS["exllamav3"]["version"]
    assert Path(extension["kernels"]).name.endswith("-source")
    assert json.loads(extension["pinned"])["exllamav3"]["revision"] == PINS["exllamav3"]["revision"]


def test_our_own_kernels_are_compiled_for_the_gb10_as_the_version_of_the_plugin(tree: Path) -> None:
    derivations = graph(tree, "serve")
    extension = one(derivations, "glm53-exl3-native-extension")["env"]
    assert re.search(r'build\.py native +\\\n +--pins "\$pinnedPath" --arch "12\.1a"', extension["buildPhase"])
    assert extension["version"] == one(derivations, "glm53-exl3")["env"]["version"]
    assert set(json.loads(extension["pinned"])) == {"cuda", "torch", "gpu"}


def test_fork_is_compiled_for_the_gb10_without_network_and_within_memory(tree: Path) -> None:
    fork = one(graph(tree, "serve"), "vllm-fork")["env"]
    assert fork["TORCH_CUDA_ARCH_LIST"] == "12.1a"
    assert "FETCHCONTENT_FULLY_DISCONNECTED=ON" in fork["CMAKE_ARGS"]
    assert "max-jobs.sh" in fork["buildPhase"]
    assert fork["NVCC_THREADS"] == "1"
    assert "878631b60" in fork["VLLM_VERSION_OVERRIDE"]


def test_every_source_of_the_fork_is_there_by_its_revision(tree: Path) -> None:
    names = {each["env"]["name"] for each in graph(tree, "serve").values()}
    for source in PINS["sources"].values():
        owner, repository = source["repository"].split("/")
        assert f"stub-{owner}-{repository}-{source['revision']}" in names


@pytest.mark.parametrize("package", ["serve", "wheelhouse", "demo"])
def test_every_phase_is_a_shell_script(tree: Path, package: str) -> None:
    texts = [
        text
        for each in graph(tree, package).values()
        for name, text in each["env"].items()
        if name.endswith("Phase") or name == "text"
    ]
    assert len(texts) > 10
    for text in texts:
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + text


def test_compiler_of_the_fork_is_set_where_stdenv_cannot_undo_it(tree: Path) -> None:
    environment = one(graph(tree, "serve"), "vllm-fork")["env"]
    assert "CXX" not in environment
    assert re.search(
        r"export CC=(/nix/store/\S+)/bin/gcc CXX=\1/bin/g\+\+ CUDAHOSTCXX=\1/bin/g\+\+", environment["buildPhase"]
    )


@pytest.mark.parametrize("product", ["exllamav3", "native"])
def test_kernels_keep_no_path_into_the_store(tree: Path, product: str) -> None:
    extension = one(graph(tree, "serve"), f"glm53-exl3-{product}-extension")["env"]
    assert extension["NIX_DONT_SET_RPATH"] == "1"
    assert extension["disallowedReferences"].endswith("-glm53-exl3-environment-torch-0")


def test_cuda_is_the_release_of_torch_in_one_folder(tree: Path) -> None:
    home = one(graph(tree, "serve"), "glm53-exl3-cuda-home")["env"]
    assert home["version"] == PINS["cuda_release"]
    assert "nvidia_cuda_nvcc-13.0.88-" in home["buildPhase"]


def launcher(tree: Path, package: str, program: str) -> str:
    text: str = one(graph(tree, package), f"{program}-launcher")["env"]["text"]
    return text


def test_programs_carry_compiler_driver_lookup_and_caches(tree: Path) -> None:
    text = launcher(tree, "serve", "glm53-exl3")
    for what in (
        'cuda_home="/nix/store/',
        "arch_list=12.1a",
        "stub-ninja/bin",
        "/run/opengl-driver/lib",
        "TRITON_CACHE_DIR",
    ):
        assert what in text
    assert "fixed=()\n" in text


@pytest.mark.parametrize(
    ("package", "fixed"),
    [
        ("serve", "serve"),
        ("serve-upstream", "serve --runtime upstream"),
        ("preflight", "preflight --no-runtime"),
        ("fetch", "fetch --no-runtime"),
        ("demo", "demo"),
    ],
)
def test_named_program_starts_its_command(tree: Path, package: str, fixed: str) -> None:
    assert f"fixed=({fixed})\n" in launcher(tree, package, f"glm53-exl3-{package}")
    assert len(one(graph(tree, package), f"glm53-exl3-{package}")["env"]["launchers"].split()) == 3
