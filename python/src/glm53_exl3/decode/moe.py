"""Reference of a gated mixture of experts, over EXL3 tensors or dense weights.

For every token: sum over its experts of weight * down(activation(gate(x), up(x))). Experts are added in rising order
and each token is added once an expert, so the result does not depend on the run or on the order of `topk_ids`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from glm53_exl3.decode.linear import Exl3Tensor, linear_reference
from glm53_exl3.errors import FormatError


def gated_silu(gate: Tensor, up: Tensor, limit: float = 0.0) -> Tensor:
    """Activation fp32 of two projections of one shape: silu(gate) * up.

    With `limit` > 0 it is min(silu(gate), limit) * clamp(up, -limit, limit), as in exllamav3's `exl3_moe`; models that
    clamp the gate before its SiLU differ by at most 5e-4 at a limit of 10.
    """
    activated, linear = silu(gate.float()), up.float()
    if limit > 0:
        activated, linear = activated.clamp(max=limit), linear.clamp(-limit, limit)
    return activated * linear


def _route(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    num_experts: int,
    hidden: int,
    expert: Callable[[int, Tensor], Tensor],
) -> Tensor:
    if x.dim() != 2 or topk_ids.dim() != 2 or topk_ids.shape != topk_weights.shape or len(x) != len(topk_ids):
        raise FormatError(
            "routing-shape",
            "activations and routing do not fit",
            expected="x [T, hidden], topk_ids and topk_weights [T, top]",
            found=f"{list(x.shape)}, {list(topk_ids.shape)}, {list(topk_weights.shape)}",
            hint="flatten the activations to one row a token",
        )
    result = torch.zeros(x.shape[0], hidden, dtype=torch.float32, device=x.device)
    weights = topk_weights.float()
    for index in torch.unique(topk_ids).tolist():
        if not 0 <= index < num_experts:
            continue
        chosen = topk_ids == index
        tokens = chosen.any(1).nonzero().squeeze(1)
        share = (weights * chosen).sum(1)[tokens].unsqueeze(1)
        # A token occurs once in `tokens`, so this addition has one order, unlike an atomic index_add.
        result[tokens] = result[tokens] + expert(index, x[tokens]).float() * share
    return result


def moe_dense_reference(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    gate_w: Tensor,
    up_w: Tensor,
    down_w: Tensor,
    limit: float = 0.0,
) -> Tensor:
    """Mixture of experts over dense weights.

    Args:
        x: floating point `[T, H]`, cast to the dtype of the weights.
        topk_ids: integers `[T, top]`; ids outside [0, E), also negative ones, contribute nothing. A caller with an
            expert map applies it first and passes -1 for an expert that is not here.
        topk_weights: floating point `[T, top]`, multiply the output of `down`.
        gate_w: `[E, H, I]`, any floating dtype. Products are made in it, activation and sums in fp32.
        up_w: `[E, H, I]`.
        down_w: `[E, I, H]`.
        limit: see :func:`gated_silu`; 0 for none.

    Returns:
        fp32 `[T, H]`; `[0, H]` without tokens.

    Raises:
        FormatError: `expert-shape` or `routing-shape` when tensors do not fit each other.
    """
    experts, hidden, intermediate = gate_w.shape
    if up_w.shape != gate_w.shape or down_w.shape != (experts, intermediate, hidden) or x.shape[-1] != hidden:
        raise FormatError(
            "expert-shape",
            "the weights of the experts do not fit each other",
            expected="x [T, H], gate and up [E, H, I], down [E, I, H]",
            found=", ".join(str(list(t.shape)) for t in (x, gate_w, up_w, down_w)),
            hint="pass weights as [in, out], the transpose of torch.nn.Linear.weight",
        )

    def expert(index: int, rows: Tensor) -> Tensor:
        rows = rows.to(gate_w.dtype)
        inner = gated_silu(rows @ gate_w[index], rows @ up_w[index], limit)
        return inner.to(down_w.dtype) @ down_w[index]

    return _route(x, topk_ids, topk_weights, experts, hidden, expert)


def moe_reference(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    gate: Sequence[Exl3Tensor],
    up: Sequence[Exl3Tensor],
    down: Sequence[Exl3Tensor],
    limit: float = 0.0,
) -> Tensor:
    """Mixture of experts over EXL3 tensors, every product through the rotations in fp32.

    Args:
        x: floating point `[T, H]`.
        topk_ids: integers `[T, top]`; ids outside [0, E), also negative ones, contribute nothing.
        topk_weights: floating point `[T, top]`, multiply the output of `down`.
        gate: E linears `(H, I)`.
        up: E linears `(H, I)`; their `suh` may differ from that of `gate`.
        down: E linears `(I, H)`.
        limit: see :func:`gated_silu`; 0 for none.

    Returns:
        fp32 `[T, H]`; `[0, H]` without tokens.

    Raises:
        FormatError: `expert-shape` or `routing-shape` when tensors do not fit each other.
    """
    hidden = x.shape[-1]
    fits = len(gate) == len(up) == len(down) > 0 and all(
        g.shape == u.shape == (hidden, d.in_features) and d.out_features == hidden
        for g, u, d in zip(gate, up, down, strict=False)
    )
    if not fits:
        raise FormatError(
            "expert-shape",
            "the linears of the experts do not fit each other",
            expected="one gate (H, I), up (H, I) and down (I, H) for every expert, with x [T, H]",
            found=f"x {list(x.shape)}, {len(gate)} gate, {len(up)} up, {len(down)} down",
            hint="pass the three projections of the same experts, in the same order",
        )

    def expert(index: int, rows: Tensor) -> Tensor:
        inner = gated_silu(linear_reference(rows, gate[index]), linear_reference(rows, up[index]), limit)
        return linear_reference(inner, down[index])

    return _route(x, topk_ids, topk_weights, len(gate), hidden, expert)
