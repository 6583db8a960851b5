"""Quantize the routed experts of a checkpoint and write the pack."""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from glm53_exl3.decode import Exl3Tensor, quantize
from glm53_exl3.errors import FormatError, PackError
from glm53_exl3.format.codebooks import MARKER_VALUES
from glm53_exl3.format.quantization_config import BITS, CODEBOOK, KEY, LAYER_BITS, QUANT_METHOD, SCOPE
from glm53_exl3.format.tensors import SUH, SVH, TRELLIS
from glm53_exl3.pack import files
from glm53_exl3.quantize.plan import QuantizePlan

_SCOPE_VALUE: Final = "routed_experts_only"


def write_pack(
    plan: QuantizePlan, target: Path, *, seed: int = 0, progress: Callable[[str, int], None] = lambda name, n: None
) -> None:
    """Quantize and write; the target appears only when it is complete.

    Args:
        plan: what to do.
        target: folder to make; it must not exist or be empty.
        seed: of the random signs.
        progress: called with the module name and number of weights after each quantized weight.

    Raises:
        PackError: `target-exists`.
    """
    target = target.resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise PackError(
            "target-exists",
            f"{target} is not an empty folder",
            hint="name a new folder, or remove this one",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _write_files(plan, unfinished, seed, progress)
        unfinished.chmod(0o755)
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write_files(plan: QuantizePlan, folder: Path, seed: int, progress: Callable[[str, int], None]) -> None:
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for shard in plan.shards:
        tensors = _quantize_shard(plan, shard, seed, progress)
        save_file(tensors, folder / shard.name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, shard.name))
        total_bytes += sum(tensor.nbytes for tensor in tensors.values())
    _copy_other_files(plan.source, folder)
    if len(plan.shards) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(folder / files.INDEX_FILE, index)
    _write_json(folder / files.CONFIG_FILE, {**plan.config, KEY: quantization_config(plan)})


def quantization_config(plan: QuantizePlan) -> dict[str, Any]:
    """The `quantization_config` of the pack."""
    stated: dict[str, Any] = {"quant_method": QUANT_METHOD, BITS: plan.bits, CODEBOOK: plan.codebook}
    if plan.layer_bits:
        stated[LAYER_BITS] = {str(layer): bits for layer, bits in sorted(plan.layer_bits.items())}
    return {**stated, SCOPE: _SCOPE_VALUE}


def tensors_of(module: str, quantized: Exl3Tensor) -> dict[str, torch.Tensor]:
    """Tensors of one linear under their names in a checkpoint."""
    tensors = {
        f"{module}.{TRELLIS}": quantized.trellis.contiguous(),
        f"{module}.{SUH}": quantized.suh,
        f"{module}.{SVH}": quantized.svh,
    }
    if quantized.codebook != "3inst":
        tensors[f"{module}.{quantized.codebook}"] = torch.tensor(MARKER_VALUES[quantized.codebook], dtype=torch.int32)
    return tensors


def _quantize_shard(
    plan: QuantizePlan, shard: Path, seed: int, progress: Callable[[str, int], None]
) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(shard, framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 - the reader is no mapping
            weight = plan.experts.get(name)
            tensor = stored.get_tensor(name)
            if weight is None:
                tensors[name] = tensor
                continue
            # A seed of its own for each weight, the same whatever else the checkpoint holds.
            own_seed = zlib.crc32(f"{seed}:{weight.name}".encode())
            try:
                quantized = quantize(tensor.float().T.contiguous(), weight.bits, plan.codebook, seed=own_seed)
            except FormatError as error:
                what = f"{name}: {error.what}"
                raise FormatError(
                    error.id, what, expected=error.expected, found=error.found, hint=error.hint
                ) from error
            tensors.update(tensors_of(weight.name, quantized))
            progress(weight.name, weight.num_weights)
    return tensors


def _copy_other_files(source: Path, target: Path) -> None:
    skipped = {files.CONFIG_FILE, files.INDEX_FILE, files.QUANTIZATION_FILE}
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and path.name not in skipped:
            shutil.copyfile(path, target / path.name)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
