"""Cut laws (top-k, top-p) and greedy drafting: the law itself, and that the text keeps the target's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_models import PROMPT, VOCAB, fit_p_value, make_draft, make_target, text_index  # noqa: E402

from specsched.errors import SpecschedError  # noqa: E402
from specsched.torch_side.engine.engine import Request  # noqa: E402
from specsched.torch_side.engine.evaluation import generate  # noqa: E402
from specsched.torch_side.engine.sampling import Sampling, cut, residual  # noqa: E402
from specsched.torch_side.recording.coupling import dense_rows, sample_texts  # noqa: E402

LEVEL = 1e-3
WAYS = [
    Sampling(1.3, greedy_draft=True),
    Sampling(0.8, top_k=3),
    Sampling(1.5, top_p=0.7),
    Sampling(1.5, top_k=4, top_p=0.8, greedy_draft=True),
    Sampling(0.0, top_k=2, top_p=0.5),
]


def plainly_cut(law: list[float], top_k: int, top_p: float) -> list[float]:
    """The definition, a token at a time: by falling probability, first tokens first among equals."""
    order = sorted(range(len(law)), key=lambda token: (-law[token], token))
    order = order[: top_k or None]
    held = sum(law[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if kept and mass >= top_p * held:
            break
        kept.append(token)
        mass += law[token]
    return [law[token] / mass if token in kept else 0.0 for token in range(len(law))]


@pytest.mark.parametrize("top_k", [0, 1, 3, 8, 50])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.55, 0.01])
def test_a_cut_law_is_its_definition(top_k: int, top_p: float) -> None:
    rng = np.random.default_rng(top_k)
    rows = rng.dirichlet(np.full(8, 0.6), size=20)
    rows[0] = [0.25, 0.25, 0.125, 0.125, 0.125, 0.125, 0, 0]  # ties, and shares that add up exactly
    found = cut(torch.tensor(rows, dtype=torch.float32), top_k, top_p)
    for got, law in zip(found.tolist(), rows.tolist(), strict=True):
        assert got == pytest.approx(plainly_cut(law, top_k, top_p), abs=1e-6)


@pytest.mark.parametrize("wrong", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_p": float("nan")}])
def test_what_cuts_no_law_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SpecschedError, match="cut no law"):
        Sampling(1.0, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_one_step_serves_the_target_law_exactly(way: Sampling) -> None:
    """Every draft and every outcome of two positions, by the rule the engine follows."""
    logits = torch.randn(2, VOCAB, VOCAB, generator=torch.Generator().manual_seed(3)) * 1.5
    target, draft = (way.target_law(logits[0]), way.draft_law(logits[1]))  # rows: the token before
    served = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    after = target.double()
    for x in range(VOCAB):
        q, p = draft[0], target[0]
        accept = float(torch.clamp(p[x] / q[x], max=1)) if q[x] > 0 else 0.0
        # Accepted: a second draft follows it; rejected: the corrected token, then the target's own law.
        for y in range(VOCAB):
            q2, p2 = draft[x], target[x]
            again = float(torch.clamp(p2[y] / q2[y], max=1)) if q2[y] > 0 else 0.0
            chance = float(q[x]) * accept * float(q2[y])
            served[x, y] += chance * again
            rest = residual(p2[None], q2[None])[0].double()
            served[x] += chance * (1 - again) * rest / rest.sum()
        rest = residual(p[None], q[None])[0].double()
        served += float(q[x]) * (1 - accept) * (rest / rest.sum())[:, None] * after
    expected = after[0][:, None] * after
    torch.testing.assert_close(served, expected, atol=1e-6, rtol=0)


def promised(way: Sampling, length: int) -> np.ndarray:
    """The law of texts under the target alone, cut as the definition says."""
    target = make_target()
    law = np.zeros((VOCAB,) * length)
    for text in itertools.product(range(VOCAB), repeat=length):
        hidden, _ = target.parallel(torch.tensor([[*PROMPT, *text]]))
        rows = target.logits(hidden[0, len(PROMPT) - 1 : -1]).double() / (way.temperature or 1.0)
        if way.temperature == 0:
            rows = rows * 1e9
        chance = 1.0
        for token, row in zip(text, rows.softmax(-1).tolist(), strict=True):
            chance *= plainly_cut(row, way.top_k, way.top_p)[token]
        law[text] = chance
    return law.ravel()


@pytest.mark.parametrize("way", WAYS[2:4], ids=str)
def test_the_engine_serves_the_cut_law(way: Sampling) -> None:
    target = make_target()
    drafter = make_draft(target, block_size=2)
    requests = [Request(PROMPT, 2, key) for key in range(1500)]
    outputs = generate(target, drafter, requests, "fixed", sampling=way, seed=4, max_batch=1500)
    counts = np.bincount(text_index([o.output_ids for o in outputs]), minlength=VOCAB**2)
    law = promised(way, 2)
    assert counts[law == 0].sum() == 0
    assert fit_p_value(counts[law > 0], law[law > 0]) > LEVEL
    first = [o.rounds[0].draft_ids[0] for o in outputs]
    starts = [o.output_ids[0] for o in outputs]
    if way.greedy_draft:  # one draft after each token, whatever the random numbers are
        assert len(set(zip(starts, first, strict=True))) == len(set(starts))
    else:
        assert len(set(zip(starts, first, strict=True))) > len(set(starts))


def test_greedy_drafts_are_accepted_where_the_text_says_so() -> None:
    """A dense row of a greedy drafter accepts exactly while the text goes on with the drafter's choice."""
    way = Sampling(1.3, greedy_draft=True)
    target = make_target()
    drafter = make_draft(target, block_size=3)
    (text,) = sample_texts(target, (0, 1), 3, [PROMPT], [0], 14, way, 0)
    rows = dense_rows(target, drafter, text, way, 0, 0)
    context = drafter.new_context(1, len(text.tokens))
    slots = torch.zeros(len(text.features), dtype=torch.int64)
    context.observe(slots, torch.arange(len(slots)), text.features, text.tokens[:-1])
    for at, accepted in enumerate(rows.accepted):
        place = torch.tensor([text.prompt + at])
        block = drafter.draft(text.tokens[place], place, context, temperature=0.0)
        agrees = block.tokens[0] == text.tokens[place + 1 : place + 4]
        assert accepted == int(agrees.long().cumprod(0).sum())
