"""Settings of a synthetic trace: published figures as defaults, and what may be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import TraceError

# Conditional acceptance at positions 1..7 of a DSpark drafter for Qwen3-4B: figure 2 of arXiv 2607.05147
# (read from its vector paths; the text says 0.93 for math at position 1, the figure 0.905).
FIGURE_2 = {
    "math": (0.9053, 0.8899, 0.8878, 0.8854, 0.8872, 0.8906, 0.8824),
    "code": (0.8857, 0.8719, 0.8598, 0.8608, 0.8579, 0.8594, 0.8510),
    "chat": (0.7353, 0.7376, 0.7402, 0.7441, 0.7583, 0.7656, 0.7609),
}
# Raw ECE of the survival at positions 1, 3, 5, 7 on Alpaca (figure 6), positions between interpolated.
FIGURE_6_ECE = (0.0573, 0.0696, 0.0820, 0.0700, 0.0581, 0.0458, 0.0334)
# Shape of the confidences, fitted over the rows of drawn traces at the acceptances of figure 6: histograms
# within an L1 distance of 0.07-0.11, reliability within 0.01 on average, AUC .81/.80/.86/.90 (published:
# .818/.812/.864/.907).
FIGURE_6_SKEW = 0.75
FIGURE_6_SPREAD = (2.90, 2.16, 2.29, 2.42, 2.55, 2.68, 2.81)
FIGURE_6_TEMPERATURE = (1.245, 1.223, 1.201, 1.179, 1.157, 1.135, 1.113)


@dataclass(frozen=True)
class Settings:
    """What to draw. Sequences have one entry per draft position; a number stands for all positions."""

    acceptance: tuple[float, ...]  # P(accepted >= k | accepted >= k - 1), k = 1..γ
    requests: int
    output_tokens: float | Sequence[int]  # mean, or one length per request
    prompt_tokens: float | Sequence[int]
    length_spread: float  # sigma of the log-normal lengths; 0 = all equal
    spread: float | Sequence[float]  # s_k
    skew: float  # of the ease: 0 normal, larger = a longer tail of near-certain tokens
    auc: float | Sequence[float] | None  # solves s_k instead
    temperature: float | Sequence[float]  # T_k
    shift: float | Sequence[float]  # b_k
    ece: float | Sequence[float] | None  # raw ECE of the survival; solves b_k instead
    reliability: Sequence[tuple[float, float]] | None  # (confidence, acceptance) points, instead of T and b
    request_share: float
    local_share: float
    local_memory: float
    row_noise: float
    surprise_share: float
    along: str  # "walk": acceptance as counted along fixed-γ decoding; "dense": over all rows
    seed: int


def check(settings: Settings) -> None:
    """Raise TraceError for settings that cannot be drawn, naming the one that is wrong."""
    gamma = len(settings.acceptance)
    if not gamma:
        raise TraceError("acceptance is empty; give one conditional acceptance per draft position")
    ranges: tuple[tuple[str, Any, float, float], ...] = (
        ("acceptance", settings.acceptance, 0.0, 1.0),
        ("requests", settings.requests, 1, 10**7),
        ("output_tokens", settings.output_tokens, 1, 10**7),
        ("prompt_tokens", settings.prompt_tokens, 0, 10**8),
        ("length_spread", settings.length_spread, 0.0, 3.0),
        ("spread", settings.spread, 0.0, 30.0),
        ("skew", settings.skew, 0.0, 2.0),
        ("auc", settings.auc, 0.5, 0.999),
        ("temperature", settings.temperature, 0.05, 20.0),
        ("shift", settings.shift, -20.0, 20.0),
        ("ece", settings.ece, 0.0, 0.9),
        ("reliability", settings.reliability, 0.0, 1.0),
        ("request_share", settings.request_share, 0.0, 1.0),
        ("local_share", settings.local_share, 0.0, 1.0),
        ("local_memory", settings.local_memory, 0.0, 0.9999),
        ("row_noise", settings.row_noise, 0.0, 1.0),
        ("surprise_share", settings.surprise_share, 0.0, 1.0),
        ("seed", settings.seed, 0, 2**63 - 1),
    )
    for name, value, low, high in ranges:
        if value is None:
            continue
        try:
            numbers = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise TraceError(f"synthesise: {name} is {value!r}; it must be a number") from None
        if not ((numbers >= low) & (numbers <= high)).all():
            raise TraceError(f"synthesise: {name} is {value!r}; it must lie in {low:g}..{high:g}")
        if name in ("spread", "auc", "temperature", "shift", "ece") and numbers.shape not in ((), (gamma,)):
            raise TraceError(f"synthesise: {name} has shape {numbers.shape}; give one number, or {gamma}")
    for name in ("output_tokens", "prompt_tokens"):
        given = getattr(settings, name)
        if np.ndim(given) and len(given) != settings.requests:
            raise TraceError(f"synthesise: {name} has {len(given)} entries for {settings.requests} requests")
    if settings.request_share + settings.local_share > 1.0:
        raise TraceError("synthesise: request_share + local_share exceeds 1; they are shares of one variance")
    if settings.reliability is not None:
        points = np.array(sorted(settings.reliability), dtype=np.float64)
        if (
            points.ndim != 2
            or points.shape[1:] != (2,)
            or len(points) < 2
            or not (np.diff(points, axis=0) > 0).all()
        ):
            raise TraceError(
                "synthesise: reliability needs two or more (confidence, acceptance) pairs, both rising"
            )
    if sum(x is not None for x in (settings.ece, settings.reliability)) > 1:
        raise TraceError("synthesise: give ece or reliability, not both")
    if settings.along not in ("walk", "dense"):
        raise TraceError(f"synthesise: along is {settings.along!r}; it must be walk or dense")


def first_of(values: Sequence[float], gamma: int) -> tuple[float, ...]:
    """The first γ of per-position values; later positions repeat the last."""
    return tuple(values[min(k, len(values) - 1)] for k in range(gamma))


def settings_for(acceptance: Any, **given: Any) -> Settings:
    """Settings with every default filled in, checked; raises TraceError.

    `acceptance` is a domain of figure 2 ("math", "code", "chat") or γ conditional acceptances. Unless one of
    temperature, shift, ece, reliability is given, confidences are as miscalibrated as figure 6 shows.
    """
    if isinstance(acceptance, str):
        if acceptance not in FIGURE_2:
            raise TraceError(
                f"synthesise: acceptance is {acceptance!r}; name {', '.join(FIGURE_2)}, or give numbers"
            )
        acceptance = FIGURE_2[acceptance]
    try:
        acceptance = tuple(float(p) for p in acceptance)
    except (TypeError, ValueError):
        raise TraceError(
            f"synthesise: acceptance is {acceptance!r}; give one number per draft position"
        ) from None
    gamma = len(acceptance)
    plain = all(given.get(key) is None for key in ("temperature", "shift", "ece", "reliability"))
    values: dict[str, Any] = {
        "requests": 320,
        "output_tokens": 200.0,
        "prompt_tokens": 100.0,
        "length_spread": 0.6,
        "spread": first_of(FIGURE_6_SPREAD, gamma),
        "skew": FIGURE_6_SKEW,
        "auc": None,
        "temperature": first_of(FIGURE_6_TEMPERATURE, gamma) if plain else 1.0,
        "shift": 0.0,
        "ece": first_of(FIGURE_6_ECE, gamma) if plain else None,
        "reliability": None,
        # Serial correlation: near that of the first recorded chat, math and code traces (lag-1 correlation of
        # logits .40-.52, at lag 40 .05-.23; two rows about one token agree on it with correlation .59-.64).
        "request_share": 0.1,
        "local_share": 0.56,
        "local_memory": 0.87,
        "row_noise": 0.07,
        "surprise_share": 0.7,
        "along": "walk",
        "seed": 0,
    }
    unknown = set(given) - set(values)
    if unknown:
        raise TraceError(f"synthesise: no setting {sorted(unknown)[0]!r}; there are {', '.join(values)}")
    values |= {key: value for key, value in given.items() if value is not None}
    settings = Settings(acceptance, **values)
    check(settings)
    return settings
