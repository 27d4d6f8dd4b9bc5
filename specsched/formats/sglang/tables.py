"""SGLang's tables: the 1-D step table (floor), the additive table (linear), round logs, `one_batch` rows.

SGLang times whole steps, drafting included, so that the profiles made here have no draft curve of their own:
policies that do not draft are charged for it, and a note says so.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import FormatError
from ...files.output import write_json
from ...profile import StepProfile
from ..document import Hints, build, curve, imported
from ..export import AdditiveParts
from ..fit import AdditiveFit, additive, linked, rising
from ..opened import Opened
from ..values import integer, need, number, numbers, same_length, step_seconds, whole

ONE_D = frozenset({"sample_batch_tokens", "sample_steps_per_sec"})
ADDITIVE = frozenset({"bias_seconds", "bs_probes", "alpha_seconds", "m_probes", "theta_seconds"})
ROUNDS = frozenset({"batch_size_per_rank", "batch_tokens", "steps_per_sec"})
ONE_BATCH = frozenset({"batch_size", "input_len", "output_len", "median_decode_latency"})
_UNMOVED = 0.01  # rounds of one batch size that differ by less say nothing of tokens
_WHOLE_STEP = "Whole steps were timed: the cost of drafting is inside, also for policies that do not draft."


def read_one_d(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """`sample_batch_tokens`, `sample_steps_per_sec`: its scheduler reads them by floor, clamped at both ends,
    and that becomes the profile's decision table; what its steps cost is read between the points.
    """
    where, data = str(opened.path), opened.data
    tokens = whole(data["sample_batch_tokens"], f"{where}: sample_batch_tokens")
    speed = numbers(data["sample_steps_per_sec"], f"{where}: sample_steps_per_sec")
    same_length(where, sample_batch_tokens=tokens, sample_steps_per_sec=speed)
    notes = [_WHOLE_STEP]
    if len(tokens) == 1:
        raise FormatError(
            f"{where}: one size only, which SGLang takes for 'not profiled yet' and verifies everything; "
            "profile the engine and convert its table"
        )
    seconds = step_seconds(1.0 / speed, f"{where}: sample_steps_per_sec", "s per step, 1 / steps_per_sec")
    most = data.get("max_batch_tokens")
    if most is not None and integer(most, f"{where}: max_batch_tokens") < tokens[-1]:
        raise FormatError(
            f"{where}: max_batch_tokens {most} is below the last size {tokens[-1]}; SGLang refuses it"
        )
    if most is not None and most > tokens[-1]:
        notes.append(f"Sizes from {tokens[-1]} to max_batch_tokens {most} are read at the last point.")
    notes.append(
        "Its scheduler decides by the point below (floor), and so do lagged and early-stop here; the "
        "clock reads "
        "between the points, since no step costs such stairs."
    )
    verify = {**curve("tokens", tokens, seconds), "lookup": "linear", "beyond": "slope"}
    table = {**curve("tokens", tokens, seconds), "lookup": "floor", "beyond": "clamp"}
    provenance = imported(where, "sglang-1d", "floor, clamped", notes, hints)
    return build(opened.path.stem, verify, provenance, hints, scheduler={"table": table}), notes


def read_additive(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """T = bias + α(R) + θ(R + K): both curves linear, clamped."""
    where, data = str(opened.path), opened.data
    for key in ADDITIVE:
        need(data, key, where)
    bias = float(numbers([data["bias_seconds"]], f"{where}: bias_seconds", positive=False)[0])
    requests = whole(data["bs_probes"], f"{where}: bs_probes")
    alpha = numbers(data["alpha_seconds"], f"{where}: alpha_seconds", positive=False)
    tokens, theta = _theta(data, where)
    same_length(where, bs_probes=requests, alpha_seconds=alpha)
    step_seconds(bias + theta + alpha[0], f"{where}: bias + theta + alpha")
    # SGLang's fitter leaves the constant in the bias, so theta may fall below 0; a curve of ours may not.
    shift = min(float(theta.min()), 0.0)
    bias, theta = bias + shift, theta - shift
    if bias < 0:
        raise FormatError(f"{where}: bias_seconds + the least theta is {bias:.3g} s; it must be 0 or more")
    verify = {**curve("tokens", tokens, theta), "lookup": "linear", "beyond": "clamp"}
    overhead = curve("requests", requests, alpha)
    provenance = imported(where, "sglang-additive", "linear, clamped", [_WHOLE_STEP], hints)
    profile = build(opened.path.stem, verify, provenance, hints, bias_seconds=bias, overhead=overhead)
    return profile, [_WHOLE_STEP]


def _theta(data: dict[str, Any], where: str) -> tuple[np.ndarray, np.ndarray]:
    """theta(M) at the probes, as SGLang writes it: the first probe may be 0 tokens, values below 0.

    A pass has a token at least, so a probe at 0 becomes one at 1, where the owner reads between the probes.
    """
    probes = data["m_probes"]
    zero = isinstance(probes, list) and len(probes) > 1 and probes[0] == 0 and not isinstance(probes[0], bool)
    tokens = whole(probes[1:] if zero else probes, f"{where}: m_probes").astype(np.float64)
    given = data["theta_seconds"]
    if not isinstance(given, list):
        raise FormatError(f"{where}: theta_seconds must be a list of seconds")
    theta = np.array(
        [number(v, f"{where}: theta_seconds, row {i}", -1.0, 1e3) for i, v in enumerate(given, 1)]
    )
    tokens = np.concatenate([[0.0], tokens]) if zero else tokens
    same_length(where, m_probes=tokens, theta_seconds=theta)
    if zero:
        first = float(np.interp(1.0, tokens, theta))
        keep = tokens > 1
        tokens, theta = np.concatenate([[1.0], tokens[keep]]), np.concatenate([[first], theta[keep]])
    return tokens.astype(np.int64), theta


def read_rounds(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """The profiler's raw rounds, fitted here at every size measured (SGLang's own fit bins them by 64).

    Rounds whose batch was not the asked one (`match_fraction` below the hint `min_match`, default 0.9) are
    left out.
    """
    where = str(opened.path)
    rows = opened.data
    requests = whole([r["batch_size_per_rank"] for r in rows], f"{where}: batch_size_per_rank", rising=False)
    tokens = whole([r["batch_tokens"] for r in rows], f"{where}: batch_tokens", rising=False)
    speed = numbers([r["steps_per_sec"] for r in rows], f"{where}: steps_per_sec")
    match = numbers([r.get("match_fraction", 1.0) for r in rows], f"{where}: match_fraction", positive=False)
    short = np.flatnonzero(tokens < requests)
    if short.size:
        raise FormatError(
            f"{where}, row {short[0] + 1}: batch_tokens {tokens[short[0]]} below the batch size"
        )
    keep = match >= float(hints.get("min_match") or 0.9)
    notes = [_WHOLE_STEP]
    if not keep.any():
        raise FormatError(f"{where}: no round matched its asked batch; profile again or lower min_match")
    if not keep.all():
        notes.append(
            f"{int((~keep).sum())} of {len(keep)} rounds did not match their asked batch and were left out."
        )
    seconds = step_seconds(1.0 / speed[keep], f"{where}: steps_per_sec", "s per step, 1 / steps_per_sec")
    if len(np.unique(tokens[keep])) < 2:
        raise FormatError(f"{where}: every round has the same batch_tokens; profile at several sizes")
    fit = fit_rounds(requests[keep], tokens[keep], seconds, notes)
    verify = {**curve("tokens", fit.tokens, fit.theta), "lookup": "linear", "beyond": "clamp"}
    samples = [
        {"requests": int(r), "tokens": int(b), "seconds": float(s)}
        for r, b, s in zip(requests[keep], tokens[keep], seconds, strict=True)
    ]
    provenance = imported(where, "sglang-rounds", "none (raw rounds)", notes, hints)
    profile = build(
        opened.path.stem,
        verify,
        provenance,
        hints,
        overhead=curve("requests", fit.requests, fit.overhead),
        fit=fit.report(),
        samples=samples,
    )
    return profile, notes


def fit_rounds(
    requests: np.ndarray, tokens: np.ndarray, seconds: np.ndarray, notes: list[str]
) -> AdditiveFit:
    """overhead(R) + verify(B), with notes on what the rounds can tell and what to measure where they
    cannot."""
    told = _pins(requests, tokens, seconds)
    if linked(requests, tokens):
        notes.extend(told)
        notes.append("Fitted as overhead(R) + verify(B), B never binned; raw medians kept as samples.")
        return additive(requests, tokens, seconds)
    fit = rising(requests, tokens, seconds)
    notes.append(
        "No number of tokens ties all batch sizes together, so overhead(R) and verify(B) are not told apart: "
        "assumed that neither falls and that verify goes on straight where nothing shows otherwise. To "
        "settle "
        f"it, {_shared_sizes(requests, tokens)}. B never binned; raw medians kept as samples."
    )
    notes.extend(told)
    return fit


def _shared_sizes(requests: np.ndarray, tokens: np.ndarray) -> str:
    """What to profile so that numbers of tokens tie the batch sizes together."""
    sizes = np.unique(requests)
    wanted = [
        f"{a} requests at {b} tokens"
        for a, b in pairwise(sizes.tolist())
        if a < b <= tokens[requests == a].max() and b in tokens[requests == b]
    ]
    if not wanted:
        return "profile sizes that share numbers of tokens"
    more = f" and so on ({len(wanted)} in all)" if len(wanted) > 3 else ""
    return f"profile {', '.join(wanted[:3])}{more}"


def _pins(requests: np.ndarray, tokens: np.ndarray, seconds: np.ndarray) -> list[str]:
    """What must be said of batch sizes at which every budget took the same time."""
    several = [int(r) for r in np.unique(requests) if len(np.unique(tokens[requests == r])) > 1]
    if not several:
        return []
    spread = np.array([np.ptp(seconds[requests == r]) / seconds[requests == r].mean() for r in several])
    still = [r for r, moved in zip(several, spread, strict=True) if moved < _UNMOVED]
    if len(still) == len(several):
        return [
            "The cost does not depend on the tokens at any batch size: was the forced budget obeyed while "
            "profiling? By this table verifying everything always pays; force budgets again and look "
            "whether the "
            "verified tokens follow."
        ]
    if not still or np.max(spread) < 5.0 * _UNMOVED or still == several[: len(still)]:
        return []  # small batches may well be flat; larger ones beside them are not
    shown = ", ".join(map(str, still[:6]))
    return [
        f"At {shown} requests every budget took the same time, at fewer requests it did not: was the "
        "forced budget "
        "obeyed there? Profile those sizes again, or leave them out; as they are, verify has a cliff there."
    ]


def read_one_batch(opened: Opened, hints: Hints) -> tuple[StepProfile, list[str]]:
    """`bench_one_batch` rows: one token per request, so only the diagonal B = R is known."""
    where, rows = str(opened.path), opened.data
    requests = whole([r["batch_size"] for r in rows], f"{where}: batch_size", rising=False)
    prompt = whole([r["input_len"] for r in rows], f"{where}: input_len", rising=False)
    output = numbers([r["output_len"] for r in rows], f"{where}: output_len", positive=False)
    seconds = numbers([r["median_decode_latency"] for r in rows], f"{where}: median_decode_latency")
    step_seconds(seconds, f"{where}: median_decode_latency")
    kv = requests * (prompt + output / 2)
    sizes, index = np.unique(requests, return_inverse=True)
    several = any(len(np.unique(kv[index == i])) > 1 for i in range(len(sizes)))
    slope = 0.0
    if several:
        centred = [kv - _group_mean(kv, index), seconds - _group_mean(seconds, index)]
        slope = max(0.0, float((centred[0] * centred[1]).sum() / (centred[0] ** 2).sum()))
    rest = np.array([np.median((seconds - slope * kv)[index == i]) for i in range(len(sizes))])
    if rest.min() <= 0:
        slope, rest = 0.0, np.array([np.median(seconds[index == i]) for i in range(len(sizes))])
    notes = [
        "One token per request was timed: verify is known on the diagonal B = R alone, and draft is unknown."
    ]
    if not slope:
        notes.append("One context per size: the attention read is inside verify, at the context measured.")
    parts: dict[str, Any] = {}
    if slope:
        top = int(kv.max())
        parts["attention"] = {"kv_tokens": [0, top], "seconds": [0.0, slope * top]}
    if all("prefill_latency" in r for r in rows):
        parts["prefill"] = _prefill(requests * prompt, [r["prefill_latency"] for r in rows], where)
    verify = {**curve("tokens", sizes, rest), "lookup": "linear", "beyond": "slope"}
    provenance = imported(where, "sglang-one-batch", "none (bench rows)", notes, hints)
    return build(opened.path.stem, verify, provenance, hints, **parts), notes


def _group_mean(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    out: np.ndarray = (np.bincount(index, values) / np.bincount(index))[index]
    return out


def _prefill(tokens: np.ndarray, latency: list[Any], where: str) -> dict[str, Any]:
    seconds = numbers(latency, f"{where}: prefill_latency")
    sizes = np.unique(tokens)
    return curve("tokens", sizes, [float(np.median(seconds[tokens == s])) for s in sizes])


def write_additive(path: str | os.PathLike[str], parts: AdditiveParts) -> None:
    """Write the additive table; a bias of 0 borrows from theta, because SGLang refuses a bias that is not
    positive.
    """
    bias, theta = parts.bias, parts.verify
    if bias <= 0:
        bias = float(theta.min()) / 2
        theta = theta - bias
    write_json(
        path,
        {
            "bias_seconds": bias,
            "bs_probes": [int(v) for v in parts.requests],
            "alpha_seconds": [float(v) for v in parts.overhead],
            "m_probes": [int(v) for v in parts.tokens],
            "theta_seconds": [float(v) for v in theta],
        },
    )


def write_one_d(path: str | os.PathLike[str], tokens: np.ndarray, seconds: np.ndarray) -> None:
    """Write the 1-D table: a point wherever the whole step's cost changes, so that floor gives it exactly."""
    change = np.concatenate([[True], np.diff(seconds) != 0])
    write_json(
        path,
        {
            "sample_batch_tokens": [int(v) for v in tokens[change]],
            "sample_steps_per_sec": [float(1.0 / v) for v in seconds[change]],
            "max_batch_tokens": int(tokens[-1]),
        },
    )
