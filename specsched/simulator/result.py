"""What a run measured: `SimResult`, its summary, and the warnings that go with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels import state as columns
from . import intervals
from .backlog import Backlog
from .replay import Replay

if TYPE_CHECKING:
    import pandas as pd


ROUNDING = 1e-9  # relative: what adding up a million steps may lose, and far below any measurement

LOG_COLUMNS = (
    "begun_seconds",
    "seconds",
    "rank",
    "requests",
    "tokens",
    "prefill_tokens",
    "context_tokens",
    "emitted",
    "budget",
)


@dataclass(frozen=True, eq=False)
class SimResult:
    """What one run measured. Speeds in output tokens per second, times in seconds.

    `summary` keys: `throughput` (output tokens/s, all engines together), `tps_user` {mean, p05, p50, p95},
    `emitted_per_step` (a request and step), `verify_tokens_per_request` (1 + ℓ), `rejected_share`,
    `step_seconds`, `concurrency_mean` (requests decoding, over time), `extrapolated_steps`,
    `outside_steps` ({term_side: share of the steps outside the points of a term}), `off_graph_steps`,
    `preemptions`, `blocked_steps` (a request waited for KV memory), `full_steps` (for a place), `seconds`
    and `steps` of the measured window, `requests`, `distinct_requests`; {mean, p50, p95, p99} of
    `tpot_seconds`, `itl_seconds` (the longest time between two deliveries of a request's tokens),
    `end_to_end_seconds`, `wait_seconds` (for a place) and, where prefill is simulated, `ttft_seconds`;
    `tps_user_without_wait` and `tps_user_with_wait` for a place; `intervals` (95 %, bootstrap over traced
    requests) of the headline figures.
    """

    policy: str
    lossless: bool | None  # None: not proved
    summary: dict[str, Any]
    warnings: list[str]
    replay: Replay = field(repr=False)
    arrays: dict[str, np.ndarray] = field(repr=False)  # one entry a measured request, see `requests`
    log: np.ndarray = field(repr=False)  # float64[steps kept, 9]: LOG_COLUMNS
    log_stride: int = 1
    counts: dict[str, float] = field(
        default_factory=dict, repr=False
    )  # totals of the whole run, for the laws
    backlog: Backlog | None = None  # of arrivals: whether the run is steady

    def __repr__(self) -> str:
        speed = self.summary.get("tps_user", {}).get("p05", float("nan"))
        return (
            f"<run of {self.policy}: {self.summary['requests']} requests, {self.summary['throughput']:.0f} "
            f"tokens/s in all, p05 {speed:.1f} tokens/s per user>"
        )

    def to_frame(self) -> pd.DataFrame:
        """The summary in one row, units in the names of the columns."""
        import pandas as pd

        s = self.summary
        row: dict[str, Any] = {"policy": self.policy, "lossless": self.lossless}
        row["throughput [tokens/s]"] = s["throughput"]
        for key, value in s["tps_user"].items():
            row[f"speed of a user {key} [tokens/s]"] = value
        for name, said in (("ttft", "TTFT"), ("tpot", "TPOT"), ("end_to_end", "end-to-end")):
            for key, value in (s.get(f"{name}_seconds") or {}).items():
                row[f"{said} {key} [ms]"] = 1e3 * value
        row["emitted [tokens/step]"] = s["emitted_per_step"]
        row["verified [tokens/request/step]"] = s["verify_tokens_per_request"]
        row["drafts rejected [share]"] = s["rejected_share"]
        row["step [ms]"] = 1e3 * s["step_seconds"]
        return pd.DataFrame([row])

    def _repr_html_(self) -> str:
        return str(self.to_frame().T.to_html(header=False))

    @property
    def tps(self) -> np.ndarray:
        """float64[n]: speed of each measured request: tokens / (last token - first anchor ready)."""
        a = self.arrays
        with np.errstate(divide="ignore", invalid="ignore"):
            out: np.ndarray = a["tokens"] / (a["finish_seconds"] - a["ready_seconds"])
            return out

    @property
    def requests(self) -> pd.DataFrame:
        """One row a measured request: times, tokens, steps, drafts verified and accepted, speed."""
        import pandas as pd

        frame = pd.DataFrame(self.arrays)
        frame["request"] = self.replay.request_ids[self.arrays["traced"]]
        frame["domain"] = np.array(self.replay.domain_names)[self.replay.domain[self.arrays["traced"]]]
        frame["tps"] = self.tps
        frame["ttft_seconds"] = frame["ready_seconds"] - frame["arrival_seconds"]
        return frame.drop(columns="traced")

    @property
    def steps(self) -> pd.DataFrame:
        """One row a step (every `log_stride`-th of a long run): LOG_COLUMNS."""
        import pandas as pd

        return pd.DataFrame(self.log, columns=list(LOG_COLUMNS))

    def share_at(self, sla_tps: float) -> float:
        """Share of measured requests at `sla_tps` tokens/s or faster."""
        speed = self.tps
        speed = speed[~np.isnan(speed)]
        return float(np.mean(reaches(speed, sla_tps))) if len(speed) else float("nan")


def reaches(speed: np.ndarray, sla_tps: float) -> np.ndarray:
    """bool, shape of `speed`: tokens/s at the SLA or faster, but for the rounding of a sum of step times."""
    out: np.ndarray = speed >= sla_tps * (1.0 - ROUNDING)
    return out


def summarise(
    arrays: dict[str, np.ndarray],
    count: np.ndarray,
    real: np.ndarray,
    *,
    closed: bool,
    prefilled_here: bool,
    seed: int | None,
    competes: bool = False,
) -> dict[str, Any]:
    """The `summary` of SimResult from the engine's totals and its measured requests.

    `seed` None leaves the intervals out. `competes`: a pass's size follows from its cost, so that requests
    compete for the drafts verified in it.
    """
    k = columns
    tokens = arrays["tokens"].astype(np.float64)
    duration = arrays["finish_seconds"] - arrays["ready_seconds"]
    decoded = (tokens > 0) & (duration > 0)
    speed = tokens[decoded] / duration[decoded]
    window = float(real[k.W_END] - real[k.W_START])
    emitted = count[k.W_EMITTED]
    if not emitted:  # so few arrivals that none of their steps ended within them: the whole run is the window
        window = float(np.max(arrays["finish_seconds"]) - real[k.W_START])
        emitted = tokens.sum()
    steps = int(count[k.W_STEPS])
    summary: dict[str, Any] = {
        "throughput": _ratio(emitted, window),
        "tps_user": _spread(speed, ("p05", "p50", "p95")),
        "emitted_per_step": _ratio(count[k.W_EMITTED], count[k.W_REQUESTS]),
        "verify_tokens_per_request": _ratio(count[k.W_TOKENS], count[k.W_REQUESTS]),
        "rejected_share": _ratio(count[k.W_VERIFIED] - count[k.W_ACCEPTED], count[k.W_VERIFIED]),
        "step_seconds": _ratio(real[k.W_SECONDS], steps),
        "tokens_per_pass": _ratio(count[k.W_TOKENS], count[k.W_DECODE_STEPS]),
        "budget_per_pass": _ratio(count[k.W_VERIFIED], count[k.W_DECODE_STEPS]),
        "concurrency_mean": _ratio(real[k.W_REQUEST_SECONDS], window),
        "extrapolated_steps": int(count[k.W_EXTRAPOLATED]),
        "off_graph_steps": int(count[k.W_OFF_GRAPH]),
        "preemptions": int(count[k.W_PREEMPTED]),
        "blocked_steps": int(count[k.W_BLOCKED]),
        "full_steps": int(count[k.W_FULL]),
        "prefill_tokens": int(count[k.W_PREFILL]),
        "seconds": window,
        "steps": steps,
        "requests": len(tokens),
        "distinct_requests": int((np.bincount(arrays["traced"]) > 0).sum()),
    }
    summary |= _times(arrays, speed, prefilled_here)
    if seed is not None and speed.size:
        summary["intervals"] = _intervals(arrays, decoded, speed, duration, seed, summary, closed, competes)
    return summary


def _times(arrays: dict[str, np.ndarray], speed: np.ndarray, prefilled_here: bool) -> dict[str, Any]:
    """Spreads of what users wait for, in seconds, and their speeds without and with the wait for a place."""
    high, a = ("p50", "p95", "p99"), arrays
    out: dict[str, Any] = {}
    if prefilled_here:
        out["ttft_seconds"] = _spread(a["ready_seconds"] - a["arrival_seconds"], high)
    out["tpot_seconds"] = _spread(1.0 / speed, high)
    out["end_to_end_seconds"] = _spread(a["finish_seconds"] - a["arrival_seconds"], high)
    out["itl_seconds"] = _spread(a["longest_gap_seconds"][a["tokens"] > 0], high)
    wait = a["started_seconds"] - a["arrival_seconds"]
    out["wait_seconds"] = _spread(wait, high)
    served = a["finish_seconds"] - np.maximum(a["ready_seconds"], a["started_seconds"])
    known = (a["tokens"] > 0) & (served > 0)
    low = ("p05", "p50", "p95")
    out["tps_user_without_wait"] = _spread((a["tokens"][known] / served[known]), low)
    out["tps_user_with_wait"] = _spread(a["tokens"][known] / (served + wait)[known], low)
    return out


def _intervals(
    arrays: dict[str, np.ndarray],
    decoded: np.ndarray,
    speed: np.ndarray,
    duration: np.ndarray,
    seed: int,
    summary: dict[str, Any],
    closed: bool,
    competes: bool,
) -> dict[str, Any]:
    a = {name: values[decoded].astype(np.float64) for name, values in arrays.items()}
    if (
        len(speed) > 20_000
    ):  # weights are resamples x requests; beyond this many the noise is the trace's anyway
        pick = np.linspace(0, len(speed) - 1, 20_000).astype(np.int64)
        a = {name: values[pick] for name, values in a.items()}
        speed, duration = speed[pick], duration[decoded][pick]
    else:
        duration = duration[decoded]
    w = intervals.Resamples(a["traced"].astype(np.int64), seed)
    tokens, steps, verified, accepted = (
        w.whole_sums(a[name]) for name in ("tokens", "steps", "verified", "accepted")
    )
    low, median = w.quantiles(speed, 0.05, 0.50)
    out: dict[str, Any] = {
        "tps_user": {
            "mean": intervals.ratio_bounds(w.sums(speed), w.whole_sums(np.ones_like(speed))),
            "p05": intervals.bounds(low),
            "p50": intervals.bounds(median),
        },
        "emitted_per_step": intervals.ratio_bounds(tokens, steps),
        "verify_tokens_per_request": intervals.ratio_bounds(steps + verified, steps),
        "rejected_share": _rejected_bounds(a, verified, accepted, steps, competes),
    }
    if (
        closed
    ):  # one place turns out Σ tokens in Σ residence (renewal reward), so throughput goes as their ratio
        held = a["finish_seconds"] - a["arrival_seconds"]
        ratio = summary["throughput"] * held.sum() / a["tokens"].sum()
        found = intervals.ratio_bounds(tokens, w.sums(held))
        out["throughput"] = None if found is None else [ratio * x for x in found]
    return out


def _rejected_bounds(
    a: dict[str, np.ndarray], verified: np.ndarray, accepted: np.ndarray, steps: np.ndarray, competes: bool
) -> list[float] | None:
    """Interval of the rejected share: where requests compete, the wider of two ways in which it would move.

    Either each request verifies what it verified here, or the pass has a size that the costs give (a captured
    one, say) and the drafts of harder requests take the places of easier ones: then only what is accepted
    moves, and the requests' own shares hide it.
    """
    own = intervals.ratio_bounds(verified - accepted, verified)
    if own is None or not competes:
        return own
    passes = a["verified"].sum() / a["steps"].sum()
    if not passes > 0:
        return own
    kept = intervals.ratio_bounds(accepted, steps)
    assert kept is not None  # every request takes a step
    given = [max(0.0, 1.0 - kept[1] / passes), min(1.0, 1.0 - kept[0] / passes)]
    return given if given[1] - given[0] > own[1] - own[0] else own


def _ratio(a: Any, b: Any) -> float:
    return float(a) / float(b) if b else 0.0


def _spread(values: np.ndarray, quantiles: tuple[str, ...]) -> dict[str, float]:
    """Mean and quantiles; a run in which nothing was decoded has none, and says so with an empty dict.

    `p05` is the greatest value that 95 % reach, `p95` the least that 95 % do not exceed: where 95 % of the
    requests reach an SLA, so does p05.
    """
    if values.size == 0:
        return {}
    rising, n = np.sort(values), values.size
    spread = {"mean": float(values.mean())}
    for name in quantiles:
        percent = int(name[1:])
        spread[name] = float(rising[percent * n // 100 if percent < 50 else -(-percent * n // 100) - 1])
    return spread
