"""Counters of servers: whose they are, what a deficit of drafts means, and estimates where lengths differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specsched import formats
from specsched.errors import FormatError
from specsched.formats.acceptance import Acceptance, from_tried


def scrape(
    path: Path,
    engines: dict[str, tuple[float, list[float]]],
    prefix: str = "vllm:",
    tail: str = "",
    missing: float = 0.0,
) -> Path:
    """The text of /metrics of engines (drafts, accepted by position), each drafting whole blocks."""
    lines = []
    for name, (drafts, accepted) in engines.items():

        def line(counter: str, value: float, more: str = "", name: str = name) -> str:
            return (
                f'{prefix}spec_decode_{counter}_total{{engine="{name}",model_name="m"{more}}} {value}{tail}'
            )

        lines += [line("num_drafts", drafts), line("num_accepted_tokens", sum(accepted))]
        lines.append(line("num_draft_tokens", drafts * len(accepted) - missing))
        lines += [line("num_accepted_tokens_per_pos", v, f',position="{k}"') for k, v in enumerate(accepted)]
    path.write_text("\n".join(lines) + "\n# EOF\n")
    return path


@pytest.mark.parametrize("prefix", ["vllm:", "llamacpp:", "ray_vllm_"])
@pytest.mark.parametrize(
    "tail", ["", " 1756736798733", " 1756736798.733", ' # {trace_id="a b"} 1.0 1756736798.7']
)
def test_the_same_counters_are_read_under_any_prefix_and_openmetrics(tmp_path, prefix, tail):
    path = scrape(tmp_path / "m.txt", {"0": (1000.0, [700.0, 500.0, 300.0])}, prefix, tail)
    assert formats.read(path).object.survival == pytest.approx([0.7, 0.5, 0.3])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('sglang:spec_accept_length{m="a"} 2.73\nsglang:spec_accept_rate 0.43', r"length:2\.73:K"),
        ("vllm:spec_decode_draft_acceptance_rate 0.61\n", r"acceptance_rate 0\.61, and no counters by posi"),
        ("vllm:spec_decode_num_drafts_total 0\n", "is 0; send traffic"),
    ],
)
def test_counters_without_positions_say_what_is_there_and_what_is_missing(tmp_path, text, match):
    path = tmp_path / "m.txt"
    path.write_text(text)
    with pytest.raises(FormatError, match=match):
        formats.read(path)


def test_engines_of_different_k_are_not_called_trimmed(tmp_path):
    # Engine a tries two positions, b four: position 1 over both, 3 and 4 over b alone.
    path = scrape(tmp_path / "m.txt", {"a": (1000, [800, 600]), "b": (500, [300, 200, 100, 50])})
    found = formats.read(path)
    assert found.object.conditional == pytest.approx([1100 / 1500, 800 / 1100, 100 / 200, 50 / 100])
    assert not found.object.censored
    assert "blocks of 2, 4 drafts" in " ".join(found.notes)


def test_a_deficit_is_trimming_only_past_a_hundredth_and_its_share_is_shown(tmp_path):
    engines = {"0": (1000.0, [700.0, 500.0, 300.0])}
    small = formats.read(scrape(tmp_path / "m.txt", engines, missing=1.5))
    assert small.object.survival == pytest.approx([0.7, 0.5, 0.3])
    assert "0.05%" in " ".join(small.notes)
    with pytest.raises(FormatError, match=r"2\.0% of the drafts .* too high or too low"):
        formats.read(scrape(tmp_path / "m.txt", engines, missing=60))


def responses(path: Path, stats: list[dict[str, Any]]) -> Path:
    rows = [json.dumps({"metrics": {"speculative_decoding": one}}) for one in stats]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_histograms_by_draft_length_give_the_product_limit(tmp_path):
    by_length = {"1": [20, 40], "3": [10, 10, 10, 10]}
    row = {"acceptance_histogram": [30, 50, 10, 10], "num_draft_tokens": 180, "num_spec_tokens": 3}
    path = responses(tmp_path / "r.jsonl", [{**row, "acceptance_histogram_by_draft_length": by_length}])
    found = formats.read(path).object
    # Tried: 100, then the 30 of length 3 that passed the first, then 20.
    assert found.conditional == pytest.approx([70 / 100, 20 / 30, 10 / 20])
    assert found.mean_length == pytest.approx(2.40)
    low, high = found.intervals[2]
    # Wilson's interval of 10 in 20, by its published formula.
    assert (low, high) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    wrong = responses(path, [{**row, "acceptance_histogram_by_draft_length": {"3": [10, 10, 10, 10]}}])
    with pytest.raises(FormatError, match="does not add up"):
        formats.read(wrong)


def test_servers_of_different_k_in_one_file_of_responses(tmp_path):
    one = {"acceptance_histogram": [1, 3], "num_draft_tokens": 4, "num_spec_tokens": 1}
    two = {"acceptance_histogram": [2, 1, 1], "num_draft_tokens": 8, "num_spec_tokens": 2}
    found = formats.read(responses(tmp_path / "r.jsonl", [one, two])).object
    assert found.conditional == pytest.approx([5 / 8, 1 / 2])


def test_the_product_limit_recovers_rates_that_plain_counting_misses():
    """Lengths drawn without looking at the drafts: accepted over tried is right, accepted over all is not."""
    random, rates = np.random.default_rng(3), np.array([0.8, 0.7, 0.6, 0.5])
    length = random.integers(1, 5, 40_000)
    run = (random.random((40_000, 4)) < rates).cumprod(axis=1)
    tried = [int(((length > k) & (run[:, k - 1] if k else 1)).sum()) for k in range(4)]
    accepted = [int(((length > k) & run[:, k]).sum()) for k in range(4)]
    found = from_tried(np.array(accepted), np.array(tried), 40_000, "x")
    for (low, high), true in zip(found.intervals, rates, strict=True):
        assert low - 0.005 <= true <= high + 0.005
    assert accepted[3] / accepted[2] < 0.4  # what the old reading gave for a true 0.5


def test_positions_nobody_tried_are_left_out():
    found = from_tried(np.array([5, 0, 0]), np.array([10, 5, 0]), 10, "x")
    assert found.conditional.tolist() == [0.5, 0.0]
    assert "Position 3 and later" in found.notes[0]


def test_what_was_tried_survives_the_file(tmp_path):
    found = from_tried(np.array([50, 10]), np.array([100, 20]), 100, "x")
    found.save(tmp_path / "a.json")
    again = formats.read(tmp_path / "a.json").object
    assert isinstance(again, Acceptance)
    assert again.intervals == found.intervals
