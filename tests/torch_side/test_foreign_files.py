"""What files of models may not do: run code, leave their folder, take memory or time without end."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from model_files import write_gguf, write_sharded
from safetensors.torch import save_file
from small_models import make_target

from specsched.errors import SpecschedError
from specsched.torch_side.recording.coupling import load_texts
from specsched.torch_side.target import template, weights
from specsched.torch_side.target.decoder import Target
from specsched.torch_side.target.gguf_header import check_header
from specsched.torch_side.target.template import render
from specsched.torch_side.target.tokenizer import train_bpe
from specsched.torch_side.target.weights import load_target, save_folder
from specsched.torch_side.training.sample import read_shard
from specsched.torch_side.training.start import read_training_checkpoint

MESSAGES = [{"role": "user", "content": "hello"}]


def folder_of(tmp_path: Path) -> Path:
    tokenizer = train_bpe(["the cat sat"] * 2, 258, ["<|im_end|>"])
    target = make_target(vocab_size=len(tokenizer.vocab) + 1)
    target.tokenizer = tokenizer
    save_folder(target, tmp_path / "target")
    return tmp_path / "target"


# --- nothing read runs code -------------------------------------------------------------------------------


class Evil:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (open, (str(self.mark), "w"))


@pytest.mark.parametrize(
    "read", [read_training_checkpoint, lambda path: load_texts(path, torch.device("cpu"))]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_pickle_is_refused_in_our_own_words(tmp_path: Path, read, zipped: bool) -> None:
    mark, path = tmp_path / "mark", tmp_path / "checkpoint.pt"
    if zipped:  # as torch.save writes it
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", pickle.dumps(Evil(mark), protocol=2))
            archive.writestr("a/version", "3")
    else:
        path.write_bytes(pickle.dumps(Evil(mark), protocol=2))
    with pytest.raises(SpecschedError, match=r"checkpoint\.pt is damaged") as refused:
        read(path)
    assert "weights_only" not in str(refused.value)
    assert "arbitrary" not in str(refused.value)
    assert not mark.exists()


def test_a_shard_of_pickled_objects_is_refused(tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "shard-0000.npz"
    evil = np.array([Evil(mark)], dtype=object)
    names = ("prompt_offsets", "response_offsets", "prompt_ids", "response_ids", "domain_names", "domain")
    np.savez(path, **dict.fromkeys(names, evil))
    assert not mark.exists()
    with pytest.raises(SpecschedError, match=r"shard-0000\.npz is damaged"):
        read_shard(path)
    assert not mark.exists()


def test_an_archive_that_becomes_very_many_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard-0000.npz"
    np.savez_compressed(path, prompt_ids=np.zeros(300 << 20, np.int8))
    assert path.stat().st_size < 1 << 20
    for read in (read_shard, read_training_checkpoint):
        with pytest.raises(SpecschedError, match=r"shard-0000\.npz is damaged"):
            read(path)


@pytest.mark.parametrize("name", ["target/model.safetensors", "target/more.safetensors"])
def test_a_pipe_among_the_weights_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(SpecschedError, match=r"safetensors is not a regular file"):
        load_target(folder)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% set _ = messages.append(1) %}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ raise_exception.__globals__ }}",
    ],
)
def test_a_template_stays_in_its_sandbox(text: str) -> None:
    messages = [dict(message) for message in MESSAGES]
    with contextlib.suppress(SpecschedError):
        made = render(text, "here", messages=messages)
        assert "object" not in made
        assert "module" not in made
    assert messages == MESSAGES


# --- bounds of templates ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x'.center(10**9) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x' | center(999999999) }}",
        "{{ 'x' | indent(999999999) }}",
        "{% set n = namespace(t='xxxxxx') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
        "{% set n = namespace(t=['x']) %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{{ ('x' * 1000000) | replace('x', 'x' * 1000000) }}",
        "{{ ('x,' * 300000) | join('y' * 100000) }}",
    ],
)
def test_a_template_s_work_is_bounded(text: str) -> None:
    with pytest.raises(SpecschedError, match=r"^here: the chat template cannot be rendered"):
        render(text, "here", messages=MESSAGES)


def test_a_template_of_a_hundred_turns_is_within_the_bounds() -> None:
    text = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] | trim }}\n{% endfor %}"
    made = render(text, "here", messages=MESSAGES * 100)
    assert made == "user: hello\n" * 100
    assert template.MOST_LINES >= 100 * 100


# --- GGUF -------------------------------------------------------------------------------------------------


def _gguf(path: Path) -> bytes:
    write_gguf(path, train_bpe(["the cat sat"] * 2, 260, ["<|im_start|>", "<|im_end|>"]))
    return path.read_bytes()


def test_a_gguf_header_cut_anywhere_is_refused_before_the_library_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    raw = _gguf(path)
    check_header(path)
    end = raw.rindex(b"output_norm.weight")
    for cut in range(0, end, max(end // 60, 1)):
        path.write_bytes(raw[:cut])
        with pytest.raises(SpecschedError, match=r"m\.gguf"):
            check_header(path)


@pytest.mark.parametrize("at", [8, 16, 24])  # counts of tensors and keys, length of the first key
def test_a_gguf_count_beyond_the_file_is_refused(tmp_path: Path, at: int) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    raw = _gguf(path)
    for huge in (2**60, 2**64 - 1):
        path.write_bytes(raw[:at] + struct.pack("<Q", huge) + raw[at + 8 :])
        with pytest.raises(SpecschedError, match=r"m\.gguf"):
            check_header(path)


# --- weights ----------------------------------------------------------------------------------------------


def test_weights_are_held_against_the_config_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    monkeypatch.setattr(Target, "__init__", lambda *_: pytest.fail("a target was made"))
    for change in ({"hidden_size": 2**16}, {"num_hidden_layers": 900}, {"intermediate_size": 2**19}):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(SpecschedError, match=r"config\.json"):
            load_target(folder)


def test_an_index_of_shards_names_nothing_outside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path)
    write_sharded(tmp_path)
    outside = tmp_path / "outside.safetensors"
    save_file({"model.norm.weight": torch.full((16,), 7.0)}, outside)
    index = tmp_path / "sharded" / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"] = dict.fromkeys(document["weight_map"], "../outside.safetensors")
    index.write_text(json.dumps(document))
    whole, sharded = load_target(folder), load_target(tmp_path / "sharded")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), sharded.parameters(), strict=True))


def test_weights_that_overflow_are_told_by_the_target_s_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    target = load_target(folder)
    with torch.no_grad():
        target.norm.weight.fill_(3e38)
    weights.save_folder(target, tmp_path / "large")
    hidden, _ = load_target(tmp_path / "large").parallel(torch.tensor([[1, 2, 3]]))
    with pytest.raises(SpecschedError, match="logits are not finite"):
        target.precise_logits(hidden[0])
