"""Train the bundled drafters: `python scripts/train_models.py smollm2 --text FOLDER --out FOLDER`, or `tiny`.

FOLDER of --text holds the shards of `python -m specsched.torch_side.sample`. What came out, from what text and by
which command, is in models/README.md. Runs resume where they stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specsched.torch_side.drafter_config import DrafterConfig
from specsched.torch_side.losses import LossWeights
from specsched.torch_side.target import Target, load_target
from specsched.torch_side.train import TrainSettings, train


def smollm2_config(target: Target, layers: int, intermediate: int, rank: int, head: str) -> DrafterConfig:
    """A DSpark drafter for SmolLM2-135M: the features of four blocks, γ = 7."""
    c = target.config
    return DrafterConfig(
        kind="dspark",
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        block_size=7,
        target_layer_ids=(2, 13, 22, 28),
        mask_token_id=4,
        markov_rank=rank,
        markov_head_type=head,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_theta,
        num_target_layers=c.num_hidden_layers,
    )


def smollm2(options: argparse.Namespace) -> None:
    """One drafter for SmolLM2 from sampled shards."""
    target = load_target("smollm2", options.device)
    config = smollm2_config(target, options.layers, options.intermediate, options.rank, options.head)
    settings = TrainSettings(
        steps=options.steps,
        texts=options.texts,
        anchors=options.anchors,
        learning_rate=options.learning_rate,
        warmup=200,
        curriculum=((0.2, 2), (0.25, 4)) if options.curriculum else (),
        reduced_precision=not options.full_precision,
        loss=LossWeights(),
        seed=options.seed,
    )
    report = train(
        target,
        sorted(options.text.glob("shard-*.npz")),
        options.out,
        config,
        settings,
        cache=options.cache,
        draft_vocab_size=options.draft_vocab,
        checkpoint_every=50,
        keep_checkpoint=True,
    )
    print(json.dumps(report, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("smollm2")
    one.add_argument("--text", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--cache", type=Path)
    one.add_argument("--steps", type=int, default=4000)
    one.add_argument("--texts", type=int, default=4)
    one.add_argument("--anchors", type=int, default=32)
    one.add_argument("--layers", type=int, default=3)
    one.add_argument("--intermediate", type=int, default=1280)
    one.add_argument("--rank", type=int, default=64)
    one.add_argument("--head", default="vanilla")
    one.add_argument("--draft-vocab", type=int, default=16384)
    one.add_argument("--learning-rate", type=float, default=1e-3)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--device", default="cpu")
    one.add_argument("--curriculum", action="store_true")
    one.add_argument("--full-precision", action="store_true", help="float32 products (CPUs without bfloat16)")
    one.set_defaults(run=smollm2)
    options = parser.parse_args()
    torch.manual_seed(0)
    options.run(options)


if __name__ == "__main__":
    main()
