"""Where vLLM puts the tail of the K-pool indexer, found by running its own code on a CPU.

Each request owns one block of the tail cache, a ring of `kpool` slots. A vLLM that maps by the generic rule instead
(position divided by block size, into a table of one column) writes outside the block after about 2,200 tokens. Three
things have to be right for it not to: the builder of the metadata gets the positions, maps each token into its own
block, and writes the mapping where CUDA graphs have recorded it. Two more corrupt keys without an error: prefill that
seeds the tail as if its blocks lay side by side, and a ring without room for the drafts of a step. Each is tried with
small tensors; what cannot be tried here is called undecided, never right.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

RIGHT, WRONG, UNDECIDED = "right", "wrong", "undecided"
RING = 4
#: Block of each request, and the positions of its tokens: a prefill of three tokens and a decode far along.
BLOCKS = (5, 9)
POSITIONS = ((10, 11, 12), (2300,))
_INDEXER = "vllm.v1.attention.backends.mla.indexer"
_HYBRID = "vllm.v1.worker.gpu.model_states.mamba_hybrid"
_KV_CACHE = "vllm.v1.kv_cache_interface"
_BLOCK_TABLE = "vllm.v1.worker.gpu.block_table"
_TAIL_OPS = "vllm.models.glm5next.nvidia.ops.kpool_compress"
_ATTENTION = ("vllm.models.glm5next.common.attention", "vllm.models.glm5next.nvidia.attention")
#: How patch 0004 of this project bounds the generic mapping.
_BOUND = "block_indices = tl.minimum(block_indices, block_table_stride - 1)"
#: In the order to look: while there was one of its own the general one belonged to other models.
_TAIL_SPECS = ("KpoolTailSpec", "CircularBufferSpec")

Verdict = dict[str, str]


def examine() -> dict[str, Verdict]:
    """A verdict and its reason for `mapping`, `in-place`, `positions`, `generic`, `seed` and `drafts`."""
    found = {"mapping": _undecided("not tried"), "in-place": _undecided("not tried")}
    try:
        found |= _mapping()
    except Exception as error:
        found |= dict.fromkeys(found, _undecided(_reason(error)))
    others = {"positions": _positions, "generic": _generic, "seed": _seed, "drafts": _drafts}
    for name, examination in others.items():
        try:
            found[name] = examination()
        except Exception as error:
            found[name] = _undecided(_reason(error))
    return found


def _mapping() -> dict[str, Verdict]:
    torch = importlib.import_module("torch")
    indexer = importlib.import_module(_INDEXER)
    metadata = _metadata(torch)
    builder = _builder(torch, indexer.KpoolTailMetadataBuilder)
    # Both are kept: memory of a result that is gone could be given out again and look like the same place.
    first, second = builder.build(0, metadata), builder.build(0, metadata)
    slots = [int(slot) for slot in first.slot_mapping]
    owners = [block for block, positions in zip(BLOCKS, POSITIONS, strict=True) for _ in positions]
    outside = [
        slot for slot, block in zip(slots, owners, strict=False) if not block * RING <= slot < (block + 1) * RING
    ]
    same = first.slot_mapping.data_ptr() == second.slot_mapping.data_ptr()
    return {
        "mapping": {
            "verdict": WRONG if outside or len(slots) < len(owners) else RIGHT,
            "detail": f"slots {slots} for blocks {owners} of {RING}",
        },
        "in-place": {
            "verdict": RIGHT if same else WRONG,
            "detail": "the same memory each step" if same else "new memory each step, which CUDA graphs do not see",
        },
    }


def _metadata(torch: Any) -> Any:
    """What the model runner would hand to the builder for two requests, on a CPU."""
    backend = importlib.import_module("vllm.v1.attention.backend")
    lengths = [len(positions) for positions in POSITIONS]
    starts = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
    seq_lens = torch.tensor([positions[-1] + 1 for positions in POSITIONS], dtype=torch.int32)
    known = {
        "query_start_loc": starts,
        "query_start_loc_cpu": starts,
        "seq_lens": seq_lens,
        "_seq_lens_cpu": seq_lens,
        "seq_lens_cpu": seq_lens,
        "_num_computed_tokens_cpu": seq_lens - torch.tensor(lengths, dtype=torch.int32),
        "num_computed_tokens_cpu": seq_lens - torch.tensor(lengths, dtype=torch.int32),
        "num_reqs": len(lengths),
        "num_actual_tokens": sum(lengths),
        "max_query_len": max(lengths),
        "max_seq_len": int(seq_lens.max()),
        "block_table_tensor": torch.tensor([[block] for block in BLOCKS], dtype=torch.int32),
        # The generic rule, with what lies behind a table of one column.
        "slot_mapping": torch.full((sum(lengths),), 10**6, dtype=torch.int64),
        "positions": torch.tensor([position for positions in POSITIONS for position in positions], dtype=torch.int64),
        "causal": True,
    }
    fields = {field.name for field in dataclasses.fields(backend.CommonAttentionMetadata) if field.init}
    return backend.CommonAttentionMetadata(**{name: value for name, value in known.items() if name in fields})


def _builder(torch: Any, cls: Any) -> Any:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=8),
        model_config=SimpleNamespace(max_model_len=4096),
        speculative_config=None,
        num_speculative_tokens=0,
    )
    return cls(SimpleNamespace(block_size=RING, tokens_per_state=1), ["tail"], config, torch.device("cpu"))


class _Reached(Exception):  # noqa: N818 - not an error: the call that was waited for
    """Raised in place of the builder of attention metadata, with what it was given."""

    def __init__(self, arguments: list[Any]) -> None:
        super().__init__()
        self.arguments = arguments


def _positions() -> Verdict:
    """Whether the state of a hybrid model hands the positions on."""
    torch, numpy = importlib.import_module("torch"), importlib.import_module("numpy")
    hybrid: Any = importlib.import_module(_HYBRID)
    state_class: Any = next(
        value
        for value in vars(hybrid).values()
        if isinstance(value, type) and value.__module__ == hybrid.__name__ and "prepare_attn" in vars(value)
    )
    positions = torch.tensor([2300, 0], dtype=torch.int64)

    def reached(*arguments: Any, **named: Any) -> None:
        raise _Reached([*arguments, *named.values()])

    original = hybrid.build_attn_metadata
    hybrid.build_attn_metadata = reached
    try:
        state_class.prepare_attn(_state(), _batch(torch, numpy, positions), _mode(), (), None, [], None)
    except _Reached as call:
        handed = any(argument is positions for argument in call.arguments)
        detail = f"{state_class.__name__} {'hands' if handed else 'does not hand'} the positions on"
        return {"verdict": RIGHT if handed else WRONG, "detail": detail}
    finally:
        hybrid.build_attn_metadata = original
    return _undecided(f"{state_class.__name__} builds its metadata in another way")


def _mode() -> Any:
    return importlib.import_module("vllm.config.compilation").CUDAGraphMode.NONE


def _state() -> Any:
    """A model state without speculation and without alignment of its Mamba blocks."""
    return SimpleNamespace(
        _align_mode=False,
        _mamba_ctx=None,
        recoverssm=None,
        max_model_len=4096,
        num_accepted_tokens_gpu=None,
        speculative_config=None,
        num_speculative_tokens=0,
        vllm_config=SimpleNamespace(num_speculative_tokens=0, speculative_config=None),
    )


def _batch(torch: Any, numpy: Any, positions: Any) -> Any:
    """A batch of one decode, token 2300 of its request."""
    one = torch.ones(1, dtype=torch.int32)
    return SimpleNamespace(
        num_reqs=1,
        num_reqs_after_padding=1,
        num_tokens=1,
        num_tokens_after_padding=2,
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
        query_start_loc_np=numpy.array([0, 1], dtype=numpy.int32),
        num_scheduled_tokens=numpy.array([1], dtype=numpy.int32),
        max_query_len=None,
        seq_lens=one * 2301,
        seq_lens_np=numpy.array([2301], dtype=numpy.int32),
        seq_lens_cpu_upper_bound=one * 2301,
        is_prefilling_np=numpy.array([False]),
        prefill_runs_as_decode_np=None,
        num_draft_tokens_per_req=None,
        num_computed_tokens_np=numpy.array([2300], dtype=numpy.int32),
        idx_mapping=torch.zeros(1, dtype=torch.int32),
        idx_mapping_np=numpy.array([0], dtype=numpy.int32),
        dcp_local_seq_lens=None,
        prompt_lens=None,
        positions=positions,
    )


def _generic() -> Verdict:
    """Whether the generic rule is switched off for the tail cache."""
    interface = importlib.import_module(_KV_CACHE)
    name = next((name for name in _TAIL_SPECS if hasattr(interface, name)), None)
    if name is None:
        return _undecided(f"no tail cache in {_KV_CACHE}")
    spec = object.__new__(getattr(interface, name))
    if not hasattr(spec, "uses_slot_mapping"):
        return _undecided(f"{name} does not say")
    if not spec.uses_slot_mapping:
        return {"verdict": RIGHT, "detail": f"{name}.uses_slot_mapping is False"}
    source = Path(str(importlib.import_module(_BLOCK_TABLE).__file__)).read_text(encoding="utf-8")
    if _BOUND in source:
        return {"verdict": RIGHT, "detail": "the generic mapping is bounded by a patch"}
    return {"verdict": WRONG, "detail": f"{name}.uses_slot_mapping is True"}


class _Launch:
    """In place of a Triton kernel: keeps what it is launched with."""

    def __init__(self) -> None:
        self.arguments: list[Any] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **named: self.arguments.extend([*arguments, *named.values()])


def _seed() -> Verdict:
    """Whether the kernel that seeds the tail is told how far apart its blocks lie."""
    torch: Any = importlib.import_module("torch")
    ops: Any = importlib.import_module(_TAIL_OPS)
    heads, width, stride = 2, 128, 5003
    tails = torch.zeros(2 * stride, dtype=torch.bfloat16).as_strided(
        (2, heads, RING, width), (stride, RING * width, width, 1)
    )
    rows = torch.zeros(1, width, dtype=torch.bfloat16)
    launch, original = _Launch(), ops._kpool_tail_seed_kernel
    ops._kpool_tail_seed_kernel = launch
    try:
        ops.kpool_seed_tail_cache(tails, rows, rows, torch.zeros(1, dtype=torch.int64), RING, width)
    finally:
        ops._kpool_tail_seed_kernel = original
    if not launch.arguments:
        return _undecided("the tail is seeded in another way")
    told = any(isinstance(argument, int) and argument == stride for argument in launch.arguments)
    return {"verdict": RIGHT if told else WRONG, "detail": f"seeding {'knows' if told else 'ignores'} the page stride"}


def _drafts() -> Verdict:
    """Whether the ring of a request holds an unfinished pool and the drafts of one step."""
    torch, drafts = importlib.import_module("torch"), 2
    attention: Any = None
    for name in _ATTENTION:
        try:
            attention = importlib.import_module(name)
            break
        except ModuleNotFoundError as error:
            if not name.startswith(f"{error.name}"):
                raise
    cache = object.__new__(attention.Glm5NextTailCache)
    torch.nn.Module.__init__(cache)
    cache.head_dim, cache.prefix, cache._index_kpool = 128, "tail", RING
    cache.cache_config = SimpleNamespace(block_size=640)
    slots = int(cache.get_kv_cache_spec(SimpleNamespace(num_speculative_tokens=drafts)).block_size)
    return {
        "verdict": RIGHT if slots >= RING + drafts else WRONG,
        "detail": f"a ring of {slots} for pools of {RING} and {drafts} drafts",
    }


def _undecided(reason: str) -> Verdict:
    return {"verdict": UNDECIDED, "detail": reason}


def _reason(error: Exception) -> str:
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]
