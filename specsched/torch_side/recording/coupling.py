"""Dense drafting along a known text: the coupling of a drafter to its target's own output.

With p_t, p_d the laws of target and drafter at a position and y the token of the text there:

    accept y with probability min(1, p_d(y) / p_t(y))     the draft token is then y itself
    else the draft token is drawn from max(0, p_d - p_t) normalised, and drafting goes on freely from it

Over the draw of y from p_t this is speculative sampling seen from the output's side: the draft token has law
p_d, and given that it is d it is accepted with probability min(1, p_t(d) / p_d(d)).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import TraceError
from ...files.archive import check_archive
from ...files.output import atomic_write, damaged
from ..drafter.base import Drafter
from ..engine.sampling import ACCEPT, DRAFT, RESIDUAL, Sampling, draw, residual, uniforms
from ..target.decoder import Target
from ..training.sample import sample_responses

CHUNK = 48
"""Anchors drafted side by side: the draft laws of a chunk take CHUNK * γ * V floats."""


class Rows(NamedTuple):
    """Rows of one request, one per anchor, in order."""

    position: np.ndarray
    """int64[n] index of the anchor among the output tokens"""
    confidence_logit: np.ndarray
    """float32[n, γ]"""
    accepted: np.ndarray
    """int64[n], 0..γ"""


class Widths(NamedTuple):
    """What the states of a text measure: of a target and a drafter."""

    hidden: int
    features: int
    vocabulary: int


class Text(NamedTuple):
    """A text of the target with what its own forwards said about it, on the target's device."""

    tokens: Tensor
    """int64[T]: prompt, answer, and γ more tokens past the end of the answer"""
    prompt: int
    """how many of them are prompt"""
    answer: int
    """how many are answer (the stop token included)"""
    hidden: Tensor
    """float[T - prompt, d]: hidden[j] gives the law of output token j"""
    features: Tensor
    """float[T - 1, F] of every token but the last, for the drafter"""


def sample_texts(
    target: Target,
    layers: tuple[int, ...],
    lookahead: int,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[int],
    max_tokens: int,
    sampling: Sampling,
    seed: int,
) -> list[Text]:
    """Sample an answer to every prompt, and γ = `lookahead` tokens more; features of `layers`.

    `keys` name the random streams; answers end at a stop token.
    """
    hidden: list[list[Tensor]] = [[] for _ in prompts]
    features: list[list[Tensor]] = [[] for _ in prompts]

    def keep(owner: list[int], position: Tensor, h: Tensor, f: Tensor) -> None:
        for row, (who, at) in enumerate(zip(owner, position.tolist(), strict=True)):
            features[who].append(f[row])
            if at >= len(prompts[who]) - 1:
                hidden[who].append(h[row])

    answers = sample_responses(
        target,
        prompts,
        max_tokens,
        seed=seed,
        keys=keys,
        lookahead=lookahead,
        feature_layers=layers,
        keep=keep,
        sampling=sampling,
    )
    return [
        Text(
            torch.tensor([*prompt, *answer], dtype=torch.int64, device=target.device),
            len(prompt),
            len(answer) - lookahead,
            torch.stack(hidden[i]),
            torch.stack(features[i]),
        )
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


def save_texts(path: Path, texts: list[Text]) -> None:
    """Keep texts with their hidden states, so that other drafters with the same layers are recorded on
    them."""
    buffer = io.BytesIO()
    torch.save([tuple(text) for text in texts], buffer)
    with atomic_write(path, "wb", own=True) as stream:
        stream.write(buffer.getvalue())


def load_texts(
    path: Path,
    device: torch.device,
    prompts: Sequence[Sequence[int]] | None = None,
    widths: Widths | None = None,
) -> list[Text]:
    """Texts written by `save_texts`, of these prompts and widths where they are given."""
    with damaged(path, TraceError, "delete it, and its texts are sampled again"):
        check_archive(path)
        kept = [Text(*fields) for fields in torch.load(path, map_location=device, weights_only=True)]
        for text in kept:
            _check_text(text, widths)
        if prompts is not None and [t.tokens[: t.prompt].tolist() for t in kept] != [
            list(p) for p in prompts
        ]:
            raise ValueError("texts of other prompts")
        return kept


def _check_text(text: Text, widths: Widths | None) -> None:
    """Raise ValueError where the parts of a text do not fit together."""
    length = len(text.tokens)
    counts = type(text.prompt) is int and type(text.answer) is int
    if (
        not counts
        or text.tokens.dtype != torch.int64
        or not 0 < text.prompt <= text.prompt + text.answer <= length
    ):
        raise ValueError("texts of another shape")
    for part, rows, width in zip(
        (text.hidden, text.features), (length - text.prompt, length - 1), widths or (None, None), strict=False
    ):
        if part.ndim != 2 or len(part) != rows or (width is not None and part.shape[1] != width):
            raise ValueError("states of another shape")
    if widths is not None and not 0 <= int(text.tokens.min()) <= int(text.tokens.max()) < widths.vocabulary:
        raise ValueError("tokens beyond the vocabulary")


def check_rows(rows: list[Rows], counts: list[int], block_size: int, dense: bool) -> None:
    """Raise ValueError where rows of a part are not what a recording (of every position: `dense`) writes."""
    for row, count in zip(rows, counts, strict=True):
        whole = all(
            column.dtype.kind == "i" and column.shape == (count,) for column in (row.position, row.accepted)
        )
        if (
            not whole
            or row.confidence_logit.shape != (count, block_size)
            or row.confidence_logit.dtype.kind != "f"
        ):
            raise ValueError("rows of another shape")
        if (row.position < 0).any() or not ((row.accepted >= 0) & (row.accepted <= block_size)).all():
            raise ValueError("rows that no step made")
        rise = np.diff(row.position)
        if (rise < 1).any() or not np.isfinite(row.confidence_logit).all():
            raise ValueError("positions that do not rise, or confidences that are not numbers")
        if (rise > block_size + 1).any() or (
            dense and count and (rise.sum(), row.position[0]) != (count - 1, 0)
        ):
            raise ValueError("positions that no step reaches")


@torch.no_grad()
def dense_rows(target: Target, drafter: Drafter, text: Text, sampling: Sampling, seed: int, key: int) -> Rows:
    """A row for every output token of `text` but the last (it starts no step): n = answer - 1 of them."""
    n, gamma, device = text.answer - 1, drafter.block_size, target.device
    context = drafter.new_context(1, len(text.tokens))
    slots = torch.zeros(len(text.features), dtype=torch.int64, device=device)
    positions = torch.arange(len(text.features), device=device)
    context.observe(slots, positions, text.features, text.tokens[:-1])
    logits = np.zeros((n, gamma), np.float32)
    accepted = np.zeros(n, np.int64)
    for start in range(0, n, CHUNK):
        rows = torch.arange(start, min(start + CHUNK, n), device=device)
        coupled = _Coupled(target, text, rows, gamma, sampling, seed, key)
        block = drafter.draft(
            text.tokens[text.prompt + rows],
            text.prompt + rows,
            context,
            law=sampling.draft_law,
            sampler=coupled,
            slots=torch.zeros_like(rows),
        )
        at = slice(start, start + len(rows))
        logits[at] = block.confidence_logit.float().cpu().numpy()
        accepted[at] = coupled.accepted.cpu().numpy()
    return Rows(np.arange(n), logits, accepted)


class _Coupled:
    """The `sampler` of a draft call: draws the draft tokens of anchors `rows`, and counts acceptances."""

    def __init__(
        self, target: Target, text: Text, rows: Tensor, gamma: int, sampling: Sampling, seed: int, key: int
    ) -> None:
        self.rows = rows
        self.output = text.tokens[text.prompt :]
        self.first = int(rows[0]) + 1
        ahead = text.hidden[self.first : int(rows[-1]) + gamma + 1]
        self.law = sampling.target_law(target.precise_logits(ahead))
        self.alive = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        self.accepted = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        keys, at = np.full(len(rows), key), rows.cpu().numpy()
        self.u_accept, self.u_residual, self.u_free = (
            uniforms(seed, stream, keys, at, gamma).to(rows.device) for stream in (ACCEPT, RESIDUAL, DRAFT)
        )

    def __call__(self, k: int, p_draft: Tensor) -> Tensor:
        """Draft token k (from 0) of every row, int64[R]; p_draft float32[R, V]."""
        next_index = self.rows + k + 1
        y = self.output[next_index]
        p_target = self.law[next_index - self.first]
        at = torch.arange(len(y), device=y.device)
        passed = self.alive & (self.u_accept[:, k] * p_target[at, y] < p_draft[at, y])
        failed, free = self.alive & ~passed, ~self.alive
        token = y.clone()
        if bool(failed.any()):
            token[failed] = draw(residual(p_draft[failed], p_target[failed]), self.u_residual[failed, k])
        if bool(free.any()):
            token[free] = draw(p_draft[free], self.u_free[free, k])
        self.accepted += passed
        self.alive = passed
        return token
