"""Rate of the load of an EXL3 pack, three ways, side by side.

    python tests/bench/bench_load.py [--cold] [--rounds 3] [--readers 1,2,4] [--profile] [--json] [--keep DIR]

Writes a Glm4Moe pack with experts of the size of GLM-5.3-Flash's, by default 2.8 GiB, and loads it

1. by `safetensors` alone: every file mapped, every tensor copied into a tensor that is there already;
2. in vLLM with `--load-format glm53_exl3`: its `load_weights`, with headers, checks and all that is no expert;
3. in vLLM with its default load format: its `load_weights`.

Each gets memory that was touched before, because the first touch of a page costs as much as the copy and is none of
their doing, and the same page cache: filled, or with --cold emptied of the pack's files, before each load. The three
take turns, round after round; the best of each counts, since other load on the machine only ever slows one down.
Bytes are those of the files. With --fresh the memory is untouched, as it is in a server.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import gc
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# Nothing is decoded at load.
os.environ["GLM53_EXL3_DECODE"] = "call"

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from glm53_exl3.engine import register
from glm53_exl3.format.tensors import trellis_shape
from support.packs import MCG, PROJECTIONS, write_json

GIB = 2**30
HIDDEN, WIDTH, DENSE_WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4096, 2048, 8192, 32, 8, 128, 16_384
BITS = 2
SHARDS_A_LAYER = 2
BASE, BULK, DEFAULT = "safetensors alone", "vLLM, glm53_exl3", "vLLM, default"


def write_bench_pack(directory: Path, num_layers: int, num_experts: int) -> Path:
    """A pack with one dense layer and `num_layers` layers of random experts."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    weight_map: dict[str, str] = {}

    def write(tensors: dict[str, torch.Tensor]) -> None:
        shard = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
        save_file(tensors, directory / shard)
        weight_map.update(dict.fromkeys(tensors, shard))

    write(_plain_tensors(num_layers, num_experts))
    for layer in range(1, num_layers + 1):
        for experts in np.array_split(np.arange(num_experts), SHARDS_A_LAYER):
            write({name: tensor for e in experts for name, tensor in _expert(generator, layer, int(e)).items()})
    write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    write_json(directory / "config.json", _config(num_layers, num_experts))
    return directory


def _plain_tensors(num_layers: int, num_experts: int) -> dict[str, torch.Tensor]:
    def linear(outputs: int, inputs: int) -> torch.Tensor:
        # Scaled, so that activations stay near 1 and a router does not prefer a few experts.
        return (torch.randn(outputs, inputs) * inputs**-0.5).bfloat16()

    tensors = {f"{name}.weight": linear(VOCABULARY, HIDDEN) for name in ("model.embed_tokens", "lm_head")}
    tensors["model.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    for layer in range(num_layers + 1):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        for projection, outputs, inputs in (
            ("q_proj", HEADS * HEAD_DIM, HIDDEN),
            ("k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
            ("v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
            ("o_proj", HIDDEN, HEADS * HEAD_DIM),
        ):
            tensors[f"{name}.self_attn.{projection}.weight"] = linear(outputs, inputs)
        mlp, width = ("mlp.shared_experts", WIDTH) if layer else ("mlp", DENSE_WIDTH)
        for projection in PROJECTIONS:
            shape = (HIDDEN, width) if projection == "down_proj" else (width, HIDDEN)
            tensors[f"{name}.{mlp}.{projection}.weight"] = linear(*shape)
        if layer:
            tensors[f"{name}.mlp.gate.weight"] = linear(num_experts, HIDDEN)
            tensors[f"{name}.mlp.gate.e_score_correction_bias"] = torch.zeros(num_experts)
    return tensors


def _expert(generator: np.random.Generator, layer: int, expert: int) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for projection in PROJECTIONS:
        rows, columns = (WIDTH, HIDDEN) if projection == "down_proj" else (HIDDEN, WIDTH)
        name = f"model.layers.{layer}.mlp.experts.{expert}.{projection}"
        words = generator.integers(-(2**15), 2**15, trellis_shape(rows, columns, BITS), dtype=np.int16)
        tensors[f"{name}.trellis"] = torch.from_numpy(words)
        tensors[f"{name}.suh"] = torch.ones(rows, dtype=torch.float16)
        tensors[f"{name}.svh"] = torch.full((columns,), 0.02, dtype=torch.float16)
        tensors[f"{name}.mcg"] = torch.tensor([MCG], dtype=torch.int32)
    return tensors


def _config(num_layers: int, num_experts: int) -> dict[str, Any]:
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE_WIDTH,
        "moe_intermediate_size": WIDTH,
        "num_hidden_layers": num_layers + 1,
        "first_k_dense_replace": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "n_routed_experts": num_experts,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "n_group": 1,
        "topk_group": 1,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "quantization_config": {"quant_method": "exl3", "bits": BITS, "codebook": "mcg"},
    }


def touch(tensor: torch.Tensor) -> torch.Tensor:
    """Write something else than what is going to be loaded into every byte."""
    tensor.reshape(-1).view(torch.uint8).fill_(1)
    return tensor


class Bench:
    """The loads of one pack. vLLM is set up once, in this process."""

    def __init__(self, pack: Path, *, cold: bool, fresh: bool, scratch: Path) -> None:
        self.files = sorted(pack.glob("*.safetensors"))
        self.num_bytes = sum(path.stat().st_size for path in self.files)
        self._pack = pack
        self._cold = cold
        self._prepare: Callable[[torch.Tensor], object] = (lambda tensor: tensor) if fresh else touch
        register()
        from vllm.config import set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel

        with set_current_vllm_config(self._engine_config("auto", {})):
            init_distributed_environment(1, 0, f"file://{scratch}/rendezvous", 0, "gloo")
            initialize_model_parallel(1, 1)

    def by_safetensors(self) -> float:
        """Seconds of a load by `safetensors` alone."""
        places: dict[str, torch.Tensor] = {}
        for path in self.files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    places[name] = torch.empty_like(file.get_tensor(name))
        for place in places.values():
            self._prepare(place)
        self._set_page_cache()
        begin = time.perf_counter()
        for path in self.files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    places[name].copy_(file.get_tensor(name))
        return time.perf_counter() - begin

    def by_vllm(self, load_format: str, extra: dict[str, Any], profile: bool = False) -> dict[str, float]:
        """Seconds of `load_weights` and of what vLLM does after it."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
        from vllm.utils.torch_utils import set_default_torch_dtype

        config = self._engine_config(load_format, extra)
        cpu = torch.device("cpu")
        with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype):
            with cpu:
                model = initialize_model(config, model_config=config.model_config)
            for parameter in model.parameters():
                self._prepare(parameter.data)
            loader = get_model_loader(config.load_config)
            self._set_page_cache()
            profiler = cProfile.Profile()
            if profile:
                profiler.enable()
            begin = time.perf_counter()
            loader.load_weights(model, config.model_config)
            loaded = time.perf_counter()
            if profile:
                profiler.disable()
                pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(12)
            process_weights_after_loading(model, config.model_config, cpu)
            processed = time.perf_counter()
        return {"load": loaded - begin, "process": processed - loaded}

    def _engine_config(self, load_format: str, extra: dict[str, Any]) -> Any:
        from vllm.engine.arg_utils import EngineArgs

        return EngineArgs(
            model=str(self._pack),
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=256,
            load_format=load_format,
            model_loader_extra_config=extra,
            use_tqdm_on_load=False,
        ).create_engine_config()

    def _set_page_cache(self) -> None:
        for path in self.files:
            with path.open("rb", buffering=0) as file:
                if self._cold:
                    # Pages that were not written yet cannot be dropped.
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    buffer = bytearray(8 << 20)
                    while file.readinto(buffer):
                        pass


def measure(bench: Bench, rounds: int, readers: list[int], profile: bool) -> dict[str, list[float]]:
    """Seconds of each way in each round."""
    seconds: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        gc.collect()
        # Tensors of a trellis' size come from the heap, which keeps what they free: load after load, gigabytes.
        ctypes.CDLL(None).malloc_trim(0)
        seconds.setdefault(name, []).append(value)
        print(f"{name:28} {value:7.2f} s {bench.num_bytes / GIB / value:7.2f} GiB/s", file=sys.stderr, flush=True)

    for _ in range(rounds):
        note(BASE, bench.by_safetensors())
        note(BULK, bench.by_vllm("glm53_exl3", {}, profile)["load"])
        for number in readers:
            note(f"{BULK}, {number} readers", bench.by_vllm("glm53_exl3", {"num_threads": number})["load"])
        found = bench.by_vllm("auto", {}, profile)
        note(DEFAULT, found["load"])
        note("vLLM, after loading", found["process"])
    return seconds


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", action="store_true", help="empty the page cache of the pack before each load")
    parser.add_argument("--fresh", action="store_true", help="load into memory that was never touched")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", default="", help="also load with these numbers of readers, as 1,2,4")
    parser.add_argument("--layers", type=int, default=2, help="layers of experts")
    parser.add_argument("--experts", type=int, default=192, help="experts in each")
    parser.add_argument("--profile", action="store_true", help="profile the loads in vLLM; slows them down")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the pack in DIR, or use the one there")
    options = parser.parse_args()
    readers = [int(number) for number in options.readers.split(",") if number]
    with tempfile.TemporaryDirectory(prefix="glm53-exl3-bench-") as scratch:
        os.environ["VLLM_CACHE_ROOT"] = f"{scratch}/cache"
        pack = options.keep or Path(scratch) / "pack"
        if not (pack / "config.json").exists():
            write_bench_pack(pack, options.layers, options.experts)
        bench = Bench(pack, cold=options.cold, fresh=options.fresh, scratch=Path(scratch))
        seconds = measure(bench, options.rounds, readers, options.profile)
    best = {name: min(values) for name, values in seconds.items()}
    if options.json:
        print(json.dumps({"bytes": bench.num_bytes, "cold": options.cold, "fresh": options.fresh, "seconds": seconds}))
        return
    print(
        f"\n{bench.num_bytes / GIB:.2f} GiB, page cache {'empty' if options.cold else 'full'}, {options.rounds} rounds"
    )
    print(f"{'':28} {'best':>14} {'median':>14} {'of the first':>14}")
    for name, values in seconds.items():
        if name != "vLLM, after loading":
            rates = [bench.num_bytes / GIB / value for value in (best[name], statistics.median(values))]
            print(f"{name:28} {rates[0]:8.2f} GiB/s {rates[1]:8.2f} GiB/s {best[BASE] / best[name]:13.0%}")
    print(f"{'vLLM, after loading':28} {best['vLLM, after loading']:8.2f} s")


if __name__ == "__main__":
    main()
