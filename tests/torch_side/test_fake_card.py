"""`specsched profile --gpu` from the command line to the saved file, on a card that is not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_card import FakeCard, NoHostReads

from specsched.cli.app import main
from specsched.errors import SpecschedError
from specsched.profile import load_profile
from specsched.profile.shapes import ModelShape
from specsched.torch_side.measure import attention, decoder
from specsched.torch_side.measure import cuda as measure_cuda
from specsched.torch_side.measure.card import NoCard
from specsched.torch_side.measure.cuda import PassBench
from specsched.torch_side.measure.decoder import PagedDecoder
from specsched.torch_side.measure.draft import config_for, drafter_config
from specsched.torch_side.measure.grid import Point
from specsched.torch_side.measure.passes import layout
from specsched.torch_side.measure.run import Plan

SHAPE = ModelShape("small", 32, 2, 4, 2, 8, 48, 50, 4096)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A grid that a CPU runs in a second, and the config of a small model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # operators this small only wait for one another
    monkeypatch.setattr(measure_cuda, "_QUICK_PLAN", Plan(replays=2, rounds=1, warmups=1, settle_seconds=0.0))
    monkeypatch.setattr(measure_cuda, "_QUICK_CONTEXTS", (12, 6))
    monkeypatch.setattr(measure_cuda, "_QUICK_REQUESTS", 4)
    monkeypatch.setattr(measure_cuda, "_PROMPTS", (5, 12))
    monkeypatch.setattr(attention.check, "__defaults__", (256, (((0,), (5,)), ((9, 0, 70), (1, 4, 8)))))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    yield tmp_path
    torch.set_num_threads(threads)


def profiled(folder: Path, *more: str) -> Any:
    arguments = ["--gpu", "h100", "--model", str(folder / "config.json"), "--quick", "--capture-limit", "8"]
    with pytest.raises(SystemExit) as exit_:
        main(["profile", *arguments, *more, "-o", str(folder / "made.json")])
    return exit_.value.code


@pytest.mark.parametrize("fa3", [False, True])
def test_the_whole_command_on_a_fake_card(
    small: Path, fa3: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeCard(H100, (9, 0), 1 << 26).install(monkeypatch, fa3)
    assert profiled(small) == 0
    made = load_profile(small / "made.json")
    assert fake.captures > 4
    assert fake.replays > fake.captures
    assert len(set(map(id, fake.streams))) == 1, "one capture stream"
    assert fake.attention_calls > 0
    assert made.gpu["name"] == H100
    assert made.eager is not None
    assert made.draft is not None
    assert made.draft_block_size == 7
    assert made.prefill is not None
    assert made.prefill.x.tolist() == [5, 12]
    assert made.capture_sizes is not None
    assert made.capture_sizes.tolist() == [1, 2, 4, 8]
    host = made.provenance["host"]
    assert host["gpu_after"]["throttle"] == "software power cap"
    assert host["attention"]["library"].startswith("FlashAttention-3" if fa3 else "FlashAttention-2")
    said = capsys.readouterr().err
    assert ("FlashAttention-2" in said) is not fa3
    assert any("FlashAttention-2" in w for w in made.provenance["warnings"]) is not fa3
    assert made.fit is not None
    assert made.fit["failed"] == made.fit["out_of_memory"] == 0


def test_the_drafter_is_built_from_its_config(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = drafter_config(SHAPE, 15).replace(num_hidden_layers=3)
    (small / "drafter").mkdir()
    (small / "drafter" / "config.json").write_text(json.dumps(config.to_dict()))
    FakeCard(H100, (9, 0), 1 << 26).install(monkeypatch, fa3=True)
    assert profiled(small, "--drafter", str(small / "drafter")) == 0
    made = load_profile(small / "made.json")
    assert made.draft_block_size == 15
    assert made.drafter == "dspark, 3 layers, greedy, random weights"
    assert {s["tokens"] / s["requests"] for s in made.samples if s["kind"] == "verify"} >= {16.0}


def test_drafters_of_others_are_refused(small: Path) -> None:
    other = drafter_config(SHAPE, 7).replace(hidden_size=64)
    (small / "drafter.json").write_text(json.dumps(other.to_dict()))
    with pytest.raises(SpecschedError, match="64 wide over 50 tokens, small 32 over 50"):
        config_for(str(small / "drafter.json"), SHAPE, None)
    with pytest.raises(SpecschedError, match="no drafter at 'some/name'"):
        config_for("some/name", SHAPE, None)


def test_configs_of_other_toolkits_are_read_as_the_drafters_they_are(small: Path) -> None:
    """SHAPE is 32 wide over 50 tokens and 2 layers deep."""
    flash = {
        "architectures": ["DFlashDraftModel"],
        "block_size": 8,
        "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 1]},
        "hidden_size": 32,
        "head_dim": 8,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "vocab_size": 50,
    }
    (small / "flash.json").write_text(json.dumps(flash))
    config = config_for(str(small / "flash.json"), SHAPE, None)
    assert (config.kind, config.block_size, config.mask_token_id) == ("dflash", 7, 5)
    eagle = flash | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 9}
    eagle["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
    (small / "eagle.json").write_text(json.dumps(eagle))
    with pytest.raises(SpecschedError, match=r"eagle.json: an eagle3 drafter runs once per token"):
        config_for(str(small / "eagle.json"), SHAPE, None)


@pytest.mark.parametrize(
    ("arguments", "card", "said"),
    [
        (["--dtype", "fp8"], (H100, (9, 0), 1 << 26), "bfloat16 or float16"),
        ([], (H100, (9, 0), 1 << 14), "weighs"),
        ([], ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0), 1 << 26), "slice of a card"),
        (["--device", "1"], (H100, (9, 0), 1 << 26), "--device 1"),
    ],
)
def test_the_command_refuses(
    small: Path,
    arguments: list[str],
    card: tuple[str, tuple[int, int], int],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    FakeCard(*card).install(monkeypatch)
    assert profiled(small, *arguments) == 2
    assert said in capsys.readouterr().err
    assert not (small / "made.json").exists()


def test_experts_below_hopper_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from specsched.torch_side.measure import card as cards

    FakeCard("NVIDIA A100-SXM4-80GB", (8, 0), 80 << 30).install(monkeypatch)
    experts = ModelShape("moe", 32, 2, 4, 2, 8, 48, 50, 4096, experts=8, experts_per_token=2)
    with pytest.raises(SpecschedError, match=r"compute capability 9\.0.*has 8\.0.*--source compose"):
        measure_cuda.measure_cuda(cards.Card(0), "a100", experts)


def test_attention_that_computes_something_else_is_refused(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeCard(H100, (9, 0), 1 << 26)
    right = fake.varlen_attn

    def wrong(query: torch.Tensor, *args: Any, block_table: Any = None, **kwargs: Any) -> torch.Tensor:
        out = right(query, *args, block_table=block_table, **kwargs)
        out[-1] = float("nan")  # a row left unwritten
        return out

    monkeypatch.setattr(fake, "varlen_attn", wrong)
    fake.install(monkeypatch)
    assert profiled(small) == 2
    assert "computes another attention over pages" in capsys.readouterr().err


def test_memory_that_runs_out_while_growing_leaves_a_smaller_cache(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow, tried = PagedDecoder.grow, []

    def tight(self: PagedDecoder, pages: int) -> None:
        tried.append(pages)
        if pages > 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        grow(self, pages)

    monkeypatch.setattr(PagedDecoder, "grow", tight)
    FakeCard(H100, (9, 0), 1 << 26).install(monkeypatch, fa3=True)
    assert profiled(small) == 0
    assert tried == [1, 4, 2]


def test_memory_that_runs_out_while_building_is_an_error(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: PagedDecoder, *size: int) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PagedDecoder, "_normal", full)
    FakeCard(H100, (9, 0), 1 << 26).install(monkeypatch, fa3=True)
    assert profiled(small) == 2
    assert "ran out while building" in capsys.readouterr().err


def test_the_fake_capture_refuses_host_reads() -> None:
    x = torch.ones(3)
    for read in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: torch.tensor([1.0])):
        with pytest.raises(RuntimeError, match="not permitted"), NoHostReads():
            read()


def test_every_pass_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device without data a value read on the host, or two devices in one operator, is an error."""

    class NoGenerator:
        def __init__(self, device: Any = None) -> None:
            pass

        def manual_seed(self, seed: int) -> None:
            return None

    monkeypatch.setattr(torch, "Generator", NoGenerator)
    seen: set[str] = set()

    def attend(q: Any, keys: Any, values: Any, inputs: Any, causal: bool) -> Any:
        for tensor in (q, keys, values, inputs.starts, inputs.used, inputs.key_starts, inputs.table):
            assert tensor.device.type == "meta"
        seen.add("causal" if causal else "whole")
        return torch.empty_like(q)

    class FakeDevice(NoCard):
        def capture(self, work: Any) -> Any:
            work()
            return work

    experts = ModelShape(
        "moe", 32, 2, 4, 2, 8, 48, 64, 4096, experts=4, experts_per_token=2, moe_intermediate=16
    )
    for shape in (SHAPE, experts):
        for greedy in (True, False):
            passes = PagedDecoder(shape, 40, torch.bfloat16, torch.device("meta"), page=16, attend=attend)
            config = drafter_config(shape, 3)
            bench = PassBench(passes, config, (12,), 4, 16, card=FakeDevice(), greedy=greedy)
            for kind, requests, tokens in (("verify", 2, 6), ("draft", 2, 2), ("prefill", 1, 12)):
                once = bench.prepare(Point(kind, requests, tokens, 12))[1]
                assert set(once()) == {kind}
    assert seen == {"causal", "whole"}


def test_sums_of_keys_are_those_of_the_requests() -> None:
    arrays = layout(np.array([10, 3]), np.array([2, 1]), 4, 9, 4, 5, np.random.default_rng(0))
    assert arrays["key_starts"].tolist() == [0, 12, 16, 16, 16]
    assert decoder.PAGE % 256 == 0
