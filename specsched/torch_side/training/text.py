"""Training text with the target's view of it, computed once: features, last hidden states, likeliest next
tokens.

One folder per shard of sampled text (`sample.py`), arrays memory-mapped when read, so that any amount of text
trains in little memory and new shards join by being there:

    tokens [prompt | response] of text 0, then text 1, ...        int32[n]
    features float16[n, F], hidden float16[n, d]                   the target's, at each token
    top_ids int32[n, K], top_p float16[n, K]                       its next-token law, responses only

Texts are split by prompt, by a hash: `held_out` never reaches the backbone; the confidence head is fitted
there.
"""

from __future__ import annotations

import copy
import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import SpecschedError
from ...files.disk import read_json
from ...files.output import damaged, write_json
from ..drafter.base import TeacherBatch
from ..target.decoder import Target
from .losses import TargetLaw

SCHEMA = "specsched/drafter-text/1"


class Text(NamedTuple):
    """Where one text lies: tokens `start` to `stop` of shard `shard`, the response from `start + prompt`
    on.
    """

    shard: int
    start: int
    stop: int
    prompt: int
    domain: str
    held_out: bool

    @property
    def anchors(self) -> int:
        """Anchors it offers: every response token but the last, which has nothing after it."""
        return max(self.stop - self.start - self.prompt - 1, 0)


def cache_shard(
    target: Target,
    rows: Sequence[tuple[np.ndarray, np.ndarray, str]],
    folder: Path,
    layers: tuple[int, ...],
    top: int = 64,
    batch_tokens: int = 4096,
) -> None:
    """Run the target once over (prompt ids, response ids, domain) rows and write the folder; skipped when
    there.

    A bfloat16 target still gets float32 logits for the top tokens: they are what decides the labels.

    The metadata file is written last: a folder without it is unfinished and made again.
    """
    top = min(top, target.config.vocab_size)
    meta: dict[str, Any] = {
        "schema": SCHEMA,
        "target": target.config.name,
        "layers": list(layers),
        "top": top,
        "lengths": [[len(p), len(r)] for p, r, _ in rows],
        "domains": [d for _, _, d in rows],
    }
    if (folder / "meta.json").is_file():
        if read_json(folder / "meta.json", SpecschedError) != json.loads(json.dumps(meta)):
            raise SpecschedError(
                f"{folder / 'meta.json'}: made from other text, layers or target; delete {folder}, or give "
                "another cache folder"
            )
        return
    for there in folder.iterdir() if folder.is_dir() else ():
        if there.name not in ("tokens.npy", "features.npy", "hidden.npy", "top_ids.npy", "top_p.npy"):
            raise SpecschedError(f"{folder} holds {there.name!r}, not a cache of ours; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    n = sum(len(p) + len(r) for p, r, _ in rows)
    d, width = target.config.hidden_size, len(layers) * target.config.hidden_size
    shapes = {
        "features": (n, width, "f2"),
        "hidden": (n, d, "f2"),
        "top_ids": (n, top, "i4"),
        "top_p": (n, top, "f2"),
    }
    arrays = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=(a, b))
        for name, (a, b, dtype) in shapes.items()
    }
    texts = [np.concatenate([p, r]).astype(np.int32) for p, r, _ in rows]
    np.save(folder / "tokens.npy", np.concatenate(texts))
    starts = np.cumsum([0, *map(len, texts)])
    order = sorted(range(len(rows)), key=lambda i: len(texts[i]))
    head = target.lm_head.weight
    while order:
        longest = len(texts[order[-1]])
        batch = [order.pop() for _ in range(min(len(order), max(1, batch_tokens // longest)))]
        padded = torch.zeros(len(batch), longest, dtype=torch.int64)
        for row, i in enumerate(batch):
            padded[row, : len(texts[i])] = torch.from_numpy(texts[i].astype(np.int64))
        with torch.no_grad():
            hidden, features = target.parallel(padded, layers)
        for row, i in enumerate(batch):
            prompt, size, at = len(rows[i][0]), len(texts[i]), int(starts[i])
            arrays["features"][at : at + size] = features[row, :size].to("cpu", torch.float16).numpy()
            arrays["hidden"][at : at + size] = hidden[row, :size].to("cpu", torch.float16).numpy()
            ids, p = _top(hidden[row, max(prompt - 1, 0) : size], head, top)
            at += max(prompt - 1, 0)
            arrays["top_ids"][at : at + len(ids)] = ids.cpu().numpy()
            arrays["top_p"][at : at + len(ids)] = p.cpu().numpy()
    for array in arrays.values():
        array.flush()
    write_json(folder / "meta.json", meta, own=True)


@torch.no_grad()
def _top(hidden: Tensor, head: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` likeliest tokens of each row, hidden[n, d]: (ids int64[n, K], probabilities float32[n, K]).

    The product over the vocabulary runs in the head's dtype; the top logits are then computed again in
    float32.
    """
    z = F.linear(hidden, head).float()
    rough, ids = z.topk(top, sorted=False)
    exact = torch.bmm(head[ids].float(), hidden.float().unsqueeze(-1)).squeeze(-1)
    peak = rough.amax(-1, keepdim=True)
    rest = z.sub_(peak).exp_().sum(-1, keepdim=True) - (rough - peak).exp().sum(-1, keepdim=True)
    weight = (exact - peak).exp()
    return ids, weight / (weight.sum(-1, keepdim=True) + rest.clamp(min=0))


def build_cache(
    target: Target,
    shards: Sequence[Path],
    cache: Path,
    layers: tuple[int, ...],
    top: int = 64,
    dtype: torch.dtype | None = None,
) -> list[Path]:
    """Cache sampled-text shards (`sample.read_shard`), one folder each; returns the folders in order.

    `dtype` runs the target in another precision than its own (bfloat16 is several times faster on some
    machines).
    """
    from .sample import read_shard

    if (
        dtype is not None
        and dtype != target.dtype
        and not all((cache / s.stem / "meta.json").is_file() for s in shards)
    ):
        target = copy.deepcopy(target).to(dtype)
    folders = []
    for shard in shards:
        folders.append(cache / shard.stem)
        if not (folders[-1] / "meta.json").is_file():
            print(f"caching the target's view of {shard.name}", file=sys.stderr, flush=True)
        rows = read_shard(shard)
        _refuse_other_vocabulary(rows, target, shard)
        cache_shard(target, rows, folders[-1], layers, top)
    return folders


def _refuse_other_vocabulary(
    rows: Sequence[tuple[np.ndarray, np.ndarray, str]], target: Target, shard: Path
) -> None:
    most = max((int(ids.max()) for row in rows for ids in row[:2] if len(ids)), default=0)
    if most >= target.config.vocab_size:
        raise SpecschedError(
            f"{shard}: token id {most} is beyond the vocabulary of {target.config.vocab_size} of "
            f"{target.config.name}; sample the shards from this target"
        )


def _arrays(folder: Path, rows: int, vocab_size: int) -> dict[str, np.ndarray]:
    """The arrays of a cached shard, one row a token, mapped; SpecschedError where one is damaged."""
    arrays = {}
    for name, dtype in {
        "tokens": "i4",
        "features": "f2",
        "hidden": "f2",
        "top_ids": "i4",
        "top_p": "f2",
    }.items():
        path = folder / f"{name}.npy"
        with damaged(path, SpecschedError, f"delete {folder}, and it is made again"):
            array = np.load(path, mmap_mode="r")
            if (
                array.dtype != np.dtype(dtype)
                or array.ndim != (1 if name == "tokens" else 2)
                or len(array) != rows
            ):
                raise ValueError("an array of another shape")
            if dtype == "i4" and rows and not 0 <= int(array.min()) <= int(array.max()) < vocab_size:
                raise ValueError("tokens beyond the vocabulary")
            arrays[name] = array
    return arrays


class TrainingText:
    """Cached shards as one pool of texts. Batches depend on (seed, step) alone, so a resumed run repeats
    nothing.

    `scale` float32[F]: root mean square of each feature, for conditioning (folded into `fc` when saved).
    """

    def __init__(
        self,
        folders: Sequence[Path],
        block_size: int,
        held_out: float = 0.18,
        max_length: int = 1024,
        vocab_size: int = 2**31 - 1,
    ) -> None:
        if not folders:
            raise SpecschedError(
                "no cached text to train on; sample some first (specsched.torch_side.sample)"
            )
        self.block_size = block_size
        self.where = folders[0].parent
        self.texts: list[Text] = []
        self.shards = []
        for number, folder in enumerate(folders):
            meta = read_json(folder / "meta.json", SpecschedError)
            self.shards.append(_arrays(folder, sum(map(sum, meta["lengths"])), vocab_size))
            at = 0
            for (prompt, response), domain in zip(meta["lengths"], meta["domains"], strict=True):
                ids = np.asarray(self.shards[-1]["tokens"][at : at + prompt])
                out = zlib.crc32(ids.tobytes()) % 1000 < 1000 * held_out
                text = Text(number, at, at + min(prompt + response, max_length), prompt, domain, out)
                at += prompt + response
                if text.anchors > 0 and text.prompt > 0:
                    self.texts.append(text)
        self.texts.sort(key=lambda t: t.stop - t.start)
        self.draft_ids: Tensor | None = None
        self.row_of: Tensor | None = None
        self.scale = self._feature_scale()

    def restrict(self, draft_ids: Tensor, vocab_size: int) -> None:
        """Give labels and laws as rows of this draft vocabulary (int64[Vd]) from now on."""
        self.draft_ids = draft_ids
        self.row_of = torch.full((vocab_size,), -1, dtype=torch.int64)
        self.row_of[draft_ids] = torch.arange(len(draft_ids))

    def of(self, held_out: bool) -> list[Text]:
        """The texts of one side of the split, by rising length."""
        return [t for t in self.texts if t.held_out == held_out]

    def token_mass(self, vocab_size: int) -> np.ndarray:
        """Summed target probability of each token over the training side's top tokens: float64[V]."""
        mass = np.zeros(vocab_size)
        for t in self.of(held_out=False):
            part = slice(t.start + t.prompt - 1, t.stop - 1)
            shard = self.shards[t.shard]
            mass += np.bincount(
                np.asarray(shard["top_ids"][part]).ravel(),
                np.asarray(shard["top_p"][part], dtype=np.float64).ravel(),
                vocab_size,
            )
        return mass

    def pick(
        self, pool: Sequence[Text], seed: int, step: int, texts: int, anchors: int
    ) -> tuple[list[Text], Tensor]:
        """Draw `texts` texts of similar length from `pool` and `anchors` anchors in each: int64[texts,
        anchors].

        A text is drawn in proportion to the anchors it offers; anchors differ where there are enough of them.
        """
        rng = np.random.default_rng((seed, step))
        edges = np.cumsum([t.anchors for t in pool])
        first = int(np.searchsorted(edges, rng.integers(edges[-1]), side="right"))
        near = list(pool[max(0, first - 4 * texts) : first + 4 * texts])
        weight = np.array([t.anchors for t in near], dtype=np.float64)
        picked = rng.choice(len(near), min(texts, len(near)), replace=False, p=weight / weight.sum())
        chosen = [near[i] for i in picked.tolist()]
        rows = [
            np.sort(t.prompt + rng.choice(t.anchors, anchors, replace=t.anchors < anchors)) for t in chosen
        ]
        return chosen, torch.from_numpy(np.stack(rows))

    def batch(self, texts: Sequence[Text], anchors: Tensor) -> tuple[TeacherBatch, Tensor]:
        """Inputs of a teacher pass and the supervised mask bool[B·A, γ] (drafts that lie inside the text)."""
        g = self.block_size
        sizes = torch.tensor([t.stop - t.start for t in texts])
        length = int(anchors.max()) + 1
        tokens = torch.zeros(len(texts), max(length, int(sizes.max())) + g, dtype=torch.int64)
        features = torch.zeros(len(texts), length, self.scale.numel())
        for row, t in enumerate(texts):
            shard = self.shards[t.shard]
            tokens[row, : t.stop - t.start] = torch.from_numpy(
                shard["tokens"][t.start : t.stop].astype(np.int64)
            )
            part = np.array(shard["features"][t.start : min(t.stop, t.start + length)])  # a writable copy
            features[row, : len(part)] = torch.from_numpy(part)
        features /= self.scale
        inside = anchors.unsqueeze(-1) + torch.arange(1, g + 1) < sizes[:, None, None]
        return TeacherBatch(tokens, features, anchors), inside.flatten(0, 1)

    def law(self, texts: Sequence[Text], anchors: Tensor, whole: Target | None = None) -> TargetLaw:
        """The target's law at every draft position of the batch, n = B·A·γ rows in order.

        Top tokens from the cache, or the whole law from the last hidden states when a target is given.
        Rows beyond a text's end repeat its last token; they carry no weight.
        """
        label = self._rows("tokens", texts, anchors, ahead=1).long()
        label = label if self.row_of is None else self.row_of[label]
        if whole is not None:
            hidden = self.hidden(texts, anchors).to(whole.device)
            return TargetLaw(label, hidden=hidden, head=whole.lm_head.weight, draft_ids=self.draft_ids)
        ids = self._rows("top_ids", texts, anchors).long()
        ids = ids if self.row_of is None else self.row_of[ids]
        return TargetLaw(label, ids, self._rows("top_p", texts, anchors).float())

    def hidden(self, texts: Sequence[Text], anchors: Tensor) -> Tensor:
        """The target's last hidden states at every draft position of the batch: float32[n, d], as in
        `law`.
        """
        return self._rows("hidden", texts, anchors).float()

    def _rows(self, name: str, texts: Sequence[Text], anchors: Tensor, ahead: int = 0) -> Tensor:
        """Rows of one array at positions anchor .. anchor + γ - 1 (+ `ahead`) of every block, in order."""
        found = []
        for t, row in zip(texts, anchors.numpy(), strict=True):
            at = t.start + row[:, None] + np.arange(self.block_size)
            at = np.minimum(at, t.stop - 2).ravel() + ahead
            low, high = int(at.min()), int(at.max()) + 1
            found.append(np.asarray(self.shards[t.shard][name][low:high])[at - low])
        return torch.from_numpy(np.concatenate(found))

    def _feature_scale(self) -> Tensor:
        """Root mean square of each feature over some texts of the first shard (it must not change on
        resuming).
        """
        part = np.asarray(self.shards[0]["features"][:20000], dtype=np.float32)
        return torch.from_numpy(np.sqrt((part**2).mean(0)) + 1e-3)
