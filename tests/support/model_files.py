"""Small models and what is made with them, in the files that the torch commands read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import eagle3_files
import gguf
import numpy as np
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from small_models import make_draft, make_target

from specsched.calibration import Calibration
from specsched.cli.app import main
from specsched.torch_side.drafter.dspark import save_drafter
from specsched.torch_side.target.tokenizer import Tokenizer, train_bpe
from specsched.torch_side.target.weights import save_folder

SPECIAL = ["<|im_start|>", "<|im_end|>"]


def build(folder: Path) -> str:
    """Models, prompts, shards, and work broken off, in `folder` (the working directory); returns the name of
    the file of sampled texts."""
    tokenizer = train_bpe(["the cat sat on the mat"] * 3, 263, SPECIAL)
    target = make_target(vocab_size=len(tokenizer.vocab) + len(SPECIAL), eos_token_ids=(1,))
    target.tokenizer = tokenizer
    save_folder(target, folder / "target")
    save_drafter(make_draft(target, block_size=2), folder / "drafter")
    write_sharded(folder)
    save_folder(make_target(**eagle3_files.TARGET, eos_token_ids=(1,)), folder / "wide")
    eagle3_files.written(folder / "eagle", eagle3_files.spec_forge())
    eagle3_files.written(folder / "speculators", eagle3_files.speculators())
    (folder / "ids.json").write_text(json.dumps([{"prompt_ids": [5, 6, 7]}]))
    write_gguf(folder / "model.gguf", tokenizer)
    Calibration(np.array([1.1, 0.9]), np.zeros(2)).save(folder / "two.json")
    rows = [{"prompt": "the cat", "domain": "a"}, {"turns": ["sat", "on"]}, {"prompt_ids": [5, 6, 7]}]
    (folder / "prompts.json").write_text(json.dumps(rows))
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sample = "--shards 1 --per-domain 8 --max-tokens 24 --prompts prompts.json -o shards"
    _done(f"drafter sample --target target {sample}")
    return _broken_off(folder)


def _done(line: str) -> None:
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 0, result.output


def _broken_off(folder: Path) -> str:
    """A training, a recording and a library of texts as an interrupt leaves them."""
    import pytest

    from specsched.files.parts import PartsFolder
    from specsched.torch_side.recording.parts import Parts
    from specsched.torch_side.training import trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Path, "unlink", lambda *_, **__: None)
        _done("drafter train --target target --text shards -o training --steps 2 --layers 1 --block-size 2")
    for name in ("config.json", "model.safetensors"):
        (folder / "training" / name).unlink()
    record = "trace record --target target --drafter drafter --prompts prompts.json --max-tokens 3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parts, "remove", lambda _: None)
        _done(f"{record} -o recording/t.parquet")
    (folder / "recording" / "t.parquet").unlink()
    _done(f"{record} --texts texts/texts -o texts/t.parquet")
    (folder / "texts" / "t.parquet").unlink()
    evaluate = "drafter eval --target target --drafter drafter --prompts prompts.json --max-tokens 3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartsFolder, "remove", lambda _: None)
        _done(f"{evaluate} --out evaluation")
    for name in ("eval.json", "report.html"):
        (folder / "evaluation" / name).unlink()
    return next((folder / "texts" / "texts").iterdir()).name


def write_sharded(folder: Path) -> None:
    """The target in two files with an index, as large models come."""
    shutil.copytree(folder / "target", folder / "sharded")
    whole = load_file(folder / "sharded" / "model.safetensors")
    (folder / "sharded" / "model.safetensors").unlink()
    names = sorted(whole)
    where: dict[str, str] = {}
    for i, half in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file({name: whole[name] for name in half}, folder / "sharded" / file)
        where |= dict.fromkeys(half, file)
    index: dict[str, Any] = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index))


def write_gguf(path: Path, tokenizer: Tokenizer) -> None:
    """A Llama of two layers whose shape is that of the target the drafter belongs to."""
    vocab = len(tokenizer.vocab) + len(SPECIAL)
    hidden, heads, kv, size, middle = 16, 2, 1, 8, 24
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_vocab_size(vocab)
    writer.add_embedding_length(hidden)
    writer.add_block_count(2)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    writer.add_rope_dimension_count(size)
    writer.add_feed_forward_length(middle)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_eos_token_id(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [*sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__), *SPECIAL]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokenizer.vocab) + [3] * len(SPECIAL))
    writer.add_token_merges([f"{a} {b}" for a, b in tokenizer.rank])
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (rng.normal(size=shape) * 0.3).astype(np.float32))

    add("token_embd.weight", vocab, hidden)
    add("output_norm.weight", hidden)
    for i in range(2):
        add(f"blk.{i}.attn_norm.weight", hidden)
        add(f"blk.{i}.attn_q.weight", heads * size, hidden)
        add(f"blk.{i}.attn_k.weight", kv * size, hidden)
        add(f"blk.{i}.attn_v.weight", kv * size, hidden)
        add(f"blk.{i}.attn_output.weight", hidden, heads * size)
        add(f"blk.{i}.ffn_norm.weight", hidden)
        add(f"blk.{i}.ffn_gate.weight", middle, hidden)
        add(f"blk.{i}.ffn_up.weight", middle, hidden)
        add(f"blk.{i}.ffn_down.weight", hidden, middle)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
