"""Training and recording prompts never meet, and share-alike text is in neither."""

from __future__ import annotations

import gzip
import json

import pytest

from scripts.models import prompts
from scripts.models.prompts import recording_prompts, text_key, training_prompts
from specsched.errors import SpecschedError


@pytest.fixture
def data(tmp_path):
    """A folder of the same layout as the real one, with evaluation prompts planted in the training files."""

    def write(name, rows):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())

    turns = lambda *texts: [{"turns": [t]} for t in texts]  # noqa: E731
    write("text/gsm8k_train.jsonl.gz", [{"q": f"How much is {i} + 1?", "a": "..."} for i in range(2100)])
    write("text/mbpp_full.jsonl.gz", [{"text": "Sort  a List."}, {"text": "Reverse a string."}])
    source = 'def shared(x):\n    """' + "Doubles its argument, carefully. " * 3 + '"""\n    return 2 * x\n'
    newer = "class Tree[T]:\n    pass\n"
    write("text/thealgorithms_py.jsonl.gz", [{"path": "a.py", "src": source}, {"path": "b.py", "src": newer}])
    write(
        "text/taskmaster4_coffee.jsonl.gz",
        [{"t": [["u", f"A coffee for number {i} please"]]} for i in range(70)],
    )
    write("text/sgd_dialogues_5k.jsonl.gz", [{"t": ["share-alike text"]}])
    write("prompts/gsm8k.jsonl", turns("A test question?"))
    write("prompts/math500.jsonl", turns("Convert the point."))
    write("prompts/humaneval.jsonl", turns("Write has_close_elements."))
    write("prompts/mbpp.jsonl", turns("sort a list"))
    write("prompts/mt-bench.jsonl", [{"turns": ["Write a post.", "Rewrite it."]}])
    write("prompts/arena-hard-v2.jsonl.gz", turns(*(f"arena {i}" for i in range(160))))
    return tmp_path


def test_training_and_recording_prompts_never_meet(data):
    training, recording = training_prompts(data), recording_prompts(data)
    seen = {text_key(p.turns[0]) for texts in training.values() for p in texts}
    held = {text_key(p.turns[0]) for texts in recording.values() for p in texts}
    assert not seen & held
    assert text_key("Reverse a string.") in seen
    assert text_key("Sort  a List.") not in seen, "it is in the evaluation set, spelled otherwise"
    assert sum(p.source == "arena-hard-v2" for p in training["chat"]) == 10
    assert sum(p.source == "arena-hard-v2" for p in recording["chat"]) == prompts.ARENA_HELD_OUT
    assert [p.source for p in training["code"]].count("thealgorithms") == 1
    everything = [t for texts in (training, recording) for ps in texts.values() for p in ps for t in p.turns]
    assert not any("share-alike" in t for t in everything)
    assert ("Write a post.", "Rewrite it.") in {p.turns for p in recording["chat"]}


def test_the_order_depends_on_the_seed_alone(data):
    assert training_prompts(data, 1) == training_prompts(data, 1)
    assert training_prompts(data, 1) != training_prompts(data, 2)
    assert recording_prompts(data) == recording_prompts(data)


def test_prompt_files_are_written_for_the_recorder(data, tmp_path):
    prompts.main(["--data", str(data), "--out", str(tmp_path / "out")])
    rows = json.loads((tmp_path / "out" / "chat.json").read_text())
    assert {"turns": ["Write a post.", "Rewrite it."], "domain": "chat", "source": "mt-bench"} in rows
    with pytest.raises(SpecschedError, match="no prompt file"):
        recording_prompts(tmp_path / "nowhere")
