"""The KV cache against the recipe's figures and against vLLM's own planner."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest

from glm53_exl3.plan.geometry import Glm5NextAttention, PlainAttention
from glm53_exl3.plan.kv_cache import CacheLayout, CacheOptions, cache_layout

GIB = 1 << 30
GLM53_FLASH = Glm5NextAttention(
    num_mla_layers=11,
    num_kda_layers=34,
    num_mtp_layers=1,
    latent_size=512,
    index_head_size=128,
    index_pool_tokens=4,
    kda_heads=64,
    kda_head_size=128,
    kda_conv_kernel=4,
)


def fork(speculative_tokens: int = 0, prefix_caching: bool = False) -> CacheLayout:
    mtp = speculative_tokens > 0
    return cache_layout(GLM53_FLASH, CacheOptions("fork", speculative_tokens, mtp, prefix_caching))


def test_three_gib_without_speculation_hold_the_tokens_that_the_recipe_logged() -> None:
    tokens = fork().pool_tokens(3 * GIB, 262_144)
    assert tokens == 349_525
    assert 3 * GIB / tokens == pytest.approx(9_216, abs=0.1)


def test_three_and_a_half_gib_with_mtp_hold_the_tokens_that_the_recipe_logged() -> None:
    tokens = fork(2).pool_tokens(7 * GIB // 2, 262_144)
    assert tokens == 332_475
    assert 7 * GIB / 2 / tokens == pytest.approx(11_303, abs=0.5)


@pytest.mark.parametrize(
    ("speculative_tokens", "context", "logged"),
    [(0, 8_192, 192_139), (0, 8_192, 207_778), (2, 8_192, 99_942), (2, 65_536, 786_432), (2, 131_072, 786_432)],
)
def test_pools_of_the_recipe_are_whole_numbers_of_blocks(speculative_tokens: int, context: int, logged: int) -> None:
    """A pool is a whole number of blocks, so what was logged tells the blocks of a request."""
    layout = fork(speculative_tokens, prefix_caching=True)
    blocks = round((logged + 0.5) / context * layout.request_blocks(context), 2)
    assert blocks == pytest.approx(round(blocks), abs=0.01)
    assert layout.pool_tokens(round(blocks) * layout.block_bytes, context) == logged


def test_ten_sequences_at_262k_with_prefix_caching_are_whole_blocks_too() -> None:
    layout = fork(2, prefix_caching=True)
    assert layout.pool_tokens(167 * layout.block_bytes, 262_144) == 994_955


def test_longest_context_is_the_last_that_fits() -> None:
    for layout in (fork(), fork(2, True), replace(fork(2), draft_block_tokens=3000)):
        for blocks in (16, 47, 300):
            size = blocks * layout.block_bytes
            longest = layout.longest_context(size, 1)
            assert layout.required_bytes(longest, 1) <= size < layout.required_bytes(longest + 1, 1)


def test_longest_context_is_shared_by_the_sequences_and_zero_when_the_states_do_not_fit() -> None:
    layout = fork()
    assert layout.longest_context(97 * layout.block_bytes, 2) == layout.longest_context(49 * layout.block_bytes, 1) > 0
    assert layout.longest_context(5 * layout.block_bytes, 1) == 0
    assert layout.longest_context(0, 1) == 0
    assert layout.longest_context(-GIB, 1) == 0


def test_plain_attention_keeps_keys_and_values_of_every_layer() -> None:
    attention = PlainAttention(num_layers=4, num_mtp_layers=1, num_kv_heads=2, head_size=64)
    layout = cache_layout(attention, CacheOptions("upstream"))
    assert layout.block_tokens == 16
    assert layout.block_bytes == 16 * 4 * 2 * 2 * 64 * 2
    assert layout.required_bytes(33, 2) == (2 * 3 + 1) * layout.block_bytes
    with_mtp = cache_layout(attention, CacheOptions("upstream", 1, mtp=True, plain_bytes=1))
    assert with_mtp.block_bytes == layout.block_bytes * 5 // 4 // 2


@pytest.mark.parametrize("context", [1, 8_192, 8_705, 65_536, 262_144, 1_048_576])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("speculative_tokens", [0, 1, 2, 7])
def test_upstream_is_what_vllm_plans(speculative_tokens: int, prefix_caching: bool, context: int) -> None:
    layout = cache_layout(
        GLM53_FLASH, CacheOptions("upstream", speculative_tokens, speculative_tokens > 0, prefix_caching)
    )
    block_bytes, request_blocks = planned_by_vllm(layout.block_tokens, speculative_tokens, prefix_caching, context)
    assert (layout.block_bytes, layout.request_blocks(context)) == (block_bytes, request_blocks)


def test_upstream_block_is_the_size_that_vllm_aligns_to() -> None:
    """The states' bytes over the latent's, in steps of an indexer page of 64 pools."""
    for speculative_tokens, tokens in ((0, 8_704), (2, 8_704), (7, 9_216)):
        state = 64 * 128 * 128 * 4 + 3 * 64 * 128 * (3 + speculative_tokens) * 2
        assert cache_layout(GLM53_FLASH, CacheOptions("upstream", speculative_tokens)).block_tokens == tokens
        assert tokens % 256 == 0
        assert tokens - 256 < -(-state // 512) <= tokens


def planned_by_vllm(block_tokens: int, speculative_tokens: int, prefix_caching: bool, context: int) -> tuple[int, int]:
    """Bytes of a block and blocks of a request, from vLLM 0.32.0's planner for the layers of GLM-5.3-Flash."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_layout import KVCacheLayout

    mode = "align" if prefix_caching else "none"
    specs = glm53_flash_specs(block_tokens, speculative_tokens, mode, context)
    config = types.SimpleNamespace(
        cache_config=types.SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.BLHNC,
            mamba_cache_mode=mode,
            num_gpu_blocks_override=None,
        ),
        model_config=types.SimpleNamespace(max_model_len=context),
        parallel_config=types.SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        attention_config=types.SimpleNamespace(hisparse_config=None),
        speculative_config=None,
    )
    groups = kv_cache_utils._get_packed_kv_cache_groups(config, specs)
    block_bytes = kv_cache_utils._get_kv_cache_bytes_per_block(groups, KVCacheLayout.BLHNC)
    request_bytes = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    assert request_bytes % block_bytes == 0
    return block_bytes, request_bytes // block_bytes


def glm53_flash_specs(block_tokens: int, speculative_tokens: int, mode: str, context: int) -> dict[str, object]:
    """What the layers of GLM-5.3-Flash ask for with FlashKDA, fp8_ds_mla and the ring of the K-pool tail."""
    import torch
    from vllm.v1.kv_cache_interface import CircularBufferSpec, MambaSpec, MLAAttentionSpec

    specs: dict[str, object] = {}
    for layer in range(11 + (speculative_tokens > 0)):
        latent = {"head_size": 512, "cache_dtype_str": "fp8_ds_mla", "state_content_bytes": 656}
        common = {"block_size": block_tokens, "num_kv_heads": 1, "dtype": torch.uint8}
        specs[f"{layer}.mla"] = MLAAttentionSpec(**common, **latent)
        specs[f"{layer}.indexer"] = MLAAttentionSpec(**common, head_size=132, tokens_per_state=4)
        specs[f"{layer}.tail"] = CircularBufferSpec(
            block_size=4 if not speculative_tokens else 8 if speculative_tokens <= 4 else 16,
            num_kv_heads=2,
            head_size=128,
            head_size_v=0,
            dtype=torch.bfloat16,
            dcp_sharded=False,
        )
    for layer in range(34):
        specs[f"{layer}.kda"] = MambaSpec(
            block_size=block_tokens if mode == "align" else context,
            shapes=((3 + speculative_tokens, 3 * 64 * 128), (64, 128, 128)),
            dtypes=(torch.bfloat16, torch.float32),
            page_size_padded=block_tokens * 512,
            mamba_cache_mode=mode,
            num_speculative_blocks=speculative_tokens,
            num_prefill_checkpoint_blocks=1,
        )
    return specs
