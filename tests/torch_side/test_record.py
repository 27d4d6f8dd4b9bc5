"""Recording: a dense trace replays what the engine really does, by test and level; files, turns, resuming."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from small_models import (
    PROMPT,
    VOCAB,
    exact_law,
    fit_p_value,
    make_draft,
    make_target,
    same_p_value,
    text_index,
)

from specsched import schedule
from specsched.calibration.metrics import sigmoid
from specsched.errors import SpecschedError, TraceError
from specsched.files.parts import PartsFolder
from specsched.profile import load_profile
from specsched.torch_side.engine.answers import Answers
from specsched.torch_side.engine.engine import Engine, Request
from specsched.torch_side.engine.evaluation import evaluate, generate
from specsched.torch_side.engine.sampling import Sampling
from specsched.torch_side.recording import coupling, recorder
from specsched.torch_side.recording.coupling import dense_rows, sample_texts
from specsched.torch_side.recording.recorder import record
from specsched.torch_side.target.tokenizer import train_bpe
from specsched.trace import load_trace

TEMPERATURE = 1.3
LENGTH = 9
# Each comparison below is made at level 1e-3 on independent samples (one value a request), seeds fixed.
LEVEL = 1e-3


def replay(rows, verify):
    """Steps of a dense trace: (position, verified, accepted, emitted); `verify` gives ℓ from the
    confidences."""
    n, t, steps = len(rows.position), 0, []
    while t < n:
        length = verify(sigmoid(rows.confidence_logit[t : t + 1]))[0]
        accepted = min(int(rows.accepted[t]), length)
        emitted = min(accepted + 1, n - t)
        steps.append((t, length, accepted, emitted))
        t += emitted
    return steps


def whole_block(confidence):
    return np.full(len(confidence), confidence.shape[1])


def over_threshold(confidence):
    return (np.cumprod(confidence, axis=1) >= 0.4).sum(1)


def recorded(target, drafter, count, seed):
    keys = list(range(count))
    texts = sample_texts(target, (0, 1), 3, [PROMPT] * count, keys, LENGTH, Sampling(TEMPERATURE), seed)
    return texts, [
        dense_rows(target, drafter, t, Sampling(TEMPERATURE), seed, k)
        for t, k in zip(texts, keys, strict=True)
    ]


def histogram(values, width):
    return np.bincount(np.minimum(values, width - 1), minlength=width)


def binned(a, b, bins=12):
    """Counts of two samples in common bins with edges in gaps: values equal up to rounding stay together."""
    pool = np.sort(np.concatenate([a, b]))
    gaps = np.flatnonzero(np.diff(pool) > 1e-3)
    if len(gaps) > bins - 1:
        gaps = gaps[
            np.unique(
                np.searchsorted(gaps, np.linspace(0, len(pool), bins + 1)[1:-1]).clip(max=len(gaps) - 1)
            )
        ]
    edges = (pool[gaps] + pool[gaps + 1]) / 2
    return [np.bincount(np.digitize(x, edges), minlength=len(edges) + 1) for x in (a, b)]


@pytest.fixture(scope="module")
def both():
    """1,200 recorded requests, and 1,200 others really decoded under two policies."""
    target = make_target(eos_token_ids=(5,))
    drafter = make_draft(target, block_size=3)
    dense = recorded(target, drafter, 1200, seed=1)[1]
    requests = [Request(PROMPT, LENGTH, k) for k in range(1200)]
    real = {
        policy: generate(target, drafter, requests, policy, temperature=TEMPERATURE, seed=2, max_batch=400)
        for policy in ("fixed", "threshold:0.4")
    }
    return dense, real


@pytest.mark.parametrize(("policy", "verify"), [("fixed", whole_block), ("threshold:0.4", over_threshold)])
def test_replaying_a_dense_trace_reproduces_the_engine(both, policy, verify):
    dense, real = both
    replays = [replay(rows, verify) for rows in dense if len(rows.position)]
    rounds = [o.rounds for o in real[policy] if o.rounds]
    assert {r.verified for rs in rounds for r in rs} == {s[1] for steps in replays for s in steps}

    def compare(of_replay, of_engine, width):
        assert len(of_replay) > 300
        return same_p_value(histogram(of_replay, width), histogram(of_engine, width))

    # Acceptance of the first step, position by position (the law of `accepted`), and of a later one.
    assert compare([s[0][2] for s in replays], [r[0].accepted for r in rounds], 4) > LEVEL
    later_replay = [s[2][2] for s in replays if len(s) > 2]
    later_engine = [r[2].accepted for r in rounds if len(r) > 2]
    assert compare(later_replay, later_engine, 4) > LEVEL
    # Tokens per step: the number of steps a whole request takes, and where its second step starts.
    assert compare([len(s) for s in replays], [len(r) for r in rounds], LENGTH) > LEVEL
    assert (
        compare([s[1][0] for s in replays if len(s) > 1], [r[1].position for r in rounds if len(r) > 1], 5)
        > LEVEL
    )


def test_confidences_have_the_engines_distribution(both):
    """Of the first step and of the third, at every position: after rejected drafts they are real too."""
    dense, real = both
    replays = [(rows, replay(rows, whole_block)) for rows in dense if len(rows.position)]
    rounds = [o.rounds for o in real["fixed"] if o.rounds]
    for step in (0, 2):
        for k in range(3):
            a = [rows.confidence_logit[s[step][0], k] for rows, s in replays if len(s) > step]
            b = [r[step].confidence_logits[k] for r in rounds if len(r) > step]
            counts = binned(a, b)
            assert len(counts[0]) > 3 or (step, k) == (0, 0), "one prompt, one first confidence"
            assert same_p_value(*counts) > LEVEL


def test_a_wrong_coupling_would_be_noticed(both, monkeypatch):
    """The same comparison rejects a recorder that forgets to draw the first rejected token from the residual
    and one that accepts with the engine's ratio instead of its reverse."""
    _, real = both
    target = make_target(eos_token_ids=(5,))
    drafter = make_draft(target, block_size=3)
    rounds = [o.rounds for o in real["fixed"] if o.rounds]

    def p_value():
        dense = [r for r in recorded(target, drafter, 500, seed=1)[1] if len(r.position)]
        accepted = same_p_value(
            histogram([r.accepted[0] for r in dense], 4), histogram([r[0].accepted for r in rounds], 4)
        )
        scores = binned(
            [r.confidence_logit[0, 1] for r in dense], [r[0].confidence_logits[1] for r in rounds]
        )
        return accepted, same_p_value(*scores)

    with monkeypatch.context() as patch:
        patch.setattr(coupling, "residual", lambda p, q: p)
        assert p_value()[1] < LEVEL
    right = coupling._Coupled.__call__

    def reversed_ratio(self, k, p_draft):
        law, at = self.law, self.rows + k + 1 - self.first
        y = self.output[self.rows + k + 1]
        scale = (law[at].gather(1, y[:, None]) / p_draft.gather(1, y[:, None])) ** 2
        return right(self, k, p_draft * scale)

    with monkeypatch.context() as patch:
        patch.setattr(coupling._Coupled, "__call__", reversed_ratio)
        assert p_value()[0] < LEVEL


def test_recorded_text_is_the_targets_own_and_accepted_drafts_are_it():
    target = make_target()
    texts = sample_texts(target, (0, 1), 3, [PROMPT] * 2000, list(range(2000)), 4, Sampling(TEMPERATURE), 3)
    outputs = [t.tokens[t.prompt : t.prompt + 3].tolist() for t in texts]
    law = exact_law(target, PROMPT, 3, TEMPERATURE)
    assert fit_p_value(np.bincount(text_index(outputs), minlength=VOCAB**3), law) > LEVEL
    text = texts[0]
    # Every hidden state belongs to its token: recomputed without a cache.
    hidden, features = target.parallel(text.tokens.unsqueeze(0)[:, :-1], (0, 1))
    torch.testing.assert_close(text.hidden, hidden[0, text.prompt - 1 :], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(text.features, features[0], atol=1e-4, rtol=1e-4)


def test_at_temperature_0_accepted_counts_matching_greedy_tokens():
    target = make_target(seed=3, scale=0.5)
    drafter = make_draft(target, block_size=3, seed=5)
    (text,) = sample_texts(target, (0, 1), 3, [[1, 2]], [0], 12, Sampling(0.0), 0)
    rows = dense_rows(target, drafter, text, Sampling(0.0), 0, 0)
    output = text.tokens[2:].tolist()
    (engine,) = generate(target, drafter, [Request((1, 2), 12)], temperature=0)
    assert engine.output_ids == output[:12]
    for r in engine.rounds:
        matching = 0
        while matching < 3 and r.draft_ids[matching] == output[r.position + 1 + matching]:
            matching += 1
        assert rows.accepted[r.position] == r.accepted == matching
        # Drafts after the first mismatch were made from it in both.
        np.testing.assert_allclose(rows.confidence_logit[r.position], r.confidence_logits, atol=1e-4)


# --- the recorder -----------------------------------------------------------------------------------------

PROMPTS: list[dict] = [
    {"prompt_ids": [1, 2], "domain": "a"},
    {"prompt_ids": [3, 4, 5]},
    {"prompt_ids": [0], "domain": "b"},
]


@pytest.mark.parametrize("mode", ["dense", "sequential"])
def test_a_recording_is_a_valid_trace_with_its_provenance(tmp_path, mode):
    target = make_target()
    drafter = make_draft(target)
    out = tmp_path / "t.parquet"
    trace = record(
        target, drafter, PROMPTS, out, mode=mode, max_tokens=8, seed=1, licence="CC0", domain="x", samples=2
    )
    again = load_trace(out)
    assert (again.mode, again.block_size, again.confidence_sees_token) == (mode, 3, False)
    assert list(again.request_ids) == list(range(6))
    assert [again.domain_names[again.domain[s]] for s in again.starts] == ["a", "x", "b"] * 2
    assert again.prompt_tokens[again.starts].tolist() == [2, 3, 1] * 2
    assert again.metadata["temperature"] == 1.0
    assert again.metadata["licence"] == "CC0"
    assert again.metadata["provenance"]["samples"] == 2
    np.testing.assert_array_equal(again.confidence_logit, trace.confidence_logit)
    assert not (tmp_path / "t.parquet.parts").exists()
    if mode == "dense":
        assert again.lengths.tolist() == [7] * 6
        assert again.position.tolist() == list(range(7)) * 6
        same = record(target, drafter, PROMPTS, max_tokens=8, seed=1, domain="x", samples=2, batch=2)
        np.testing.assert_array_equal(same.accepted, again.accepted)
    else:
        for start, length in zip(again.starts, again.lengths, strict=True):
            at = slice(start, start + length)
            steps = np.diff(again.position[at])
            np.testing.assert_array_equal(steps, again.accepted[at][:-1] + 1)


def test_an_interrupted_recording_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    target = make_target()
    drafter = make_draft(target)
    whole = record(target, drafter, PROMPTS, tmp_path / "a.parquet", max_tokens=6, batch=1)
    right, calls = recorder._record_batch, []

    def stops(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return right(*arguments)

    monkeypatch.setattr(recorder, "_record_batch", stops)
    with pytest.raises(KeyboardInterrupt):
        record(target, drafter, PROMPTS, tmp_path / "b.parquet", max_tokens=6, batch=1)
    assert not (tmp_path / "b.parquet").exists()
    with pytest.raises(TraceError, match=r"other settings \(max_tokens\)"):
        record(target, drafter, PROMPTS, tmp_path / "b.parquet", max_tokens=7, batch=1)
    resumed = record(target, drafter, PROMPTS, tmp_path / "b.parquet", max_tokens=6, batch=1)
    assert len(calls) == 4, "two parts were there, one was missing"
    np.testing.assert_array_equal(resumed.accepted, whole.accepted)
    np.testing.assert_array_equal(resumed.confidence_logit, whole.confidence_logit)
    assert resumed.domain_names == whole.domain_names


def test_a_batch_that_was_killed_loses_the_request_at_work_alone(tmp_path, monkeypatch):
    """Texts are sampled side by side, so they are kept and not sampled again; rows are drafted one by one."""
    target = make_target()
    drafter = make_draft(target)
    whole = record(target, drafter, PROMPTS, tmp_path / "a.parquet", max_tokens=6)
    right, calls, told = recorder.dense_rows, [], []

    def stops(*arguments):
        calls.append(arguments[-1])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return right(*arguments)

    def report(*what):
        told.append(what)

    monkeypatch.setattr(recorder, "dense_rows", stops)
    with pytest.raises(KeyboardInterrupt):
        record(
            target,
            drafter,
            PROMPTS,
            tmp_path / "b.parquet",
            max_tokens=6,
            progress=lambda *what: told.append(what),
        )
    assert [done for done, _, _ in told] == [1, 2], "progress by the request"
    monkeypatch.setattr(recorder, "sample_texts", None)  # sampling again would fail
    resumed = record(target, drafter, PROMPTS, tmp_path / "b.parquet", max_tokens=6)
    assert calls == [0, 8, 16, 16], "two of three were there"
    for column in ("accepted", "confidence_logit", "position", "prompt_tokens"):
        np.testing.assert_array_equal(getattr(resumed, column), getattr(whole, column))
    assert not (tmp_path / "b.parquet.parts").exists()


def test_kept_texts_are_met_again_by_another_drafter(tmp_path, monkeypatch):
    target = make_target()
    first = record(target, make_draft(target), PROMPTS, max_tokens=6, texts=tmp_path)
    fresh = record(target, make_draft(target, seed=9), PROMPTS, max_tokens=6)
    assert len(list(tmp_path.glob("*.texts"))) == 1
    monkeypatch.setattr(recorder, "sample_texts", None)
    again = record(target, make_draft(target), PROMPTS, max_tokens=6, texts=tmp_path)
    other = record(target, make_draft(target, seed=9), PROMPTS, max_tokens=6, texts=tmp_path)
    np.testing.assert_array_equal(again.accepted, first.accepted)
    np.testing.assert_array_equal(other.accepted, fresh.accepted)


def test_anchors_limit_prompt_limit_and_nothing_to_record():
    target = make_target()
    drafter = make_draft(target)
    few = record(target, drafter, PROMPTS * 5, max_tokens=6, batch=2, anchors=12)
    assert len(few) == 20, "the first batch that reaches 12: two batches of two requests of five rows"
    short = record(target, drafter, PROMPTS, max_tokens=6, max_prompt=2)
    assert short.prompt_tokens[short.starts].tolist() == [2, 1]
    with pytest.raises(TraceError, match="nothing recorded"):
        record(target, drafter, PROMPTS, max_tokens=6, max_prompt=0)
    with pytest.raises(TraceError, match="mode is 'sparse'"):
        record(target, drafter, PROMPTS, mode="sparse")


def test_later_turns_follow_the_targets_own_replies(tmp_path):
    tokenizer = train_bpe(["hello there"], 260, ["<|im_start|>", "<|im_end|>"])
    target = make_target(vocab_size=260)
    target.tokenizer = tokenizer
    prompts = tmp_path / "p.json"
    prompts.write_text(json.dumps([{"turns": ["hi", "and then?"], "domain": "chat"}, {"turns": ["yo"]}]))
    trace = record(target, make_draft(target), prompts, max_tokens=5, domain="d", temperature=0.0)
    first = tokenizer.chat([{"role": "user", "content": "hi"}])
    (reply,) = generate(target, None, [Request(tuple(first), 5)], "off", temperature=0)
    talk = [("user", "hi"), ("assistant", tokenizer.decode(reply.output_ids)), ("user", "and then?")]
    second = tokenizer.chat([{"role": r, "content": c} for r, c in talk])
    assert trace.prompt_tokens[trace.starts].tolist() == [
        len(first), len(tokenizer.chat([{"role": "user", "content": "yo"}])), len(second)
    ]  # fmt: skip


QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


@pytest.mark.parametrize("thinking", [None, True, False])
def test_thinking_is_the_templates_and_recorded(thinking):
    tokenizer = train_bpe(["hello there"], 260, ["<|im_start|>", "<|im_end|>"], QWEN3)
    target = make_target(vocab_size=260)
    target.tokenizer = tokenizer
    rows = [{"turns": ["hi", "and then?"]}]
    trace = record(target, make_draft(target), rows, max_tokens=5, temperature=0.0, thinking=thinking)
    plain = tokenizer.encode("<|im_start|>hi<|im_end|>")
    closed = tokenizer.encode("<think></think>")
    first, second = trace.prompt_tokens[trace.starts].tolist()
    assert first == len(plain) + (len(closed) if thinking is False else 0)
    assert second > first
    assert trace.metadata["provenance"]["thinking"] is thinking


def test_thinking_that_a_template_does_not_know_is_refused():
    target = make_target(vocab_size=260)
    target.tokenizer = train_bpe(["hello there"], 260, ["<|im_start|>", "<|im_end|>"])
    with pytest.raises(SpecschedError, match="knows no enable_thinking"):
        record(target, make_draft(target), [{"prompt": "hi"}], max_tokens=5, thinking=False)


def test_sampling_is_kept_in_the_trace(tmp_path):
    target = make_target()
    drafter = make_draft(target)
    ways = {"greedy_draft": True, "top_k": 3, "top_p": 0.9}
    trace = record(target, drafter, PROMPTS, tmp_path / "a.parquet", max_tokens=6, **ways)
    kept = load_trace(tmp_path / "a.parquet").metadata
    assert (kept["draft_sampling"], kept["top_k"], kept["top_p"]) == ("greedy", 3, 0.9)
    assert record(target, drafter, PROMPTS, max_tokens=6).metadata["draft_sampling"] == "sampled"
    assert trace.accepted.size


def test_a_sequential_recording_keeps_every_finished_answer(tmp_path, monkeypatch):
    target = make_target()
    drafter = make_draft(target)
    options = {"mode": "sequential", "max_tokens": 6, "batch": 9}
    saved, submitted, right, submit = [], [], Answers.save, Engine.submit

    def stops(self, output):
        if len(saved) == 2:
            raise KeyboardInterrupt
        right(self, output)
        saved.append(output)

    def watched(self, request):
        submitted.append(request.key)
        return submit(self, request)

    monkeypatch.setattr(Answers, "save", stops)
    with pytest.raises(KeyboardInterrupt):
        record(target, drafter, PROMPTS, tmp_path / "b.parquet", **options)
    monkeypatch.setattr(Answers, "save", right)
    monkeypatch.setattr(Engine, "submit", watched)
    resumed = record(target, drafter, PROMPTS, tmp_path / "b.parquet", **options)
    kept = {output.request.key for output in saved}
    assert kept.isdisjoint(submitted)
    assert len(kept) + len(submitted) == len(PROMPTS) == len(np.unique(resumed.request))
    for number, key in enumerate(sorted([*kept, *submitted])):
        for output in (output for output in saved if output.request.key == key):
            of_request = resumed.request == number
            assert resumed.accepted[of_request].tolist() == [r.accepted for r in output.rounds]
            assert resumed.position[of_request].tolist() == [r.position for r in output.rounds]
    assert not (tmp_path / "b.parquet.parts").exists()


def test_an_evaluation_resumes_at_the_request(tmp_path, monkeypatch):
    target = make_target()
    drafter = make_draft(target)
    options = {"temperature": 1.0, "max_tokens": 6, "max_batch": 1}
    whole = evaluate(target, drafter, PROMPTS, **options)
    parts, told, right = tmp_path / "eval.parts", [], Answers.save

    def stops(self, output):
        if output.request.key == 1:
            raise KeyboardInterrupt
        right(self, output)

    monkeypatch.setattr(Answers, "save", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate(target, drafter, PROMPTS, parts=parts, **options)
    assert [path.name for path in sorted(parts.iterdir())] == ["answer-0000000.json", "settings.json"]
    monkeypatch.setattr(Answers, "save", right)
    with pytest.raises(SpecschedError, match=r"other settings \(sampling\)"):
        evaluate(target, drafter, PROMPTS, parts=parts, **(options | {"temperature": 0.5}))
    resumed = evaluate(
        target, drafter, PROMPTS, parts=parts, **options, progress=lambda *counts: told.append(counts)
    )
    assert resumed == whole
    assert told == [(n, len(PROMPTS)) for n in range(2, len(PROMPTS) + 1)]
    assert not parts.exists()


def test_a_kept_answer_without_its_rounds_is_refused(tmp_path, monkeypatch):
    target = make_target()
    drafter = make_draft(target)
    parts = tmp_path / "eval.parts"
    options = {"temperature": 1.0, "max_tokens": 6, "max_batch": 1, "parts": parts}
    monkeypatch.setattr(PartsFolder, "remove", lambda self: None)
    evaluate(target, drafter, PROMPTS, **options)
    path = parts / "answer-0000000.json"
    answer = json.loads(path.read_text())
    assert answer["rounds"]
    path.write_text(json.dumps(answer | {"rounds": []}))
    with pytest.raises(SpecschedError, match=r"answer-0000000\.json"):
        evaluate(target, drafter, PROMPTS, **options)


@pytest.mark.parametrize(
    ("policy", "drafts"),
    [
        ("off", False),
        ("fixed", True),
        ("threshold:0.5", True),
        (schedule.BatchTable([[1, 2, 2], [3, None, 0]]), None),
        (schedule.BatchTable([[1, None, 2]]), True),
        ("bypass", None),
    ],
)
def test_an_engine_says_whether_its_steps_draft(policy, drafts):
    target = make_target()
    costs = load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    engine = Engine(target, make_draft(target), policy, max_batch=4, capacity=32, profile=costs)
    assert engine.drafts is drafts


@pytest.mark.parametrize(
    "text", ['{"output_ids": [1], "rounds": [{"position": -1}]}', '{"output_ids": 3}', "{"]
)
def test_a_damaged_answer_is_named(tmp_path, text):
    (tmp_path / "answer-0000000.json").write_text(text)
    with pytest.raises(SpecschedError, match=r"answer-0000000\.json"):
        Answers(tmp_path, vocabulary=9, ends=(), block_size=2, drafts=True).load(Request((1, 2), 4))
