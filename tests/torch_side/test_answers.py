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


def kept(folder: Path, drafts: bool | None = True) -> Answers:
    return Answers(folder, vocabulary=10, ends=(7,), block_size=2, drafts=drafts)


REQUEST = Request((1, 2), 6, key=3)
OUTPUT = Output(
    REQUEST,
    [9, 4, 5, 6, 7],
    [Round(0, (4, 8), (0.5, -1.0), 2, 1), Round(2, (6, 7), (0.0, 2.0), 2, 2)],
)


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    kept(tmp_path).save(OUTPUT)
    assert kept(tmp_path).load(REQUEST) == OUTPUT
    assert kept(tmp_path).load(Request((1, 2), 6, key=4)) is None


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (("output_ids",), [9.5, 4, 5, 6, 7]),
        (("output_ids",), [10**30] * 5),
        (("output_ids",), [1] * 7),
        (("output_ids",), []),
        (("output_ids",), [9, 4, 5, 6, 10]),  # beyond the vocabulary
        (("output_ids",), [9, 4, 5, 6]),  # cut: neither the end nor the length asked for
        (("output_ids",), [9, 4, 7, 6, 7]),  # goes on behind its end
        (("output_ids",), [9, 3, 5, 6, 7]),  # not what the first round accepted
        (("output_ids",), ["9", 4, 5, 6, 7]),
        (("rounds",), {}),
        (("rounds",), None),
        (("rounds",), []),
        (("rounds",), [OUTPUT.rounds[0]._asdict()]),
        (("rounds",), [OUTPUT.rounds[1]._asdict()]),
        (("rounds", 1, "position"), 1),  # a token that the round before it made
        (("rounds", 1, "position"), 5),  # behind the end
        (  # from the last token on, after which nothing is made
            ("rounds",),
            [
                OUTPUT.rounds[0]._asdict(),
                OUTPUT.rounds[1]._replace(accepted=1)._asdict(),
                Round(4, (1, 2), (0.0, 0.0), 2, 0)._asdict(),
            ],
        ),
        (("rounds", 0, "accepted"), True),
        (("rounds", 0, "accepted"), "1"),
        (("rounds", 0, "accepted"), 3),
        (("rounds", 0, "draft_ids"), [4, 10**20]),
        (("rounds", 0, "draft_ids"), [4, 10]),
        (("rounds", 0, "draft_ids"), [4]),
        (("rounds", 0, "confidence_logits"), [1e308, 0.0]),
    ],
)
def test_a_damaged_answer_is_refused(tmp_path: Path, change: tuple[Any, ...], value: Any) -> None:
    kept(tmp_path).save(OUTPUT)
    path = tmp_path / "answer-0000003.json"
    document = json.loads(path.read_text())
    holder = document
    for key in change[:-1]:
        holder = holder[key]
    holder[change[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(SpecschedError, match=r"answer-0000003\.json"):
        kept(tmp_path).load(REQUEST)


@pytest.mark.parametrize("rounds", [OUTPUT.rounds, OUTPUT.rounds[:1], OUTPUT.rounds[1:], []])
def test_rounds_may_be_missing_where_some_steps_draft_nothing(tmp_path: Path, rounds: list[Round]) -> None:
    output = Output(REQUEST, OUTPUT.output_ids, rounds)
    kept(tmp_path).save(output)
    assert kept(tmp_path, drafts=None).load(REQUEST) == output
    if not rounds:
        assert kept(tmp_path, drafts=False).load(REQUEST) == output
        return
    with pytest.raises(SpecschedError, match=r"answer-0000003\.json"):
        kept(tmp_path, drafts=False).load(REQUEST)


def test_an_answer_of_one_token_has_no_round(tmp_path: Path) -> None:
    output = Output(REQUEST, [7])
    kept(tmp_path).save(output)
    assert kept(tmp_path).load(REQUEST) == output
