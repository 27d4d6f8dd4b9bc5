"""`specsched audit`: planted leaks are found, small and replayable; policies without one pass.

Two independent oracles: the definition of a leak written out over all pairs of presents, and the law of what
is served by tests/support/enumeration.py.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import jsonschema
import numpy as np
import planted
import pytest
from click.testing import CliRunner
from enumeration import World, deviation, served

from specsched import documents, schedule
from specsched.audit import History, Subject, audit, file, grid, load, replay, shrink
from specsched.cli.app import main
from specsched.errors import PolicyError

LEAKS = [
    "ties_by_token",
    "block_mean",
    "present_budget",
    "budget_after_a_while",
    "later_survival",
    "fed_back",
    "own_token",
    "gain_over_everything",
    "in_crowds",
    "Object",
]
SOUND = ["drafts_before", "others_ahead", "acceptance_so_far", "STOPPING"]
BUNDLED = [
    "off",
    "fixed",
    "fixed:2",
    "threshold:0.3",
    "early-stop",
    "lagged:1",
    "lagged:2",
    "bypass:1",
    "sla:2",
    "history",
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny systems of up to three cells, and the smallest with two rows of two."""
    shapes = [s for s in grid.SHAPES if s.cells <= 3]
    monkeypatch.setattr(grid, "SHAPES", shapes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", LEAKS)
def test_planted_leaks_are_found_and_replay(name: str, small: None, folder: Path) -> None:
    run = CliRunner().invoke(
        main, ["audit", f"planted:{name}", "-o", "leak.json", "--systems", "300", "--json"]
    )
    assert run.exit_code == 1, run.stderr
    found = json.loads(run.stdout)
    jsonschema.validate(found, documents.shipped("audit"))
    written = json.loads(Path("leak.json").read_text())
    jsonschema.validate(written, documents.shipped("audit"))
    assert written == found["leak"]
    again = CliRunner().invoke(main, ["audit", f"planted:{name}", "--replay", "leak.json", "--json"])
    assert (again.exit_code, json.loads(again.stdout)) == (1, written)
    assert CliRunner().invoke(main, ["audit", "off", "--replay", "leak.json"]).exit_code == 0
    subject = load(f"planted:{name}")
    _, leak = file.read("leak.json")
    assert shrink.holds(subject, leak)
    assert not [each for each in shrink.simpler(leak) if shrink.holds(subject, each)], (
        "a simpler leak is left"
    )


@pytest.mark.parametrize(
    ("name", "requests", "block", "steps"),
    [
        ("ties_by_token", 2, 1, 0),
        ("block_mean", 1, 3, 0),
        ("later_survival", 1, 2, 0),
        ("fed_back", 2, 2, 0),
        ("own_token", 1, 1, 0),
        ("in_crowds", 5, 2, 0),
        ("budget_after_a_while", 1, 2, 3),
    ],
)
def test_what_is_found_is_as_small_as_can_be(
    name: str, requests: int, block: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes are thought out by hand: no leak of these policies shows in a smaller system."""
    by_chance = requests * block > 4 or steps > 2  # found in a random system, whatever the tiny ones are
    shapes = [shape for shape in grid.SHAPES if shape.cells <= (2 if by_chance else 4)]
    monkeypatch.setattr(grid, "SHAPES", shapes)
    found = audit(load(f"planted:{name}"), systems=300)["leak"]
    assert found is not None
    confidence = np.array(found["confidence"])
    assert (*confidence.shape, len(found["steps"])) == (requests, block, steps)


def test_global_is_found_at_the_size_of_appendix_a() -> None:
    found = audit(load("global"))["leak"]
    assert found is not None
    assert np.shape(found["confidence"]) == (1, 2)


def test_the_law_of_a_leak_is_that_of_enumeration() -> None:
    """The world that `law` describes, built for the other enumerator."""
    found = audit(load("global"))["leak"]
    assert found is not None
    presents = {each["drafts"][0]: each for each in found["presents"]}

    class Described(World):
        def target(self, request, context):
            return [0.7, 0.3] if found["law"]["token"] == 0 else [0.3, 0.7]

        def drafter(self, request, context):
            return [0.5, 0.5] if not context else [1.0, 0.0]

        def confidence(self, request, context, token):
            return presents[context[0] if context else 0]["confidence"][len(context)]

    (law,) = served(schedule.Global(), Described(0), np.array(found["sps"]), 1)
    assert law[(found["law"]["token"],)] == pytest.approx(found["law"]["served"], abs=1e-12)
    assert found["law"]["served"] != pytest.approx(found["law"]["target"], abs=0.1)


@pytest.mark.parametrize("name", [*BUNDLED, *(f"planted:{each}" for each in SOUND)])
def test_policies_without_a_leak_pass(name: str, small: None) -> None:
    found = audit(load(name), systems=60)
    assert not found["found"], found["leak"]
    assert "no leak found in" in found["bound"]
    assert sum(row["inputs"] for row in found["searched"]) > 2000


@pytest.mark.parametrize("name", ["threshold:0.4", "early-stop", "lagged:1"])
def test_confidences_that_see_their_token_are_a_leak_of_policies_that_read_any(
    name: str, small: None
) -> None:
    assert audit(load(name), sees_token=True)["found"]
    assert not schedule.make(name).lossless(confidence_sees_token=True)


@pytest.mark.parametrize("name", ["off", "fixed:1"])
def test_confidences_that_see_their_token_do_not_matter_to_those_that_read_none(
    name: str, small: None
) -> None:
    assert not audit(load(name), systems=20, sees_token=True)["found"]


# -- oracles -----------------------------------------------------------------------------------------------


def pairs_leak(function, requests, block, values, tokens, sps) -> bool:
    """The definition: two presents alike but for one request's draft k and what follows, unlike at k."""
    cells = requests * block
    seen = []
    for some in itertools.product(values, repeat=cells):
        for these in itertools.product(range(tokens), repeat=cells):
            confidence, drafts = np.reshape(some, (requests, block)), np.reshape(these, (requests, block))
            lengths = function(confidence.astype(float), sps, History(np.arange(requests), drafts, ()))
            seen.append((confidence, drafts, np.asarray(lengths)))
    for (c, x, n), (d, y, m) in itertools.combinations(seen, 2):
        for r, k in itertools.product(range(requests), range(1, block + 1)):
            others = np.arange(requests) != r
            alike = (c[others] == d[others]).all() and (x[others] == y[others]).all()
            past = (c[r, :k] == d[r, :k]).all() and (x[r, : k - 1] == y[r, : k - 1]).all()
            if alike and past and x[r, k - 1] != y[r, k - 1] and (n[r] >= k) != (m[r] >= k):
                return True
    return False


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("seed", range(6))
def test_the_grid_finds_a_leak_where_the_definition_has_one(shape, seed: int, monkeypatch) -> None:
    """Random rules of a few of the arguments: about half of them leak."""
    values = (0.3, 0.9)
    monkeypatch.setattr(grid, "LEVELS", {5: values, 3: values, 2: values})
    requests, block = shape
    rng = np.random.default_rng([seed, *shape])
    salt, shown = int(rng.integers(1000)), rng.random((2, requests, block)) < 0.4

    def rule(c, sps, history):
        lengths = []
        for r in range(len(c)):
            key = [salt, r, *(10 * c[shown[0]]).astype(int), *history.drafts[shown[1]]]
            lengths.append(int(np.random.default_rng(key).integers(0, block + 1)))
        return lengths

    system = next(iter(grid.systems(grid.Shape(requests, block, 0), 0)))
    leak, _ = grid.leak_of(Subject("rule", rule), system, False)
    assert (leak is not None) == pairs_leak(rule, requests, block, values, 2, system.sps)
    if leak is not None:
        assert shrink.holds(Subject("rule", rule), leak)


class AsPolicy(schedule.Policy):
    name, code = "a function", -1

    def __init__(self, function):
        self.function = function

    def _plan(self, c, lengths, sps, ids, accepted):
        lengths[:] = self.function(c, sps, None) if len(c) else 0


@pytest.mark.parametrize(
    ("name", "leaks"),
    [("block_mean", True), ("later_survival", True), ("fed_back", True), ("others_ahead", False)],
)
def test_the_law_of_what_is_served_says_the_same(name: str, leaks: bool) -> None:
    sps = 1 / (1 + 0.5 * np.ceil(np.arange(20) / 3))
    policy = AsPolicy(getattr(planted, name))
    worst = max(deviation(policy, World(seed, block=3), sps, 2, (0, 0)) for seed in range(3))
    assert (worst > 1e-6) == leaks
    assert leaks or worst < 1e-12


# -- what is no policy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("planted:raises", "planted:raises raised RuntimeError: out of tea at R = 1, γ = 1"),
        ("planted:a_matrix", "returned shape (1, 1)"),
        ("planted:floats", "returned dtype float64"),
        ("planted:too_long", "returned length 2 for request 0"),
        ("planted:negative", "returned length -1 for request 0"),
        ("planted:ragged", "returned no array"),
        ("planted:changes_confidence", "changes its argument confidence"),
        ("planted:changes_history", "changes its argument history.steps"),
        ("planted:counts_calls", "is not deterministic"),
        ("planted:NOT_CALLABLE", "is int, no function"),
        ("planted:block_means", "did you mean 'block_mean'?"),
        ("planted.py:block_mean", "name its module: planted:block_mean"),
        ("no_such_module:policy", "no module 'no_such_module'"),
        ("erly-stop", "did you mean 'early-stop'?"),
        ("hindsight", "accepted"),
    ],
)
def test_what_cannot_be_audited_is_told_in_a_sentence(name: str, sentence: str) -> None:
    run = CliRunner().invoke(main, ["audit", name])
    assert (run.exit_code, run.stdout) == (2, "")
    assert sentence in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert "Traceback" not in run.stderr


def test_what_a_policy_prints_is_not_in_the_answer(small: None) -> None:
    run = CliRunner().invoke(main, ["audit", "planted:talks", "--systems", "0", "--json"])
    assert json.loads(run.stdout)["found"] is False
    assert "chatter of a policy" in run.stderr


def test_a_file_never_loads_code(folder: Path) -> None:
    """The module that a file names is not imported: its name has to be typed."""
    Path("trap.py").write_text(
        "open('sprung', 'w').close()\ndef policy(c, sps, history): return [0] * len(c)\n"
    )
    leak = audit(load("global"))["leak"]
    assert leak is not None
    Path("leak.json").write_text(json.dumps({**leak, "policy": "trap:policy"}))
    run = CliRunner().invoke(main, ["audit", "--replay", "leak.json"])
    assert run.exit_code == 2
    assert "specsched audit trap:policy --replay leak.json" in run.stderr
    assert not Path("sprung").exists()
    Path("leak.json").write_text(json.dumps(leak))
    assert CliRunner().invoke(main, ["audit", "--replay", "leak.json"]).exit_code == 1
    assert not replay("leak.json", load("off"))[1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": "specsched/leak/2"}, "schema"),
        ({"extra": 1}, "extra is not a key"),
        ({"confidence": [[1.0, 1.5]]}, "confidence[0][1] is 1.5"),
        ({"confidence": [[1.0], [1.0, 1.0]]}, "rows of different lengths"),
        ({"drafts": [[0, 0.5]]}, "drafts must be whole numbers"),
        ({"ids": [1, 2]}, "ids must be 1 different numbers"),
        ({"request": 1}, "request is 1"),
        ({"position": 3}, "position is 3"),
        ({"sps": [1.0]}, "sps needs an entry"),
        ({"sees_token": 1}, "sees_token must be true or false"),
        ({"steps": 3}, "steps must be a list"),
        ({"steps": [{"ids": [0], "confidence": [[1.0]], "drafts": [[0]], "accepted": [0]}]}, "2 columns"),
        ({"presents": []}, "presents must be two objects"),
        ({"position": 2}, "presents differ before the position"),
    ],
)
def test_a_damaged_file_is_told_in_a_sentence(change: dict, sentence: str, folder: Path) -> None:
    leak = audit(load("global"))["leak"]
    assert leak is not None
    Path("leak.json").write_text(json.dumps({**leak, **change}))
    with pytest.raises(PolicyError, match=r"leak\.json") as e:
        file.read("leak.json")
    assert sentence in str(e.value)
