"""Train the bundled tiny target: about one million parameters, its own byte-level BPE of 2048 pieces.

Run it as `python -m specsched.torch_side.tiny --data FOLDER --out FOLDER`. The text is permissively
licensed: GSM8K train (MIT), MBPP without its sanitized test (CC-BY-4.0), TheAlgorithms (MIT), Taskmaster-4
(CC-BY-4.0). It writes like its text without making sense: it is there for tests and for the CPU engine.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.models.prompts import MATH_SUFFIX, function_prompts, recording_prompts, text_key
from specsched.torch_side.engine.prompts import read_rows
from specsched.torch_side.target.config import TargetConfig
from specsched.torch_side.target.decoder import Target
from specsched.torch_side.target.tokenizer import Tokenizer, train_bpe
from specsched.torch_side.target.weights import save_folder

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB = 2048


def corpus(data: Path) -> list[list[tuple[str, str]]]:
    """Conversations as (role, text) lists, in a fixed order. `data`: folder with text/ and prompts/."""
    text = data / "text"
    held_out = {text_key(p.turns[0]) for p in recording_prompts(data)["code"]}
    talks = []
    for row in read_rows(text / "gsm8k_train.jsonl.gz"):
        talks.append([("user", row["q"] + MATH_SUFFIX), ("assistant", row["a"])])
    for row in read_rows(text / "mbpp_full.jsonl.gz"):
        if text_key(row["text"]) not in held_out:
            talks.append([("user", row["text"]), ("assistant", f"```python\n{row['code']}\n```")])
    for row in read_rows(text / "thealgorithms_py.jsonl.gz"):
        ask = function_prompts([row])
        request = ask[0] if ask else f"Write the Python module `{row['path']}`."
        talks.append([("user", request), ("assistant", f"```python\n{row['src']}\n```")])
    roles = {"u": "user", "a": "assistant"}
    for row in read_rows(text / "taskmaster4_coffee.jsonl.gz"):
        talks.append([(roles.get(who, "user"), what) for who, what in row["t"]])
    return talks


def render(talk: list[tuple[str, str]]) -> str:
    """A conversation in the chat format the tokenizer's template writes."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in talk)


def config(tokenizer: Tokenizer) -> TargetConfig:
    """Qwen3 architecture: 4 layers of width 128, tied embedding; 1.0 M parameters."""
    return TargetConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=352,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        qk_norm=True,
        tie_word_embeddings=True,
        eos_token_ids=(tokenizer.special["<|im_end|>"],),
        name="tiny-target",
    )


def initialise(target: Target, seed: int) -> None:
    """Normal(0, 0.02), output projections scaled down by depth."""
    generator = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * target.config.num_hidden_layers)
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if parameter.ndim == 2:
                scale = 0.02 / depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                parameter.normal_(0, scale, generator=generator)


def train(
    target: Target,
    stream: Tensor,
    held_out: Tensor,
    steps: int,
    batch: int = 32,
    length: int = 256,
    rate: float = 3e-3,
    seed: int = 0,
    checkpoint: Path | None = None,
) -> float:
    """Next-token training on random windows of `stream` int64[n]. Returns the held-out loss, nats a token.

    A checkpoint, written every 50 steps, holds weights, optimiser and step; training goes on from it.
    """
    decay = [p for p in target.parameters() if p.ndim == 2]
    plain = [p for p in target.parameters() if p.ndim != 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    first = 0
    if checkpoint is not None and checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        target.load_state_dict(state["target"])
        optimiser.load_state_dict(state["optimiser"])
        first = state["step"]
    start = time.perf_counter()
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        warm = min(1.0, (step + 1) / 50)
        for group in optimiser.param_groups:
            group["lr"] = rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        at = torch.randint(len(stream) - length - 1, (batch,), generator=generator)
        window = stream[at.unsqueeze(1) + torch.arange(length + 1)]
        loss = _loss(target, window)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(target.parameters(), 1.0)
        optimiser.step()
        if step % 25 == 24 or step == steps - 1:
            rate_now = (step + 1 - first) * batch * length / (time.perf_counter() - start)
            print(
                f"step {step + 1}: loss {loss.item():.3f}, {rate_now:.0f} tokens/s",
                file=sys.stderr,
                flush=True,
            )
        if checkpoint is not None and step % 50 == 49:
            state = {"target": target.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}
            torch.save(state, checkpoint)
    return evaluate(target, held_out, length)


def _loss(target: Target, window: Tensor) -> Tensor:
    hidden, _ = target.parallel(window[:, :-1])
    return F.cross_entropy(target.logits(hidden).flatten(0, 1), window[:, 1:].flatten())


@torch.no_grad()
def evaluate(target: Target, stream: Tensor, length: int = 256) -> float:
    """Mean loss over whole windows of `stream`, nats a token."""
    windows = stream[: len(stream) // (length + 1) * (length + 1)].view(-1, length + 1)
    losses = [float(_loss(target, part)) * len(part) for part in windows.split(16)]
    return sum(losses) / len(windows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(prog="python -m specsched.torch_side.tiny", description=__doc__)
    parser.add_argument("--data", required=True, type=Path, help="folder with text/ and prompts/")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--batch", type=int, default=16, help="windows of 256 tokens a step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    talks = corpus(options.data)
    random.Random(options.seed).shuffle(talks)
    texts = [render(t) for t in talks]
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_bpe((t for talk in talks for _, t in talk), VOCAB, SPECIAL)
    stream = [torch.tensor(tokenizer.encode(t)) for t in texts]
    cut = len(stream) // 40
    held_out, stream_ids = torch.cat(stream[:cut]), torch.cat(stream[cut:])
    target = Target(config(tokenizer), tokenizer)
    initialise(target, options.seed)
    size = sum(p.numel() for p in target.parameters())
    print(f"{size} parameters, {len(stream_ids)} training tokens", file=sys.stderr, flush=True)
    checkpoint = options.out / "checkpoint.pt"
    loss = train(
        target, stream_ids, held_out, options.steps, options.batch, seed=options.seed, checkpoint=checkpoint
    )
    print(f"held-out loss {loss:.3f} nats/token", file=sys.stderr, flush=True)
    save_folder(target, options.out)
    checkpoint.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
