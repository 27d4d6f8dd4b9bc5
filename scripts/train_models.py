"""Train the bundled drafters: `python scripts/train_models.py smollm2 --text FOLDER --out FOLDER`, or `tiny`.

FOLDER of --text holds the shards of `python -m scripts.models.sample`. What came out, from what text
and by which command, is in models/README.md. Runs resume where they stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.models.prompts import MATH_SUFFIX, training_prompts
from specsched.torch_side.drafter.config import DrafterConfig
from specsched.torch_side.engine.prompts import Prompt, read_rows
from specsched.torch_side.target.decoder import Target
from specsched.torch_side.target.weights import load_target
from specsched.torch_side.training.losses import LossWeights
from specsched.torch_side.training.sample import prompt_ids, write_shard
from specsched.torch_side.training.trainer import TrainSettings, train


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
        regression=options.regression,
        feature_noise=options.noise,
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
        from_target=options.from_target,
        start=options.start,
        confidence_stats=True,
    )
    print(json.dumps(report, indent=1))


TINY = {
    "tiny-dspark-markov": {"markov_rank": 32, "markov_head_type": "vanilla"},
    "tiny-dspark-rnn": {"markov_rank": 32, "markov_head_type": "rnn"},
    "tiny-dspark-gated": {"markov_rank": 32, "markov_head_type": "gated"},
    "tiny-dspark-none": {},
    "tiny-dspark-markov-1layer": {"markov_rank": 32, "markov_head_type": "vanilla", "num_hidden_layers": 1},
    "tiny-dflash": {"kind": "dflash"},
    "tiny-eagle3": {"kind": "eagle3", "num_hidden_layers": 1},
}
"""Name of a tiny drafter -> what differs from the common shape."""


def tiny(options: argparse.Namespace) -> None:
    """The drafters of the tiny target, all on the same text, steps and seed."""
    target = load_target(options.target, options.device)
    c = target.config
    common = DrafterConfig(
        kind="dspark",
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=3 * c.hidden_size,
        num_hidden_layers=2,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        block_size=options.block_size,
        target_layer_ids=tuple(range(c.num_hidden_layers - 1)),
        mask_token_id=0,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_theta,
        num_target_layers=c.num_hidden_layers,
    )
    for name in options.name or TINY:
        changes = dict(TINY[name])
        kind = changes.get("kind", "dspark")
        terms = {"dspark": LossWeights(), "dflash": LossWeights(1.0, 0.0, 0.0)}.get(kind)
        if kind == "dspark":
            markov = changes.get("markov_rank", 0) > 0
            changes |= {"enable_confidence_head": True, "confidence_head_with_markov": markov}
        settings = TrainSettings(
            steps=options.steps,
            texts=4,
            anchors=24,
            learning_rate=2e-3,
            warmup=50,
            whole_law=True,
            reduced_precision=False,
            seed=options.seed,
            # EAGLE-3's own loss: soft cross-entropy, step weights 0.8^k.
            loss=terms or LossWeights(0.0, 0.0, 0.0, 1.0, 4.48),
        )
        out = options.out / (name + options.suffix)
        shards = sorted(options.text.glob("shard-*.npz"))
        report = train(target, shards, out, common.replace(**changes), settings, cache=options.cache)
        print(json.dumps({name + options.suffix: report["all"]}))


def human_text(options: argparse.Namespace) -> None:
    """Human-written answers to training prompts as a shard: text to start on while a target still samples.

    Licences: GSM8K train and TheAlgorithms/Python MIT, MBPP and Taskmaster-4 CC-BY-4.0. No prompt of it
    records traces.
    """
    target = load_target("smollm2")
    assert target.tokenizer is not None
    encode, stop = target.tokenizer.encode, target.config.eos_token_ids[0]
    text = options.data / "text"
    answers = {r["q"] + MATH_SUFFIX: r["a"] for r in read_rows(text / "gsm8k_train.jsonl.gz")}
    answers |= {r["text"]: f"```python\n{r['code']}\n```" for r in read_rows(text / "mbpp_full.jsonl.gz")}
    prompts = training_prompts(options.data)
    rows: list[tuple[Prompt, str]] = []
    for domain, source, count in (("math", "gsm8k-train", 350), ("code", "mbpp", 150)):
        chosen = [p for p in prompts[domain] if p.source == source][:count]
        rows += [(p, answers[p.turns[0]]) for p in chosen]
    for r in read_rows(text / "thealgorithms_py.jsonl.gz")[::9]:
        prompt = Prompt((f"Show me {r['path']} of TheAlgorithms/Python.",), "code", "thealgorithms")
        rows.append((prompt, f"```python\n{r['src']}"))
    for r in read_rows(text / "taskmaster4_coffee.jsonl.gz")[:150]:
        lines = "\n".join(f"{'Customer' if who == 'u' else 'Barista'}: {said}" for who, said in r["t"])
        rows.append((Prompt(("Write a dialogue at a coffee shop.",), "chat", "taskmaster4"), lines))
    ids = [(prompt_ids(target, p.turns), [*encode(answer), stop][:256], p) for p, answer in rows]
    write_shard(options.out / "shard-human.npz", ids)
    print(f"{len(ids)} texts, {sum(len(a) for _, a, _ in ids)} response tokens", file=sys.stderr)


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
    one.add_argument("--from-target", action="store_true")
    one.add_argument("--start", type=Path, help="checkpoint.pt of an earlier run to take the weights from")
    one.add_argument("--regression", type=float, default=0.0)
    one.add_argument("--noise", type=float, default=0.0)
    one.add_argument("--full-precision", action="store_true", help="float32 products (CPUs without bfloat16)")
    one.set_defaults(run=smollm2)
    small = commands.add_parser("tiny")
    small.add_argument("--text", type=Path, required=True)
    small.add_argument("--out", type=Path, required=True)
    small.add_argument("--cache", type=Path, required=True)
    small.add_argument("--target", default="tiny")
    small.add_argument("--name", action="append", choices=list(TINY), help="only these (repeatable)")
    small.add_argument("--suffix", default="")
    small.add_argument("--block-size", type=int, default=7)
    small.add_argument("--steps", type=int, default=1500)
    small.add_argument("--seed", type=int, default=0)
    small.add_argument("--device", default="cpu")
    small.set_defaults(run=tiny)
    two = commands.add_parser("human-text")
    two.add_argument("--data", type=Path, required=True, help="folder with text/ and prompts/")
    two.add_argument("--out", type=Path, required=True)
    two.set_defaults(run=human_text)
    options = parser.parse_args()
    torch.manual_seed(0)
    options.run(options)


if __name__ == "__main__":
    main()
