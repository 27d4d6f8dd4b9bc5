"""Many runs: a grid of points on threads here or on a Dask cluster, written down as they finish.

`run` is the command `specsched sweep`; `map_points` is the bare loop that ladders and plans use. Both speak
to one interface, `concurrent.futures.Executor`: threads (the kernels release the GIL), or what a Dask client
hands out. A point is a function of its own values alone, so neither the number of workers nor their order
changes a result.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import WorkloadError
from ..workers import Item, Progress, map_points, worker_count
from .points import Inputs, load_inputs, run_point
from .spec import Point, Sweep, read_spec
from .store import Row, Store
from .table import table

__all__ = ["Point", "Sweep", "map_points", "read_spec", "run", "run_point"]
_ATTEMPTS = 3  # of a point whose worker died under it
_SCHEDULER_SECONDS = 10.0  # to wait for the scheduler of a cluster
_WORKER_SECONDS = 120.0  # to wait for its first worker


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

    Rows go to `out/parts` as they finish (`store`) and, at the end, to `out/results.parquet` in the
    order of the grid. A point that fails is recorded with its error; one whose worker died is tried again, at
    most three times, and again at the next restart. `retry_failed` also repeats recorded failures.

    Returns {"schema": "specsched/sweep/1", "name", "out", "results": path, "axes", "points", "already_done",
    "ran", "failed", "failures": [{"key", "trace", "profile", "policy", "load", "seed", "error"}] (the first
    20), "table": means over seeds (`table`), "warnings"}. Raises WorkloadError for a spec or cluster that
    cannot be used, and while another sweep writes to `out`.
    """
    sweep = read_spec(spec)
    store = Store(Path(out))
    store.refuse_inputs([Path(spec), *sweep.files.values()])
    with store.locked():
        return _run(sweep, store, cluster, workers, progress, retry_failed)


def _run(
    sweep: Sweep,
    store: Store,
    cluster: str | None,
    workers: int | None,
    progress: Progress | None,
    retry_failed: bool,
) -> dict[str, Any]:
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
    return _summary(sweep, ordered, results, already, store.warnings)


def _summary(sweep: Sweep, rows: list[Row], results: Path, already: int, said: list[str]) -> dict[str, Any]:
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
        "table": table(sweep, rows),
        "warnings": list(dict.fromkeys([*said, *(w for row in rows for w in row.get("warnings") or [])])),
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
        count = worker_count(workers)
        with ThreadPoolExecutor(count) as executor:
            yield _Pool(executor, lambda shared: shared, 4 * count)
        return
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise WorkloadError(
            "a cluster needs the Python package 'distributed'; run: pip install 'specsched[cluster]'"
        ) from None
    _check_address(cluster)
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
        yield _Pool(executor, functools.partial(_shared, client), 512)


def _shared(client: Any, inputs: Any) -> Any:
    """`inputs` on every worker that needs them, as a task of their own.

    Scattered data dies with its last holder, and points that wait for it wait for ever. What a task returns
    is computed again from its arguments, which the scheduler keeps.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the arguments are large is the point
        return client.submit(_itself, inputs, pure=False)


def _itself(inputs: Any) -> Any:
    return inputs


def _check_address(address: str) -> None:
    """Refuse an address that Dask cannot speak to, before it tries for minutes; raises WorkloadError."""
    from distributed.security import Security

    scheme, separator, _ = address.partition("://")
    if separator and scheme not in ("tcp", "tls", "ws", "wss"):
        raise WorkloadError(
            f"--cluster {address}: an address begins with tcp:// or tls://, such as tcp://127.0.0.1:8786"
        )
    if scheme in ("tls", "wss") and Security().get_connection_args("client").get("ssl_context") is None:
        raise WorkloadError(
            f"--cluster {address} needs certificates: set distributed.comm.tls.ca-file and "
            "distributed.comm.tls.client.cert and .key in Dask's configuration"
        )


def _greet(executor: Executor, cluster: str) -> None:
    """See that a worker is there and has this package, before thousands of points find out."""
    from ..version import VERSION

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
            f"install version {VERSION} of it there"
        ) from None
    if theirs != VERSION:
        raise WorkloadError(
            f"workers at {cluster} have specsched {theirs}, this is {VERSION}; install the same"
        )


def _version() -> str:
    from ..version import VERSION

    return VERSION


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
