"""Sample responses from a target: the text a drafter learns from.

`specsched drafter sample` makes shards from a user's own prompts, `scripts/models/sample.py` those of the
bundled drafters.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...errors import SpecschedError
from ...files.archive import check_archive
from ...files.output import atomic_write, damaged
from ..engine.prompts import Prompt
from ..engine.sampling import TARGET, Sampling, draw, uniforms
from ..target.cache import KVCache
from ..target.decoder import Target

Asked = TypeVar("Asked")
Keep = Callable[[list[int], Tensor, Tensor, Tensor], None]
"""(whose tokens: int per row, positions int64[B], hidden [B, d], features [B, F]) of every target forward."""


@torch.no_grad()
def sample_responses(
    target: Target,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
    *,
    keys: Sequence[int] | None = None,
    lookahead: int = 0,
    feature_layers: tuple[int, ...] = (),
    keep: Keep | None = None,
    sampling: Sampling | None = None,
) -> list[list[int]]:
    """One response (ids, the stop token included) for each prompt, all decoded side by side.

    Response i draws the uniforms of request `keys[i]` (default i), so its text depends on its neighbours
    only through rounding. `lookahead` more tokens are sampled after the end (what a verify pass past the
    end would see).
    `keep` sees every forward's outputs, prompts included. `sampling` replaces `temperature`.
    """
    sampling = sampling or Sampling(temperature)
    if not prompts or min(map(len, prompts)) == 0:
        raise SpecschedError("sampling needs at least one prompt and no empty ones")
    n, stop = len(prompts), set(target.config.eos_token_ids)
    names = np.arange(n) if keys is None else np.array(keys, dtype=np.int64)
    cache = target.new_cache(n, max(map(len, prompts)) + max_tokens + lookahead)
    hidden = prefill(target, prompts, cache, feature_layers, keep)
    out: list[list[int]] = [[] for _ in prompts]
    left = [max_tokens + lookahead] * n
    ended = [False] * n
    owner = list(range(n))  # owner[slot]: whose response the slot holds; slots stay 0..m-1 without holes
    step = 0
    while True:
        u = uniforms(seed, TARGET, names[owner], np.full(len(owner), step), 1)[:, 0]
        tokens = draw(sampling.target_law(target.precise_logits(hidden)), u.to(target.device)).cpu()
        for slot, token in enumerate(tokens.tolist()):
            who = owner[slot]
            out[who].append(token)
            left[who] -= 1
            if token in stop and not ended[who] and step < max_tokens:
                ended[who], left[who] = True, lookahead
        for slot in reversed(range(len(owner))):
            if left[owner[slot]] == 0:
                _move(cache, owner, tokens, len(owner) - 1, slot)
        if not owner:
            return out
        m = len(owner)
        position = cache.lengths[:m].clone()
        hidden, features = target(tokens[:m], torch.arange(m), position, cache, feature_layers)
        if keep is not None:
            keep(owner, position, hidden, features)
        step += 1


def _move(cache: KVCache, owner: list[int], tokens: Tensor, last: int, hole: int) -> None:
    """Fill the slot of a finished response with the last one: slots without holes are read without a copy."""
    if hole != last:
        for store in (*cache.keys, *cache.values):
            store[hole].copy_(store[last])
        cache.lengths[hole] = cache.lengths[last]
        tokens[hole], owner[hole] = tokens[last].clone(), owner[last]
    owner.pop()


@torch.no_grad()
def prefill(
    target: Target,
    prompts: Sequence[Sequence[int]],
    cache: KVCache,
    feature_layers: tuple[int, ...] = (),
    keep: Keep | None = None,
    chunk: int = 4096,
) -> Tensor:
    """Feed prompt i into slot i, about `chunk` tokens a pass. Returns the last hidden state of each, [n,
    d]."""
    last: list[Tensor] = []
    batch: list[int] = []
    for i in range(len(prompts)):
        batch.append(i)
        if sum(len(prompts[j]) for j in batch) < chunk and i < len(prompts) - 1:
            continue
        counts = torch.tensor([len(prompts[j]) for j in batch])
        tokens = torch.tensor([t for j in batch for t in prompts[j]])
        request = torch.tensor(batch).repeat_interleave(counts)
        position = torch.cat([torch.arange(len(prompts[j])) for j in batch])
        hidden, features = target(tokens, request, position, cache, feature_layers)
        if keep is not None:
            keep(request.tolist(), position, hidden, features)
        last.append(hidden[(counts.cumsum(0) - 1).to(hidden.device)])
        batch = []
    return torch.cat(last)


# --- shards -----------------------------------------------------------------------------------------------


def prompt_ids(
    target: Target, turns: Sequence[str], replies: Sequence[str] = (), thinking: bool | None = None
) -> list[int]:
    """Chat-formatted ids of a conversation (plain text where the tokenizer has no template); `thinking`: see
    `Tokenizer.chat`."""
    if target.tokenizer is None:
        raise SpecschedError(f"target {target.config.name!r} has no tokenizer; give prompts as ids")
    messages = []
    for i, turn in enumerate(turns):
        messages.append({"role": "user", "content": turn})
        if i < len(turns) - 1:
            messages.append({"role": "assistant", "content": replies[i]})
    if target.tokenizer.chat_template is None:
        return target.tokenizer.encode("\n".join(m["content"] for m in messages))
    return target.tokenizer.chat(messages, thinking)


def write_shard(path: Path, rows: list[tuple[list[int], list[int], Prompt]]) -> None:
    """Write (prompt ids, response ids, prompt) rows as one `.npz`, flat arrays with offsets, no pickles.

    prompt_ids, response_ids int32 flat; prompt_offsets, response_offsets int64[n + 1]; domain int8[n] into
    domain_names; source: names per row.
    """
    domains = list(dict.fromkeys(p.domain for _, _, p in rows))
    arrays: dict[str, Any] = {
        "domain": np.array([domains.index(p.domain) for _, _, p in rows], dtype=np.int8),
        "domain_names": np.array(domains),
        "source": np.array([p.source for _, _, p in rows]),
    }
    for name, lists in (("prompt", [p for p, _, _ in rows]), ("response", [r for _, r, _ in rows])):
        arrays[f"{name}_ids"] = np.array([t for ids in lists for t in ids], dtype=np.int32)
        arrays[f"{name}_offsets"] = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with atomic_write(path, "wb") as stream:
        stream.write(buffer.getvalue())


def read_shard(path: Path) -> list[tuple[np.ndarray, np.ndarray, str]]:
    """Rows of a shard: (prompt ids int32, response ids int32, domain)."""
    with damaged(path, SpecschedError, "delete it, and `specsched drafter sample` makes it again"):
        check_archive(path)
        with np.load(path) as z:
            p, r = z["prompt_offsets"], z["response_offsets"]
            prompts, responses = z["prompt_ids"], z["response_ids"]
            names = [str(z["domain_names"][d]) for d in z["domain"]]
        for offsets, ids in ((p, prompts), (r, responses)):
            whole = all(a.ndim == 1 and a.dtype.kind == "i" for a in (offsets, ids))
            if not whole or len(offsets) != len(names) + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
                raise ValueError("offsets and tokens that do not fit together")
            if (np.diff(offsets) < 0).any() or (ids < 0).any():
                raise ValueError("falling offsets, or tokens below 0")
    return [(prompts[p[i] : p[i + 1]], responses[r[i] : r[i + 1]], names[i]) for i in range(len(names))]


def shard_prompts(prompts: dict[str, list[Asked]], shard: int, per_domain: int) -> list[Asked]:
    """The prompts of one shard: `per_domain` of each domain, going round again when a domain runs out."""
    at = range(shard * per_domain, (shard + 1) * per_domain)
    return [asked[i % len(asked)] for asked in prompts.values() for i in at]


def write_shards(
    target: Target,
    prompts: dict[str, list[tuple[list[int], Prompt]]],
    folder: Path,
    numbers: Iterable[int],
    per_domain: int,
    *,
    max_tokens: int = 256,
    temperature: float = 1.0,
    seed: int = 0,
    told: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Sample the shards of these numbers that are not in `folder` yet; returns the paths of all of them.

    `prompts`: by domain, each as its ids and what it was. A shard depends on the prompts, the seed and its
    number alone, so an interrupted run resumes and several processes may share the work. `told` hears a line
    a shard.
    """
    paths = []
    for number in numbers:
        path = folder / f"shard-{number:04d}.npz"
        paths.append(path)
        if path.is_file():
            continue
        start = time.perf_counter()
        chosen = shard_prompts(prompts, number, per_domain)
        rows = [(ids, prompt, number * len(chosen) + i) for i, (ids, prompt) in enumerate(chosen)]
        rows.sort(key=lambda row: -len(row[0]))  # neighbours of about one length pad each other little
        answers = sample_responses(
            target, [row[0] for row in rows], max_tokens, temperature, seed, keys=[row[2] for row in rows]
        )
        folder.mkdir(parents=True, exist_ok=True)
        write_shard(path, [(row[0], answer, row[1]) for row, answer in zip(rows, answers, strict=True)])
        count, seconds = sum(map(len, answers)), time.perf_counter() - start
        told(f"{path.name}: {count} response tokens, {seconds:.0f} s, {count / seconds:.0f} tokens/s")
    return paths
