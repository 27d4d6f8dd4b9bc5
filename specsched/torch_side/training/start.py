"""Where a training run starts and what it ends as: vocabulary, first weights, another run's, folding."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import SpecschedError
from ...files.archive import check_archive
from ...files.output import damaged
from ..drafter.base import Drafter
from ..drafter.heads import ConfidenceHead
from ..target.decoder import Target
from .text import TrainingText


@torch.no_grad()
def warm_start(drafter: Drafter, scale: Tensor, checkpoint: Path) -> None:
    """Take the weights of another run (other text, schedule or draft vocabulary); optimiser and steps start
    again.

    Rows of W2 follow their tokens into the new draft vocabulary (0 where the old one had none), and `fc` is
    brought to the new conditioning of the features.
    """
    state = read_training_checkpoint(checkpoint)
    weights = state["weights"]
    weights["fc.weight"] = weights["fc.weight"] / state["scale"] * scale
    if drafter.markov_w2 is not None:
        rows = torch.zeros(drafter.config.vocab_size, drafter.config.markov_rank)
        old = weights["markov_head.markov_w2.weight"]
        ids = state["draft_ids"] if state["draft_ids"] is not None else torch.arange(len(rows))
        rows[ids] = old
        if drafter.draft_ids is not None:
            rows = rows[drafter.draft_ids.cpu()]
        weights["markov_head.markov_w2.weight"] = rows
    expected = drafter.own_state()
    for name, value in weights.items():
        if name not in expected or expected[name].shape != value.shape:
            raise SpecschedError(
                f"{checkpoint}: {name} does not fit this drafter; start from one of its shape"
            )
        expected[name].copy_(value)


def read_training_checkpoint(path: Path) -> dict[str, Any]:
    """The dictionary `Trainer.save` wrote (tensors and plain values only)."""
    with damaged(path, SpecschedError, "it is no training checkpoint of ours: move it elsewhere"):
        check_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        missing = {"weights", "optimiser", "done", "settings", "config", "draft_ids", "scale"} - state.keys()
        if missing:
            raise KeyError(min(missing))
        if type(state["done"]) is not int or state["done"] < 0:
            raise ValueError("a number of steps that is none")
        if not all(isinstance(state[key], dict) for key in ("weights", "optimiser", "settings", "config")):
            raise ValueError("parts of another kind")
        tensors = [state["scale"], *state["weights"].values()]
        if not all(isinstance(one, Tensor) and bool(one.isfinite().all()) for one in tensors):
            raise ValueError("weights that are no numbers")
        ids = state["draft_ids"]
        if ids is not None and not (isinstance(ids, Tensor) and ids.dtype == torch.int64 and ids.ndim == 1):
            raise ValueError("draft ids that are none")
        return dict(state)


def draft_vocabulary(text: TrainingText, vocab_size: int, size: int | None) -> tuple[Tensor | None, float]:
    """The `size` tokens with the most target probability on the training text, sorted, and their share
    of it.
    """
    if size is None or size >= vocab_size:
        return None, 1.0
    mass = text.token_mass(vocab_size)
    ids = torch.from_numpy((-mass).argsort(kind="stable")[:size].copy()).sort().values
    return ids, float(mass[ids].sum() / max(mass.sum(), 1e-9))


def add_draft_stats(drafter: Drafter) -> None:
    """Give the confidence head two more inputs (config `confidence_draft_stats`); it must be fitted again."""
    drafter.config = drafter.config.replace(confidence_draft_stats=True)
    drafter.confidence_head = ConfidenceHead(drafter.config).to(drafter.fc.weight)


@torch.no_grad()
def start_from_target(drafter: Drafter, target: Target, scale: Tensor) -> None:
    """Start a DSpark or DFlash drafter from the target's last blocks instead of noise; it learns faster at
    first.

    Drafter layer i takes the weights of the target's last layers, `fc` passes on the deepest feature alone
    (times
    `scale`, the conditioning of training), so that injected keys are close to the target's own from step 0.
    Needs equal shapes; parts whose shapes differ keep their random start.
    """
    c = drafter.config
    if c.kind == "eagle3":
        return
    width = c.hidden_size
    drafter.fc.weight.mul_(0.2)
    drafter.fc.weight[:, -width:].add_(torch.diag(scale[-width:]).to(drafter.fc.weight))
    own = dict(drafter.named_parameters())
    theirs = dict(target.named_parameters())
    first = len(target.layers) - c.num_hidden_layers
    for name, value in own.items():
        parts = name.split(".")
        if parts[0] == "layers":
            source = theirs.get(".".join(["layers", str(int(parts[1]) + first), *parts[2:]]))
        elif parts[0] == "hidden_norm":
            source = theirs[f"layers.{len(target.layers) - 1}.input_layernorm.weight"]
        else:
            continue
        if source is not None and source.shape == value.shape:
            value.copy_(source)


def folded(drafter: Drafter, scale: Tensor) -> Drafter:
    """A copy whose `fc` takes raw features: the conditioning `scale` of training is divided into its
    weight.
    """
    whole = copy.copy(drafter)
    whole._modules = dict(drafter._modules)
    whole.fc = copy.deepcopy(drafter.fc).requires_grad_(False)
    whole.fc.weight /= scale.to(whole.fc.weight)
    return whole
