"""What a plan costs: against sorting the same numbers, against plain numpy, and as it grows."""

from __future__ import annotations

import numpy as np
from rows import Row, least

from specsched import schedule

REQUESTS, BLOCK = 256, 7
LARGE, LONG = 4096, 15


def confidences(kind: str, requests: int, block: int) -> np.ndarray:
    """float64[requests, block]: uniform, skewed to 1, in two humps, or all the same."""
    rng = np.random.default_rng(0)
    shape = (requests, block)
    if kind == "uniform":
        return rng.random(shape)
    if kind == "skewed":
        return rng.beta(4, 1, shape)
    if kind == "two humps":
        return np.where(rng.random(shape) < 0.7, 1 - 0.1 * rng.random(shape) ** 4, rng.random(shape))
    return np.full(shape, 0.8)


def costs(kind: str, requests: int, block: int) -> np.ndarray:
    """Steps per second at every B: a rising line, stairs of captured sizes, or stairs with inversions."""
    most = requests * (1 + block)
    tokens = np.arange(most + 1) * (2048 / most)
    seconds = 1 + 0.001 * (tokens if kind == "rising" else np.ceil(tokens / 128) * 128)
    if kind == "jagged":
        seconds *= 1 + 0.02 * np.random.default_rng(1).random(tokens.size)
    return 1 / seconds


def straightforward(confidence: np.ndarray, sps: np.ndarray) -> np.ndarray:
    """The plan as one would first write it in numpy."""
    requests, block = confidence.shape
    survival = np.cumprod(confidence, axis=1).ravel()
    order = np.argsort(-survival, kind="stable")
    expected = requests + np.cumsum(survival[order])
    best = int(np.argmax(expected * sps[requests + 1 : requests + 1 + survival.size])) + 1
    return np.bincount(order[:best] // block, minlength=requests)


def rows() -> list[Row]:
    """The slowest of the kinds of confidences and costs for each; jagged costs are told apart."""
    found: dict[str, tuple[float, float, float]] = {}
    for kind in ("uniform", "skewed", "two humps"):
        for curve in ("rising", "stairs", "jagged"):
            confidence, sps = confidences(kind, REQUESTS, BLOCK), costs(curve, REQUESTS, BLOCK)
            flat = np.cumprod(confidence, axis=1).ravel()
            lagged, everything = schedule.make("lagged:2"), schedule.make("global")
            seconds = least(
                {
                    "sort": lambda flat=flat: np.sort(flat),
                    "early-stop": lambda c=confidence, s=sps: schedule.early_stop(c, s),
                    "global": lambda p=everything, c=confidence, s=sps: p.plan(c, s),
                    "lagged:2": lambda p=lagged, c=confidence, s=sps: p.plan(c, s),
                    "numpy": lambda c=confidence, s=sps: straightforward(c, s),
                },
                rounds=60,
                batch=20,
            )
            for name in ("early-stop", "global", "lagged:2"):
                key = f"{name}{', jagged costs' if curve == 'jagged' else ''}"
                if key not in found or seconds[name] / seconds["sort"] > found[key][0] / found[key][1]:
                    found[key] = seconds[name], seconds["sort"], seconds["numpy"]
    goals = {"early-stop": 1.3, "global": 1.5, "lagged:2": 1.5}
    out = []
    for key, (ours, sort, numpy) in sorted(found.items()):
        most = goals[key.split(",")[0]] * (1.3 if "jagged" in key else 1.0)
        out.append(
            Row(
                f"plan {key}",
                f"plan of {REQUESTS} requests x {BLOCK}, {key}",
                *(ours, sort, "s", "np.sort of the same numbers"),
                *(f"at most {most:.3g} sorts", ours <= most * sort),
            )
        )
        if key == "lagged:2":
            what = f"plan of {REQUESTS} requests x {BLOCK}, {key}"
            out.append(
                Row(
                    "plan numpy",
                    what,
                    ours,
                    numpy,
                    "s",
                    "the plan in plain numpy",
                    "a fifth",
                    5 * ours <= numpy,
                )
            )
    return [*out, *_growth()]


def _growth() -> list[Row]:
    times = (LARGE * LONG) / (REQUESTS * BLOCK)
    out = []
    for name in ("early-stop", "lagged:2"):
        calls = {}
        for requests, block in ((REQUESTS, BLOCK), (LARGE, LONG)):
            policy = schedule.make(name)
            c, s = confidences("skewed", requests, block), costs("stairs", requests, block)
            calls[str(requests)] = lambda p=policy, c=c, s=s: p.plan(c, s)
        seconds = least(calls, rounds=60, batch=3)
        large, small = seconds[str(LARGE)], seconds[str(REQUESTS)] * times
        what, against = (
            f"plan of {LARGE} requests x {LONG}, {name}",
            f"{times:.1f} plans of {REQUESTS} x {BLOCK}",
        )
        out.append(Row(f"growth {name}", what, large, small, "s", against, "no more", large <= small))
    return out
