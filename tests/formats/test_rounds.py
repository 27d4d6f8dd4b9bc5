"""Round logs of SGLang's profiler: laws given back where sizes share no number of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specsched import formats
from specsched.formats.fit import linked
from specsched.profile.lint import cliffs, lint


def law(requests: int, tokens: int) -> float:
    """8 ms + 0.02 ms a request + 0.025 ms a token."""
    return 8e-3 + 2e-5 * requests + 2.5e-5 * tokens


def rounds(path: Path, sizes: list[int], block: int, cost) -> Path:
    rows = []
    for r in sizes:
        for quarter in range(5):
            tokens = r + r * block * quarter // 4
            rows.append(
                {"batch_size_per_rank": r, "batch_tokens": tokens, "steps_per_sec": 1.0 / cost(r, tokens)}
            )
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


@pytest.mark.parametrize(("sizes", "block"), [([8, 16, 32, 64], 5), ([8, 16, 32, 48], 15)])
def test_an_exact_law_comes_back_where_no_number_of_tokens_is_shared(tmp_path, sizes, block):
    found = formats.read(rounds(tmp_path / "r.jsonl", sizes, block, law))
    assert "are not told apart" in " ".join(found.notes)
    profile = found.object
    assert not cliffs(profile)
    # At what was timed, and at numbers of tokens and of requests in between.
    for r in (*sizes, 20):
        for tokens in (r, 2 * r, 3 * r + 5, r * (1 + block)):
            assert profile.seconds(tokens, r, 0, draft=False) == pytest.approx(law(r, tokens), rel=1e-4)


def test_shared_numbers_of_tokens_are_fitted_freely(tmp_path):
    sizes = [8, 16, 32, 64]
    path = tmp_path / "r.jsonl"
    rows = [
        {"batch_size_per_rank": r, "batch_tokens": r * w, "steps_per_sec": 1.0 / law(r, r * w)}
        for r in sizes
        for w in (1, 2, 4, 8)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = formats.read(path)
    assert "B never binned" in " ".join(found.notes)
    assert found.object.fit["median_relative_error"] < 1e-6


def test_a_budget_that_was_not_obeyed_is_told(tmp_path):
    found = formats.read(rounds(tmp_path / "r.jsonl", [12, 24, 48], 15, lambda r, b: 9e-3 + 1e-4 * r))
    assert "does not depend on the tokens at any batch size" in " ".join(found.notes)
    assert not cliffs(found.object)
    assert any("verify is flat" in finding for finding in lint(found.object))
    # The cost of a batch size is what was measured.
    assert found.object.seconds(100, 24, 0, draft=False) == pytest.approx(9e-3 + 24e-4, rel=1e-6)


def test_linked_means_a_chain_of_shared_numbers():
    import numpy as np

    assert linked(np.array([1, 1, 2, 2, 3]), np.array([4, 5, 5, 6, 6]))
    assert not linked(np.array([1, 1, 2, 2]), np.array([4, 5, 6, 7]))


def test_what_to_measure_is_said_where_nothing_ties_the_sizes_together(tmp_path):
    found = formats.read(rounds(tmp_path / "r.jsonl", [8, 16, 32, 64], 5, law))
    assert "profile 8 requests at 16 tokens, 16 requests at 32 tokens, 32 requests at 64 tokens" in " ".join(
        found.notes
    )
    # Measured as it says, the two parts are told apart.
    path = tmp_path / "more.jsonl"
    extra = [
        {"batch_size_per_rank": r, "batch_tokens": 2 * r, "steps_per_sec": 1.0 / law(r, 2 * r)}
        for r in (8, 16, 32)
    ]
    path.write_text((tmp_path / "r.jsonl").read_text() + "\n".join(map(json.dumps, extra)))
    assert "not told apart" not in " ".join(formats.read(path).notes)


def test_budgets_that_were_obeyed_at_some_sizes_alone_are_told(tmp_path):
    """Whole blocks whatever the budget from 32 requests on; smaller batches obeyed."""
    path = rounds(tmp_path / "r.jsonl", [8, 16, 32, 64], 7, lambda r, b: law(r, b if r < 32 else 8 * r))
    notes = " ".join(formats.read(path).notes)
    assert "At 32, 64 requests every budget took the same time" in notes
    assert "At" not in " ".join(formats.read(rounds(path, [8, 16, 32], 7, law)).notes)
    # Small batches may be flat, as long as larger ones are not.
    flat = rounds(path, [8, 16, 32, 64], 7, lambda r, b: law(r, max(b, 128)))
    assert "At" not in " ".join(formats.read(flat).notes)


def test_shared_sizes_with_ignored_budgets_are_told_as_well(tmp_path):
    rows = [
        {"batch_size_per_rank": r, "batch_tokens": r * w, "steps_per_sec": 1.0 / (9e-3 + 1e-4 * r)}
        for r in (8, 16, 32)
        for w in (1, 2, 4)
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert "does not depend on the tokens at any batch size" in " ".join(formats.read(path).notes)
