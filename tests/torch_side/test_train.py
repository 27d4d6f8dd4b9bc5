"""Training: losses against an oracle written from equations 9 to 12, resuming to the bit, a short run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from specsched.errors import SpecschedError  # noqa: E402
from specsched.torch_side.drafter.config import KINDS, DrafterConfig  # noqa: E402
from specsched.torch_side.drafter.dspark import load_drafter, make_drafter  # noqa: E402
from specsched.torch_side.target.config import TargetConfig  # noqa: E402
from specsched.torch_side.target.decoder import Target  # noqa: E402
from specsched.torch_side.training.confidence import evaluate, observe  # noqa: E402
from specsched.torch_side.training.losses import LossWeights, TargetLaw, head_loss, position_weights  # noqa: E402
from specsched.torch_side.training.start import draft_vocabulary, start_from_target, warm_start  # noqa: E402
from specsched.torch_side.training.text import TrainingText, cache_shard  # noqa: E402
from specsched.torch_side.training.trainer import Trainer, TrainSettings, train  # noqa: E402

V, D, G = 31, 16, 4


def _naive(logits, p_t, label, weight, terms):
    """Equations 9, 10 and 12 position by position, in float64, with the whole vocabulary."""
    p_d = torch.softmax(logits.double(), -1)
    total_ce = total_l1 = total_soft = 0.0
    accept = []
    for i in range(len(logits)):
        total_ce = total_ce - weight[i] * torch.log(p_d[i, label[i]])
        distance = sum(abs(p_d[i, v] - p_t[i, v]) for v in range(logits.shape[1]))
        total_l1 = total_l1 + weight[i] * distance
        total_soft = total_soft - weight[i] * (p_t[i] * torch.log(p_d[i])).sum()
        accept.append(float(torch.minimum(p_d[i], p_t[i]).sum().detach()))
    loss = (terms.ce * total_ce + terms.l1 * total_l1 + terms.soft_ce * total_soft) / weight.sum()
    return loss, torch.tensor(accept)


@pytest.mark.parametrize("terms", [LossWeights(), LossWeights(1, 0), LossWeights(0, 0, 1, 1.0)])
@pytest.mark.parametrize("kind", ["whole", "all-tokens-on-top"])
def test_losses_equal_the_naive_oracle(terms, kind):
    torch.manual_seed(0)
    n, r = 6, 3
    hidden, latent = torch.randn(n, D, requires_grad=True), torch.randn(n, r, requires_grad=True)
    head, w2 = torch.randn(V, D), torch.randn(V, r, requires_grad=True)
    target_hidden, target_head = torch.randn(n, D), 0.5 * torch.randn(V, D)
    p_t = torch.softmax(target_hidden @ target_head.T, -1)
    label = torch.randint(0, V, (n,))
    weight = position_weights(3, 4.0).repeat(2)
    weight[4] = 0
    if kind == "whole":
        law = TargetLaw(label, hidden=target_hidden, head=target_head)
    else:
        top = p_t.topk(V)
        law = TargetLaw(label, top.indices, top.values)
    result = head_loss(hidden, latent, head, w2, law, weight, terms)
    oracle, accept = _naive(hidden @ head.T + latent @ w2.T, p_t.double(), label, weight.double(), terms)
    torch.testing.assert_close(result.loss.double(), oracle, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.accept, accept, atol=1e-5, rtol=1e-5)
    ours = torch.autograd.grad(result.loss, (hidden, latent, w2))
    theirs = torch.autograd.grad(oracle, (hidden, latent, w2))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_top_tokens_bound_the_total_variation_from_below():
    """The stated error: 0 <= exact L1/2 - approximate L1/2 <= remainder."""
    torch.manual_seed(1)
    hidden, head, target_hidden = torch.randn(40, D), torch.randn(V, D), torch.randn(40, D)
    p_t = torch.softmax(target_hidden @ head.T, -1)
    label = torch.zeros(40, dtype=torch.int64)
    exact = head_loss(
        hidden,
        None,
        head,
        None,
        TargetLaw(label, hidden=target_hidden, head=head),
        torch.ones(40),
        LossWeights(),
    )
    top = p_t.topk(5)
    near = head_loss(
        hidden, None, head, None, TargetLaw(label, top.indices, top.values), torch.ones(40), LossWeights()
    )
    short = near.accept - exact.accept
    assert float(short.min()) > -1e-5
    assert bool((short <= near.remainder + 1e-5).all())
    torch.testing.assert_close(near.remainder, 1 - top.values.sum(-1))
    assert float(short.max()) > 1e-3  # the bound is not vacuous here


def test_a_reduced_vocabulary_counts_the_mass_it_cannot_propose():
    torch.manual_seed(2)
    ids = torch.arange(0, V, 2)
    hidden, head, target_hidden = torch.randn(8, D), torch.randn(V, D), torch.randn(8, D)
    p_t = torch.softmax(target_hidden @ head.T, -1)
    p_d = torch.zeros(8, V)
    p_d[:, ids] = torch.softmax(hidden @ head[ids].T, -1)
    accept = torch.minimum(p_d, p_t).sum(-1)
    row_of = torch.full((V,), -1)
    row_of[ids] = torch.arange(len(ids))
    label = row_of[torch.arange(8)]
    whole = TargetLaw(label, hidden=target_hidden, head=head, draft_ids=ids)
    top = p_t.topk(V)
    listed = TargetLaw(label, row_of[top.indices], top.values)
    for law in (whole, listed):
        result = head_loss(hidden, None, head[ids], None, law, torch.ones(8), LossWeights())
        torch.testing.assert_close(result.accept, accept, atol=1e-5, rtol=1e-5)
        assert (result.ce[label < 0] == 0).all()


def test_position_weights():
    w = position_weights(7, 4.0)
    assert float(w[0]) == 1
    assert float(w[6]) == pytest.approx(math.exp(-6 / 4))
    assert position_weights(3, None).tolist() == [1, 1, 1]


# --- a small world: a random target, its own greedy-ish text, a drafter -------------------------------------


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(3)
    target = Target(TargetConfig(V, D, 3, 4, 2, 4, 24)).eval().requires_grad_(False)
    for p in target.parameters():
        p.mul_(3)  # sharper laws: something to learn
    return target


@pytest.fixture(scope="module")
def folders(target, tmp_path_factory):
    rng = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("text")
    found = []
    for shard in range(2):
        rows = []
        for i in range(12):
            ids = rng.integers(0, V, 4).tolist()
            size = int(rng.integers(6, 20))
            while len(ids) < 4 + size:
                hidden, _ = target.parallel(torch.tensor([ids]))
                law = torch.softmax(target.logits(hidden[0, -1]), -1).double().numpy()
                ids.append(int(rng.choice(V, p=law / law.sum())))
            rows.append((np.array(ids[:4]), np.array(ids[4:]), ("math", "code")[i % 2]))
        cache_shard(target, rows, root / f"shard{shard}", (0, 1), top=8)
        found.append(root / f"shard{shard}")
    return found


def _config(**changes):
    return DrafterConfig("dspark", V, D, 24, 1, 4, 2, 4, G, (0, 1), 1, 4, "vanilla", True, True).replace(
        **changes
    )


def _trainer(target, folders, config=None, **settings):
    text = TrainingText(folders, G, held_out=0.3)
    drafter = make_drafter(config or _config(), target)
    settings = {"texts": 3, "anchors": 4, "warmup": 2, "steps": 30, "learning_rate": 3e-3} | settings
    return Trainer(drafter, target, text, TrainSettings(reduced_precision=False, **settings))


def test_text_batches_point_at_the_right_tokens(target, folders):
    text = TrainingText(folders, G, held_out=0.3)
    pool = text.of(False)
    assert {t.held_out for t in text.texts} == {True, False}
    texts, anchors = text.pick(pool, 0, 5, 3, 4)
    batch, inside = text.batch(texts, anchors)
    law = text.law(texts, anchors, target)
    windows = batch.windows(G + 1)
    for row, t in enumerate(texts):
        ids = torch.tensor(text.shards[t.shard]["tokens"][t.start : t.stop].astype(np.int64))
        assert all(t.prompt <= a < len(ids) - 1 for a in anchors[row].tolist())
        hidden, features = target.parallel(ids[None], (0, 1))
        for j, a in enumerate(anchors[row].tolist()):
            n = row * anchors.shape[1] + j
            assert inside[n].tolist() == [a + k < len(ids) for k in range(1, G + 1)]
            for k in range(G):
                if inside[n, k]:
                    assert int(windows[n, k + 1]) == int(ids[a + k + 1]) == int(law.label[n * G + k])
                    torch.testing.assert_close(law.hidden[n * G + k], hidden[0, a + k], atol=2e-2, rtol=1e-2)
        length = batch.features.shape[1]
        seen = batch.features[row, : min(length, len(ids))] * text.scale
        torch.testing.assert_close(seen, features[0, :length], atol=2e-2, rtol=1e-2)


def test_confidence_labels_are_one_minus_tv(target, folders):
    trainer = _trainer(target, folders, whole_law=True)
    _, result, _ = trainer.losses(0)
    texts, anchors = trainer.text.pick(trainer.pool, 0, 0, 3, 4)
    law = trainer.text.law(texts, anchors, target)
    batch, _ = trainer.text.batch(texts, anchors)
    out = trainer.drafter.teacher(batch)
    logits = trainer.drafter.base_logits(out.hidden) + trainer.drafter.markov_head.markov_w2(out.latent)
    p_d = torch.softmax(logits.flatten(0, 1), -1)
    p_t = torch.softmax(target.logits(law.hidden), -1)
    torch.testing.assert_close(result.accept, 1 - (p_d - p_t).abs().sum(-1) / 2, atol=1e-5, rtol=1e-5)
    # ... and the mean of min(1, p_d(y) / p_t(y)) over y from the target is the same number (what a trace
    # records).
    ratio = (p_t * (p_d / p_t).clamp(max=1)).sum(-1)
    torch.testing.assert_close(ratio, result.accept, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["rnn", *KINDS.values()])
def test_loss_falls(target, folders, kind):
    config = _config()
    if kind == "rnn":
        config = _config(markov_head_type="rnn")
    elif kind != "dspark":
        config = _config(
            kind=kind, markov_rank=0, markov_head_type="none", enable_confidence_head=False,
            confidence_head_with_markov=False
        )  # fmt: skip
    trainer = _trainer(target, folders, config, steps=60, whole_law=True)
    first = sum(trainer.losses(i)[0].item() for i in range(100, 105))
    while trainer.done < 60:
        trainer.step()
    assert sum(trainer.losses(i)[0].item() for i in range(100, 105)) < 0.97 * first


def test_resuming_is_bit_equal(target, folders, tmp_path):
    straight = _trainer(target, folders)
    for _ in range(10):
        straight.step()
    stopped = _trainer(target, folders)
    for _ in range(4):
        stopped.step()
    stopped.save(tmp_path / "checkpoint.pt")
    resumed = _trainer(target, folders)
    resumed.load(tmp_path / "checkpoint.pt")
    assert resumed.done == 4
    for _ in range(6):
        resumed.step()
    for name, value in straight.drafter.own_state().items():
        assert torch.equal(resumed.drafter.own_state()[name], value), name
    other = _trainer(target, folders, seed=1)
    with pytest.raises(SpecschedError, match="other settings"):
        other.load(tmp_path / "checkpoint.pt")


def test_warm_start_keeps_the_function(target, folders, tmp_path):
    """Weights of another run, with another conditioning and another draft vocabulary, draft the same laws."""
    first = _trainer(target, folders)
    for _ in range(5):
        first.step()
    first.save(tmp_path / "checkpoint.pt")
    second = _trainer(target, folders, seed=7)
    second.text.scale = second.text.scale * torch.linspace(0.5, 2, len(second.text.scale))
    warm_start(second.drafter, second.text.scale, tmp_path / "checkpoint.pt")
    a = evaluate(first.drafter, target, first.text, first.text.of(True))
    b = evaluate(second.drafter, target, second.text, second.text.of(True))
    assert a["all"]["tau"] == pytest.approx(b["all"]["tau"], abs=2e-4)
    ids = torch.arange(0, V, 2)
    text = TrainingText(folders, G, held_out=0.3)
    text.restrict(ids, V)
    reduced = make_drafter(_config(draft_vocab_size=len(ids)), target, ids)
    third = Trainer(reduced, target, text, TrainSettings(reduced_precision=False))
    warm_start(third.drafter, third.text.scale, tmp_path / "checkpoint.pt")
    assert torch.equal(reduced.markov_w2, first.drafter.markov_w2[ids])
    other = _trainer(target, folders, _config(intermediate_size=32))
    with pytest.raises(SpecschedError, match="does not fit"):
        warm_start(other.drafter, other.text.scale, tmp_path / "checkpoint.pt")


def test_a_start_from_the_target_passes_its_last_feature_on(target, folders):
    trainer = _trainer(target, folders)
    drafter = trainer.drafter
    start_from_target(drafter, target, trainer.text.scale)
    assert torch.equal(drafter.layers[0].mlp.up_proj.weight, target.layers[-1].mlp.up_proj.weight)
    raw = drafter.fc.weight[:, -D:] / trainer.text.scale[-D:]
    assert float((raw - torch.eye(D)).abs().max().detach()) < 0.5


def _shards(folder: Path, count=2):
    from specsched.torch_side.engine.prompts import Prompt
    from specsched.torch_side.training.sample import write_shard

    rng = np.random.default_rng(1)
    for i in range(count):
        rows = []
        for j in range(16):
            start = rng.integers(0, V)
            response = [(int(start) + 3 * k) % V for k in range(14)]
            rows.append(
                (rng.integers(0, V, 3).tolist(), response, Prompt(("x",), ("math", "chat")[j % 2], "made up"))
            )
        write_shard(folder / f"shard-{i}.npz", rows)
    return sorted(folder.glob("*.npz"))


def test_train_end_to_end(target, tmp_path):
    """From shards to a folder that loads and drafts what the trained weights drafted."""
    losses = []
    settings = TrainSettings(
        steps=40, texts=4, anchors=4, warmup=4, learning_rate=4e-3, reduced_precision=False
    )
    report = train(
        target, _shards(tmp_path), tmp_path / "out", _config(), settings,
        draft_vocab_size=24, held_out=0.3, progress=False, on_step=lambda trainer, loss: losses.append(loss),
    )  # fmt: skip
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    drafter = load_drafter(tmp_path / "out", target)
    assert drafter.config.draft_vocab_size == 24
    text = TrainingText([tmp_path / "out/text/shard-0", tmp_path / "out/text/shard-1"], G, held_out=0.3)
    text.restrict(drafter.draft_ids, V)
    text.scale = torch.ones_like(text.scale)  # the saved drafter takes raw features
    again = evaluate(drafter, target, text, text.of(True))
    assert again["all"]["anchors"] == report["all"]["anchors"]
    assert again["all"]["tau"] == pytest.approx(
        report["all"]["tau"], abs=0.02
    )  # weights were rounded to bfloat16
    seen = observe(drafter, target, text, text.of(True))
    assert bool(((seen.accept >= 0) & (seen.accept <= 1 + 1e-6)).all())


def test_draft_vocabulary_keeps_the_likeliest(target, folders):
    text = TrainingText(folders, G)
    mass = text.token_mass(V)
    ids, share = draft_vocabulary(text, V, 10)
    assert ids.tolist() == sorted(np.argsort(-mass, kind="stable")[:10].tolist())
    assert share == pytest.approx(mass[ids].sum() / mass.sum())
    assert draft_vocabulary(text, V, None) == (None, 1.0)


def test_errors(target, folders, tmp_path):
    with pytest.raises(SpecschedError, match="no text shards"):
        train(target, [], tmp_path, _config())
    (tmp_path / "checkpoint.pt").write_bytes(b"broken")
    with pytest.raises(SpecschedError, match="checkpoint"):
        _trainer(target, folders).load(tmp_path / "checkpoint.pt")
    with pytest.raises(SpecschedError, match="other text"):
        cache_shard(target, [(np.array([1]), np.array([2]), "math")], folders[0], (0, 1), top=8)
