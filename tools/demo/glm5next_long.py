"""Write what transformers gives the tokens of a long prompt, for the small Glm5Next pack.

    python tools/demo/glm5next_long.py tests/data/glm5next-faq --out tests/data/glm5next-long.json

Float32, on the dequantized experts. Allowed is twice the distance of the same forward in bfloat16. Choosing the worst
pools instead of the best must be farther off than that, else the prompt would say nothing about the indexer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from glm5next_model import Glm5NextDemo, load
from glm5next_pack import in_bfloat16
from long_prompt import SAMPLED, distances, long_prompt

NUM_TOKENS = 16384
ROOM = 2


@torch.inference_mode()
def logprobs_of(model: Glm5NextDemo, prompt: list[int]) -> list[float]:
    """Log-probability of every SAMPLED-th token of the prompt, from the second on."""
    tokens = torch.tensor([prompt])
    positions = torch.arange(1, len(prompt), SAMPLED)
    found = model(tokens, positions - 1).float().log_softmax(-1)
    return found.gather(1, tokens[0, positions, None])[:, 0].tolist()


def with_worst_pools(model: Glm5NextDemo, prompt: list[int]) -> list[float]:
    """The same when every indexer prefers what it should leave out."""
    heads = [parameter for name, parameter in model.named_parameters() if "indexer.weights_proj" in name]
    assert heads
    for parameter in heads:
        parameter.data.neg_()
    found = logprobs_of(model, prompt)
    for parameter in heads:
        parameter.data.neg_()
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS)
    options = parser.parse_args()
    prompt, model = long_prompt(options.tokens), load(options.pack)
    exact = logprobs_of(model, prompt)
    worst = distances(with_worst_pools(model, prompt), exact)
    rounded = distances(logprobs_of(in_bfloat16(model), prompt), exact)
    allowed = [round(ROOM * distance, 4) for distance in rounded]
    print(f"bfloat16 {rounded}, worst pools {worst}, allowed {allowed}")
    if worst[1] < allowed[1]:
        raise SystemExit("the prompt does not tell a wrong choice of pools from rounding")
    stored = {
        "num_tokens": len(prompt),
        "allowed": allowed,
        "worst_pools": round(worst[1], 4),
        "logprobs": [round(value, 4) for value in exact],
    }
    options.out.write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
