"""Size of vLLM's KV cache: how many tokens a block holds, its bytes, and the blocks a request takes.

For plain attention a block is 16 tokens of keys and values. Glm5Next is a hybrid: MLA rows, indexer rows, KDA states
and the indexer's unpooled tail all live in blocks of one pool, so a block must be large enough for a KDA state and a
request takes whole blocks for each kind:

* tokens of a block: the KDA state's bytes over the latent's bytes (fp8), rounded up to pages of the indexer
  (`Platform._align_hybrid_block_size` of vLLM 0.32.0, `64 * index_kpool` on compute capability 12);
* bytes of a block: tokens times the rows of all MLA layers: 656 bytes of latent (512 fp8, 16 of scales, 128 of a
  rope part that NoPE leaves empty) and, shared by `index_kpool` tokens, an indexer key with its scale;
* blocks of a request: those its tokens fill, one for the tail, and for each group of KDA layers one state, one more a
  speculative token, and with prefix caching one more for the state that is being written, and in 0.32.0 one for the
  checkpoint of FlashKDA.

`fork` groups KDA layers as vLLM 0.30.0 does (`_get_kv_cache_groups_glm5_next`) and takes a batch of tokens on top of
the context, without which the recipe's pools at 8k are no whole multiples. `upstream` is 0.32.0
(`_get_packed_kv_cache_groups`); a test compares it with that code. docs/memory.md compares both with measurements.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Final

from glm53_exl3.pins import RuntimeName
from glm53_exl3.plan.geometry import Glm5NextAttention, PlainAttention

#: vLLM's default block of plain attention on CUDA.
_PLAIN_BLOCK_TOKENS: Final = 16
#: Rows of one indexer page on compute capability 12 (`get_paged_mqa_page_sizes`), in pools.
_INDEX_PAGE_POOLS: Final = 64
#: Alignment of MLA blocks in hybrid models (`_align_hybrid_block_size`).
_MLA_BLOCK_ALIGNMENT: Final = 128
#: Latent scales are one fp32 for 128 channels; the rope part is 64 bf16 channels, also where NoPE has none.
_SCALE_GROUP, _SCALE_BYTES, _ROPE_BYTES = 128, 4, 128
_STATE_BYTES: Final = 4
_CONV_BYTES: Final = 2
#: Pools need a block that belongs to no request.
NULL_BLOCKS: Final = 1


@dataclass(frozen=True)
class CacheOptions:
    """What of the server's options changes the cache.

    Attributes:
        runtime: which vLLM plans it.
        speculative_tokens: drafted tokens a step, 0 without speculation.
        mtp: whether the drafts come from the model's own MTP layers, which then have a cache too.
        prefix_caching: whether finished prefixes are kept.
        max_batched_tokens: tokens of one step.
        plain_bytes: bytes of a cached value of plain attention: 2 for 16 bits, 1 for fp8.
        draft_token_bytes: what a separate draft model keeps a token; it takes blocks of the same pool.
    """

    runtime: RuntimeName
    speculative_tokens: int = 0
    mtp: bool = False
    prefix_caching: bool = True
    max_batched_tokens: int = 2048
    plain_bytes: int = 2
    draft_token_bytes: int = 0


@dataclass(frozen=True)
class CacheLayout:
    """The pool of a KV cache.

    Attributes:
        block_tokens: tokens a block holds.
        block_bytes: its bytes over all layers.
        state_blocks: blocks that a request takes whatever its length.
        slack_tokens: tokens counted on top of the context.
        draft_block_tokens: tokens of a draft model that a block holds, 0 without a draft model.
    """

    block_tokens: int
    block_bytes: int
    state_blocks: int
    slack_tokens: int
    draft_block_tokens: int = 0

    def request_blocks(self, context_tokens: int) -> int:
        """Blocks of one request of `context_tokens` tokens."""
        draft = math.ceil(context_tokens / self.draft_block_tokens) if self.draft_block_tokens else 0
        return math.ceil((context_tokens + self.slack_tokens) / self.block_tokens) + self.state_blocks + draft

    def required_bytes(self, context_tokens: int, sequences: int) -> int:
        """Bytes for `sequences` such requests at once."""
        return (self.request_blocks(context_tokens) * sequences + NULL_BLOCKS) * self.block_bytes

    def longest_context(self, cache_bytes: int, sequences: int) -> int:
        """Longest context in tokens for `sequences` requests at once; 0 when not one token fits."""
        blocks = (cache_bytes // self.block_bytes - NULL_BLOCKS) // sequences
        most = max(0, (blocks - self.state_blocks) * self.block_tokens - self.slack_tokens)
        return bisect_right(range(1, most + 1), blocks, key=self.request_blocks)

    def pool_tokens(self, cache_bytes: int, context_tokens: int) -> int:
        """Tokens that vLLM logs for a cache: requests of the full context that fit, times the context."""
        return int(cache_bytes // self.block_bytes / self.request_blocks(context_tokens) * context_tokens)


def cache_layout(attention: PlainAttention | Glm5NextAttention, options: CacheOptions) -> CacheLayout:
    """The pool of a model's KV cache under some options."""
    if isinstance(attention, PlainAttention):
        layout = _plain_layout(attention, options)
    else:
        layout = _glm5next_layout(attention, options)
    if not options.draft_token_bytes:
        return layout
    return replace(layout, draft_block_tokens=max(1, layout.block_bytes // options.draft_token_bytes))


def _glm5next_layout(attention: Glm5NextAttention, options: CacheOptions) -> CacheLayout:
    mla_layers = attention.num_mla_layers + (attention.num_mtp_layers if options.mtp else 0)
    state_bytes = _state_bytes(attention, options.speculative_tokens)
    block_tokens = _block_tokens(attention, state_bytes)
    block_bytes = mla_layers * block_tokens * _row_bytes(attention) // attention.index_pool_tokens
    groups = _kda_groups(attention, options.runtime, mla_layers, block_tokens, block_bytes)
    states = 1 + options.speculative_tokens
    if options.prefix_caching:
        states += 1 if options.runtime == "fork" else 2
    slack = options.max_batched_tokens if options.runtime == "fork" else 0
    return CacheLayout(block_tokens, block_bytes, groups * states + 1, slack)


def _plain_layout(attention: PlainAttention, options: CacheOptions) -> CacheLayout:
    layers = attention.num_layers + (attention.num_mtp_layers if options.mtp else 0)
    token_bytes = layers * 2 * attention.num_kv_heads * attention.head_size * options.plain_bytes
    return CacheLayout(_PLAIN_BLOCK_TOKENS, _PLAIN_BLOCK_TOKENS * token_bytes, 0, 0)


def _state_bytes(attention: Glm5NextAttention, speculative_tokens: int) -> int:
    """One KDA state: fp32 `[heads, size, size]` and the bf16 inputs of the convolutions of q, k and v."""
    channels = 3 * attention.kda_heads * attention.kda_head_size
    taps = attention.kda_conv_kernel - 1 + speculative_tokens
    recurrent = attention.kda_heads * attention.kda_head_size**2
    return recurrent * _STATE_BYTES + channels * taps * _CONV_BYTES


def _block_tokens(attention: Glm5NextAttention, state_bytes: int) -> int:
    aligned = _MLA_BLOCK_ALIGNMENT * math.ceil(state_bytes / (_MLA_BLOCK_ALIGNMENT * attention.latent_size))
    page = _INDEX_PAGE_POOLS * attention.index_pool_tokens
    return page * math.ceil(aligned / page)


def _row_bytes(attention: Glm5NextAttention) -> int:
    """Bytes of one MLA layer for one pool of tokens: a latent row each and one indexer row."""
    latent = attention.latent_size + attention.latent_size // _SCALE_GROUP * _SCALE_BYTES + _ROPE_BYTES
    index = attention.index_head_size + attention.index_head_size // _SCALE_GROUP * _SCALE_BYTES
    return latent * attention.index_pool_tokens + index


def _kda_groups(
    attention: Glm5NextAttention, runtime: RuntimeName, mla_layers: int, block_tokens: int, block_bytes: int
) -> int:
    if not attention.num_kda_layers:
        return 0
    if runtime == "fork":
        return math.ceil(attention.num_kda_layers / mla_layers)
    layers_per_group = _least_padding([mla_layers, mla_layers, attention.num_kda_layers], mla_layers)
    # A state is padded to the page that the latent alone would fill.
    states_per_block = max(1, block_bytes // (block_tokens * attention.latent_size))
    return max(
        math.ceil(attention.num_kda_layers / layers_per_group),
        math.ceil(attention.num_kda_layers / states_per_block),
    )


def _least_padding(counts: list[int], least: int) -> int:
    """Layers of a group for which rounding all counts up wastes least; the largest of equals (`_approximate_gcd`)."""
    candidates = range(least, max(counts) + 1)
    return min(candidates, key=lambda size: (sum(-count % size for count in counts), -size))
