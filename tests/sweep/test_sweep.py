"""Sweeps: what the grid is, that nothing is lost or run twice, and that workers change no byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import specsched
from specsched.calibration.holdout import split_and_calibrate
from specsched.errors import SpecschedError, WorkloadError
from specsched.profile import load_profile
from specsched.simulator import simulate
from specsched.sweep import points, runner
from specsched.sweep.spec import expand, read_spec
from specsched.sweep.store import Store, flatten, write_rows
from specsched.trace import Trace, load_trace
from specsched.workload import gamma_burst, load_workload

BLOCK = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small trace, a small profile and a file of arrivals."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(5, 30, 24)
    request = np.repeat(np.arange(24), lengths)
    logits = rng.normal(1.0, 2.0, (len(request), BLOCK)).astype(np.float32)
    hits = rng.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits))
    Trace.from_arrays(
        request=request,
        position=np.concatenate([np.arange(n) for n in lengths]),
        confidence_logit=logits,
        accepted=np.cumprod(hits, axis=1).sum(axis=1),
        domain="chat",
        prompt_tokens=50,
        metadata={"licence": "CC0-1.0"},
    ).save(tmp_path / "small.parquet")
    profile = {
        "schema": "specsched/profile/1",
        "name": "small",
        "gpu": {"name": "imagined", "count": 1, "memory_bytes": 0},
        "model": {"name": "imagined", "weight_bytes": 0, "kv_bytes_per_token": 0, "max_context": 0},
        "verify": {
            "tokens": [1, 64, 256],
            "seconds": [0.010, 0.012, 0.03],
            "lookup": "linear",
            "beyond": "slope",
        },
        "overhead": {"requests": [1, 64], "seconds": [0.001, 0.004]},
        "draft": {"requests": [1, 64], "seconds": [0.001, 0.002], "block_size": BLOCK, "drafter": "imagined"},
        "provenance": {"method": "measured", "source": "made for a test"},
    }
    (tmp_path / "small.json").write_text(json.dumps(profile))
    arrivals = gamma_burst(3.0, 2.0, requests=100, seed=3).arrival_seconds
    (tmp_path / "log.csv").write_text("arrival_seconds\n" + "\n".join(map(repr, arrivals.tolist())) + "\n")
    return tmp_path


SPEC = """
traces = "small.parquet"
profiles = ["small.json"]
policies = ["off", "fixed", "lagged"]
lags = [1, 2]
concurrencies = [1, 4]
seeds = [0, 1]

[run]
requests = 30
sla = 60.0
"""


def written(folder: Path, text: str = SPEC) -> Path:
    spec = folder / "grid.toml"
    spec.write_text(text)
    return spec


def results(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return pq.read_table(summary["results"]).to_pylist()


# -- the grid ------------------------------------------------------------------------------------------------


def test_the_grid_is_the_product_of_its_axes_in_order(folder: Path) -> None:
    sweep = read_spec(written(folder))
    assert len(sweep.points) == 4 * 2 * 2
    assert [p.policy for p in sweep.points[:4]] == ["off", f"fixed:{BLOCK}", "lagged:1", "lagged:2"]
    assert {p.block_size for p in sweep.points} == {BLOCK}
    assert {p.settings["requests"] for p in sweep.points} == {30}
    assert len({p.key for p in sweep.points}) == len(sweep.points)


def test_a_list_in_run_is_one_more_axis_and_equal_points_run_once(folder: Path) -> None:
    text = SPEC.replace("requests = 30", "requests = [30, 40]").replace(
        '"fixed"', f'"fixed", "fixed:{BLOCK}"'
    )
    assert len(read_spec(written(folder, text)).points) == 2 * 16


def test_loads_are_users_and_arrivals_at_rates(folder: Path) -> None:
    document = {
        "traces": ["small.parquet"],
        "profiles": ["small.json"],
        "policies": ["off"],
        "concurrencies": [2],
        "arrivals": ["poisson", "gamma:3", "log.csv"],
        "rates": [1.0, 2],
    }
    loads = [p.load for p in expand(document, folder).points]
    assert loads[0] == "2 users"
    assert loads[1:] == [f"{a} at {r}/s" for a in ("poisson", "gamma:3", "log.csv") for r in (1, 2)]
    del document["rates"], document["concurrencies"]
    document["arrivals"] = ["log.csv"]
    assert [p.load for p in expand(document, folder).points] == ["log.csv"]


def test_defaults_are_the_comparison_set_the_bundled_profile_and_poisson() -> None:
    points = expand({"traces": ["chat"], "rates": 3}).points
    assert {p.profile for p in points} == {"h100-sxm_qwen3-8b_bf16_tp1"}
    assert {p.arrivals for p in points} == {"poisson"}
    assert "lagged:2" in {p.policy for p in points}


def test_a_key_follows_the_point_and_the_bytes_of_its_files(folder: Path) -> None:
    spec = written(folder)
    before = [p.key for p in read_spec(spec).points]
    assert [p.key for p in read_spec(spec).points] == before
    profile = folder / "small.json"
    profile.write_text(profile.read_text().replace("0.03", "0.04"))
    assert not set(before) & {p.key for p in read_spec(spec).points}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('traces = "small.parquet"', "no traces"),
        ("concurrencies = [1, 4]", "no load"),
        ("seeds = [0, 1]|seeds = []", "seeds is empty"),
        ("seeds = [0, 1]|seeds = [0, 0]", "names 0 twice"),
        ("seeds = [0, 1]|seeds = [-1]", r"seeds\[0\] is -1"),
        ("seeds = [0, 1]|sedes = [0]", "unknown key 'sedes' .did you mean 'seeds'"),
        ("concurrencies = [1, 4]|concurrencies = [0]", "at least 1"),
        ("concurrencies = [1, 4]|concurrencies = [1.5]", "whole number"),
        ("concurrencies = [1, 4]|rates = [-2]", "positive number"),
        ("concurrencies = [1, 4]|rates = [nan]", "positive number"),
        ('concurrencies = [1, 4]|arrivals = ["poisson"]', "need rates"),
        ('concurrencies = [1, 4]|arrivals = ["nowhere.csv"]', "no file 'nowhere.csv'"),
        ('policies = ["off", "fixed", "lagged"]|policies = ["off"]', "lags are given"),
        ('policies = ["off", "fixed", "lagged"]|policies = [3]', r"policies\[0\] is 3"),
        ("requests = 30|request = 30", "unknown key run.request .did you mean 'requests'"),
        ("requests = 30|requests = 0", "at least 1"),
        ("requests = 30|prefill = 'chonked'", "prefill is 'chonked'"),
        ("requests = 30|calibration = 3", "say .sts."),
        ("requests = 30|calibration = 'none.json'", "no file 'none.json'"),
        ("sla = 60.0|sla = -1", "above 0"),
        ('"small.parquet"|"smal.parquet"', "no file"),
        ('"small.json"|"smal.json"', "no file"),
        ("[run]|[run", "is not TOML"),
        ('"fixed", "lagged"|"fxied", "lagged"', "no policy 'fxied'; did you mean 'fixed'"),
        ('"fixed", "lagged"|"fixed:9", "lagged"', "grid.toml: policies: .*9"),
        ('"fixed", "lagged"|"batch-table:none.json", "lagged"', "no file 'none.json'"),
        (
            "seeds = [0, 1]|block_sizes = [9]",
            "block_sizes holds 9, and trace 'small.parquet' has blocks of 3",
        ),
        ("concurrencies = [1, 4]|concurrencies = [99999999999999999999]", "whole number"),
        ('concurrencies = [1, 4]|arrivals = ["gamma:fast"]\nrates = [1]', "not of the form gamma"),
        ("requests = 30|requests = 30\nkv_reserve = 'much'", "kv_reserve"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_by_key(folder: Path, change: str, message: str) -> None:
    old, _, new = change.partition("|")
    assert old in SPEC
    with pytest.raises(SpecschedError, match=message):
        runner.run(written(folder, SPEC.replace(old, new)), folder / "out")
    assert not (folder / "out").exists()


# -- running -------------------------------------------------------------------------------------------------


def test_a_row_is_what_simulate_says(folder: Path) -> None:
    summary = runner.run(written(folder), folder / "out", workers=2)
    assert (summary["points"], summary["ran"], summary["failed"], summary["already_done"]) == (16, 16, 0, 0)
    rows = results(summary)
    row = next(r for r in rows if r["policy"] == "lagged:2" and r["concurrency"] == 4 and r["seed"] == 1)
    trace, calibration, _ = split_and_calibrate(load_trace(folder / "small.parquet"), "sts", 1)
    result = simulate(
        trace, load_profile(folder / "small.json"), "lagged:2", 4, 30, 1, calibration, block_size=BLOCK
    )
    assert row["throughput"] == result.summary["throughput"]
    assert row["tps_user_p05"] == result.summary["tps_user"]["p05"]
    assert row["share_at_sla"] == result.share_at(60.0)
    assert row["lossless"] is True
    assert set(result.warnings) <= set(summary["warnings"])


def test_arrivals_drawn_and_read_run_at_their_rates(folder: Path) -> None:
    text = SPEC.replace("concurrencies = [1, 4]", 'arrivals = ["gamma:2", "log.csv"]\nrates = [2.0, 4.0]')
    rows = results(runner.run(written(folder, text), folder / "out", workers=2))
    assert {r["status"] for r in rows} == {"done"}
    assert all(r["concurrency"] is None and r["rate"] in (2.0, 4.0) for r in rows)
    slow, fast = (next(r for r in rows if r["arrivals"] == "log.csv" and r["rate"] == x) for x in (2.0, 4.0))
    assert fast["seconds"] < slow["seconds"]


def test_a_file_of_arrivals_runs_whole_or_its_busiest_window(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 requests are asked for, the file has 100: all run; of too long a file, its busiest window."""
    text = SPEC.replace("concurrencies = [1, 4]", 'arrivals = ["log.csv"]') + 'calibration = "none"\n'
    trace, profile = load_trace(folder / "small.parquet"), load_profile(folder / "small.json")
    whole = load_workload(folder / "log.csv")
    for row in results(runner.run(written(folder, text), folder / "whole")):
        expected = simulate(trace, profile, row["policy"], workload=whole, seed=row["seed"], log_steps=1)
        assert row["throughput"] == expected.summary["throughput"]
    burst = [*np.linspace(0, 500, 60), *np.linspace(500.1, 510, 60), *np.linspace(511, 1000, 60)]
    (folder / "log.csv").write_text("arrival_seconds\n" + "\n".join(map(repr, map(float, burst))) + "\n")
    monkeypatch.setattr(points, "LONGEST", 40)
    for row in results(runner.run(written(folder, text), folder / "part")):
        assert row["seconds"] < 15.0, "of the ten seconds of the burst"
        assert any("busiest window" in said for said in row["warnings"])


def test_any_number_of_threads_gives_the_same_bytes(folder: Path) -> None:
    spec = written(folder)
    one = Path(runner.run(spec, folder / "one", workers=1)["results"]).read_bytes()
    for workers in (2, 5):
        assert Path(runner.run(spec, folder / f"w{workers}", workers=workers)["results"]).read_bytes() == one


def test_a_restart_runs_only_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, ran = written(folder), []
    real = runner.run_point

    def interrupted(point: Any, inputs: Any) -> dict[str, Any]:
        ran.append(point.key)
        return real(point, inputs)

    monkeypatch.setattr(runner, "run_point", interrupted)

    def stop(done: int, total: int, text: str) -> None:
        assert total == 16
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(spec, folder / "out", workers=1, progress=stop)
    saved = Store(folder / "out").rows()
    assert len(saved) == 5
    ran.clear()
    summary = runner.run(spec, folder / "out", workers=1)
    assert not set(ran) & set(saved)
    assert (summary["already_done"], summary["ran"]) == (5, 11)
    ran.clear()
    assert runner.run(spec, folder / "out", workers=1)["ran"] == 0
    assert ran == []
    whole = Path(runner.run(spec, folder / "whole", workers=1)["results"]).read_bytes()
    assert Path(summary["results"]).read_bytes() == whole


def test_a_grown_grid_runs_only_what_was_added(folder: Path) -> None:
    runner.run(written(folder), folder / "out", workers=1)
    summary = runner.run(written(folder, SPEC.replace("[1, 4]", "[1, 4, 6]")), folder / "out", workers=1)
    assert (summary["already_done"], summary["ran"]) == (16, 8)


def test_a_failed_point_is_recorded_and_stops_nothing(folder: Path) -> None:
    # A captured profile has no cost for passes above its limit: whole blocks of four users do not fit.
    captured = json.loads((folder / "small.json").read_text())
    captured["capture"] = {"sizes": [1, 2, 4, 8], "limit": 8}
    (folder / "captured.json").write_text(json.dumps(captured))
    text = (
        SPEC.replace('"small.json"', '"captured.json"').replace('"lagged"]', '"off"]').replace('"off", ', "")
    )
    text = text.replace("lags = [1, 2]\n", "")
    summary = runner.run(written(folder, text), folder / "out", workers=2)
    assert (summary["points"], summary["failed"]) == (8, 2)
    rows = results(summary)
    assert {r["status"] for r in rows if (r["policy"], r["concurrency"]) != ("fixed:3", 4)} == {"done"}
    assert all("capture limit" in r["error"] for r in rows if r["status"] == "failed")
    assert summary["failures"][0]["policy"] == "fixed:3"
    assert [(row["policy"], row["load"], row["done"]) for row in summary["table"]] == [
        ("fixed:3", "1 users", 2),
        ("off", "1 users", 2),
        ("fixed:3", "4 users", 0),
        ("off", "4 users", 2),
    ]
    assert runner.run(written(folder, text), folder / "out", workers=2)["ran"] == 0
    assert runner.run(written(folder, text), folder / "out", workers=2, retry_failed=True)["ran"] == 2


def test_a_batch_table_is_found_beside_the_spec_and_keys_its_bytes(folder: Path) -> None:
    (folder / "table.json").write_text("[[1, 2, 3], [3, 999, 1]]")
    text = SPEC.replace('"fixed"', '"batch-table:table.json"')
    summary = runner.run(written(folder, text), folder / "out", workers=2)
    assert summary["failed"] == 0
    assert {r["policy"] for r in results(summary)} == {
        "off",
        "batch-table:table.json",
        "lagged:1",
        "lagged:2",
    }
    (folder / "table.json").write_text("[[1, 2, 2], [3, 999, 1]]")
    assert runner.run(written(folder, text), folder / "out", workers=2)["ran"] == 4


def test_a_broken_input_fails_its_own_points_alone(folder: Path) -> None:
    (folder / "broken.json").write_text('{"schema": "specsched/profile/1"}')
    (folder / "late.csv").write_text("arrival_seconds\n3\nsoon\n")
    (folder / "short.cal").write_text('{"schema": "specsched/calibration/1", "temperatures": [1.0]}')
    text = SPEC.replace('["small.json"]', '["small.json", "broken.json"]')
    text = text.replace("seeds = [0, 1]", 'seeds = 0\narrivals = ["late.csv", "log.csv"]')
    text += 'calibration = ["none", "short.cal"]\n'
    summary = runner.run(written(folder, text), folder / "out", workers=2)
    rows = results(summary)
    assert len(rows) == 4 * 4 * 2 * 2

    def sound(row: dict[str, Any]) -> bool:
        named = (row["profile"], row["arrivals"], row["calibration"])
        return not {"broken.json", "late.csv", "short.cal"} & set(named)

    assert [row["status"] == "done" for row in rows] == [sound(row) for row in rows]
    assert summary["failed"] == len(rows) - 4 * 3


def test_an_unforeseen_error_is_a_failed_point_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(points, "simulate", broken)
    summary = runner.run(written(folder), folder / "out", workers=2)
    assert summary["failed"] == 16
    assert summary["failures"][0]["error"] == "ZeroDivisionError: by design"


# -- the store -----------------------------------------------------------------------------------------------


def test_rows_come_back_and_later_ones_replace_earlier(tmp_path: Path) -> None:
    store = Store(tmp_path, patience=3600.0)
    store.add({"key": "a", "status": "lost", "value": None})
    store.add({"key": "b", "status": "done", "value": 1})
    assert store.rows() == {}
    store.flush()
    store.flush()
    store.add({"key": "a", "status": "done", "value": 2.5, "more": ["x"]})
    store.flush()
    assert len(list(store.parts.iterdir())) == 2
    rows = Store(tmp_path).rows()
    assert rows["a"]["value"] == 2.5
    assert rows["b"]["status"] == "done"


def test_a_broken_part_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part-1-00.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(WorkloadError, match="delete it, and its points run again"):
        Store(tmp_path).rows()


def test_any_flipped_bit_is_told_and_the_points_run_again(folder: Path) -> None:
    spec = written(folder)
    whole = Path(runner.run(spec, folder / "out", workers=1)["results"]).read_bytes()
    (part,) = (folder / "out" / "parts").glob("part-*.parquet")
    raw = part.read_bytes()
    random = np.random.default_rng(1)
    for bit in random.integers(0, 8 * len(raw), 40).tolist():
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        store = Store(folder / "elsewhere")
        store.parts.mkdir(parents=True, exist_ok=True)
        (store.parts / part.name).write_bytes(damaged)
        assert store.rows() == {}
        assert "checksum differs" in store.warnings[0]
        assert not list(store.parts.glob("*.parquet"))
    damaged = bytearray(raw)
    damaged[len(raw) // 2] ^= 4
    part.write_bytes(damaged)
    again = runner.run(spec, folder / "out", workers=1)
    assert again["ran"] == 16
    assert "its points run again" in again["warnings"][0]
    assert Path(again["results"]).read_bytes() == whole


@pytest.mark.parametrize("name", ["part-x-y.parquet", "part-1-00.parquet"])
def test_a_foreign_part_is_refused_by_name(folder: Path, name: str) -> None:
    (folder / "out" / "parts").mkdir(parents=True)
    (folder / "out" / "parts" / name).write_bytes((folder / "small.parquet").read_bytes())
    with pytest.raises(WorkloadError, match=f"{name} is not a part of a sweep"):
        runner.run(written(folder), folder / "out", workers=1)


def test_parts_of_earlier_versions_without_a_checksum_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.parts.mkdir()
    write_rows(store.parts / "part-7-0000000000000001.parquet", [{"key": "a", "status": "done"}])
    assert store.rows()["a"]["status"] == "done"


def test_a_second_sweep_in_the_folder_is_refused_until_the_first_ends(folder: Path) -> None:
    spec, refused = written(folder), []

    def meanwhile(done: int, total: int, text: str) -> None:
        if done == 1:
            with pytest.raises(WorkloadError, match=r"another sweep \(process \d+ on .*\) is writing"):
                runner.run(spec, folder / "out", workers=1)
            refused.append(done)

    runner.run(spec, folder / "out", workers=1, progress=meanwhile)
    assert refused == [1]
    assert runner.run(spec, folder / "out", workers=1)["already_done"] == 16


def test_rows_of_mixed_kinds_become_columns(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": None, "c": True}, {"a": 2.5, "d": "x"}, {"a": None, "d": 3}]
    write_rows(tmp_path / "r.parquet", rows)
    assert pq.read_table(tmp_path / "r.parquet").to_pylist() == [
        {"a": 1.0, "b": None, "c": True, "d": None},
        {"a": 2.5, "b": None, "c": None, "d": "x"},
        {"a": None, "b": None, "c": None, "d": "3"},
    ]


def test_summaries_flatten_to_columns() -> None:
    nested = {"t": np.float64(1.0), "tps_user": {"p05": 2.0}, "intervals": {"tps_user": {"p05": [1, 3]}}}
    assert flatten(nested) == {
        "t": 1.0,
        "tps_user_p05": 2.0,
        "intervals_tps_user_p05_low": 1.0,
        "intervals_tps_user_p05_high": 3.0,
    }


# -- map_points ----------------------------------------------------------------------------------------------


# -- a cluster -----------------------------------------------------------------------------------------------


class Cluster:
    """A Dask scheduler and two workers, processes of their own on loopback."""

    def __init__(self, folder: Path) -> None:
        root = str(Path(specsched.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self.folder, self.file = folder, folder / "scheduler.json"
        self.log = (folder / "cluster.log").open("w")
        self.scheduler = self.start(
            "dask_scheduler", "--scheduler-file", str(self.file), "--host", "127.0.0.1", "--port", "0"
        )
        until = time.monotonic() + 60
        while not self.file.exists() and time.monotonic() < until and self.scheduler.poll() is None:
            time.sleep(0.05)
        self.address = json.loads(self.file.read_text())["address"]
        self.workers = [self.worker() for _ in range(2)]

    def worker(self) -> subprocess.Popen[bytes]:
        where = ("--host", "127.0.0.1", "--local-directory", str(self.folder))
        return self.start("dask_worker", self.address, "--no-nanny", "--nthreads", "1", *where)

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments, "--no-dashboard"]
        return subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stdout=self.log, stderr=self.log
        )

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
        self.log.close()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    yield started
    started.close()


# Sockets of a killed worker are closed by the garbage collector, with a warning.
@pytest.mark.filterwarnings("ignore")
def test_a_worker_killed_mid_sweep_loses_nothing(folder: Path, cluster: Cluster) -> None:
    import distributed

    text = SPEC.replace("requests = 30", "requests = 2000").replace("[1, 4]", "[1, 4, 8]")
    spec = written(folder, text)
    killed: list[int] = []
    with distributed.Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)

    def kill_one(done: int, total: int, text: str) -> None:
        if done == 3:
            victim = cluster.workers[0]
            victim.kill()
            victim.wait()
            killed.append(total - done)

    summary = runner.run(spec, folder / "out", cluster=cluster.address, progress=kill_one)
    assert killed == [21]
    assert (summary["points"], summary["failed"], summary["ran"]) == (24, 0, 24)
    here = runner.run(spec, folder / "here", workers=2)
    assert Path(summary["results"]).read_bytes() == Path(here["results"]).read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_inputs_outlive_their_last_holder(cluster: Cluster) -> None:
    """Every worker that holds the inputs dies, and a new one joins: scattered data would be gone."""
    import distributed

    with distributed.Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
        shared = runner._shared(client, {"one": 1})
        assert shared.result(timeout=60) == {"one": 1}
        for holder in cluster.workers:
            holder.kill()
            holder.wait()
        cluster.workers.append(cluster.worker())
        assert client.get_executor().submit(sorted, shared).result(timeout=120) == ["one"]


def test_a_cluster_that_is_not_there_is_an_error_with_the_fix(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(runner, "_SCHEDULER_SECONDS", 0.5)
    with pytest.raises(WorkloadError, match=r"no Dask scheduler answers at .* `dask scheduler`"):
        runner.run(written(folder), folder / "out", cluster="tcp://127.0.0.1:9")


class DyingExecutor:
    """Stands for a cluster that loses the worker of every odd submission of some points."""

    def __init__(self, doomed: set[str], times: int) -> None:
        self.left = dict.fromkeys(doomed, times)

    def submit(self, function: Any, point: Any, shared: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()
        if self.left.get(point.policy, 0) > 0:
            self.left[point.policy] -= 1
            future.set_exception(RuntimeError("worker died"))
        else:
            future.set_result(function(point, shared))
        return future


@pytest.mark.parametrize(("times", "lost"), [(2, 0), (100, 4)])
def test_points_of_dead_workers_are_tried_again_then_marked_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, times: int, lost: int
) -> None:
    import contextlib

    @contextlib.contextmanager
    def pool(cluster: Any, workers: Any) -> Iterator[Any]:
        yield runner._Pool(DyingExecutor({"off"}, times), lambda shared: shared, 8)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(runner, "_pool", pool)
        summary = runner.run(written(folder), folder / "out")
    assert summary["failed"] == lost
    assert [r["status"] for r in results(summary)].count("lost") == lost
    if lost:
        assert summary["failures"][0]["error"] == "RuntimeError: worker died"
    assert runner.run(written(folder), folder / "out", workers=1)["ran"] == lost


def test_the_example_is_a_sweep_that_reads() -> None:
    example = Path(specsched.__file__).parents[1] / "examples" / "sweep.toml"
    if not example.is_file():
        pytest.skip("examples are not installed")
    sweep = read_spec(example)
    assert 1 < len(sweep.points) < 200


def test_a_trace_that_stands_where_results_go_is_refused(folder: Path) -> None:
    out = folder / "out"
    run = written(folder)
    runner.run(run, out, workers=1)
    (folder / "small.parquet").rename(out / "results.parquet")
    before = (out / "results.parquet").read_bytes()
    spec = written(folder, SPEC.replace("small.parquet", "out/results.parquet"))
    with pytest.raises(WorkloadError, match=r"results\.parquet is the input"):
        runner.run(spec, out, workers=1)
    assert (out / "results.parquet").read_bytes() == before
