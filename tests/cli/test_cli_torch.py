"""The commands that need torch, on a small random target: evaluate, record, train; and their refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from eagle3_files import TARGET, spec_forge, speculators, written
from safetensors.torch import load_file, save_file
from small_models import make_draft, make_target

from specsched.cli.app import main
from specsched.torch_side.drafter.dspark import save_drafter
from specsched.torch_side.target.weights import save_folder
from specsched.trace import load_trace


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a drafter and three prompts given as ids."""
    folder = tmp_path_factory.mktemp("models")
    target = make_target()
    save_folder(target, folder / "target")
    save_drafter(make_draft(target), folder / "drafter")
    prompts = [{"prompt_ids": [1, 2, 3 + i], "domain": "small"} for i in range(3)]
    (folder / "prompts.json").write_text(json.dumps(prompts))
    return folder


def both(models: Path) -> list[str]:
    return ["--target", str(models / "target"), "--drafter", str(models / "drafter")]


def test_eval_prints_every_round(models: Path) -> None:
    words = ["drafter", "eval", *both(models), "--prompts", models / "prompts.json", "--max-tokens", "12"]
    result = run(*words, "--policy", "fixed", "--temperature", "0", "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    found = json.loads(result.stdout)
    assert {"samples", "tau", "conditional_acceptance", "auc", "ece"} <= found.keys()
    assert len(found["samples"]) == 3
    for sample in found["samples"]:
        assert 1 <= len(sample["output_ids"]) <= 12
        for turn in sample["rounds"]:
            assert {"position", "draft_ids", "confidence_logits", "accepted"} <= turn.keys()
            assert len(turn["draft_ids"]) == len(turn["confidence_logits"]) == 3
    text = run(*words)
    assert text.exit_code == 0
    assert "tokens a round (bonus included)" in text.stdout


def test_record_writes_a_dense_trace(models: Path, tmp_path: Path) -> None:
    words = [
        "trace",
        "record",
        *both(models),
        "--prompts",
        models / "prompts.json",
        "-o",
        tmp_path / "t.parquet",
    ]
    result = run(*words, "--max-tokens", "20", "--licence", "none needed")
    assert result.exit_code == 0, (result.stderr, result.exception)
    trace = load_trace(tmp_path / "t.parquet")
    assert trace.mode == "dense"
    assert trace.block_size == 3
    assert trace.metadata["licence"] == "none needed"
    assert "3 requests" in result.stdout

    again = [tmp_path / "again.parquet" if w == tmp_path / "t.parquet" else w for w in words]
    kept = tmp_path / "texts"
    result = run(*again, "--max-tokens", "20", "--dtype", "bfloat16", "--max-prompt", "3", "--texts", kept)
    assert result.exit_code == 0, (result.stderr, result.exception)
    low = load_trace(tmp_path / "again.parquet")
    assert low.metadata["provenance"]["dtype"] == "bfloat16"
    assert low.metadata["provenance"]["max_prompt"] == 3
    assert len(list(kept.iterdir())) == 1


@pytest.mark.parametrize("config", [spec_forge(), speculators(norm_before_fc=True, norm_output=True)])
def test_a_published_eagle3_runs_and_is_recorded(tmp_path: Path, config: dict) -> None:
    save_folder(make_target(**TARGET, head_dim=8), tmp_path / "target")
    written(tmp_path / "drafter", config)
    (tmp_path / "prompts.json").write_text(json.dumps([{"prompt_ids": [4, 9, 2]}]))
    words = [*both(tmp_path), "--prompts", tmp_path / "prompts.json", "--max-tokens", "6"]
    result = run("drafter", "eval", *words, "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    block = 7 if "vocab_size" in config else 3
    rounds = json.loads(result.stdout)["samples"][0]["rounds"]
    assert {len(turn["draft_ids"]) for turn in rounds} == {block}
    result = run("trace", "record", *words, "-o", tmp_path / "t.parquet")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert load_trace(tmp_path / "t.parquet").block_size == block
    weights = load_file(tmp_path / "drafter" / "model.safetensors")
    save_file(weights | {"d2t": weights["d2t"] + 30}, tmp_path / "drafter" / "model.safetensors")
    result = run("drafter", "eval", *words)
    assert result.exit_code == 2
    assert f"{tmp_path / 'drafter' / 'model.safetensors'}: d2t does not give" in result.stderr


def test_sampled_shards_resume_and_train(models: Path, tmp_path: Path) -> None:
    prompts, shards = tmp_path / "prompts.json", tmp_path / "shards"
    rows = [{"prompt_ids": [1 + i % 4, 2], "domain": "ab"[i % 2]} for i in range(5)]
    prompts.write_text(json.dumps([*rows, {"prompt_ids": [1] * 9, "domain": "b"}]))
    words = ["drafter", "sample", "--target", models / "target", "--prompts", prompts, "-o", shards]
    words += ["--per-domain", "2", "--max-tokens", "12", "--max-prompt", "8"]
    result = run(*words, "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    made = json.loads(result.stdout)
    assert made["prompts"] == 5, "the prompt of nine tokens is left out"
    assert len(made["shards"]) == 2, "three prompts of domain a, two at a time"
    first, second = (Path(path) for path in made["shards"])
    before = second.read_bytes()
    first.unlink()
    assert run(*words).exit_code == 0
    assert second.read_bytes() == before, "what is there is kept"

    from specsched.torch_side.training.sample import read_shard

    assert {domain for _, _, domain in read_shard(first)} == {"a", "b"}, "and the missing one made again"
    assert all(1 <= len(response) <= 12 for path in (first, second) for _, response, _ in read_shard(path))
    too_long = run(*[*words[:-1], "1"])
    assert too_long.exit_code == 2
    assert "longer than 1 tokens" in too_long.stderr
    words = ["drafter", "train", "--target", models / "target", "--text", shards, "-o", tmp_path / "made"]
    result = run(*words, "--steps", "2", "--layers", "1", "--block-size", "3", "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)


def test_train_writes_a_drafter_that_runs(models: Path, tmp_path: Path) -> None:
    from specsched.torch_side.engine.prompts import Prompt
    from specsched.torch_side.training.sample import write_shard

    rng = np.random.default_rng(0)
    rows = [
        (rng.integers(0, 6, 3).tolist(), rng.integers(0, 6, 16).tolist(), Prompt(("x",), "chat", "made up"))
        for _ in range(16)
    ]
    (tmp_path / "text").mkdir()
    write_shard(tmp_path / "text" / "shard-0000.npz", rows)
    words = [
        "drafter",
        "train",
        "--target",
        models / "target",
        "--text",
        tmp_path / "text",
        "-o",
        tmp_path / "made",
    ]
    result = run(*words, "--steps", "6", "--layers", "1", "--block-size", "3", "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert json.loads(result.stdout)["schema"] == "specsched/training/1"
    again = [
        "--target",
        models / "target",
        "--drafter",
        tmp_path / "made",
        "--prompts",
        models / "prompts.json",
    ]
    assert run("drafter", "eval", *again, "--max-tokens", "6").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drafter", "eval", "--prompts", "prompts.json", "--drafter", "nowhere"], "nowhere"),
        (["drafter", "eval", "--prompts", "prompts.json", "--drafter", "drafter", "--device", "tpu"], "tpu"),
        (
            ["drafter", "eval", "--prompts", "prompts.json", "--drafter", "drafter", "--policy", "fxed"],
            "fixed",
        ),
        (["drafter", "eval", "--prompts", "broken.json", "--drafter", "drafter"], "broken.json"),
        (["profile", "--gpu", "h100", "--model", "qwen3-8b", "-o", "p.json"], "--source compose"),
        (["profile", "--gpu", "cpu", "--model", "qwen3-8b", "-o", "p.json"], "tiny"),
    ],
)
def test_refusals(models: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.chdir(models)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (models / "broken.json").write_text('[{"nothing": 1}]')
    target = ["--target", "target"] if words[0] == "drafter" else []
    result = run(*words, *target)
    assert result.exit_code == 2, (result.stdout, result.exception)
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (models / "p.json").exists()
