"""Answers kept on disk are taken up as they were written, or refused: a damaged one gives no wrong figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from specsched.errors import SpecschedError
from specsched.torch_side.engine.answers import Answers
from specsched.torch_side.engine.engine import Output, Request, Round

REQUEST = Request((1, 2), 6, key=3)
OUTPUT = Output(
    REQUEST,
    [9, 4, 5, 6, 7],
    [Round(0, (4, 8), (0.5, -1.0), 2, 1), Round(2, (6, 7), (0.0, 2.0), 2, 2)],
)


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    Answers(tmp_path, 2).save(OUTPUT)
    assert Answers(tmp_path, 2).load(REQUEST) == OUTPUT
    assert Answers(tmp_path, 2).load(Request((1, 2), 6, key=4)) is None


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (("output_ids",), [9.5, 4, 5, 6, 7]),
        (("output_ids",), [10**30] * 5),
        (("output_ids",), [1] * 7),
        (("output_ids",), [9, 3, 5, 6, 7]),  # not what the first round accepted
        (("output_ids",), ["9", 4, 5, 6, 7]),
        (("rounds",), {}),
        (("rounds",), None),
        (("rounds", 1, "position"), 1),  # a token that the round before it made
        (("rounds", 1, "position"), 5),  # behind the end
        (("rounds", 0, "accepted"), True),
        (("rounds", 0, "accepted"), "1"),
        (("rounds", 0, "accepted"), 3),
        (("rounds", 0, "draft_ids"), [4, 10**20]),
        (("rounds", 0, "draft_ids"), [4]),
        (("rounds", 0, "confidence_logits"), [1e308, 0.0]),
    ],
)
def test_a_damaged_answer_is_refused(tmp_path: Path, change: tuple[Any, ...], value: Any) -> None:
    Answers(tmp_path, 2).save(OUTPUT)
    path = tmp_path / "answer-0000003.json"
    document = json.loads(path.read_text())
    holder = document
    for key in change[:-1]:
        holder = holder[key]
    holder[change[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(SpecschedError, match=r"answer-0000003\.json"):
        Answers(tmp_path, 2).load(REQUEST)
