// The interface of the MoE kernels: what the build script counts and the binding names.
#pragma once

#include <ATen/Tensor.h>

using Table = at::Tensor;

int exl3_moe_max_concurrency(int device);

void exl3_moe(
    const Table& hidden, const Table& output,
    const Table& expert_count, const Table& token_sorted, const Table& weight_sorted,
    const Table& scratch_gate, const Table& scratch_up, const Table& scratch_act, const Table& scratch_mul,
    int activation,
    int bits_gate, int bits_up, int bits_down,
    const Table& gate_trellis, const Table& gate_suh, const Table& gate_svh,
    const Table& up_trellis, const Table& up_suh, const Table& up_svh,
    const Table& down_trellis, const Table& down_suh, const Table& down_svh,
    bool gate_mcg, bool gate_mul1,  // codebooks, a pair for each projection
    bool up_mcg, bool up_mul1, bool down_mcg, bool down_mul1,
    float limit, /* of the activation, 0 for none */
    int active
);
