"""Policies with one leak each, in different places; and policies that look as if they had one."""

from __future__ import annotations

import numpy as np

from specsched import schedule


def _spread(c, budget, key):
    """The first `budget` positions of all requests by `key(row, position)`, prefixes first."""
    lengths = np.zeros(len(c), np.int32)
    while lengths.sum() < min(budget, c.size):
        rows = [r for r in range(len(c)) if lengths[r] < c.shape[1]]
        lengths[min(rows, key=lambda r: key(r, lengths[r]))] += 1
    return lengths


# -- leaks -----------------------------------------------------------------------------------------------


def ties_by_token(c, sps, history):
    """Half of the drafts by falling survival; survivals that tie are ordered by the drafted token."""
    survival, drafts = np.cumprod(c, axis=1), history.drafts
    return _spread(c, c.size // 2, lambda r, k: (-survival[r, k], drafts[r, k], r))


def block_mean(c, sps, history):
    """All or one, by the mean confidence of the block."""
    return np.where(c.mean(axis=1) > 0.62, c.shape[1], 1)


def present_budget(c, sps, history):
    """Section 5.2 without the lag: K from the confidences it then trims."""
    return schedule.top_k(c, schedule.best_budget(c, sps))


def budget_after_a_while(c, sps, history):
    """A lag of one, but from the third step on K is the present one."""
    known = c if len(history.steps) > 2 else history.steps[-1].confidence if history.steps else None
    if known is None or len(known) != len(c):
        return np.full(len(c), c.shape[1])
    return schedule.top_k(c, schedule.best_budget(known, sps))


def later_survival(c, sps, history):
    """Stops in front of a position whose successor will hardly survive."""
    survival = np.cumprod(c, axis=1)
    ahead = np.hstack([survival[:, 1:], survival[:, -1:]])
    return np.cumprod(ahead >= 0.2, axis=1).sum(axis=1)


def fed_back(c, sps, history):
    """The first request is verified as far as the second, which looks at the end of the first."""
    lengths = np.full(len(c), 1)
    if len(c) > 1:
        lengths[1] = c.shape[1] if c[0, -1] > 0.5 else 0
        lengths[0] = lengths[1]
    return lengths


def own_token(c, sps, history):
    """A confidence of its own making, which looks at the token it judges."""
    seen = c * np.where(history.drafts % 2 == 0, 1.0, 0.5)
    return np.cumprod(np.cumprod(seen, axis=1) >= 0.3, axis=1).sum(axis=1)


def gain_over_everything(c, sps, history):
    """The early stop, unless verifying everything, all that lies behind, is worth as much."""
    lengths, survival = schedule.early_stop(c, sps), np.cumprod(c, axis=1)
    kept = sum(survival[r, :n].sum() for r, n in enumerate(lengths))
    trimmed = (len(c) + kept) * sps[len(c) + lengths.sum()]
    everything = (len(c) + survival.sum()) * sps[len(c) + c.size]
    return lengths if trimmed > 1.05 * everything else np.full(len(c), c.shape[1])


def in_crowds(c, sps, history):
    """Harmless below five requests; from there on the last position of each block votes for all of it."""
    if len(c) < 5:
        return np.zeros(len(c), np.int64)
    return np.where(c[:, -1] > 0.5, c.shape[1], 0)


# -- none ------------------------------------------------------------------------------------------------


def drafts_before(c, sps, history):
    """Stops behind a token 1: what decides on position k are drafts before it."""
    before = np.hstack([np.zeros((len(c), 1), np.int64), history.drafts[:, :-1]])
    return np.cumprod(before != 1, axis=1).sum(axis=1)


def others_ahead(c, sps, history):
    """Every request looks at the end of the one before it; the first one at nothing."""
    lengths = np.full(len(c), c.shape[1])
    lengths[1:] = np.where(c[:-1, -1] > 0.5, c.shape[1], 0)
    return lengths


def acceptance_so_far(c, sps, history):
    """As many drafts as the request's last step accepted, and one more."""
    known = dict(zip(history.steps[-1].ids, history.steps[-1].accepted, strict=True)) if history.steps else {}
    return [min(int(known.get(i, 0)) + 1, c.shape[1]) for i in history.ids]


# Stops, probes and comes back within the few steps that an audit has.
STOPPING = schedule.Bypass(1, window=8, least=1, gain=0.0, share=0.5, rows=1)


# -- no policies -------------------------------------------------------------------------------------------


def raises(c, sps, history):
    raise RuntimeError("out of tea")


def a_matrix(c, sps, history):
    return np.zeros(c.shape, np.int64)


def floats(c, sps, history):
    return np.zeros(len(c))


def too_long(c, sps, history):
    return np.full(len(c), c.shape[1] + 1)


def negative(c, sps, history):
    return np.full(len(c), -1)


def ragged(c, sps, history):
    return [[1], [1, 2]]


def changes_confidence(c, sps, history):
    c[:, -1] *= 0.5
    return np.zeros(len(c), np.int64)


def changes_history(c, sps, history):
    for step in history.steps:
        step.lengths[:] = 7
    return np.zeros(len(c), np.int64)


_calls = iter(range(10**9))


def counts_calls(c, sps, history):
    return np.full(len(c), next(_calls) % 2)


def talks(c, sps, history):
    print("chatter of a policy")
    return np.zeros(len(c), np.int64)


NOT_CALLABLE = 3


class Object:
    """A policy as engines call it."""

    def plan(self, confidence, sps, ids=None):
        return np.where(confidence[:, -1] > 0.5, confidence.shape[1], 0)
