"""The step profiler: the fit finds a planted cost, nothing measured is lost, the passes compute what they
should.

No GPU is needed: graphs aside, the passes of `measure/cuda.py` run here on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import small_models
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted_costs import planted

from specsched.cli.app import main
from specsched.errors import SpecschedError
from specsched.profile import load_profile
from specsched.profile.shapes import MODELS, ModelShape, vllm_capture_sizes
from specsched.torch_side.drafter.dspark import save_drafter
from specsched.torch_side.measure import cuda as measure_cuda
from specsched.torch_side.measure import grid as measure_grid
from specsched.torch_side.measure import host as measure_host
from specsched.torch_side.measure import profiler as measure
from specsched.torch_side.measure.attention import gathered_attention
from specsched.torch_side.measure.decoder import PagedDecoder, Verdict, grouped, reject
from specsched.torch_side.measure.draft import DraftInputs, draft_block, drafter_config, random_drafter
from specsched.torch_side.measure.fit import blocks
from specsched.torch_side.measure.grid import Point
from specsched.torch_side.measure.passes import PassInputs, layout, positions_of
from specsched.torch_side.measure.run import Plan, Run, out_of_memory, run_points
from specsched.torch_side.target.config import TargetConfig
from specsched.torch_side.target.decoder import Target
from specsched.torch_side.target.weights import save_folder

QUICK = Plan(replays=5, warmups=1, settle_seconds=0.0)
ONCE = Plan(replays=1, warmups=0, settle_seconds=0.0, budget_seconds=1e9)
GAMMA = 7


# --- the grid -----------------------------------------------------------------------------------------------


def test_the_gpu_grid_has_every_captured_size_and_both_sides_of_tile_edges() -> None:
    sizes = vllm_capture_sizes(512)
    points = measure_grid.pass_points(sizes, GAMMA, (2048, 512), 512, 1 << 20)
    passes = [p for p in points if p.kind == "verify"]
    graph = {p.tokens for p in passes if not p.eager}
    assert graph == {*sizes, *measure_grid.edges(512)}
    assert {264, 328, 392, 456} <= graph
    assert all(p.eager == (p.tokens > 512) for p in passes)
    assert {520, 640, 648} <= {p.tokens for p in passes if p.eager}
    at_64 = {p.requests for p in passes if p.tokens == 64}
    assert at_64 == {64, 32, 16, 8}
    assert {p.requests for p in points if p.kind == "draft"} == set(measure_grid.ladder(512))
    assert len({(p.kind, p.requests, p.tokens, p.context) for p in points}) == len(points)


def test_the_grid_asks_for_no_more_kv_than_there_is() -> None:
    points = measure_grid.pass_points([1, 8, 64], GAMMA, (1024, 128), 64, 10_000)
    assert points
    assert all(p.requests * p.context <= 10_000 for p in points)
    quick = measure_grid.pass_points(vllm_capture_sizes(512), GAMMA, (2048, 512), 256, 1 << 22, quick=True)
    assert len(quick) < 200


@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_tokens_and_contexts_are_spread_exactly(requests: int, block: int, data: st.DataObject) -> None:
    tokens = data.draw(st.integers(requests, requests * (1 + block)))
    point = Point("verify", requests, tokens, data.draw(st.integers(1, 5000)), data.draw(st.booleans()))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    widths = measure_grid.widths_of(point, block, rng)
    assert (len(widths), int(widths.sum())) == (requests, tokens)
    assert widths.min() >= 1
    assert widths.max() <= 1 + block
    if not point.ragged:
        assert widths.max() - widths.min() <= 1
    contexts = measure_grid.contexts_of(point, rng)
    assert int(contexts.sum()) == requests * point.context
    assert contexts.min() * 2 >= point.context or requests == 1
    assert contexts.max() * 2 <= 3 * point.context or requests == 1


def test_tiers_come_in_order_and_shuffled_within() -> None:
    points = measure_grid.engine_points(GAMMA, (1, 2, 4, 8, 16), (192, 64), (16, 64))
    order = measure_grid.in_order(points, seed=3)
    assert [p.tier for p in order] == sorted(p.tier for p in points)
    assert order == measure_grid.in_order(points, seed=3) != measure_grid.in_order(points, seed=4)
    assert sorted(map(repr, order)) == sorted(map(repr, points))
    first = [p.tokens for p in order if p.tier == 0]
    assert first != sorted(first)


# --- the run ------------------------------------------------------------------------------------------------


class FakeBench:
    """Costs of a formula; `fail(point)` may raise."""

    def __init__(self, fail: Callable[[Point], None] = lambda point: None) -> None:
        self.fail, self.released, self.seen = fail, 0, [Point("none", 1, 1, 1)]

    def prepare(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
        self.seen.append(point)

        def once() -> dict[str, float]:
            self.fail(point)
            kv = point.requests * point.context
            if point.kind == "draft":
                return {"draft": 1e-3 + 1e-5 * point.requests}
            if point.kind == "host":
                return {"host": 2e-4, "sync": 1e-4}
            return {"verify": planted(point.tokens, point.requests, kv) + (0.03 if point.eager else 0.0)}

        return point.requests * point.context, once

    def release(self) -> None:
        self.released += 1


def gpu_points() -> list[Point]:
    return measure_grid.pass_points(vllm_capture_sizes(256), GAMMA, (2048, 512), 64, 1 << 20, quick=True)


def profile_of(run: Run):
    document = measure_cuda.describe(
        MODELS["qwen3-8b"], "bfloat16", "h100-sxm", "fake", 80 << 30, [1, 8, 256]
    )
    return measure.assemble(document, run, GAMMA, "fake drafter", {"gpu": {}}, "Fake.")


def test_a_run_becomes_a_profile_that_loads(tmp_path) -> None:
    run = run_points(FakeBench(), gpu_points(), QUICK)
    assert run.stopped is None
    assert run.drift == 0.0
    assert run.notes == []
    made = profile_of(run)
    made.save(tmp_path / "made.json")
    read = load_profile(tmp_path / "made.json")
    assert read.to_dict() == made.to_dict()
    assert read.provenance_warning is None
    assert read.fit is not None
    assert read.fit["median_relative_error"] < 0.005
    assert read.seconds(64, 16, 16 * 2048, draft=False) == pytest.approx(
        planted(256, 16, 16 * 2048) + 2e-4, rel=0.01
    )
    assert read.seconds(264, 64, 64 * 512, draft=False) - read.seconds(256, 64, 64 * 512, draft=False) > 0.025
    assert read.draft_seconds(16) == pytest.approx(1e-3 + 16e-5)
    assert read.sync_seconds == pytest.approx(1e-4)
    assert len(read.samples) == len(run.samples) + len(run.anchors)
    assert all(len(r) == QUICK.replays for s in read.samples for r in s["replays_us"].values())


def test_an_interrupted_run_keeps_what_it_measured() -> None:
    calls = {"n": 0}

    def interrupt(point: Point) -> None:
        calls["n"] += 1
        if calls["n"] > 300:
            raise KeyboardInterrupt

    run = run_points(FakeBench(interrupt), gpu_points(), QUICK)
    assert run.stopped == "interrupted"
    assert 0 < len(run.samples) < run.planned
    made = profile_of(run)
    assert f"interrupted: {len(run.samples)} of {run.planned} points" in made.provenance["notes"]
    assert made.fit is not None
    assert made.fit["stopped"] == "interrupted"
    assert len([s for s in made.samples if s["kind"] != "anchor"]) == len(run.samples)


def test_an_interruption_before_the_first_point_is_one() -> None:
    def interrupt(point: Point) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_points(FakeBench(interrupt), gpu_points(), QUICK)


def test_the_time_budget_ends_a_run() -> None:
    now = iter(range(10**6))
    run = run_points(FakeBench(), gpu_points(), replace(QUICK, budget_seconds=20.0), clock=lambda: next(now))
    assert run.stopped == "time"
    assert 0 < len(run.samples) < run.planned
    assert "time budget" in profile_of(run).provenance["notes"]


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
        MemoryError("pages"),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_points_that_do_not_fit_are_dropped_and_larger_ones_not_tried(error: BaseException) -> None:
    def fail(point: Point) -> None:
        if point.kind == "verify" and point.requests * point.context >= 60_000:
            raise error

    bench = FakeBench(fail)
    points = gpu_points()
    run = run_points(bench, points, QUICK)
    held = [p for p in points if p.kind == "verify" and p.requests * p.context >= 60_000]
    assert run.stopped is None
    assert sorted(map(repr, run.dropped)) == sorted(map(repr, held))
    assert len(run.samples) == len(points) - len(held)
    assert 0 < bench.released < len(held), "points beyond one that did not fit must not be tried"
    assert f"{len(held)} points did not fit in memory" in profile_of(run).provenance["notes"]


def test_another_error_drops_its_point_with_its_message_and_saves_the_rest() -> None:
    points = gpu_points()
    bad = points[7]

    def fail(point: Point) -> None:
        if point == bad:
            raise ValueError("cublas said no\nand a traceback")

    run = run_points(FakeBench(fail), points, QUICK)
    assert run.stopped is None
    assert run.dropped == []
    assert {p for p, _ in run.failed} == {bad}
    assert len(run.samples) == len(points) - 1
    made = profile_of(run)
    assert f"1 points failed, first {bad.label}: cublas said no." in made.provenance["notes"]
    assert any("cublas said no" in said for said in made.provenance["warnings"])


def test_an_error_at_any_point_leaves_a_profile() -> None:
    points = gpu_points()[::5]
    for bad in points:

        def fail(point: Point, bad: Point = bad) -> None:
            if point == bad:
                raise RuntimeError("CUDA error: an illegal instruction was encountered")

        run = run_points(FakeBench(fail), points, QUICK)
        assert len(run.samples) == len(points) - 1
        assert profile_of(run).provenance["warnings"]


def test_a_device_that_has_faulted_ends_the_run_and_keeps_what_was_measured() -> None:
    calls = {"n": 0}

    def fail(point: Point) -> None:
        calls["n"] += 1
        if calls["n"] > 200:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    run = run_points(FakeBench(fail), gpu_points(), QUICK)
    assert run.stopped == "errors"
    assert len(run.failed) == 5
    assert 0 < len(run.samples) < run.planned
    assert "was ended by its errors" in profile_of(run).provenance["notes"]
    assert not out_of_memory(ValueError("out of memory"))


def test_errors_of_several_kinds_end_the_run() -> None:
    points = gpu_points()
    third = points[::3]

    def fail(point: Point) -> None:
        if point in third:
            raise RuntimeError(f"error {point.tokens} {point.requests} {point.context}")

    run = run_points(FakeBench(fail), points, QUICK)
    assert run.stopped == "errors"
    assert len({message for _, message in run.failed}) == 3


def test_nothing_timed_is_an_error_with_the_first_message() -> None:
    def fail(point: Point) -> None:
        raise RuntimeError("no kernel image is available")

    with pytest.raises(SpecschedError, match="no kernel image is available"):
        run_points(FakeBench(fail), gpu_points(), QUICK)


def test_the_spread_between_repeats_is_computed_and_said() -> None:
    class Uneven(FakeBench):
        round = 0

        def prepare(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
            context, once = super().prepare(point)
            factor = 1.0 if self.seen.count(point) % 2 else 1.1
            return context, lambda: {k: v * factor for k, v in once().items()}

    plan = Plan(replays=6, rounds=2, warmups=1, settle_seconds=0.0, anchor_every=10**6)
    run = run_points(Uneven(), gpu_points(), plan)
    assert run.spread == pytest.approx(0.1 / 1.05, rel=1e-6)
    made = profile_of(run)
    assert made.fit is not None
    assert made.fit["spread"] == pytest.approx(0.09524, abs=1e-5)
    assert any("9.5% apart (the goal is 2%)" in said for said in made.provenance["warnings"])
    assert run_points(FakeBench(), gpu_points(), plan).spread == pytest.approx(0.0, abs=1e-12)


def test_drift_is_seen_and_said() -> None:
    calls = {"n": 0}

    class Slowing(FakeBench):
        def prepare(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
            context, once = super().prepare(point)
            calls["n"] += 1
            factor = 1 + 0.01 * calls["n"]
            return context, lambda: {k: v * factor for k, v in once().items()}

    run = run_points(Slowing(), gpu_points(), QUICK)
    assert run.drift is not None
    assert run.drift > 0.3
    assert any("Measure again" in note for note in run.notes)


def test_without_steps_that_do_not_draft_the_host_is_still_paid() -> None:
    class Steps(FakeBench):
        def prepare(self, point: Point) -> tuple[int, Callable[[], dict[str, float]]]:
            context, once = super().prepare(point)
            return context, lambda: once() | {"host": 3e-3, "draft": 1e-3}

    points = [p for p in measure_grid.engine_points(3, (1, 2, 4), (64, 16), ()) if p.kind == "step"]
    made, _ = blocks(run_points(Steps(), points, QUICK).samples)
    assert min(made["overhead"]["seconds"]) >= 3e-3
    assert made["draft"]["seconds"] == [1e-3] * 3


# --- the machine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "device", "same"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("H100-SXM", "NVIDIA H100 80GB HBM3", True),
        ("h100-sxm", "NVIDIA H100 PCIe", False),
        ("h100 pcie", "NVIDIA H100 PCIe", True),
        ("h200", "NVIDIA H200", True),
        ("h200", "NVIDIA GH200 480GB", False),
        ("b200", "NVIDIA GB200", False),
        ("l40", "NVIDIA L40S", False),
        ("a100-sxm", "NVIDIA A100-SXM4-80GB", True),
        ("a100", "NVIDIA A100-PCIE-40GB", True),
        ("a100-sxm", "NVIDIA A100-PCIE-40GB", False),
        ("rtx 4090", "NVIDIA GeForce RTX 4090", True),
        ("rtx4090", "NVIDIA GeForce RTX 4090", True),
        ("4090", "NVIDIA GeForce RTX 4090", True),
        ("rtx4090", "NVIDIA GeForce RTX 4090 Laptop GPU", False),
        ("rtx 4090 laptop", "NVIDIA GeForce RTX 4090 Laptop GPU", True),
        ("rtx 4090", "NVIDIA GeForce RTX 4090 D", False),
        ("rtx 2080", "NVIDIA GeForce RTX 2080 with Max-Q Design", False),
        ("rtx 2080", "NVIDIA GeForce RTX 2080 Ti", False),
        ("rtx 2080 ti", "NVIDIA GeForce RTX 2080 Ti", True),
        ("rtx 4080", "NVIDIA GeForce RTX 4080 SUPER", False),
        ("rtx4080 super", "NVIDIA GeForce RTX 4080 SUPER", True),
        ("rtx 6000", "NVIDIA RTX 6000 Ada Generation", False),
        ("rtx 6000 ada", "NVIDIA RTX 6000 Ada Generation", True),
        ("rtx 6000", "Quadro RTX 6000", False),
        ("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", False),
        ("h100", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", False),
        ("a100-sxm", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", False),
        ("l40s", "NVIDIA L40S-48Q", False),
        ("a100", "GRID A100-7C", False),
        ("a100", "NVIDIA A100X", False),
        ("a10", "NVIDIA A10G", False),
        ("l4", "NVIDIA L40S", False),
        ("h200", "NVIDIA H200 NVL", True),
        ("h20", "NVIDIA H200", False),
        ("b300", "NVIDIA B300 SXM6 AC", True),
        ("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("-", "NVIDIA H200", False),
    ],
)
def test_the_gpu_asked_for_is_told_from_its_neighbours(asked: str, device: str, same: bool) -> None:
    assert measure_host.matches(asked, device) is same


def test_a_card_by_its_index_and_slices_are_told() -> None:
    cards = ["NVIDIA H100 80GB HBM3", "NVIDIA L40S", "NVIDIA H100 80GB HBM3"]
    assert measure_host.find_device("h100", cards) == 0
    assert measure_host.find_device("h100", cards, 2) == 2
    with pytest.raises(SpecschedError, match="--device 1 is NVIDIA L40S, not --gpu h100"):
        measure_host.find_device("h100", cards, 1)
    with pytest.raises(SpecschedError, match="3 CUDA devices"):
        measure_host.find_device("h100", cards, 3)
    with pytest.raises(SpecschedError, match="slice of a card"):
        measure_host.find_device("h100", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb"])


def test_a_pytorch_for_rocm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(SpecschedError, match="ROCm"):
        measure.measure_profile("mi300x", "qwen3-8b")


def test_what_slows_a_card_down_and_who_else_uses_it_is_said() -> None:
    assert measure_host.throttle_reasons("0x0000000000000000\n") == "none"
    assert measure_host.throttle_reasons("0x44") == "software power cap, hardware thermal slowdown"
    assert measure_host.throttled({"throttle": "software power cap"}) == []
    (said,) = measure_host.throttled({"throttle": "software power cap, hardware thermal slowdown"})
    assert "(hardware thermal slowdown)" in said
    assert measure_host.busy({"utilization.gpu": "3 %"}, (79 << 30, 80 << 30)) == []
    (said,) = measure_host.busy({"utilization.gpu": "37 %"}, (40 << 30, 80 << 30))
    assert "37 % busy, 43 GB taken" in said
    assert measure_host.busy({"unknown": "no nvidia-smi"}, (80 << 30, 80 << 30)) == []


def test_a_card_of_another_kind_does_not_pass_for_the_usual_one() -> None:
    assert measure_host.gpu_key("h100", "NVIDIA H100 80GB HBM3") == "h100-sxm"
    assert measure_host.gpu_key("h100", "NVIDIA H100 PCIe") == "h100-pcie"
    assert measure_host.gpu_key("rtx 4090", "NVIDIA GeForce RTX 4090") == "rtx-4090"


@pytest.mark.parametrize("devices", [[], ["NVIDIA L40S"]])
def test_another_gpu_or_none_is_refused_with_the_choices(devices: list[str]) -> None:
    with pytest.raises(SpecschedError) as refusal:
        measure_host.find_device("h100", devices)
    text = str(refusal.value)
    for choice in ("h100", "--source compose", "--gpu cpu", "h100-sxm_qwen3-8b_bf16_tp1", *devices):
        assert choice in text
    assert measure_host.find_device("l40s", ["NVIDIA H200", "NVIDIA L40S"]) == 1


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        main([*arguments])
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h100"], ["--gpu h100", "--source compose", "bundled profile", "--gpu cpu"]),
        (["--gpu", "cpu", "--model", "qwen3-8b"], ["tiny", "smollm2", "roofline"]),
        (["--gpu", "cpu", "--model", "no-such-folder"], ["no-such-folder"]),
    ],
)
def test_the_command_refuses_with_what_to_do(
    arguments: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(["profile", *arguments], capsys)
    for words in said:
        assert words in message


def test_a_line_of_nvidia_smi_is_read_by_field() -> None:
    line = "NVIDIA H100 80GB HBM3, 570.86.15, 1980 MHz, 2619 MHz, 1980 MHz, 41, 121.50 W, 700.00 W, Enabled\n"
    state = measure_host.read_state(line)
    assert state["driver_version"] == "570.86.15"
    assert state["clocks.sm"] == "1980 MHz"
    assert state["temperature.gpu"] == "41"


# --- the small engine, really measured ----------------------------------------------------------------------


def test_a_real_measurement_of_the_small_engine_loads(tmp_path) -> None:
    target = small_models.make_target()
    drafter = small_models.make_draft(target, block_size=3)
    said: list[tuple[int, int | None, str]] = []
    made = measure.measure_engine(
        target,
        drafter,
        (1, 3),
        (24, 8),
        Plan(replays=4, rounds=2, warmups=1, settle_seconds=0.0),
        prompts=(5, 9),
        progress=lambda *report: said.append(report),
    )
    made.save(tmp_path / "cpu.json")
    profile = load_profile(tmp_path / "cpu.json")
    assert profile.verify.x.tolist() == [1, 2, 3, 4, 6, 12]
    assert profile.draft is not None
    assert profile.draft.x.tolist() == [1, 3]
    assert profile.overhead is not None
    assert (profile.overhead.y > 0).all()
    assert profile.prefill is not None
    assert profile.prefill.x.tolist() == [5, 9]
    assert profile.draft_block_size == 3
    assert profile.capture_sizes is None
    assert profile.provenance["host"]["threads"] == torch.get_num_threads()
    assert profile.fit is not None
    assert profile.fit["stopped"] is None
    assert said[-1][0] == said[-1][1] == 2 * profile.fit["planned"]
    kinds = {s["kind"] for s in profile.samples}
    assert kinds == {"step", "plain", "prefill", "anchor"}
    for s in profile.samples:
        p10, median, p90 = next(iter(s["seconds"].values()))
        assert 0 <= p10 <= median <= p90
        assert len(next(iter(s["replays_us"].values()))) == (2 if s["kind"] == "anchor" else 4)
    assert profile.knows_drafter_memory
    assert 0 < profile.kv_capacity_tokens(drafting=True) < profile.kv_capacity_tokens()


def test_the_command_measures_a_small_target_on_this_cpu(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = small_models.make_target()
    save_folder(target, tmp_path / "target")
    save_drafter(small_models.make_draft(target), tmp_path / "drafter")
    monkeypatch.setattr(measure, "_CPU_QUICK", (1,))
    monkeypatch.setattr(measure, "_CPU_QUICK_PLAN", ONCE)
    wanted = ["--gpu", "cpu", "--model", str(tmp_path / "target"), "--drafter", str(tmp_path / "drafter")]
    with pytest.raises(SystemExit) as exit_:
        main(["profile", *wanted, "--quick", "-o", str(tmp_path / "cpu.json")])
    assert exit_.value.code == 0
    profile = load_profile(tmp_path / "cpu.json")
    assert profile.provenance["method"] == "measured"
    assert profile.verify.x.tolist() == [1, 2, 4]
    assert profile.model["dtype"] == "float32"
    assert profile.name in capsys.readouterr().out


# --- the passes of a GPU, computed here ---------------------------------------------------------------------

SHAPE = ModelShape("small", 32, 2, 4, 2, 8, 48, 50, 4096)
CPU = torch.device("cpu")


def target_like(decoder: PagedDecoder) -> Target:
    """The same weights in `target.Target`."""
    s = decoder.shape
    target = Target(
        TargetConfig(
            s.vocab,
            s.hidden,
            s.layers,
            s.heads,
            s.kv_heads,
            s.head_dim,
            s.intermediate,
            1e6,
            1e-6,
            s.family == "qwen3",
        )
    ).double()
    heads, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    with torch.no_grad():
        target.embed_tokens.weight.copy_(decoder.embedding)
        target.lm_head.weight.copy_(decoder.head)
        for ours, layer in zip(decoder.layers, target.layers, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            for part, weight in zip(
                (attention.q_proj, attention.k_proj, attention.v_proj),
                ours.qkv.split([heads, kv, kv]),
                strict=True,
            ):
                part.weight.copy_(weight)
            attention.o_proj.weight.copy_(ours.out)
            mlp.gate_proj.weight.copy_(ours.gate_up[: s.intermediate])
            mlp.up_proj.weight.copy_(ours.gate_up[s.intermediate :])
            mlp.down_proj.weight.copy_(ours.down)
            if s.family == "qwen3":
                norms = 1 + 0.3 * torch.randn(2, s.head_dim, dtype=torch.float64)
                attention.q_norm.weight.copy_(norms[0])
                attention.k_norm.weight.copy_(norms[1])
                ours.qk_norm.copy_(norms.repeat_interleave(torch.tensor([s.heads, s.kv_heads]), 0))
    return target.eval()


def filled(
    decoder: PagedDecoder, contexts: list[int], widths: list[int], slots: int, seed: int = 0
) -> PassInputs:
    rng = np.random.default_rng(seed)
    table_width = -(-(max(contexts) + 8) // decoder.page)
    arrays = layout(
        np.array(contexts), np.array(widths), decoder.page, decoder.pages, slots, table_width, rng
    )
    inputs = PassInputs.empty(sum(widths), slots, table_width, 8, 100, CPU)
    arrays["tokens"] = rng.integers(0, decoder.shape.vocab, sum(widths))
    for name, array in arrays.items():
        buffer = getattr(inputs, name)
        buffer.copy_(torch.from_numpy(array))
    return inputs


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_ragged_paged_pass_is_the_targets_own(family: str) -> None:
    torch.manual_seed(0)
    decoder = PagedDecoder(replace(SHAPE, family=family), 40, torch.float64, CPU, page=4)
    for layer in decoder.layers:  # at 0.02 attention would hardly show
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down):
            weight.mul_(10)
    target = target_like(decoder)
    contexts, widths = [9, 0, 17], [3, 1, 4]
    inputs = filled(decoder, contexts, widths, slots=5)
    cache = target.new_cache(3, 32)
    for r, context in enumerate(contexts):  # what lies in the pages goes into the target's own cache
        places = torch.arange(context)
        flat = inputs.table[r].long()[places // 4] * 4 + places % 4
        for i in range(SHAPE.layers):
            cache.keys[i][r, :, :context] = decoder.keys[i].view(-1, 2, 8)[flat].transpose(0, 1)
            cache.values[i][r, :, :context] = decoder.values[i].view(-1, 2, 8)[flat].transpose(0, 1)
        cache.lengths[r] = context
    expected, _ = target(inputs.tokens, inputs.row, inputs.position, cache)
    hidden = decoder.forward(inputs)
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(decoder.logits(hidden), target.logits(expected), rtol=1e-4, atol=1e-5)


def test_no_page_is_given_twice_and_too_few_are_an_error() -> None:
    rng = np.random.default_rng(0)
    contexts, widths = np.array([10, 3, 8]), np.array([2, 1, 8])
    arrays = layout(contexts, widths, 4, 9, 6, 5, rng)
    assert len(set(arrays["slot"].tolist())) == 11
    assert arrays["starts"].tolist() == [0, 2, 3, 11, 11, 11, 11]
    assert arrays["used"].tolist() == [12, 4, 16, 0, 0, 0]
    assert arrays["position"].tolist() == [10, 11, 3, *range(8, 16)]
    pages = [p for r, n in enumerate((3, 1, 4)) for p in arrays["table"][r, :n].tolist()]
    assert len(set(pages)) == len(pages) == 8
    with pytest.raises(MemoryError, match="8 pages of KV are needed, the cache has 7"):
        layout(contexts, widths, 4, 7, 6, 5, rng)


def test_experts_are_the_weighted_sum_of_the_chosen() -> None:
    shape = replace(SHAPE, experts=6, experts_per_token=2, moe_intermediate=12)
    decoder = PagedDecoder(shape, 4, torch.float64, CPU, page=4)
    layer = decoder.layers[0]
    x = torch.randn(9, 32, dtype=torch.float64)
    weight, chosen = (x @ layer.router.T).softmax(-1).topk(2)
    for row, w, experts, got in zip(
        x, weight / weight.sum(-1, keepdim=True), chosen, decoder._experts(layer, x), strict=True
    ):
        expected = torch.zeros(32, dtype=torch.float64)
        for share, e in zip(w, experts.tolist(), strict=True):
            gate, up = (layer.gate_up[e] @ row).chunk(2)
            expected += share * (layer.down[e] @ (torch.nn.functional.silu(gate) * up))
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this PyTorch has no grouped_mm")
def test_the_grouped_product_of_a_gpu_has_the_layout_assumed() -> None:
    x, weight = torch.randn(6, 16).bfloat16(), torch.randn(3, 8, 16).bfloat16()
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    theirs = torch.nn.functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    torch.testing.assert_close(grouped(x, weight, ends), theirs, rtol=2e-2, atol=2e-2)


def test_rejection_on_the_device_keeps_the_targets_law() -> None:
    """Many requests of one draft each: the first token emitted must follow the target's law."""
    n, vocab = 40_000, 4
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([[0.3, 1.0, -0.5, 0.2], [1.0, 0.0, 0.0, -1.0]]).repeat(n, 1)
    p_draft = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drafted = torch.multinomial(p_draft.expand(n, -1), 1, generator=generator).flatten()
    rows = torch.zeros(2 * n, dtype=torch.int64)
    rows[0::2] = drafted
    verdict = Verdict(
        rows,
        p_draft.expand(2 * n, -1),
        torch.arange(0, 2 * n, 2),
        torch.ones(n, dtype=torch.int64),
        torch.rand(2 * n, generator=generator),
    )
    torch.manual_seed(1)
    accepted, token = reject(logits, verdict, block_size=3)
    first = torch.where(accepted > 0, drafted, token)
    law = logits[0].softmax(-1).numpy()
    assert small_models.fit_p_value(np.bincount(first.numpy(), minlength=vocab), law) > 1e-4
    bonus = token[accepted > 0].numpy()
    assert small_models.fit_p_value(np.bincount(bonus, minlength=vocab), logits[1].softmax(-1).numpy()) > 1e-4
    assert float((accepted > 0).float().mean()) == pytest.approx(
        np.minimum(law, p_draft.numpy()).sum(), abs=0.02
    )


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
def test_drafting_in_fixed_shapes_is_the_drafters_own(kind: str) -> None:
    torch.manual_seed(2)
    config = drafter_config(SHAPE, 3)
    if kind == "dflash":
        plain = {"markov_rank": 0, "markov_head_type": "none", "confidence_head_with_markov": False}
        config = config.replace(kind="dflash", enable_confidence_head=False, **plain)
    drafter = random_drafter(config, torch.randn(50, 32), torch.randn(50, 32) * 0.3)
    r, page, c = 3, 4, drafter.config
    context = drafter.new_context(r, 12)
    for store in (*context.keys, *context.values):
        store.normal_()
    positions, anchors = torch.tensor([5, 12, 1]), torch.tensor([7, 3, 49])
    context.lengths[:] = positions
    expected = drafter.draft(anchors, positions, context, temperature=0.0)
    width = 3 + drafter.masks_beside_anchor
    widths, settled = np.full(r, width), positions.numpy()
    arrays = layout(settled, widths, page, 16, r, 4, np.random.default_rng(0))
    block = PassInputs.empty(r * width, r, 4, width, 16, CPU)
    block.fill(arrays)
    keys, values = (
        [torch.zeros(16, page, c.num_key_value_heads, c.head_dim) for _ in range(c.num_hidden_layers)]
        for _ in "kv"
    )
    old = positions_of(np.zeros(r, dtype=np.int64), settled, arrays["table"], page, r)
    where, row, at = (torch.from_numpy(old[name]) for name in ("slot", "row", "position"))
    for stores, pools in ((context.keys, keys), (context.values, values)):
        for store, pool in zip(stores, pools, strict=True):
            pool.view(-1, c.num_key_value_heads, c.head_dim)[where] = store[row, :, at]
    nothing = torch.zeros(0, dtype=torch.int64)
    inputs = DraftInputs(anchors, block, keys, values, torch.zeros(0, c.feature_size), nothing, nothing)
    tokens, scores = draft_block(drafter, inputs, gathered_attention)
    assert torch.equal(tokens, expected.tokens)
    torch.testing.assert_close(scores, expected.confidence_logit, rtol=1e-4, atol=1e-4)


def test_settled_features_become_the_keys_the_drafter_would_hold() -> None:
    drafter = random_drafter(drafter_config(SHAPE, 3), torch.randn(50, 32), torch.randn(50, 32))
    c, page = drafter.config, 4
    features = torch.randn(5, c.feature_size)
    context = drafter.new_context(1, 8)
    context.observe(torch.zeros(5, dtype=torch.int64), torch.arange(5), features)
    table = np.array([[2, 0, 1]])
    old = positions_of(np.array([0]), np.array([5]), table, page, 1)
    block = PassInputs.empty(3, 1, 3, 3, 8, CPU)
    block.fill(positions_of(np.array([5]), np.array([3]), table, page, 1))
    keys, values = (
        [torch.zeros(3, page, c.num_key_value_heads, c.head_dim) for _ in range(c.num_hidden_layers)]
        for _ in "kv"
    )
    slot = torch.from_numpy(old["slot"])
    inputs = DraftInputs(torch.tensor([7]), block, keys, values, features, torch.arange(5), slot)
    tokens, _ = draft_block(drafter, inputs, gathered_attention)
    expected = drafter.draft(torch.tensor([7]), torch.tensor([5]), context, temperature=0.0)
    assert torch.equal(tokens, expected.tokens)
    for store, pool in zip(context.keys, keys, strict=True):
        held = pool.view(-1, c.num_key_value_heads, c.head_dim)[slot].transpose(0, 1)
        torch.testing.assert_close(held, store[0, :, :5])


def test_greedy_drafts_keep_the_targets_law() -> None:
    """Greedy drafts put all their probability on one token: the first token emitted follows the target's."""
    n, vocab = 40_000, 4
    torch.manual_seed(3)
    logits = torch.tensor([[0.3, 1.0, -0.5, 0.2], [1.0, 0.0, 0.0, -1.0]]).repeat(n, 1)
    rows = torch.zeros(2 * n, dtype=torch.int64)
    rows[0::2] = 1
    verdict = Verdict(
        rows, None, torch.arange(0, 2 * n, 2), torch.ones(n, dtype=torch.int64), torch.rand(2 * n)
    )
    accepted, token = reject(logits, verdict, block_size=3)
    first = torch.where(accepted > 0, 1, token)
    law = logits[0].softmax(-1).numpy()
    assert small_models.fit_p_value(np.bincount(first.numpy(), minlength=vocab), law) > 1e-4
    assert not (token[accepted == 0] == 1).any()


def test_the_gpu_bench_runs_end_to_end_without_graphs() -> None:
    decoder = PagedDecoder(SHAPE, 40, torch.float32, CPU, page=8)
    bench = measure_cuda.PassBench(decoder, drafter_config(SHAPE, 3), (12, 6), 4, 20)
    points = measure_grid.pass_points([1, 2, 4, 8], 3, (12, 6), 4, 1000, quick=True, prompts=(5, 12))
    points = [p for p in points if p.tokens <= 16]
    assert {p.kind for p in points} == {"verify", "draft", "host", "prefill"}
    assert any(p.eager for p in points)
    run = run_points(bench, points, Plan(replays=2, warmups=1, settle_seconds=0.0))
    assert run.dropped == []
    assert len(run.samples) == len(points)
    document = measure_cuda.describe(SHAPE, "float32", "none", "a CPU", 1 << 30, [1, 2, 4, 8])
    made = measure.assemble(document, run, 3, "dspark", {}, "Test.")
    assert made.graph_limit == 8
    assert made.eager is not None
    assert made.draft is not None
    assert made.sync_seconds > 0
    assert made.prefill is not None
    assert made.prefill.x.tolist() == [5, 12]
    assert made.name == "none_small_fp32_tp1_measured"
    # A pool that is too small drops points and goes on.
    decoder.grow(4)
    small = run_points(bench, points, Plan(replays=1, warmups=0, settle_seconds=0.0))
    assert small.dropped
    assert small.samples


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tensor": 2}, "--source compose"),
        ({"model": "qwen9"}, "qwen9"),
    ],
)
def test_what_is_not_measured_on_a_gpu_is_refused(
    options: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_host, "cuda_devices", lambda: ["NVIDIA L40S", "NVIDIA H200"])
    with pytest.raises(SpecschedError, match=said):
        measure.measure_profile(**({"gpu": "h200", "model": "qwen3-8b"} | options))
