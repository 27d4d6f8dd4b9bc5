"""The text of the bundled drafters: `python -m scripts.models.sample --data FOLDER --out FOLDER`.

It samples one shard after the other and resumes where it stopped; DATA holds text/ and prompts/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from specsched.torch_side.target.weights import load_target
from specsched.torch_side.training.sample import prompt_ids, write_shards

from .prompts import training_prompts


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the shards that are not there yet."""
    parser = argparse.ArgumentParser(prog="python -m scripts.models.sample", description=__doc__)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--data", required=True, type=Path, help="folder with text/ and prompts/")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--shards", type=int, default=14)
    parser.add_argument("--start", type=int, default=0, help="first shard of this process")
    parser.add_argument("--stride", type=int, default=1, help="every n-th shard, for n processes at once")
    parser.add_argument("--per-domain", type=int, default=80)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--max-prompt", type=int, default=500, help="longer prompts are skipped, tokens")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)

    def told(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    target = load_target(options.target, options.device, getattr(torch, options.dtype))
    asked = {}
    for domain, prompts in training_prompts(options.data, options.seed).items():
        ids = [(prompt_ids(target, prompt.turns), prompt) for prompt in prompts]
        asked[domain] = [row for row in ids if len(row[0]) <= options.max_prompt]
        told(f"{domain}: {len(asked[domain])} prompts of {len(prompts)}")
    write_shards(
        target,
        asked,
        options.out,
        range(options.start, options.shards, options.stride),
        options.per_domain,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        told=told,
    )


if __name__ == "__main__":
    main()
