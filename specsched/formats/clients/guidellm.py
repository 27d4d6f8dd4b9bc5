"""GuideLLM (vLLM project): the report of a run, `benchmarks.json` or `.yaml`, a benchmark for each load.

Up to 0.3 a benchmark keeps its load under `args.strategy`, later under `config.strategy`; the metrics are
named alike in all. `inter_token_latency_ms` leaves the first token out, `time_per_output_token_ms` does so in
some versions only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import FormatError
from ..document import Hints
from ..opened import Opened
from ..runs import Measured, Runs
from ..values import integer, mapping, records
from .figures import all_done, block, same_unit, speed, value, whole

_GAP = "inter_token_latency_ms"


def recognise(opened: Opened) -> bool:
    if opened.syntax not in ("json", "yaml") or "benchmarks" not in opened.keys:
        return False
    held = opened.data["benchmarks"]
    first = held[0] if isinstance(held, list) and held else None
    metrics = first.get("metrics") if isinstance(first, dict) else None
    return isinstance(metrics, dict) and _GAP in metrics


def read(opened: Opened, hints: Hints) -> Runs:
    """The benchmarks at a fixed number of users; the others are left out, and said."""
    where = str(opened.path)
    runs, notes, left_out = [], [], []
    for i, held in enumerate(records(opened.data["benchmarks"], f"{where}: benchmarks"), 1):
        at = f"{where}, benchmark {i}"
        users, kind = _load(held, at)
        if users is None:
            left_out.append(kind)
            continue
        run, said = _run(held, users, f"{opened.path.name}:{i}", at)
        runs.append(run)
        notes += said
    if not runs:
        raise FormatError(
            f"{where}: no benchmark at a fixed number of users (there are: "
            f"{', '.join(sorted(set(left_out)))}); "
            "run guidellm with --rate-type concurrent"
        )
    if left_out:
        notes.append(
            f"{where}: {len(left_out)} benchmarks ({', '.join(sorted(set(left_out)))}) have no fixed "
            "number of "
            "users and are left out."
        )
    return Runs("GuideLLM", tuple(runs), tuple(notes))


def _load(held: Mapping[str, Any], at: str) -> tuple[int | None, str]:
    """(users at once, kind of load)."""
    for key in ("config", "args"):
        strategy = block(held, key, "strategy", where=at)
        if strategy is not None:
            break
    else:
        raise FormatError(
            f"{at}: neither config.strategy nor args.strategy; is it of another version of GuideLLM?"
        )
    kind = str(strategy.get("type_", "unknown"))
    if kind == "synchronous":
        return 1, kind
    # `throughput` sends all it may at once: a closed loop where that is bounded.
    key = {"concurrent": "streams", "throughput": "max_concurrency"}.get(kind, "")
    most = strategy.get(key)
    return (None if most is None else integer(most, f"{at}: {key}", 1)), kind


def _run(held: Mapping[str, Any], users: int, source: str, at: str) -> tuple[Measured, list[str]]:
    metrics = mapping(held.get("metrics"), f"{at}: metrics")
    totals = block(metrics, "request_totals", where=at) or block(held, "request_totals", where=at)
    if totals is None:
        raise FormatError(f"{at}: no request_totals; the file was cut, or is of another version")
    done, errored, cut = (
        integer(totals.get(name) or 0, f"{at}: request_totals.{name}")
        for name in ("successful", "errored", "incomplete")
    )
    notes = all_done(done, errored, at)
    if cut:
        notes.append(f"{at}: {cut} requests were still running when it ended; {done} were completed.")

    def of(name: str, *stats: str, group: str = "successful") -> float | None:
        return value(block(metrics, name, group, where=at), stats, f"{at}: {name}.{group}")

    gap = of(_GAP, "median", "mean")
    output = of("output_token_count", "mean")
    first, mean_gap = of("time_to_first_token_ms", "mean"), of(_GAP, "mean")
    same_unit(
        of("request_latency", "mean"),
        None if first is None else first * 1e-3,
        None if mean_gap is None else mean_gap * 1e-3,
        output,
        at,
    )
    # Tokens of requests that were cut when the time was up were made within it as well.
    total = of("output_tokens_per_second", "mean", group="total") or of("output_tokens_per_second", "mean")
    run = Measured(
        source=source,
        users=users,
        user=speed(None if gap is None else gap * 1e-3),
        total=total,
        prompt_tokens=whole(of("prompt_token_count", "mean")),
        output_tokens=whole(output),
        prompts=done,
        silent=True,
    )
    return run, notes
