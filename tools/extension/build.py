"""Compile an extension, exllamav3's MoE kernels or our own, into a Python module, with Nix and without.

    python build.py exllamav3 --source TREE --output DIR --wheel
    python build.py native --output DIR --wheel

docs/extension.md says what is needed and what comes out. Needs the standard library only, and imports no torch: the one
to compile against may be for another machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from compilation import Compiled, Job, compile_all, default_jobs, link, plan_jobs
from exllamav3_kernels import exllamav3_product
from failure import BuildError
from native_kernels import native_product
from pinned import PINS_FILE, read_kernel_source, read_pins
from product import Product
from source_tree import open_tree
from toolchain import Toolchain, check_arch, find_toolchain
from wheel_file import write_wheel


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 built, 1 refused by name, 2 wrong usage."""
    options = _options(arguments)
    try:
        product: Product = options.describe(options)
        if not options.check:
            _build(product, options)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _exllamav3(options: argparse.Namespace) -> Product:
    source = read_kernel_source(options.pins)
    tree = open_tree(options.source.absolute(), source, options.revision)
    print(f"kernels of {source.repository} {tree.version}, {tree.revision}: {len(tree.units)} units")
    return exllamav3_product(tree, source)


def _native(options: argparse.Namespace) -> Product:
    product = native_product()
    print(f"kernels of glm53-exl3 {product.version}: {sum(len(units.names) for units in product.units)} units")
    return product


def _build(product: Product, options: argparse.Namespace) -> None:
    pinned = read_pins(options.pins)
    toolchain = find_toolchain(
        pinned,
        nvcc=options.nvcc,
        cuda_home=options.cuda_home,
        host_compiler=options.host_compiler,
        torch=options.torch,
        python_include=options.python_include,
        objects_only=options.objects_only,
        allow_other_torch=options.allow_other_torch,
    )
    arch_list = options.arch or pinned.arch_list
    codes = check_arch(toolchain, arch_list)
    output = options.output.absolute()
    jobs = _chosen(plan_jobs(product, toolchain, codes, arch_list, output / "objects"), product, options.units)
    workers = options.jobs or default_jobs()
    print(f"nvcc {toolchain.nvcc_release}, {toolchain.target}, {toolchain.python_tag}, for {arch_list}: {workers} jobs")
    started = time.monotonic()
    compiled = compile_all(jobs, workers)
    _record(compiled, product, toolchain, arch_list, output)
    print(f"{time.monotonic() - started:7.1f} s  in all")
    if options.objects_only:
        return
    module = output / f"{product.module}{toolchain.module_suffix}"
    link(compiled, toolchain, module)
    print(module)
    if options.wheel:
        print(write_wheel(module, product, toolchain, pinned, output))


def _chosen(jobs: list[Job], product: Product, chosen: Sequence[str] | None) -> list[Job]:
    if not chosen:
        return jobs
    names = {Path(job.unit).stem: job for job in jobs}
    if unknown := [name for name in chosen if name not in names]:
        raise BuildError(
            "unit-unknown",
            f"no unit is called {unknown[0]}",
            expected=", ".join(names),
            hint=f"--units {Path(product.binding).stem}",
        )
    return [names[name] for name in chosen]


def _record(compiled: Sequence[Compiled], product: Product, toolchain: Toolchain, arch_list: str, output: Path) -> None:
    """Write what was built from what, and what each kernel takes of a multiprocessor."""
    record = {
        "module": product.module,
        **product.origin,
        "arch_list": arch_list,
        "nvcc": toolchain.nvcc_release,
        "target": toolchain.target,
        "python": toolchain.python_tag,
        "units": [
            {
                "unit": one.unit,
                "seconds": round(one.seconds, 1),
                "kernels": [dataclasses.asdict(kernel) for kernel in one.kernels],
            }
            for one in compiled
        ],
    }
    (output / "build.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    table = product.table(kernel for one in compiled for kernel in one.kernels)
    (output / "resources.md").write_text(table + "\n", encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.units and not options.objects_only:
        parser.error("--units goes with --objects-only: a module needs all units")
    if options.wheel and options.objects_only:
        parser.error("--wheel needs the module, which --objects-only does not link")
    return options


def _parser() -> argparse.ArgumentParser:
    shared = _shared_options()
    parser = argparse.ArgumentParser(description="Compile kernels into a Python module.")
    products = parser.add_subparsers(metavar="PRODUCT", required=True)

    exllamav3 = products.add_parser("exllamav3", parents=[shared], help="MoE kernels of a tree of exllamav3")
    add = exllamav3.add_argument
    add("--source", type=Path, required=True, help="tree of exllamav3: a git checkout, or its wheel unpacked")
    add("--revision", help="where the tree is from, when it is not the pinned revision")
    add("--check", action="store_true", help="check the tree and stop")
    exllamav3.set_defaults(describe=_exllamav3)

    native = products.add_parser("native", parents=[shared], help="this project's own MoE kernels")
    native.set_defaults(describe=_native, check=False)
    return parser


def _shared_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="folder for module, wheel, objects and build.json")
    add("--arch", help="compute capabilities to compile for, 8.0 or newer (default: the pins' arch_list)")
    add("--jobs", type=_positive, help="units at a time (default: cores, or one for each 4 GiB of free memory)")
    add("--nvcc", type=Path, help="CUDA compiler (default: of --cuda-home, $CUDA_HOME or PATH)")
    add("--cuda-home", type=Path, help="root of the CUDA toolkit")
    add(
        "--host-compiler",
        default=os.environ.get("CXX", "g++"),
        help="C++ compiler of the target (default: $CXX or g++)",
    )
    add("--torch", type=Path, help="folder of the torch package of the target (default: this Python's)")
    add("--allow-other-torch", action="store_true", help="build against a torch that is not the pinned one")
    add("--python-include", type=Path, help="folder of the target's Python.h (default: this Python's)")
    add("--pins", type=Path, default=PINS_FILE, help="pins.json, or its part that matters here")
    add("--wheel", action="store_true", help="pack a wheel too")
    add("--objects-only", action="store_true", help="compile and do not link; needs no library of the target")
    add("--units", nargs="+", metavar="UNIT", help="with --objects-only: these units alone, as binding")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
