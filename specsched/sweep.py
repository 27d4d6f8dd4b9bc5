"""Many runs: a grid of points on threads here or on a Dask cluster, written down as they finish.

`run` is the command `specsched sweep`; `map_points` is the bare loop that ladders and plans use. Both speak
to one interface, `concurrent.futures.Executor`: threads (the kernels release the GIL), or what a Dask client
hands out. A point is a function of its own values alone, so neither the number of workers nor their order
changes a result.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .calibrate import Calibration
from .errors import SpecschedError, WorkloadError
from .profile import StepProfile, load_profile
from .replay import split_and_calibrate
from .schedule import Policy, make
from .simulator import simulate
from .sweep_spec import FITTED, Point, Sweep, read_spec
from .sweep_store import Row, Store, flatten
from .trace import Trace, load_trace
from .workload import Workload, load_workload, parse_arrivals

__all__ = ["Point", "Sweep", "map_points", "read_spec", "run", "run_point"]

Item = TypeVar("Item")
Progress = Callable[[int, int, str], None]
_ATTEMPTS = 3  # of a point whose worker died under it
_SCHEDULER_SECONDS = 10.0  # to wait for the scheduler of a cluster
_WORKER_SECONDS = 120.0  # to wait for its first worker


def default_workers() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_points(
    function: Callable[[Item], Any],
    points: Iterable[Item],
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Any]:
    """[function(p) for p in points] on threads, results in the order of the points.

    When points fail, those not begun are dropped and the first failure in the order of the points is raised:
    the same one on any number of workers. `function` should spend its time where the GIL is released.
    """
    items = list(points)
    with ThreadPoolExecutor(_workers(workers)) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                if future.exception() is not None:
                    break
                if progress is not None:
                    progress(done, len(items), "")
        finally:
            for future in futures:
                future.cancel()
    # Points begin in order, so whatever stands before a failure has run to its end.
    return [future.result() for future in futures]


def _workers(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise WorkloadError(f"{workers} workers cannot run anything; give 1 or more")
    return workers or default_workers()


def _completed(
    submit: Callable[[Item], Future[Any]], items: Iterable[Item], window: int
) -> Generator[tuple[Item, Future[Any]], None, None]:
    """(item, its future) as futures end, at most `window` under way; closing it cancels the rest."""
    waiting = iter(items)
    done: queue.SimpleQueue[tuple[Item, Future[Any]]] = queue.SimpleQueue()
    running: set[Future[Any]] = set()

    def start() -> None:
        for item in waiting:
            future = submit(item)
            running.add(future)
            future.add_done_callback(functools.partial(_report, done, item))
            return

    try:
        for _ in range(window):
            start()
        while running:
            item, future = done.get()
            running.discard(future)
            start()
            yield item, future
    finally:
        for future in running:
            future.cancel()


def _report(done: queue.SimpleQueue[Any], item: Any, future: Future[Any]) -> None:
    done.put((item, future))


# -- the points of a sweep ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """What points need, loaded once and shared by all: nothing a worker must find on its own disk.

    Keys are names as points spell them. Replays, what is left of a trace to replay and its calibration, are
    keyed by (trace, setting, seed), policies that need a file by (policy, block size). What could not be
    loaded is the error itself: it fails the points that need it, and no others.
    """

    profiles: dict[str, StepProfile | SpecschedError]
    replays: dict[tuple[str, str, int], tuple[Trace, Calibration | None] | SpecschedError]
    workloads: dict[str, Workload | SpecschedError]
    policies: dict[tuple[str, int], Policy | SpecschedError]


def load_inputs(sweep: Sweep, points: list[Point], workers: int | None = None) -> Inputs:
    """Load every file these points name, and fit the calibrations they ask for."""
    traces = {name: load_trace(sweep.files[name]) for name in dict.fromkeys(p.trace for p in points)}
    profiles = dict.fromkeys(p.profile for p in points)
    arrivals = dict.fromkeys(p.arrivals for p in points if p.arrivals in sweep.files)
    wanted = list(dict.fromkeys(_replay_key(p) for p in points))

    def replay(key: tuple[str, str, int]) -> tuple[Trace, Calibration | None]:
        trace, setting, seed = key
        return split_and_calibrate(traces[trace], str(sweep.files.get(setting, setting)), seed)[:2]

    def loaded(key: tuple[str, str, int]) -> Any:
        return _loaded(replay, key)

    tables = dict.fromkeys((p.policy, p.block_size) for p in points if p.policy.startswith("batch-table:"))
    return Inputs(
        profiles={name: _loaded(load_profile, sweep.files[name]) for name in profiles},
        replays=dict(zip(wanted, map_points(loaded, wanted, workers), strict=True)),
        workloads={name: _loaded(load_workload, sweep.files[name]) for name in arrivals if name is not None},
        policies={key: _loaded(_table_policy, sweep, *key) for key in tables},
    )


def _table_policy(sweep: Sweep, policy: str, block: int) -> Policy:
    kind, _, table = policy.partition(":")
    return make(f"{kind}:{sweep.files.get(table, table)}", block_size=block)


def _loaded(load: Callable[..., Any], *arguments: Any) -> Any:
    """What `load` gives, or the error that says why it gives nothing."""
    try:
        return load(*arguments)
    except SpecschedError as error:
        return error


def _needed(loaded: Any) -> Any:
    if isinstance(loaded, SpecschedError):
        raise loaded
    return loaded


def _replay_key(point: Point) -> tuple[str, str, int]:
    setting = point.settings["calibration"]
    # Only a fit depends on the seed: it decides which half of the trace is fitted and which replayed.
    return point.trace, setting, point.seed if setting in FITTED else 0


def run_point(point: Point, inputs: Inputs) -> Row:
    """One row of results. An error of the point becomes a row with status "failed"; nothing is raised."""
    row = {**point.row(), "status": "done", "error": None}
    try:
        settings = dict(point.settings)
        requests, sla, _ = settings.pop("requests"), settings.pop("sla", None), settings.pop("calibration")
        trace, calibration = _needed(inputs.replays[_replay_key(point)])
        workload = _workload(point, inputs, requests)
        result = simulate(
            trace,
            _needed(inputs.profiles[point.profile]),
            _needed(inputs.policies.get((point.policy, point.block_size), point.policy)),
            concurrency=point.concurrency,
            requests=requests,
            seed=point.seed,
            calibration=calibration,
            workload=workload,
            block_size=point.block_size,
            log_steps=1,
            **settings,
        )
        warnings = [*(workload.warnings if workload is not None else []), *result.warnings]
        row |= {"lossless": result.lossless, "warnings": list(dict.fromkeys(warnings))}
        if sla is not None:
            row["share_at_sla"] = result.share_at(sla)
        row |= {name: value for name, value in flatten(result.summary).items() if name not in point.settings}
    except Exception as e:
        kind = "" if isinstance(e, SpecschedError) else f"{type(e).__name__}: "
        row |= {"status": "failed", "error": f"{kind}{e}"}
    return row


def _workload(point: Point, inputs: Inputs, requests: int) -> Workload | None:
    if point.arrivals is None:
        return None
    if point.arrivals in inputs.workloads:
        workload = _needed(inputs.workloads[point.arrivals]).head(requests)
        return workload if point.rate is None else workload.scaled(point.rate)
    kind, _, burstiness = point.arrivals.partition(":")
    spec = f"{kind}:{point.rate!r}" + (f":{burstiness}" if burstiness else "")
    return parse_arrivals(spec, requests=requests, seed=point.seed)


# -- the sweep ----------------------------------------------------------------------------------------


def run(
    spec: str | Path,
    out: str | Path,
    cluster: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    retry_failed: bool = False,
) -> dict[str, Any]:
    """Run what is missing of a sweep, on `workers` threads or on the Dask scheduler at address `cluster`.

    Rows go to `out/parts` as they finish (sweep_store.py) and, at the end, to `out/results.parquet` in the
    order of the grid. A point that fails is recorded with its error; one whose worker died is tried again, at
    most three times, and again at the next restart. `retry_failed` also repeats recorded failures.

    Returns {"schema": "specsched/sweep/1", "name", "out", "results": path, "axes", "points", "already_done",
    "ran", "failed", "failures": [{"key", "trace", "profile", "policy", "load", "seed", "error"}] (the first
    20), "warnings"}. Raises WorkloadError for a spec or cluster that cannot be used.
    """
    sweep = read_spec(spec)
    store = Store(Path(out))
    before = store.rows()
    again = {"lost", "failed"} if retry_failed else {"lost"}
    there = (p.key for p in sweep.points if p.key in before)
    rows = {key: before[key] for key in there if before[key]["status"] not in again}
    missing = [p for p in sweep.points if p.key not in rows]
    already = len(rows)
    if missing:
        inputs = load_inputs(sweep, missing, workers)
        with _pool(cluster, workers) as pool, contextlib.closing(_rows(pool, missing, inputs)) as finished:
            try:
                for point, row in finished:
                    rows[row["key"]] = row
                    store.add(row)
                    if progress is not None:
                        progress(len(rows), len(sweep.points), f"{point.policy}, {point.load}")
            finally:
                store.flush()
    ordered = [rows[p.key] for p in sweep.points]
    results = store.finish(ordered)
    return _summary(sweep, ordered, results, already)


def _summary(sweep: Sweep, rows: list[Row], results: Path, already: int) -> dict[str, Any]:
    failed = [(p, row) for p, row in zip(sweep.points, rows, strict=True) if row["status"] != "done"]
    return {
        "schema": "specsched/sweep/1",
        "name": sweep.name,
        "out": str(results.parent),
        "results": str(results),
        "axes": sweep.axes,
        "points": len(rows),
        "already_done": already,
        "ran": len(rows) - already,
        "failed": len(failed),
        "failures": [
            {
                **{name: row[name] for name in ("key", "trace", "profile", "policy", "seed")},
                "load": point.load,
                "error": row["error"],
            }
            for point, row in failed[:20]
        ],
        "warnings": list(dict.fromkeys(w for row in rows for w in row.get("warnings") or [])),
    }


@dataclass(frozen=True)
class _Pool:
    """An executor, how to give all its workers one object, and how many points to have under way."""

    executor: Executor
    share: Callable[[Any], Any]
    window: int


@contextlib.contextmanager
def _pool(cluster: str | None, workers: int | None) -> Iterator[_Pool]:
    if cluster is None:
        count = _workers(workers)
        with ThreadPoolExecutor(count) as executor:
            yield _Pool(executor, lambda shared: shared, 4 * count)
        return
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise WorkloadError(
            "a cluster needs the Python package 'distributed'; run: pip install 'specsched[cluster]'"
        ) from None
    try:
        client = Client(cluster, timeout=_SCHEDULER_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as e:
        raise WorkloadError(
            f"no Dask scheduler answers at {cluster!r} ({e}); start one with `dask scheduler`, "
            "and give its address, such as tcp://127.0.0.1:8786"
        ) from None
    with client:
        executor = client.get_executor()
        _greet(executor, cluster)
        # Broadcast: a copy on every worker survives the death of any one of them.
        yield _Pool(executor, lambda shared: client.scatter([shared], broadcast=True)[0], 512)


def _greet(executor: Executor, cluster: str) -> None:
    """See that a worker is there and has this package, before thousands of points find out."""
    from . import __version__

    try:
        theirs = executor.submit(_version).result(timeout=_WORKER_SECONDS)
    except TimeoutError:
        raise WorkloadError(
            f"no worker of the cluster at {cluster} answered in {_WORKER_SECONDS:g} s; "
            f"start some with `dask worker {cluster}`"
        ) from None
    except Exception as e:
        raise WorkloadError(
            f"workers of the cluster at {cluster} cannot run specsched ({type(e).__name__}: {e}); "
            f"install version {__version__} of it there"
        ) from None
    if theirs != __version__:
        raise WorkloadError(
            f"workers at {cluster} have specsched {theirs}, this is {__version__}; install the same"
        )


def _version() -> str:
    from . import __version__

    return __version__


def _submit(executor: Executor, shared: Any, point: Point) -> Future[Row]:
    return executor.submit(run_point, point, shared)


def _rows(pool: _Pool, points: list[Point], inputs: Inputs) -> Generator[tuple[Point, Row], None, None]:
    """Rows as points end. `run_point` raises nothing: an error here is that of a lost worker."""
    remaining, errors = points, {}
    for _ in range(_ATTEMPTS):
        shared = pool.share(inputs)
        lost: list[Point] = []
        submit = functools.partial(_submit, pool.executor, shared)
        futures = _completed(submit, remaining, pool.window)
        with contextlib.closing(futures):
            for point, future in futures:
                try:
                    row = future.result()
                except Exception as e:
                    lost.append(point)
                    errors[point.key] = f"{type(e).__name__}: {e}"
                    continue
                yield point, row
        if not lost:
            return
        remaining = lost
    for point in remaining:
        yield point, {**point.row(), "status": "lost", "error": errors[point.key]}
