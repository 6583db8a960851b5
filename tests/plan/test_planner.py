"""Plans: parts, limits, what is said when something does not fit."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from glm53_exl3.errors import PlanError
from glm53_exl3.kernels.native.scratch import scratch_for
from glm53_exl3.kernels.settings import Backend, KernelSettings
from glm53_exl3.plan.geometry import Glm5NextAttention, PlainAttention, model_geometry
from glm53_exl3.plan.memory import (
    DECODED_EXPERTS,
    GIB,
    HOST_PROCESSES,
    ExpertLayer,
    PackWeights,
    ServerShape,
    expert_scratch_bytes,
    memory_parts,
)
from glm53_exl3.plan.planner import MemoryPlan, PlanRequest, memory_arguments, plan_memory
from glm53_exl3.probes.memory import HostMemory, parse_meminfo

ROOT = Path(__file__).parents[2]
K2_WEIGHTS = PackWeights(resident_bytes=95_518_000_000, mtp_bytes=2_210_000_000)
TEXT = {
    "model_type": "glm5_next_text",
    "vocab_size": 154_880,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 288,
    "num_hidden_layers": 45,
    "num_nextn_predict_layers": 1,
    "index_kpool": 4,
    "max_position_embeddings": 1_048_576,
}
K2 = model_geometry({"architectures": ["Glm5NextForConditionalGeneration"], "text_config": TEXT})
MTP2 = ServerShape(speculation="mtp", speculative_tokens=2)


def host(free: float, total: float = 121.69, available: float | None = None) -> HostMemory:
    """Memory of a host in GiB."""
    sizes = [int(gib * GIB) for gib in (total, free, free if available is None else available)]
    return HostMemory(*sizes, page_cache_bytes=0, swap_total_bytes=0, swap_free_bytes=0)


def k2_plan(free: float = 113.0, available: float | None = None, **request: object) -> MemoryPlan:
    return plan_memory(PlanRequest(**request), K2, K2_WEIGHTS, host(free, available=available))


def test_geometry_of_glm53_flash_has_34_kda_and_11_mla_layers() -> None:
    assert K2.attention == Glm5NextAttention(11, 34, 1, 512, 128, 4, 64, 128, 4)
    assert (K2.residual_streams, K2.widest_layer, K2.longest_context_tokens) == (4, 12_288, 1_048_576)


def test_geometry_takes_the_layer_types_and_the_old_nested_kda_fields() -> None:
    text = TEXT | {
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "indexed_attention"],
        "linear_attn_config": {"num_heads": 8, "head_dim": 64, "short_conv_kernel_size": 2},
    }
    attention = model_geometry(text).attention
    assert isinstance(attention, Glm5NextAttention)
    assert (attention.num_kda_layers, attention.num_mla_layers) == (1, 2)
    assert (attention.kda_heads, attention.kda_head_size, attention.kda_conv_kernel) == (8, 64, 2)


def test_geometry_of_plain_attention_falls_back_to_hidden_size_over_heads() -> None:
    text = TEXT | {"model_type": "qwen3_moe", "num_attention_heads": 32, "num_key_value_heads": 4}
    assert model_geometry(text).attention == PlainAttention(45, 1, 4, 128)
    assert model_geometry(text | {"head_dim": 64}).attention == PlainAttention(45, 1, 4, 64)
    assert model_geometry(text).residual_streams == 1


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "max_position_embeddings", "num_hidden_layers"])
@pytest.mark.parametrize("value", [None, 0, -1, "4096", 2.5, True])
def test_geometry_refuses_a_size_that_is_none_by_its_name(field: str, value: object) -> None:
    with pytest.raises(PlanError, match=field) as caught:
        model_geometry(TEXT | {field: value})
    assert caught.value.id == "plan-config"


def scratch_of(backend: Backend, tokens: int) -> int:
    return expert_scratch_bytes(K2, ServerShape(max_batched_tokens=tokens, kernels=KernelSettings(backend)))


def test_scratch_of_exllamav3_is_288_mib_at_2048_rows_and_the_buffers_of_a_launch() -> None:
    for tokens, rows, scratch in ((2048, 2048, 288 << 20), (128, 128, 18 << 20), (65_536, 2048, 288 << 20)):
        # Activations in fp16, sums in fp32, token and weight of up to 32 choices, and where each expert begins.
        buffers = rows * (4096 * 6 + 32 * 10) + 289 * 8
        assert scratch_of("exllamav3", tokens) == scratch + buffers


def test_scratch_of_native_is_what_the_backend_asks_for() -> None:
    for tokens in (1, 128, 2048, 65_536):
        # 8 experts a token, as GLM-5.3-Flash has.
        assert scratch_of("native", tokens) == scratch_for(4096, 2048, 288, 8, tokens).num_bytes
    # Of each choice two fp16 rows of the input and one of what is between up and down; the rest is small.
    assert 320 << 20 < scratch_of("native", 2048) < 336 << 20


def test_auto_needs_the_scratch_of_both_while_it_finds_out_which_is_faster() -> None:
    for tokens in (1, 2048):
        assert scratch_of("auto", tokens) == scratch_of("native", tokens) + scratch_of("exllamav3", tokens)
    assert scratch_of("reference", 2048) == 0


def test_experts_of_a_token_are_those_of_the_config() -> None:
    assert (K2.experts_per_token, model_geometry(TEXT | {"num_experts_per_tok": 6}).experts_per_token) == (8, 6)


#: A layer of 288 experts at two bits, its MTP layer, one that only the reference can run, and one of `3inst`.
VALUES = 288 * 3 * 4096 * 2048
LAYER = ExpertLayer(288, VALUES // 4, VALUES)
MTP_LAYER = replace(LAYER, is_mtp=True)
ODD_LAYER = replace(LAYER, backends=frozenset())
NATIVE_LAYER = replace(LAYER, backends=frozenset({"native"}))


def parts_of(layers: tuple[ExpertLayer, ...], kernels: KernelSettings, mtp: bool = False) -> dict[str, int]:
    server = replace(MTP2 if mtp else ServerShape(), kernels=kernels)
    return dict(memory_parts(K2, replace(K2_WEIGHTS, experts=layers), server))


def test_reference_keeps_16_bits_a_weight_instead_of_the_packed_experts() -> None:
    packed, mtp = parts_of((LAYER, MTP_LAYER), KernelSettings()), parts_of((LAYER, MTP_LAYER), KernelSettings(), True)
    assert DECODED_EXPERTS not in packed
    decoded = parts_of((LAYER, MTP_LAYER), KernelSettings("reference"))
    assert decoded[DECODED_EXPERTS] == 2 * VALUES
    assert packed["weights"] - decoded["weights"] == VALUES // 4
    assert "expert scratch" not in decoded
    with_mtp = parts_of((LAYER, MTP_LAYER), KernelSettings("reference"), True)
    assert with_mtp[DECODED_EXPERTS] == 4 * VALUES
    assert mtp["weights"] - with_mtp["weights"] == VALUES // 2


def test_reference_that_decodes_at_each_call_keeps_the_packed_experts_and_one_decoded() -> None:
    packed, called = parts_of((LAYER,), KernelSettings()), parts_of((LAYER,), KernelSettings("reference", "call"))
    assert called["weights"] == packed["weights"]
    assert called[DECODED_EXPERTS] == 2 * 3 * 4096 * 2048


def test_auto_decodes_only_the_layers_without_kernels() -> None:
    parts = parts_of((LAYER, ODD_LAYER), KernelSettings())
    assert parts[DECODED_EXPERTS] == 2 * VALUES
    assert "expert scratch" in parts
    assert "expert scratch" not in parts_of((ODD_LAYER,), KernelSettings())
    assert DECODED_EXPERTS not in parts_of((LAYER, NATIVE_LAYER), KernelSettings())
    assert DECODED_EXPERTS not in parts_of((NATIVE_LAYER,), KernelSettings("native"))


def test_layers_that_the_one_backend_there_is_lacks_kernels_for_are_decoded() -> None:
    # What `serve` plans by where `auto` has but exllamav3; by name it refuses such a pack.
    parts = parts_of((LAYER, NATIVE_LAYER), KernelSettings("exllamav3"))
    assert parts[DECODED_EXPERTS] == 2 * VALUES


def test_decoded_experts_that_do_not_fit_are_named_with_what_keeps_them_packed() -> None:
    weights = replace(K2_WEIGHTS, experts=(LAYER,) * 42)
    server = ServerShape(kernels=KernelSettings("reference"))
    plan = plan_memory(PlanRequest(context_tokens=8_192, server=server), K2, weights, host(113.0))
    assert [problem.id for problem in plan.problems] == ["plan-memory"]
    assert f"decoded experts take {42 * 2 * VALUES / GIB:.1f} GiB" in plan.problems[0].hint
    assert "--kernel auto" in plan.problems[0].hint
    assert "GLM53_EXL3_DECODE=call" in plan.problems[0].hint
    odd = plan_memory(PlanRequest(), K2, replace(K2_WEIGHTS, experts=(ODD_LAYER,) * 42), host(113.0))
    assert "no kernels take them: GLM53_EXL3_DECODE=call" in odd.problems[0].hint


def test_mtp_weights_count_only_with_mtp() -> None:
    without = memory_parts(K2, K2_WEIGHTS, ServerShape())
    with_mtp = memory_parts(K2, K2_WEIGHTS, MTP2)
    assert with_mtp["weights"] - without["weights"] == K2_WEIGHTS.mtp_bytes


def test_a_gpu_with_memory_of_its_own_pays_nothing_for_host_processes() -> None:
    assert HOST_PROCESSES not in memory_parts(K2, K2_WEIGHTS, ServerShape(unified=False))
    assert memory_parts(K2, K2_WEIGHTS, ServerShape())[HOST_PROCESSES] == int(5.6 * GIB)


def test_eager_has_no_graphs_and_plain_packs_no_expert_scratch() -> None:
    parts = memory_parts(K2, replace(K2_WEIGHTS, has_trellis=False), ServerShape(num_graphs=0))
    assert {"CUDA graphs", "expert scratch"}.isdisjoint(parts)


def test_k2_fits_at_262k_with_mtp_on_a_spark_with_113_gib_free() -> None:
    plan = k2_plan(context_tokens=262_144, prefix_caching=False, server=MTP2)
    assert plan.problems == ()
    assert plan.cache_bytes == 42 * 71_964_672
    assert plan.cache_tokens == 268_537
    assert plan.headroom_bytes > 0
    assert plan.used_bytes + plan.request.floor_bytes + plan.headroom_bytes == plan.memory.free_bytes


def test_arguments_state_cache_context_and_a_utilization_that_can_be_reached() -> None:
    plan = k2_plan(context_tokens=65_536, server=MTP2)
    arguments = memory_arguments(plan)
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=False))
    assert pairs["--max-model-len"] == "65536"
    assert pairs["--max-num-seqs"] == "1"
    assert pairs["--kv-cache-dtype"] == "fp8"
    assert int(pairs["--kv-cache-memory-bytes"]) == plan.cache_bytes
    assert float(pairs["--gpu-memory-utilization"]) * plan.memory.total_bytes <= plan.memory.free_bytes
    assert arguments[-1] == "--enable-prefix-caching"


def test_utilization_is_the_share_that_cuda_takes_of_the_measured_memory() -> None:
    for total in (115.0, 121.69, 139.8):
        plan = plan_memory(PlanRequest(context_tokens=8_192), K2, K2_WEIGHTS, host(113.0, total))
        cuda = plan.used_bytes - plan.parts[HOST_PROCESSES]
        assert 0 <= cuda / plan.memory.total_bytes - plan.utilization < 0.01


def test_no_context_means_the_longest_and_it_is_what_a_second_plan_accepts() -> None:
    longest = k2_plan(server=MTP2, prefix_caching=False)
    assert longest.problems == ()
    assert 262_144 < longest.context_tokens == longest.longest_context_tokens < 1_048_576
    again = k2_plan(server=MTP2, prefix_caching=False, context_tokens=longest.context_tokens)
    assert again.problems == ()
    over = k2_plan(server=MTP2, prefix_caching=False, context_tokens=longest.context_tokens + 1)
    assert [problem.id for problem in over.problems] == ["plan-memory"]
    assert f"--context {longest.context_tokens}" in over.problems[0].hint


def test_longest_context_ends_at_what_the_model_was_made_for() -> None:
    plan = plan_memory(PlanRequest(), K2, replace(K2_WEIGHTS, resident_bytes=GIB), host(113.0))
    assert plan.context_tokens == 1_048_576
    beyond = k2_plan(context_tokens=1_048_577)
    assert beyond.problems[0].id == "plan-context"


def test_what_page_cache_holds_is_named_when_it_alone_is_in_the_way() -> None:
    plan = k2_plan(free=60.0, available=113.0, context_tokens=65_536)
    assert [problem.id for problem in plan.problems] == ["plan-memory"]
    assert "page cache holds 53.0 GiB" in plan.problems[0].hint
    assert "MemFree 60.00, MemAvailable 113.00" in plan.problems[0].found


def test_a_host_that_is_too_small_is_told_so() -> None:
    plan = k2_plan(free=80.0)
    assert plan.context_tokens == plan.longest_context_tokens == 0
    assert plan.cache_limit_bytes < 0
    assert [problem.id for problem in plan.problems] == ["plan-memory"]
    assert "not even one block" in plan.problems[0].hint


def test_prefix_caching_gets_twice_the_need_at_most_and_never_more_than_there_is() -> None:
    roomy = k2_plan(context_tokens=65_536)
    need = roomy.layout.required_bytes(65_536, 1)
    assert need < roomy.cache_bytes <= 2 * need
    tight = k2_plan(context_tokens=roomy.longest_context_tokens)
    assert tight.cache_bytes <= tight.cache_limit_bytes
    assert tight.problems == ()


def test_a_given_cache_that_is_too_small_names_what_it_holds() -> None:
    plan = k2_plan(context_tokens=262_144, kv_cache_bytes=GIB, prefix_caching=False)
    assert [problem.id for problem in plan.problems] == ["plan-cache"]
    assert f"--context {plan.longest_context_tokens}" in plan.problems[0].hint
    assert 0 < plan.longest_context_tokens < 262_144


def test_a_given_cache_that_is_too_large_does_not_fit() -> None:
    plan = k2_plan(context_tokens=8_192, kv_cache_bytes=40 * GIB)
    assert [problem.id for problem in plan.problems] == ["plan-memory"]


def test_a_draft_model_takes_weights_and_blocks() -> None:
    draft = replace(K2_WEIGHTS, draft_bytes=2_342_169_800, draft_token_bytes=20_480)
    server = ServerShape(speculation="dflash2", speculative_tokens=3)
    with_draft = plan_memory(PlanRequest(context_tokens=65_536, server=server), K2, draft, host(113.0))
    without = plan_memory(PlanRequest(context_tokens=65_536, server=server), K2, K2_WEIGHTS, host(113.0))
    assert with_draft.parts["weights"] - without.parts["weights"] == 2_342_169_800
    per_block = without.layout.block_bytes // 20_480
    extra = with_draft.layout.request_blocks(65_536) - without.layout.request_blocks(65_536)
    assert extra == -(-65_536 // per_block)


@pytest.mark.parametrize(
    ("request_fields", "hint"),
    [
        ({"kv_dtype": "bfloat16"}, "--kv-dtype fp8"),
        ({"kv_dtype": "int3"}, "--kv-dtype fp8"),
        ({"server": ServerShape(speculation="mtp")}, "--speculative-tokens 2"),
        ({"server": ServerShape(speculative_tokens=2)}, "--speculative-tokens 2"),
    ],
)
def test_options_that_cannot_be_served_are_refused(request_fields: dict[str, object], hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        k2_plan(**request_fields)
    assert caught.value.id == "plan-option"
    assert hint in caught.value.hint


def test_mtp_without_mtp_layers_is_refused() -> None:
    with pytest.raises(PlanError, match="no multi-token-prediction layer"):
        plan_memory(PlanRequest(server=MTP2), K2, replace(K2_WEIGHTS, mtp_bytes=0), host(113.0))


def test_meminfo_of_a_machine_is_read_in_bytes() -> None:
    text = (
        "MemTotal: 127600000 kB\nMemFree: 100 kB\nMemAvailable: 200 kB\nCached: 30 kB\nBuffers: 4 kB\nSwapTotal: 8 kB\n"
    )
    memory = parse_meminfo(text)
    assert (memory.total_bytes, memory.free_bytes, memory.available_bytes) == (127_600_000 << 10, 100 << 10, 200 << 10)
    assert (memory.page_cache_bytes, memory.swap_total_bytes, memory.swap_free_bytes) == (34 << 10, 8 << 10, 0)


def test_tables_of_the_document_are_what_the_model_says_now() -> None:
    table = runpy.run_path(str(ROOT / "tools" / "memory" / "table.py"))
    assert "\n".join(table["tables"]()) in (ROOT / "docs" / "memory.md").read_text()
