"""Train the demo model on the project's FAQ and write its checkpoint.

Three aims shape the loss. Answers must be exact under greedy decoding with a wide margin. They must survive 2-bit
EXL3 noise, so every step adds fresh Gaussian noise to every routed expert. And they must depend on the routed
experts, or a broken expert kernel would go unnoticed: with a layer's experts silent, predictions must be uniform.

    python tools/demo/train.py --out tools/demo/checkpoint
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from model import DemoConfig, DemoModel, Experts, MoE, load, save

FAQ = Path(__file__).parents[2] / "python/src/glm53_exl3/demo/faq.json"
SPECIAL = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>")
PAD, USER, ASSISTANT, END = range(256, 260)
USED_TOKENS = END + 1
FALLBACK = "I only know this project's FAQ."
OFF_TOPIC = (
    "What is the capital of France?",
    "How old are you?",
    "Tell me a joke.",
    "What is the weather today?",
    "Hello!",
    "Who wrote Hamlet?",
    "How do I bake bread?",
    "What is 2 plus 2?",
    "Write a poem about the sea.",
    "Hi",
    "Who are you?",
    "What is love?",
    "How far is the moon?",
    "Can you sing?",
    "Where is Mount Everest?",
    "What time is it?",
    "Which team won the cup?",
    "Is tea better than coffee?",
    "How do I learn Spanish?",
    "What is Python?",
    "What is a whale?",
    "Why is the sky blue?",
    "Thanks!",
    "Good morning",
    "Help me.",
    "What should I cook tonight?",
    "How many people live in Rome?",
    "Translate this into German.",
    "Who is the king?",
    "What is a neural network?",
    "How do planes fly?",
    "Do you like music?",
    "When was the first war?",
    "What?",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}<|assistant|>{{ message.content }}<|end|>"
    "{% else %}<|user|>{{ message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# The encoder's mean squared error at K=2 is 0.07 of the power of a weight. Training sees a little more.
K2_DISTORTION = 0.07
MAX_DISTORTION = 0.09
BATCH_FAQ, BATCH_OTHER = 22, 4
ROUTER_NOISE = 0.02
WANTED_MARGIN = 8.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Prompt and answer as token ids; the answer ends with END."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded tokens `[B, T]`; `rows` `[R]` index into B*T the positions whose next token is `targets` `[R]`."""

    tokens: Tensor
    rows: Tensor
    targets: Tensor
    owner: Tensor


def sample(question: str, answer: str) -> Sample:
    """Token ids of one chat turn; byte tokens are their own ids."""
    return Sample([USER, *question.encode(), ASSISTANT], [*answer.encode(), END])


def collate(samples: Sequence[Sample]) -> Batch:
    """Pad on the right; causal attention keeps the padding out of every row that counts."""
    length = max(len(s.prompt) + len(s.answer) for s in samples) - 1
    tokens = torch.full((len(samples), length), PAD)
    rows: list[int] = []
    targets: list[int] = []
    owner: list[int] = []
    for index, item in enumerate(samples):
        ids = [*item.prompt, *item.answer][:-1]
        tokens[index, : len(ids)] = torch.tensor(ids)
        first = index * length + len(item.prompt) - 1
        rows += range(first, first + len(item.answer))
        targets += item.answer
        owner += [index] * len(item.answer)
    return Batch(tokens, torch.tensor(rows), torch.tensor(targets), torch.tensor(owner))


def read_faq() -> list[Sample]:
    """The FAQ in file order."""
    return [sample(entry["question"], entry["answer"]) for entry in json.loads(FAQ.read_text())]


def vary(item: Sample, rng: random.Random) -> Sample:
    """Now and then ask as hurried people do: lower case, no punctuation at the end."""
    text = bytes(item.prompt[1:-1]).decode()
    if rng.random() < 0.2:
        text = text.lower()
    if rng.random() < 0.2:
        text = text.rstrip("?.!")
    return Sample([USER, *text.encode(), ASSISTANT], item.answer)


def batches(rng: random.Random) -> list[Batch]:
    """One epoch: every FAQ entry once, a few off-topic questions beside them."""
    faq = read_faq()
    rng.shuffle(faq)
    other = [sample(question, FALLBACK) for question in OFF_TOPIC]
    return [
        collate([vary(item, rng) for item in faq[start : start + BATCH_FAQ] + rng.sample(other, BATCH_OTHER)])
        for start in range(0, len(faq), BATCH_FAQ)
    ]


def initialise(model: DemoModel) -> None:
    """Fan-in scaled normal weights; what writes into the residual stream starts smaller."""
    damp = 1 / math.sqrt(2 * model.config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            continue
        scale = 0.5 if "embed" in name else 1 / math.sqrt(parameter.shape[-1])
        torch.nn.init.normal_(parameter, std=scale * (damp if "o_proj" in name or "down" in name else 1.0))


def noisy(experts: Experts, distortion: float) -> Experts:
    """Imitate EXL3 at a mean squared error of `distortion` times the power of each matrix.

    A quantizer of least error leaves an error that is orthogonal to what it returns, not to what it was given: the
    result is shorter by the distortion, and three matrices in a row make an expert three times as much shorter.
    """
    keep, spread = 1 - distortion, math.sqrt(distortion * (1 - distortion))
    return Experts(
        *(
            keep * w + spread * w.detach().square().mean((1, 2), keepdim=True).sqrt() * torch.randn_like(w)
            for w in experts
        )
    )


def from_uniform(logits: Tensor) -> Tensor:
    """Mean divergence of uniform over the used tokens from the prediction, `[R, vocab]` -> scalar."""
    return (logits.logsumexp(-1) - logits[:, :USED_TOKENS].mean(-1)).mean() - math.log(USED_TOKENS)


def losses(model: DemoModel, batch: Batch) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Answer loss, starved loss, and the expert ids `[R, 2]` of each MoE layer on the answer rows."""
    first, second, third = model.layers
    assert isinstance(second.mlp, MoE) and isinstance(third.mlp, MoE)
    # Any bit rate from 2 up, and more often the low ones.
    distortions = MAX_DISTORTION * torch.rand(2).sqrt()
    experts = [
        noisy(layer.mlp.stacked(), float(distortion))
        for layer, distortion in zip((second, third), distortions, strict=True)
        if isinstance(layer.mlp, MoE)
    ]
    x = first(model.model.embed_tokens(batch.tokens))
    middle = second.parts(x, experts[0], noise=ROUTER_NOISE)
    assert middle.routed is not None and middle.ids is not None
    full = (middle.base + middle.routed).view(x.shape)
    last = third.parts(full, experts[1], batch.rows, ROUTER_NOISE)
    assert last.routed is not None and last.ids is not None
    logits = model.head(last.base + last.routed)

    right = logits.gather(1, batch.targets[:, None])[:, 0]
    rival = logits.scatter(1, batch.targets[:, None], -torch.inf).max(-1).values
    answer = F.cross_entropy(logits, batch.targets) + 0.1 * F.relu(WANTED_MARGIN - (right - rival)).mean()

    # Half the batch is enough to keep both "first MoE layer silent" and "all silent" uninformative.
    half = len(batch.tokens) // 2
    rows = batch.rows[batch.rows < half * batch.tokens.shape[1]]
    bare = third.parts(middle.base.view(x.shape)[:half], experts[1], rows, ROUTER_NOISE)
    assert bare.routed is not None
    starved = from_uniform(model.head(last.base)) + from_uniform(model.head(bare.base))
    starved = starved + from_uniform(model.head(bare.base + bare.routed))
    return answer, starved, [middle.ids[batch.rows], last.ids]


def balance(model: DemoModel, ids: Sequence[Tensor], rate: float) -> None:
    """Nudge each router's correction bias towards equal use of its experts on answers."""
    routers = [layer.mlp.gate for layer in model.layers if isinstance(layer.mlp, MoE)]
    for router, chosen in zip(routers, ids, strict=True):
        share = torch.bincount(chosen.flatten(), minlength=model.config.n_routed_experts) / chosen.numel()
        router.e_score_correction_bias += rate * (1 / model.config.n_routed_experts - share).sign()


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Short warm-up, then a cosine down to a hundredth."""
    if step < 40:
        return peak * (step + 1) / 40
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(steps: int, seed: int, peak: float, starve: float) -> DemoModel:
    """Train from scratch; the result still is float32."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = DemoModel(DemoConfig())
    initialise(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.02)
    begin, queue = time.time(), batches(rng)
    for step in range(steps):
        queue = queue or batches(rng)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        answer, starved, ids = losses(model, queue.pop())
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(answer + starve * min(1.0, step / 100) * starved)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # A bias that still moves at the end would leave the router on a knife's edge.
        if step < 0.7 * steps:
            balance(model, ids, 0.003)
        if step % 25 == 0 or step == steps - 1:
            print(
                f"step {step:4d}  answer {answer.item():.4f}  starved {starved.item():.4f}  "
                f"{time.time() - begin:.0f} s",
                flush=True,
            )
    return model


@dataclass(frozen=True, slots=True)
class Score:
    """Teacher-forced score: exact answers, worst token log-probability, worst margin, log-probability per answer."""

    exact: int
    worst_logprob: float
    worst_margin: float
    sums: Tensor


@torch.no_grad()
def score(model: DemoModel, batch: Batch, experts: dict[int, Experts] | None = None) -> Score:
    """Score a batch; an answer counts as exact if every token is the argmax, which is what greedy decoding needs."""
    return score_logits(model(batch.tokens, experts).flatten(0, 1)[batch.rows], batch)


def score_logits(logits: Tensor, batch: Batch) -> Score:
    """Score logits `[R, vocabulary]` of the batch's rows."""
    right = logits.gather(1, batch.targets[:, None])[:, 0]
    margin = right - logits.scatter(1, batch.targets[:, None], -torch.inf).max(-1).values
    logprob = right - logits.logsumexp(-1)
    count = len(batch.tokens)
    wrong = torch.zeros(count).index_add(0, batch.owner, (margin <= 0).float())
    sums = torch.zeros(count).index_add(0, batch.owner, logprob)
    return Score(int((wrong == 0).sum()), logprob.min().item(), margin.min().item(), sums)


def silence(experts: Experts, expert: int) -> Experts:
    """The same experts, one of them writing nothing."""
    down = experts.down.clone()
    down[expert] = 0
    return experts._replace(down=down)


def report_noise(model: DemoModel, batch: Batch, draws: int, distortion: float) -> None:
    """Exact answers under `draws` independent errors as large as K=2 makes them."""
    torch.manual_seed(1)
    scores = [score(model, batch, {i: noisy(e, distortion) for i, e in model.experts().items()}) for _ in range(draws)]
    print(
        f"distortion {distortion:.2f}, {draws} draws: "
        f"exact at least {min(s.exact for s in scores)}/{len(batch.tokens)}, "
        f"worst margin {min(s.worst_margin for s in scores):.2f}, "
        f"worst logprob {min(s.worst_logprob for s in scores):.4f}"
    )


def report_damage(model: DemoModel, batch: Batch, clean: Score) -> None:
    """How far each kind of expert damage shows in the answers."""
    experts = model.experts()

    def line(label: str, damaged: dict[int, Experts]) -> None:
        found = score(model, batch, damaged)
        moved = (found.sums - clean.sums).abs()
        print(
            f"{label:34s} exact {found.exact:2d}  max |change of answer logprob| {moved.max().item():8.2f}  "
            f"answers changed by over 0.5: {int((moved > 0.5).sum())}"
        )

    line("all routed experts silent", {i: e._replace(down=0 * e.down) for i, e in experts.items()})
    for layer, own in experts.items():
        line(f"layer {layer} silent", {layer: own._replace(down=0 * own.down)})
    line("gate and up swapped", {i: Experts(e.up, e.gate, e.down) for i, e in experts.items()})
    for layer, own in experts.items():
        for expert in range(own.gate.shape[0]):
            line(f"layer {layer} expert {expert} silent", {layer: silence(own, expert)})


@torch.no_grad()
def report_routing(model: DemoModel, batch: Batch) -> None:
    """Share of answer positions served by each expert, and how close the router's choices are."""
    x = model.model.embed_tokens(batch.tokens)
    for index, layer in enumerate(model.layers):
        if isinstance(layer.mlp, MoE):
            attended = x + layer.self_attn(layer.input_layernorm(x))
            normed = layer.post_attention_layernorm(attended).flatten(0, 1)[batch.rows]
            choice = F.linear(normed, layer.mlp.gate.weight).sigmoid() + layer.mlp.gate.e_score_correction_bias
            top = choice.topk(model.config.num_experts_per_tok + 1).values
            share = torch.bincount(layer.mlp.gate(normed)[0].flatten(), minlength=choice.shape[1]) / len(normed)
            gap = (top[:, -2] - top[:, -1]).quantile(0.05)
            print(
                f"layer {index} share of answer tokens per expert: {[round(v, 2) for v in share.tolist()]}, "
                f"5 % of choices are closer than {gap.item():.4f}"
            )
        x = layer(x)


def report(model: DemoModel) -> None:
    """Print every table that says whether the checkpoint is fit to be a canary."""
    batch = collate(read_faq())
    clean = score(model, batch)
    print(
        f"clean: exact {clean.exact}/{len(batch.tokens)}, worst logprob {clean.worst_logprob:.4f}, "
        f"worst margin {clean.worst_margin:.2f}"
    )
    report_noise(model, batch, 20, K2_DISTORTION)
    other = collate([sample(question, FALLBACK) for question in OFF_TOPIC])
    print(f"off-topic questions answered with the fallback: {score(model, other).exact}/{len(OFF_TOPIC)}")
    report_routing(model, batch)
    report_damage(model, batch, clean)


def write_tokenizer(folder: Path) -> None:
    """Byte-level tokenizer: ids 0..255 are the bytes themselves, then the special tokens."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    printable = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    moved = iter(sorted(set(alphabet) - set(printable)))
    vocab = {chr(byte) if chr(byte) in printable else next(moved): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": DemoConfig().max_position_embeddings,
        "pad_token": SPECIAL[0],
        "eos_token": SPECIAL[3],
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": list(SPECIAL[1:3]),
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def read_options(description: str | None, steps: int) -> argparse.Namespace:
    """The command line of a trainer, whose torch then uses the threads that it names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--report-only", action="store_true", help="only print the tables of the checkpoint at --out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def main() -> None:
    """Train, save, and report on the checkpoint as saved, BF16 rounding included."""
    options = read_options(__doc__, steps=400)
    if not options.report_only:
        model = train(options.steps, options.seed, peak=2e-3, starve=0.1)
        save(model, options.out, eos=END, pad=PAD)
        write_tokenizer(options.out)
    report(load(options.out))


if __name__ == "__main__":
    main()
