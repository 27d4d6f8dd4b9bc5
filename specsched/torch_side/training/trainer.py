"""Train a drafter on a target's own text: random anchors, many per text, the three losses, resumable.

    sampled text -> cached target view (data.py) -> backbone and heads (here)
                 -> confidence head on held-out text (fit.py) -> folder (drafter.py)

A step is a function of (settings, seed, step number) and the weights before it, so a run that was stopped and
resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import SpecschedError
from ...files.output import atomic_write, damaged
from ..drafter.base import Drafter
from ..drafter.config import DrafterConfig
from ..drafter.dspark import make_drafter, save_drafter
from ..target.decoder import Target
from .losses import HeadLoss, LossWeights, confidence_loss, head_loss, position_weights
from .start import (
    add_draft_stats,
    draft_vocabulary,
    folded,
    read_training_checkpoint,
    start_from_target,
    warm_start,
)
from .text import TrainingText, build_cache


@dataclass(frozen=True)
class TrainSettings:
    """How to train. Every field is part of the checkpoint; only `steps` may change when a run is resumed."""

    steps: int = 2000
    texts: int = 8
    """Texts a step"""
    anchors: int = 24
    """Anchors (blocks) in each text"""
    learning_rate: float = 1e-3
    warmup: int = 100
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    seed: int = 0
    curriculum: tuple[tuple[float, int], ...] = ()
    """(share of the steps, block size): shorter blocks first, with more anchors in proportion"""
    feature_noise: float = 0.0
    """Standard deviation of noise on the features (each of unit scale), against learning texts by heart"""
    regression: float = 0.0
    """Weight of an early extra loss, the relative squared error against the target's own hidden states (the
    LM
    head is shared, so equal hidden states are equal laws); it fades to 0 over the first `regression_share`"""
    regression_share: float = 0.3
    loss: LossWeights = field(default_factory=LossWeights)
    whole_law: bool = False
    """Total variation against the whole target law instead of its top tokens and a remainder"""
    reduced_precision: bool = True
    """Matrix products in bfloat16: several times faster on CUDA and on CPUs with AMX, far slower on
    other CPUs
    """


def low_precision(device: torch.device, wanted: bool) -> contextlib.AbstractContextManager[Any]:
    """Matrix products in bfloat16 inside the block (sums, softmax and the weights themselves stay
    float32).
    """
    return torch.autocast(device.type, torch.bfloat16) if wanted else contextlib.nullcontext()


def learning_rate(settings: TrainSettings, step: int) -> float:
    """Linear warm-up, then a cosine to 2 % of the peak at the last step (`step` from 0)."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    progress = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    return settings.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1))))


def block_size_at(settings: TrainSettings, step: int, whole: int) -> int:
    """Block size of a step under the curriculum."""
    start = 0.0
    for share, size in settings.curriculum:
        start += share
        if step < start * settings.steps:
            return min(size, whole)
    return whole


class Trainer:
    """Weights, optimiser and step counter of one run; `step()` does one update."""

    def __init__(self, drafter: Drafter, target: Target, text: TrainingText, settings: TrainSettings) -> None:
        self.drafter, self.target, self.text, self.settings = drafter, target, text, settings
        self.pool = text.of(held_out=False)
        if not self.pool:
            raise SpecschedError("every text is held out; lower held_out or sample more prompts")
        self.done = 0
        self.head = drafter.head_weight.bfloat16() if settings.reduced_precision else drafter.head_weight
        self.parameters = drafter.own_parameters()
        for p in self.parameters:
            p.requires_grad_(True)
        self.optimiser = torch.optim.AdamW(
            self.parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def losses(self, step: int) -> tuple[Tensor, HeadLoss, Tensor]:
        """The loss of one step (with gradient), the per-position results and the supervised mask bool[n,
        γ].
        """
        s, whole = self.settings, self.drafter.config.block_size
        g = block_size_at(s, step, whole)
        self.drafter.block_size = self.text.block_size = g
        texts, anchors = self.text.pick(self.pool, s.seed, step, s.texts, s.anchors * whole // g)
        batch, inside = self.text.batch(texts, anchors)
        law = self.text.law(texts, anchors, self.target if s.whole_law else None)
        device = self.target.device
        batch = type(batch)(*(x.to(device) for x in batch))
        if s.feature_noise > 0:
            generator = torch.Generator(device).manual_seed(s.seed * 1_000_003 + step)
            noise = torch.randn(batch.features.shape, generator=generator, device=device)
            batch = batch._replace(features=batch.features + s.feature_noise * noise)
        law = law.to(device)
        inside = inside.to(device)
        weight = (inside * position_weights(g, s.loss.decay, device)).flatten()
        out = self.drafter.teacher(batch)
        latent = None if out.latent is None else out.latent.flatten(0, 1)
        result = head_loss(
            out.hidden.flatten(0, 1), latent, self.head, self.drafter.markov_w2, law, weight, s.loss
        )
        loss = result.loss
        fade = s.regression * max(0.0, 1 - step / max(s.regression_share * s.steps, 1))
        if fade > 0:
            wanted = self.text.hidden(texts, anchors).to(device)
            error = (out.hidden.flatten(0, 1).float() - wanted).square().sum(-1)
            loss = loss + fade * (error * weight).sum() / (wanted.square().sum(-1) * weight).sum().clamp(
                min=1e-6
            )
        head = self.drafter.confidence_head
        if head is not None and s.loss.confidence > 0:
            logit = head(out.hidden, out.embedded)
            loss = loss + s.loss.confidence * confidence_loss(logit.flatten(), result.accept, weight)
        return loss, result, inside

    def step(self) -> tuple[float, Tensor, Tensor]:
        """One update: (loss, summed 1 - TV per position float32[γ], supervised count per position)."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.settings, self.done)
        self.optimiser.zero_grad(set_to_none=True)
        with low_precision(self.target.device, self.settings.reduced_precision):
            loss, result, inside = self.losses(self.done)
            self.drafter.block_size = self.text.block_size = self.drafter.config.block_size
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.optimiser.step()
        self.done += 1
        accept = (result.accept.view(inside.shape) * inside).sum(0).cpu()
        pad = (0, self.drafter.block_size - len(accept))
        return float(loss.detach()), F.pad(accept, pad), F.pad(inside.sum(0).cpu(), pad)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything a later process needs to go on, atomically."""
        state = {
            "weights": self.drafter.own_state(),
            "optimiser": self.optimiser.state_dict(),
            "done": self.done,
            "settings": asdict(self.settings) | {"loss": tuple(self.settings.loss)},
            "config": self.drafter.config.to_dict(),
            "draft_ids": self.drafter.draft_ids,
            "scale": self.text.scale,
        }
        with atomic_write(path, "wb", own=True) as stream:
            torch.save(state, stream)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint; raises when it belongs to another config or other settings."""
        state = read_training_checkpoint(path)
        now = asdict(self.settings) | {"loss": tuple(self.settings.loss)}
        changed = [k for k in now if now[k] != state["settings"].get(k) and k != "steps"]
        if changed or state["config"] != self.drafter.config.to_dict():
            what = ", ".join(changed) or "the drafter's config"
            raise SpecschedError(f"{path}: a run with other settings ({what}); give another output folder")
        with damaged(path, SpecschedError, "delete it and train again"):
            own = self.drafter.own_state()
            if {k: v.shape for k, v in state["weights"].items()} != {k: v.shape for k, v in own.items()}:
                raise ValueError("weights of another shape")
            if state["scale"].shape != self.text.scale.shape:
                raise ValueError("a scale of another shape")
            self.drafter.load_state_dict(state["weights"], strict=False)
            self.optimiser.load_state_dict(state["optimiser"])
        self.text.scale = state["scale"]
        self.done = state["done"]


def train(
    target: Target,
    shards: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    config: DrafterConfig,
    settings: TrainSettings | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    draft_vocab_size: int | None = None,
    held_out: float = 0.18,
    confidence_stats: bool = False,
    from_target: bool = False,
    start: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 200,
    keep_checkpoint: bool = False,
    progress: bool = True,
    on_step: Callable[[Trainer, float], None] | None = None,
) -> dict[str, Any]:
    """Train a drafter of shape `config` on sampled-text shards and write it to the folder `out`.

    Resumes from `out`/checkpoint.pt when there is one (also after more shards were added). `cache` holds the
    target's view of the text (default: `out`/text). `from_target`: see `start_from_target`; `start`: see
    `warm_start`; `confidence_stats`: see `add_draft_stats`. Returns what was measured on the held-out side.
    Raises SpecschedError when text, target and config do not belong together.
    """
    from .confidence import evaluate, fit_confidence

    settings = settings or TrainSettings()
    if config.confidence_draft_stats:
        raise SpecschedError(
            "draft statistics join the confidence head after training: pass confidence_stats"
        )
    out = Path(out)
    if not shards:
        raise SpecschedError("no text shards given; make some with python -m specsched.torch_side.sample")
    folders = build_cache(
        target,
        [Path(s) for s in shards],
        Path(cache or out / "text"),
        config.target_layer_ids,
        dtype=torch.bfloat16 if settings.reduced_precision else None,
    )
    checkpoint = out / "checkpoint.pt"
    text = TrainingText(folders, config.block_size, held_out=held_out, vocab_size=config.vocab_size)
    if checkpoint.is_file():
        ids = read_training_checkpoint(checkpoint)["draft_ids"]
    else:
        ids, share = draft_vocabulary(text, config.vocab_size, draft_vocab_size)
        if ids is not None:
            print(f"draft vocabulary: {len(ids)} tokens, {share:.2%} of the target's mass", file=sys.stderr)
    if ids is not None:
        config = config.replace(draft_vocab_size=len(ids))
        text.restrict(ids, config.vocab_size)
    drafter = make_drafter(config, target, ids, settings.seed)
    if from_target:
        start_from_target(drafter, target, text.scale)
    trainer = Trainer(drafter, target, text, settings)
    if checkpoint.is_file():
        trainer.load(checkpoint)
    elif start is not None:
        warm_start(trainer.drafter, trainer.text.scale, Path(start))
    _run(trainer, checkpoint, checkpoint_every, progress, on_step)
    pool = text.of(held_out=True)
    if pool and drafter.confidence_head is not None:
        if confidence_stats:
            add_draft_stats(drafter)
        fit_confidence(drafter, target, text, pool, settings.seed)
    report = evaluate(drafter, target, text, pool) if pool else {}
    anchors = sum(t.anchors for t in text.of(held_out=False))
    notes = {"training_anchors": anchors, "steps": trainer.done, "seed": settings.seed, "held_out": report}
    save_drafter(folded(drafter, text.scale), out, notes=notes)
    if not keep_checkpoint:
        checkpoint.unlink(missing_ok=True)
    return report


def _run(
    trainer: Trainer,
    checkpoint: Path,
    every: int,
    progress: bool,
    on_step: Callable[[Trainer, float], None] | None,
) -> None:
    """Step until done; checkpoint now and then; 1 - TV per position on stderr."""
    from tqdm import tqdm

    bar = tqdm(
        total=trainer.settings.steps,
        initial=trainer.done,
        disable=not progress,
        file=sys.stderr,
        mininterval=5,
    )
    nothing = torch.zeros(trainer.drafter.block_size)
    total, accepted, counted = 0.0, nothing, nothing
    saved = time.monotonic()
    with bar:
        while trainer.done < trainer.settings.steps:
            loss, accept, count = trainer.step()
            if not math.isfinite(loss):
                raise SpecschedError(
                    f"loss is {loss} at step {trainer.done}; lower the learning rate and start again"
                )
            total, accepted, counted = total + loss, accepted + accept, counted + count
            bar.update(1)
            if on_step is not None:
                on_step(trainer, loss)
            if trainer.done % 50 == 0:
                rates = " ".join(f"{x:.3f}" for x in (accepted / counted.clamp(min=1)).tolist())
                bar.set_postfix_str(f"loss {total / 50:.3f}, 1-TV {rates}")
                total, accepted, counted = 0.0, nothing, nothing
            if trainer.done % every == 0 and time.monotonic() - saved > 30:
                trainer.save(checkpoint)
                saved = time.monotonic()
        trainer.save(checkpoint)
