"""Synthetic dense traces: rows drawn so that acceptance, AUC and calibration come out as asked.

The model, for one request (names as in `Settings`):

1. Every output token j has an ease x_j ~ N(0, 1): a share common to the request, a share that drifts along
   the text (AR(1)), and a share of its own. Row t, position k looks at token t + k:
       z_{t,k} = sqrt(1 - w) x_{t+k} + sqrt(w) e_{t,k},
   so neighbouring rows that look at the same token think nearly the same of it. After the first rejection in
   a row the drafts follow a wrong token: the token's own share of x is then drawn again, for that row alone.
   (The law of a row's confidences is the same before and after: they do not betray what happened before.)
2. The true conditional acceptance is c*_{t,k} = σ(m_k + s_k h(z_{t,k})), h a skewed stretch of mean 0 and
   variance 1 (published confidences have a long tail of near-certain tokens). m_k is solved so that the drawn
   acceptance at k, given that all before were accepted, is the one asked for; s_k is the spread, or solved
   from an AUC.
3. Position k is accepted where a standard normal, partly common to all rows that look at token t + k (the
   surprise: which token the target really chose), lies below Φ^{-1}(c*). Each output token is tested at most
   once along any lossless walk, so this coupling biases no policy; it makes neighbouring dense rows agree as
   real ones do.
4. The raw logit is a distortion of the true one: T_k (m_k + s_k h(z)) + b_k, or a reliability curve.

Confidence at k therefore depends on the context and on whether earlier positions were accepted, never on the
outcome at k or later: the condition under which adaptive policies are lossless. Every draw is a function of
(seed, request), never of call order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit, log_ndtr, logit, ndtri

from ..errors import TraceError
from .settings import Settings, settings_for
from .trace import Trace

# -- synthetic traces -------------------------------------------------------------------------------------


def synthesise(
    acceptance: str | Sequence[float] = "chat",
    *,
    requests: int = 320,
    output_tokens: float | Sequence[int] = 200.0,
    prompt_tokens: float | Sequence[int] = 100.0,
    auc: float | Sequence[float] | None = None,
    ece: float | Sequence[float] | None = None,
    temperature: float | Sequence[float] | None = None,
    shift: float | Sequence[float] | None = None,
    reliability: Sequence[tuple[float, float]] | None = None,
    seed: int = 0,
    domain: str | None = None,
    name: str = "synthetic",
    note: str | None = None,
    **model: Any,
) -> Trace:
    """A dense trace from per-position acceptance, when that is all one has; the model: above.

    acceptance: conditional, P(accepted >= k | accepted >= k - 1) for k = 1..γ, as counted by an engine that
        verifies whole blocks (`along="dense"`: over all rows); or "math", "code", "chat": figure 2
    output_tokens, prompt_tokens: a mean (log-normal lengths, `length_spread` their sigma) or one per request.
    auc: of the confidence at each position among rows that reach it; default: as figure 6 of the paper.
    One of these says how miscalibrated raw confidences are (default: as in figure 6):
        ece: ECE of the raw survival, 0 = none, overconfident; temperature, shift: raw logit =
        temperature * true logit + shift; reliability: (confidence, acceptance) points.
    note: goes into the provenance, and every answer built on the trace says it.
    model: further settings of `settings.Settings` (spread, skew, request_share, local_share, ...).

    Rows are a function of the settings and `seed`; logits are rounded to 1/64, about what a bfloat16 head
    resolves. Raises TraceError naming the setting that cannot be drawn.
    """
    settings = settings_for(
        acceptance,
        requests=requests,
        output_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        auc=auc,
        ece=ece,
        temperature=temperature,
        shift=shift,
        reliability=reliability,
        seed=seed,
        **model,
    )
    drawn = draw(settings)
    if ece is not None:
        _refuse_unreached(settings, drawn.ece)
    figure = isinstance(acceptance, str)
    asked = {key: value for key, value in vars(settings).items() if np.ndim(value) == 0 or len(value) < 64}
    basis = "acceptance and reliability published in figures 2 and 6 of arXiv 2607.05147"
    lengths = drawn.lengths
    return Trace.from_arrays(
        request=np.repeat(np.arange(len(lengths)), lengths),
        position=np.arange(len(drawn.accepted)) - np.repeat(np.cumsum(lengths) - lengths, lengths),
        confidence_logit=np.rint(drawn.logit * 64.0) / 64.0,
        accepted=drawn.accepted,
        domain=domain or (acceptance if isinstance(acceptance, str) else "synthetic"),
        prompt_tokens=np.repeat(drawn.prompts, lengths),
        metadata={
            "drafter": "synthetic, acceptance of DSpark for Qwen3-4B" if figure else "synthetic",
            "target": "synthetic, Qwen3-4B" if figure else "synthetic",
            "temperature": 1.0,
            "seed": seed,
            "licence": "numbers drawn by specsched (Apache-2.0)",
            "synthetic": True,
            "provenance": {
                "method": "synthetic",
                "basis": basis if figure else "per-position acceptance given by the user",
                "settings": asked,
                "emitted_per_step": float(1.0 + drawn.accepted[drawn.visited].mean()),
            }
            | ({"note": note} if note else {}),
        },
        where=name,
    )


_STREAM = 1729  # keeps these draws apart from any other use of the same seed
_TINY = 1e-300
SHORT = 0.005  # by which an ECE may fall short of the one asked for


@dataclass
class Draw:
    """What came out: rows of all requests in order, n in all."""

    lengths: np.ndarray  # int64[m]
    prompts: np.ndarray  # int64[m]
    logit: np.ndarray  # float64[n, γ], raw
    true_logit: np.ndarray  # float64[n, γ], of the true conditional acceptance
    accepted: np.ndarray  # int64[n]
    visited: np.ndarray  # bool[n]: anchors of the fixed-γ walk
    spread: np.ndarray = field(default_factory=lambda: np.zeros(0))  # float64[γ]
    temperature: np.ndarray = field(default_factory=lambda: np.zeros(0))
    shift: np.ndarray = field(default_factory=lambda: np.zeros(0))
    ece: np.ndarray = field(default_factory=lambda: np.zeros(0))  # float64[γ] reached, if asked for


@dataclass
class _Noise:
    """Standard normals of every row and position: float64[n, γ] each."""

    intact: np.ndarray  # z while the row's prefix is accepted
    broken: np.ndarray  # z after its first rejection
    surprise: np.ndarray  # of token t + k and of the row, mixed


def draw(settings: Settings) -> Draw:
    """Rows drawn from `settings`, which must have passed `check`."""
    gamma = len(settings.acceptance)
    lengths = _lengths(settings.output_tokens, settings, 0)
    prompts = _lengths(settings.prompt_tokens, settings, 1)
    noise = _noise(settings, lengths, gamma)
    rows = int(lengths.sum())
    visited = np.ones(rows, bool)
    spread = per_position(settings.spread, gamma)
    # Which rows a walk visits depends on what is accepted there, which depends on m: a few rounds settle it.
    for turn in range(1 if settings.along == "dense" else 6):
        solve = settings.auc if turn == 0 else None
        true, accepted, spread = _accept(settings, noise, visited, spread, solve)
        walked = walk(lengths, accepted)
        visited = walked if settings.along == "walk" else visited
    raw, temperature, shift, reached = _distort(settings, true, accepted)
    return Draw(lengths, prompts, raw, true, accepted, walked, spread, temperature, shift, reached)


def walk(lengths: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """bool[n]: the anchors visited when every step verifies the whole block."""
    starts = np.cumsum(lengths) - lengths
    visited = np.zeros(len(accepted), bool)
    at = np.zeros(len(lengths), np.int64)
    active = np.arange(len(lengths))
    while len(active):
        rows = starts[active] + at[active]
        visited[rows] = True
        at[active] += accepted[rows] + 1
        active = active[at[active] < lengths[active]]
    return visited


def per_position(value: Any, gamma: int) -> np.ndarray:
    """float64[γ] from a number or γ numbers."""
    return np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), (gamma,)))


# -- drawing ---------------------------------------------------------------------------------------------


def _generator(seed: int, request: int) -> np.random.Generator:
    key = np.array([seed, _STREAM], dtype=np.uint64)
    return np.random.Generator(
        np.random.Philox(key=key, counter=np.array([0, 0, request, 0], dtype=np.uint64))
    )


def _normals(rng: np.random.Generator, *shape: int) -> np.ndarray:
    # Inversion: one uniform per normal, so that the count of draws is known.
    out: np.ndarray = ndtri(np.maximum(rng.random(shape), _TINY))
    return out


def _lengths(value: Any, settings: Settings, column: int) -> np.ndarray:
    """int64[m]: given lengths, or log-normal ones of the mean asked for, between 1/8 and 8 times it."""
    m = settings.requests
    if np.ndim(value):
        return np.asarray(value, dtype=np.int64)
    sigma, mean = settings.length_spread, float(value)
    normal = np.array([_normals(_generator(settings.seed, r), 2)[column] for r in range(m)])
    lengths = mean * np.exp(sigma * normal - sigma * sigma / 2.0)
    return np.maximum(np.rint(np.clip(lengths, mean / 8.0, mean * 8.0)), 1).astype(np.int64)


def _noise(settings: Settings, lengths: np.ndarray, gamma: int) -> _Noise:
    a, b, w, g = settings.request_share, settings.local_share, settings.row_noise, settings.surprise_share
    own_share = 1.0 - a - b
    rows = int(lengths.sum())
    intact, broken, surprise = (np.empty((rows, gamma)) for _ in range(3))
    first = 0
    for r, n in enumerate(lengths):
        rng = _generator(settings.seed, r)
        _normals(rng, 2)  # the lengths'
        common = _normals(rng, 1)
        tokens = _normals(rng, 3, n + gamma)  # local innovation, own ease, own surprise
        row = _normals(rng, 3, n, gamma)  # row noise, own ease drawn again, row surprise
        common = np.sqrt(a) * common + np.sqrt(b) * _autoregressive(tokens[0], settings.local_memory)
        # Row t, position k (from 0) looks at token t + 1 + k, whose index is t + k: no row tests token 0.
        look = np.arange(n)[:, None] + np.arange(gamma)
        part = slice(first, first + n)
        shared = np.sqrt(1.0 - w) * common[look] + np.sqrt(w) * row[0]
        intact[part] = shared + np.sqrt((1.0 - w) * own_share) * tokens[1][look]
        broken[part] = shared + np.sqrt((1.0 - w) * own_share) * row[1]
        surprise[part] = np.sqrt(g) * tokens[2][look] + np.sqrt(1.0 - g) * row[2]
        first += n
    return _Noise(intact, broken, surprise)


def _autoregressive(innovation: np.ndarray, memory: float) -> np.ndarray:
    """Stationary AR(1) with unit variance from standard normal innovations."""
    out = np.empty_like(innovation)
    scale, last = np.sqrt(1.0 - memory * memory), 0.0
    for j, value in enumerate(innovation):
        last = value if j == 0 else memory * last + scale * value
        out[j] = last
    return out


def _accept(
    settings: Settings, noise: _Noise, visited: np.ndarray, spread: np.ndarray, auc: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(true logits, accepted, spread): position by position, m_k solved on the visited rows that reach k."""
    rows, gamma = noise.intact.shape
    wanted = None if auc is None else per_position(auc, gamma)
    spread = spread.copy()
    true = np.empty((rows, gamma))
    accepted = np.zeros(rows, np.int64)
    alive = np.ones(rows, bool)
    for k in range(gamma):
        z = _skewed(np.where(alive, noise.intact[:, k], noise.broken[:, k]), settings.skew)
        hurdle = _hurdle(noise.surprise[:, k])
        used = alive & visited if (alive & visited).any() else alive
        if not used.any():
            used = np.ones(rows, bool)
        p = settings.acceptance[k]
        if wanted is not None:
            spread[k] = _solve_spread(z[used], p, wanted[k])
        m = _solve_mean(spread[k] * z[used], hurdle[used], p)
        true[:, k] = m + spread[k] * z
        alive &= true[:, k] > hurdle
        accepted += alive
    return true, accepted, spread


def _skewed(z: np.ndarray, skew: float) -> np.ndarray:
    """Standard normals to a shifted log-normal of mean 0, variance 1; skew 0 leaves them as they are."""
    if skew == 0.0:
        return z
    out: np.ndarray = (np.exp(skew * z - skew * skew / 2.0) - 1.0) / np.sqrt(np.expm1(skew * skew))
    return out


def _hurdle(surprise: np.ndarray) -> np.ndarray:
    """logit of Φ(surprise): a position is accepted where its true logit lies above."""
    out: np.ndarray = log_ndtr(surprise) - log_ndtr(-surprise)
    return out


def _solve_mean(slope: np.ndarray, hurdle: np.ndarray, p: float) -> float:
    """m for which a share p of rows has m + slope > hurdle: a quantile of the gaps."""
    gaps = np.sort(hurdle - slope)
    need = round(p * len(gaps))
    if need <= 0:
        return float(gaps[0]) - 1.0
    if need >= len(gaps):
        return float(gaps[-1]) + 1.0
    return float(0.5 * (gaps[need - 1] + gaps[need]))


def _solve_spread(z: np.ndarray, p: float, auc: float) -> float:
    """Spread s for which calibrated confidences σ(m + s z) with mean p have this AUC, by bisection."""
    z = np.sort(z[:: max(1, len(z) >> 14)])
    low, high = 0.0, 30.0
    for _ in range(40):
        s = 0.5 * (low + high)
        if _soft_auc(s * z, p) < auc:
            low = s
        else:
            high = s
    return 0.5 * (low + high)


def _soft_auc(x: np.ndarray, p: float) -> float:
    """AUC of scores σ(m + x) (x ascending) whose labels follow them, with m such that their mean is p."""
    low, high = -60.0, 60.0
    for _ in range(50):
        m = 0.5 * (low + high)
        low, high = (m, high) if expit(m + x).mean() < p else (low, m)
    q = expit(m + x)
    below = np.cumsum(1.0 - q) - 0.5 * (1.0 - q)
    total = q.sum() * (1.0 - q).sum()
    return float((q * below).sum() / total) if total > 0 else 0.5


# -- distortion ------------------------------------------------------------------------------------------


def _distort(
    settings: Settings, true: np.ndarray, accepted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(raw logits, temperatures, shifts, ECE reached: empty where none was asked for)."""
    gamma, reached = true.shape[1], np.zeros(0)
    temperature, shift = per_position(settings.temperature, gamma), per_position(settings.shift, gamma)
    if settings.reliability is not None:
        points = np.clip(np.array(sorted(settings.reliability), dtype=np.float64), 1e-6, 1.0 - 1e-6)
        raw = _through(true, logit(points[:, 1]), logit(points[:, 0]))
        return raw, np.ones(gamma), np.zeros(gamma), reached
    if settings.ece is not None:
        shift, reached = _solve_shifts(true, accepted, temperature, per_position(settings.ece, gamma))
    return temperature * true + shift, temperature, shift, reached


def _through(x: np.ndarray, knots: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Piecewise linear through (knots, values), slope 1 outside."""
    inside = np.interp(x, knots, values)
    out: np.ndarray = inside + np.minimum(x - knots[0], 0.0) + np.maximum(x - knots[-1], 0.0)
    return out


def _solve_shifts(
    true: np.ndarray, accepted: np.ndarray, temperature: np.ndarray, ece: np.ndarray, bins: int = 20
) -> tuple[np.ndarray, np.ndarray]:
    """(shifts, ECE reached), left to right: the raw survival's ECE as asked, on the overconfident side.

    Confidences that are certain of every draft err by 1 - acceptance: no shift reaches more than that.
    """
    rows, gamma = true.shape
    shift, reached = np.zeros(gamma), np.zeros(gamma)
    prefix = np.ones(rows)
    for k in range(gamma):
        labels = (accepted > k).astype(np.float64)

        def miss(b: float, k: int = k, labels: np.ndarray = labels, prefix: np.ndarray = prefix) -> float:
            scores = prefix * expit(temperature[k] * true[:, k] + b)
            where = np.minimum((scores * bins).astype(np.int64), bins - 1)
            out: float = float(np.abs(np.bincount(where, scores - labels, bins)).sum()) / rows
            return out

        grid = np.linspace(-4.0, 4.0, 33)
        values = np.array([miss(b) for b in grid])
        low = float(grid[int(np.argmin(values))])
        high = low + 8.0
        for _ in range(30):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if miss(middle) < ece[k] else (low, middle)
        shift[k], reached[k] = low, miss(low)
        prefix = prefix * expit(temperature[k] * true[:, k] + low)
    return shift, reached


def _refuse_unreached(settings: Settings, reached: np.ndarray) -> None:
    """Raise TraceError where an ECE that was asked for is more than these rows can err by."""
    asked = per_position(settings.ece, len(reached))
    short = np.flatnonzero(reached < asked - SHORT)
    if len(short):
        k = int(short[0])
        most = np.floor(1000.0 * reached[k]) / 1000.0
        raise TraceError(
            f"synthesise: ece is {asked[k]:g}, and {reached[k]:.1%} is the most at position {k + 1}: "
            "confidences certain of every draft err by no more than the share rejected by there; ask for "
            f"at most {most:g}"
        )
