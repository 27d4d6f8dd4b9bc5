"""The drafters against the official DeepSpec implementation's outputs (golden/), and against themselves.

Golden laws: hidden states, base logits, draft logits and confidence logits within 1e-4 for the three heads;
greedy decoding identical round by round.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from specsched.errors import FormatError, SpecschedError  # noqa: E402
from specsched.files.disk import bundled_dir  # noqa: E402
from specsched.torch_side.drafter.base import TeacherBatch  # noqa: E402
from specsched.torch_side.drafter.config import KINDS as NAMES  # noqa: E402
from specsched.torch_side.drafter.config import DrafterConfig  # noqa: E402
from specsched.torch_side.drafter.dspark import load_drafter, make_drafter, save_drafter  # noqa: E402
from specsched.torch_side.target.config import TargetConfig  # noqa: E402
from specsched.torch_side.target.decoder import Target  # noqa: E402
from specsched.torch_side.target.weights import load_target  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
HEADS = ("vanilla", "gated", "rnn")
V, D = 23, 16


@pytest.fixture(scope="module", params=HEADS)
def golden(request):
    folder = GOLDEN / f"qwen3_{request.param}"
    target = load_target(folder / "target")
    drafter = load_drafter(folder / "drafter", target)
    with np.load(folder / "case.npz") as case:
        return target, drafter, {k: torch.from_numpy(case[k]) for k in case.files}


def _close(a, b):
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_golden_features_and_block(golden):
    target, drafter, case = golden
    n = case["prompt_ids"].shape[1]
    cache = target.new_cache(1, 64)
    where = torch.arange(n)
    _, features = target(
        case["prompt_ids"][0], torch.zeros(n, dtype=torch.int64), where, cache, drafter.target_layer_ids
    )
    _close(features, case["target_hidden"][0])

    context = drafter.context_keys(case["target_hidden"], where[None])
    anchor = case["anchor"]
    hidden = drafter.block_hidden(anchor, torch.tensor([[n]]), context, torch.ones(1, 1, n, dtype=torch.bool))
    _close(hidden[:, 0], case["block_hidden"])
    _close(drafter.base_logits(hidden[:, 0]), case["base_logits"])


def test_golden_draft(golden):
    _, drafter, case = golden
    n = case["prompt_ids"].shape[1]
    context = drafter.new_context(slots=1, capacity=4)  # grows
    context.observe(torch.zeros(n, dtype=torch.int64), torch.arange(n), case["target_hidden"][0])
    block = drafter.draft(case["anchor"][0], torch.tensor([n]), context, temperature=0)
    assert block.tokens.tolist() == case["draft_tokens"].tolist()
    _close(block.logits, case["draft_logits"])
    _close(block.confidence_logit, case["confidence_logits"])
    assert torch.equal(block.probabilities.argmax(-1), block.tokens)


def test_golden_greedy_decode_round_by_round(golden):
    target, drafter, case = golden
    layers, slot = drafter.target_layer_ids, 0
    cache, context = target.new_cache(1, 128), drafter.new_context(1)

    def forward(tokens, start):
        where = torch.arange(start, start + len(tokens))
        here = torch.full_like(where, slot)
        cache.lengths[slot] = start
        hidden, features = target(tokens, here, where, cache, layers)
        return target.logits(hidden).argmax(-1), features, where, here

    text = case["prompt_ids"][0].tolist()
    best, features, where, here = forward(torch.tensor(text), 0)
    context.observe(here, where, features)
    text.append(int(best[-1]))
    for start, tokens, confidence, accepted in zip(
        case["round_start"],
        case["round_tokens"],
        case["round_confidence_logits"],
        case["round_accepted"],
        strict=True,
    ):
        assert len(text) - 1 == int(start)
        block = drafter.draft(torch.tensor(text[-1:]), torch.tensor([len(text) - 1]), context, temperature=0)
        drafted = torch.cat([torch.tensor(text[-1:]), block.tokens[0]])
        assert drafted.tolist() == tokens.tolist()
        _close(block.confidence_logit[0], confidence)
        best, features, where, here = forward(drafted, len(text) - 1)
        n = int((best[:-1] == drafted[1:]).int().cumprod(0).sum())
        assert n == int(accepted)
        context.observe(here[: n + 1], where[: n + 1], features[: n + 1])
        text += [*drafted[1 : n + 1].tolist(), int(best[n])]
    assert text[: case["greedy_output_ids"].shape[1]] == case["greedy_output_ids"][0].tolist()


# --- our own laws, on small random drafters -----------------------------------------------------------------


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    return Target(TargetConfig(V, D, 3, 4, 2, 4, 24)).eval().requires_grad_(False)


def _drafter(target, kind="dspark", head="vanilla", **changes):
    rank = 0 if head == "none" else 5
    spark = kind == "dspark"
    config = DrafterConfig(
        kind=kind, vocab_size=V, hidden_size=D, intermediate_size=20, num_hidden_layers=1 if kind == "eagle3"
        else 2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, block_size=4, target_layer_ids=(0, 1),
        mask_token_id=3, markov_rank=rank if spark else 0, markov_head_type=head if spark else "none",
        enable_confidence_head=spark, confidence_head_with_markov=spark and head != "none",
    ).replace(**changes)  # fmt: skip
    ids = None if config.draft_vocab_size is None else torch.arange(0, V, 2)[: config.draft_vocab_size]
    drafter = make_drafter(config, target, ids)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in drafter.own_parameters():
            p.add_(0.3 * torch.randn_like(p))
    return drafter


# Kinds without heads are all those of the config: a new one joins by itself.
KINDS = [("dspark", h) for h in ("none", *HEADS)] + [(k, "none") for k in NAMES.values() if k != "dspark"]


def _text(target, drafter, n=12, texts=2):
    torch.manual_seed(2)
    tokens = torch.randint(0, V, (texts, n + drafter.block_size))
    _, features = target.parallel(tokens[:, :n], drafter.target_layer_ids)
    return tokens, features


def _filled(drafter, tokens, features):
    context = drafter.new_context(len(tokens), 3)
    n = features.shape[1]
    for slot in range(len(tokens)):
        # In two calls and beyond the anchors: a later feature must not be seen by an earlier anchor.
        for part in (slice(0, n // 2), slice(n // 2, n)):
            where = torch.arange(n)[part]
            context.observe(torch.full_like(where, slot), where, features[slot, part], tokens[slot, part])
    return context


@pytest.mark.parametrize(("kind", "head"), KINDS)
def test_drafting_equals_teacher_forcing(target, kind, head):
    """The batch drawn token by token sees exactly what the training pass sees when the tokens are the
    text's.
    """
    drafter = _drafter(target, kind, head)
    tokens, features = _text(target, drafter)
    anchors = torch.tensor([[3, 9, 5], [1, 7, 11]])
    teacher = drafter.teacher(TeacherBatch(tokens, features, anchors))
    logits = drafter.base_logits(teacher.hidden)
    if teacher.latent is not None:
        logits = logits + drafter.markov_head.markov_w2(teacher.latent)
    context = _filled(drafter, tokens, features)
    slots = torch.tensor([0, 0, 0, 1, 1, 1])
    flat = anchors.flatten()
    block = drafter.draft(
        tokens[slots, flat], flat, context, sampler=lambda k, p: tokens[slots, flat + 1 + k], slots=slots
    )
    torch.testing.assert_close(block.logits, logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(block.probabilities.sum(-1), torch.ones(6, 4))
    if kind == "dspark":
        confidence = drafter.confidence_head(teacher.hidden, teacher.embedded)
        torch.testing.assert_close(block.confidence_logit, confidence, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "head"), KINDS)
def test_one_row_at_a_time_is_the_same(target, kind, head):
    drafter = _drafter(target, kind, head)
    tokens, features = _text(target, drafter)
    context = _filled(drafter, tokens, features)
    slots, flat = torch.tensor([1, 0, 1]), torch.tensor([4, 8, 6])
    together = drafter.draft(tokens[slots, flat], flat, context, temperature=0, slots=slots)
    for r in range(3):
        alone = drafter.draft(
            tokens[slots, flat][r : r + 1], flat[r : r + 1], context, 0, slots=slots[r : r + 1]
        )
        torch.testing.assert_close(alone.logits[0], together.logits[r], atol=1e-5, rtol=1e-5)
        assert alone.tokens[0].tolist() == together.tokens[r].tolist()


@pytest.mark.parametrize(("kind", "head"), KINDS)
def test_confidence_never_sees_its_own_token(target, kind, head):
    """The losslessness hypothesis: changing the tokens drawn from k on leaves confidences up to k
    unchanged.
    """
    drafter = _drafter(target, kind, head)
    tokens, features = _text(target, drafter)
    context = _filled(drafter, tokens, features)
    flat = torch.tensor([6, 6])
    plan = torch.tensor([[1, 2, 4, 5], [1, 2, 9, 17]])
    block = drafter.draft(
        tokens[:1, 6].repeat(2), flat, context, sampler=lambda k, p: plan[:, k], slots=flat * 0
    )
    torch.testing.assert_close(block.confidence_logit[0, :3], block.confidence_logit[1, :3])
    if head != "none" or kind == "eagle3":
        assert not torch.equal(block.confidence_logit[0, 3], block.confidence_logit[1, 3])


def test_reduced_vocabulary_has_no_mass_elsewhere(target):
    drafter = _drafter(target, draft_vocab_size=7)
    tokens, features = _text(target, drafter)
    context = _filled(drafter, tokens, features)
    rows = torch.tensor([0, 1])
    block = drafter.draft(
        tokens[rows, 8], torch.tensor([8, 8]), context, generator=torch.Generator().manual_seed(0)
    )
    assert block.probabilities.shape == (2, 4, V)
    assert block.logits.shape == (2, 4, 7)
    outside = torch.ones(V, dtype=torch.bool)
    outside[drafter.draft_ids] = False
    assert float(block.probabilities[..., outside].sum()) == 0
    assert not bool(outside[block.tokens].any())


@pytest.mark.parametrize(("kind", "head"), KINDS)
@pytest.mark.parametrize("reduced", [None, 7])
def test_files_round_trip(target, tmp_path, kind, head, reduced):
    drafter = _drafter(target, kind, head, draft_vocab_size=reduced)
    save_drafter(drafter, tmp_path / "d", dtype=torch.float32, notes={"text": "random"})
    again = load_drafter(tmp_path / "d", target)
    assert again.config == drafter.config.replace(shared_embeddings=True)
    for name, value in drafter.own_state().items():
        assert torch.equal(again.own_state()[name], value)
    if reduced is None:
        save_drafter(drafter, tmp_path / "whole", dtype=torch.float32, share_embeddings=False)
        assert torch.equal(load_drafter(tmp_path / "whole", target).head_weight, drafter.head_weight)


def test_a_shorter_block_is_the_beginning_of_nothing_else(target, tmp_path):
    drafter = _drafter(target, "eagle3")
    save_drafter(drafter, tmp_path, dtype=torch.float32)
    short = load_drafter(tmp_path, target, block_size=2)
    tokens, features = _text(target, drafter)
    rows, at = torch.tensor([0, 1]), torch.tensor([8, 8])
    long = drafter.draft(tokens[rows, 8], at, _filled(drafter, tokens, features), 0)
    block = short.draft(tokens[rows, 8], at, _filled(short, tokens, features), 0)
    assert torch.equal(block.tokens, long.tokens[:, :2])


def test_bundled_models_load_and_fit_in_forty_megabytes():
    folder = bundled_dir("models")
    files = [f for f in folder.rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) <= 40e6
    tiny = load_target("tiny")
    names = sorted(f.parent.name for f in files if f.name == "config.json" and "target" not in f.parent.name)
    assert "smollm2-dspark" in names
    for name in names:
        if name.startswith("tiny-"):
            drafter = load_drafter(name, tiny)
            assert drafter.config.num_target_layers == tiny.config.num_hidden_layers
        else:
            config = DrafterConfig.from_dict(json.loads((folder / name / "config.json").read_text()))
            assert (config.block_size, config.vocab_size) == (7, 49152)


def test_errors_name_the_problem(target, tmp_path):
    drafter = _drafter(target)
    context = drafter.new_context(2)
    one = torch.tensor([1])
    with pytest.raises(SpecschedError, match="observe"):
        drafter.draft(one, torch.tensor([4]), context)
    with pytest.raises(SpecschedError, match="missing positions"):
        context.observe(one, torch.tensor([2]), torch.zeros(1, 2 * D))
    save_drafter(drafter, tmp_path)
    save_drafter(_drafter(target, num_target_layers=3), tmp_path / "deep")
    with pytest.raises(FormatError, match="trained on a target of 3 layers"):
        load_drafter(tmp_path / "deep", Target(TargetConfig(V, D, 9, 4, 2, 4, 24)))
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"markov_rank": 5', '"markov_rank": 6'))
    with pytest.raises(FormatError, match="markov"):
        load_drafter(tmp_path, target)
    with pytest.raises(FormatError, match="bundled models"):
        load_drafter("no-such-drafter", target)
    with pytest.raises(FormatError, match="architecture"):
        DrafterConfig.from_dict({"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(FormatError, match="is missing"):
        DrafterConfig.from_dict({"architectures": ["Qwen3DSparkModel"], "target_layer_ids": [0]})
