"""Train the small Glm5Next on the project's FAQ and write its checkpoint.

    python tools/demo/glm5next_train.py --out FOLDER

As for the demo model (train.py): answers exact by a wide margin, under noise as large as EXL3 makes it, and worth
nothing without the routed experts.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from transformers.models.glm5_next import modeling_glm5_next as modeling

from glm5next_model import Glm5NextDemo, load, save, text_config
from train import (
    FALLBACK,
    MAX_DISTORTION,
    OFF_TOPIC,
    WANTED_MARGIN,
    Batch,
    Score,
    collate,
    from_uniform,
    learning_rate,
    read_faq,
    read_options,
    sample,
    score_logits,
    vary,
    write_tokenizer,
)

BATCH_FAQ, BATCH_OTHER = 11, 2
STARVE = 0.1


def initialise(model: Glm5NextDemo) -> None:
    """Fan-in scaled normal weights; what is no matrix keeps transformers' own start."""
    damp = 1 / math.sqrt(2 * len(model.model.layers))
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or "_hc." in name or "conv1d" in name or name.endswith("compress_ape"):
            continue
        scale = 0.5 if "embed" in name else 1 / math.sqrt(parameter.shape[-1])
        torch.nn.init.normal_(parameter, std=scale * (damp if "o_proj" in name or "down" in name else 1.0))


def experts_of(model: Glm5NextDemo) -> dict[str, Tensor]:
    """The stacked matrices of all routed experts, by name."""
    return {name: value for name, value in model.named_parameters() if ".mlp.experts." in name}


def noisy(experts: Mapping[str, Tensor], distortion: float) -> dict[str, Tensor]:
    """Imitate EXL3 at a mean squared error of `distortion` times the power of each matrix; see train.noisy."""
    keep, spread = 1 - distortion, math.sqrt(distortion * (1 - distortion))
    return {
        name: keep * w + spread * w.detach().square().mean((1, 2), keepdim=True).sqrt() * torch.randn_like(w)
        for name, w in experts.items()
    }


def silent(experts: Mapping[str, Tensor], layer: str = "") -> dict[str, Tensor]:
    """The same experts, those of a layer (or all) writing nothing."""
    return {name: 0 * w if name.endswith("down_proj") and layer in name else w for name, w in experts.items()}


def batches(rng: random.Random) -> list[Batch]:
    """One epoch: every entry once, sorted a little by length, a few off-topic questions beside them."""
    faq = read_faq()
    rng.shuffle(faq)
    faq.sort(key=lambda item: (len(item.prompt) + len(item.answer)) // 40)
    other = [sample(question, FALLBACK) for question in OFF_TOPIC]
    found = [
        collate([vary(item, rng) for item in faq[start : start + BATCH_FAQ] + rng.sample(other, BATCH_OTHER)])
        for start in range(0, len(faq), BATCH_FAQ)
    ]
    rng.shuffle(found)
    return found


def losses(model: Glm5NextDemo, batch: Batch) -> tuple[Tensor, Tensor]:
    """Answer loss and starved loss."""
    experts = noisy(experts_of(model), MAX_DISTORTION * random.random() ** 0.5)
    logits = functional_call(model, experts, (batch.tokens, batch.rows))
    right = logits.gather(1, batch.targets[:, None])[:, 0]
    rival = logits.scatter(1, batch.targets[:, None], -torch.inf).max(-1).values
    answer = F.cross_entropy(logits, batch.targets) + 0.1 * F.relu(WANTED_MARGIN - (right - rival)).mean()
    half = len(batch.tokens) // 2
    rows = batch.rows[batch.rows < half * batch.tokens.shape[1]]
    layer = random.choice(("", "layers.1.", "layers.2."))
    starved = from_uniform(functional_call(model, silent(experts, layer), (batch.tokens[:half], rows)))
    return answer, starved


class Balance:
    """Nudges each router's correction bias towards equal use of its experts.

    Args:
        model: whose routers are watched.
    """

    def __init__(self, model: Glm5NextDemo) -> None:
        self._routers = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        self._chosen: dict[int, Tensor] = {}
        for index, router in enumerate(self._routers):
            router.register_forward_hook(functools.partial(self._note, index))

    def _note(self, index: int, module: object, inputs: object, output: tuple[Tensor, ...]) -> None:
        # The first pass of a step is the one with all experts at work.
        self._chosen.setdefault(index, output[2])

    def step(self, rate: float) -> None:
        """Move the biases by what the last step chose."""
        for index, router in enumerate(self._routers):
            share = torch.bincount(self._chosen[index].flatten(), minlength=router.num_experts)
            router.e_score_correction_bias += rate * (share.float().mean() - share).sign()
        self._chosen.clear()


def train(steps: int, seed: int, peak: float) -> Glm5NextDemo:
    """Train from scratch; the result still is float32."""
    torch.manual_seed(seed)
    random.seed(seed)
    rng = random.Random(seed)
    # The same sums in smaller chunks: the reference implementation keeps [chunk, chunk, 128] for each.
    whole = modeling.chunk_kimi_delta_attention
    modeling.chunk_kimi_delta_attention = functools.partial(whole, chunk_size=16)
    model = Glm5NextDemo(text_config())
    initialise(model)
    balance = Balance(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.02)
    begin, queue = time.time(), batches(rng)
    for step in range(steps):
        queue = queue or batches(rng)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        answer, starved = losses(model, queue.pop())
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(answer + STARVE * min(1.0, step / 100) * starved)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # A bias that still moves at the end would leave the router on a knife's edge.
        balance.step(0.003 if step < 0.7 * steps else 0.0)
        if step % 25 == 0 or step == steps - 1:
            passed = time.time() - begin
            print(
                f"step {step:4d}  answer {answer.item():.4f}  starved {starved.item():.4f}  {passed:.0f} s", flush=True
            )
    modeling.chunk_kimi_delta_attention = whole
    return model


@torch.no_grad()
def score(model: Glm5NextDemo, batch: Batch, experts: Mapping[str, Tensor]) -> Score:
    """Teacher-forced score with these experts; see train.score."""
    return score_logits(functional_call(model, dict(experts), (batch.tokens, batch.rows)), batch)


def report(model: Glm5NextDemo) -> None:
    """What says whether the checkpoint is fit to be a canary."""
    batch, experts = collate(read_faq()), experts_of(model)
    torch.manual_seed(1)
    for label, changed in (
        ("clean", experts),
        *((f"as noisy as K=2, draw {draw}", noisy(experts, 0.07)) for draw in range(5)),
        ("all routed experts silent", silent(experts)),
        ("experts of layer 1 silent", silent(experts, "layers.1.")),
        ("experts of layer 2 silent", silent(experts, "layers.2.")),
    ):
        found = score(model, batch, changed)
        print(
            f"{label:28s} exact {found.exact}/{len(batch.tokens)}, worst margin {found.worst_margin:.2f}, "
            f"worst log-probability {found.worst_logprob:.4f}",
            flush=True,
        )


def main() -> None:
    """Train, save, and report on the checkpoint as saved, BF16 rounding included."""
    options = read_options(__doc__, steps=600)
    if not options.report_only:
        save(train(options.steps, options.seed, peak=2e-3), options.out)
        write_tokenizer(options.out)
    report(load(options.out))


if __name__ == "__main__":
    main()
