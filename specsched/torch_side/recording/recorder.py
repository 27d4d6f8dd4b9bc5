"""Recording traces from any target, drafter and prompts: dense (`coupling.py`) or sequential (the engine's
log).

    prompts -> batches -> [ sample the text | draft along it ] -> parts on disk -> one trace

Every batch becomes a part before the next one starts. Of the batch at work every finished request is kept, in
dense mode its sampled texts too, so an interrupted recording loses the requests at work and no more.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import TraceError
from ...trace import Trace
from ..drafter.base import Drafter
from ..drafter.dspark import load_drafter
from ..engine.answers import drafter_digest, rows_digest
from ..engine.engine import Request
from ..engine.evaluation import generate
from ..engine.prompts import ids_of, read_prompts
from ..engine.sampling import Sampling
from ..target.decoder import Target
from ..target.weights import load_target
from ..training.sample import prompt_ids
from .coupling import Rows, Text, Widths, dense_rows, load_texts, sample_texts, save_texts
from .parts import Parts, Recorded

_TURNS = 8  # random keys set aside for the turns of one conversation


@dataclass(frozen=True)
class Settings:
    """What a recording depends on beside the models and prompts."""

    mode: str = "dense"
    temperature: float = 1.0
    max_tokens: int = 200
    seed: int = 0
    samples: int = 1
    max_prompt: int | None = None
    batch: int = 32
    domain: str | None = None
    top_k: int = 0
    top_p: float = 1.0
    greedy_draft: bool = False
    thinking: bool | None = None

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.greedy_draft)


def record(
    target: Target | str,
    drafter: Drafter | str,
    prompts: str | os.PathLike[str] | Sequence[dict[str, Any]],
    out: str | os.PathLike[str] | None = None,
    *,
    anchors: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    licence: str | None = None,
    about: str | None = None,
    progress: Callable[[int, int | None, str], None] | None = None,
    names: tuple[str, str] | None = None,
    texts: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Trace:
    """Record a trace; saved at `out` when given, and then resumable.

    target, drafter: objects, or names to load; prompts: rows or a file of `decode.read_prompts`. A row with
    several "turns" is a conversation whose later turns follow the target's own replies, a request each.
    `settings` are the fields of `Settings`: mode ("dense" or "sequential"), temperature, max_tokens, seed,
    samples (passes over the prompts, each with other random numbers), max_prompt (longer prompts, in tokens,
    are left out), batch, domain (of rows that name none), top_k, top_p and greedy_draft (see `Sampling`),
    thinking (see `Tokenizer.chat`).
    `anchors` stops at the first batch that reaches as many. `progress` is called as (requests, None, what)
    after every request. `about` and `licence` go into the metadata; `names` = (target, drafter) names there.
    `texts`: a folder where sampled texts are kept (dense mode): other drafters with the same layers and
    block size then meet the very same texts, and nothing is sampled twice.

    Parts are kept in the folder `<out>.parts` (see `parts.py`); calling again with the same settings goes on
    there, with others raises `TraceError`. Answers of one token have an anchor with nothing after it, hence
    no rows.
    """
    s = Settings(**settings)
    _check(s)
    target_name, drafter_name = (Path(n).name for n in names or (_name(target), _name(drafter)))
    target = load_target(target, device, dtype) if isinstance(target, str) else target
    drafter = load_drafter(drafter, target, _precision(target)) if isinstance(drafter, str) else drafter
    if isinstance(prompts, (str, os.PathLike)):
        source, rows = Path(prompts).name, read_prompts(prompts)
    else:
        source, rows = "rows", list(prompts)
    fingerprint = _fingerprint(target, drafter, rows, s)
    parts = Parts(None if out is None else Path(f"{out}.parts"), fingerprint, drafter.block_size)
    library = _Library(parts.folder if texts is None else Path(texts), target, drafter, s)
    done: list[Recorded] = []
    used = 0
    for number, chosen in enumerate(_batches(rows, s)):
        if anchors is not None and sum(len(r.rows.position) for r in done) >= anchors:
            break
        found = parts.load(number)
        if found is None:
            found = _record_batch(target, drafter, chosen, s, library, parts, _teller(progress, done))
            parts.save(number, found)
        done += found
        used += len(chosen)
        if progress is not None:
            count = sum(len(r.rows.position) for r in done)
            progress(len(done), None, f"{used} prompts, {count} anchors")
    provenance = {
        "method": "recorded",
        "about": about or "",
        "tool": "specsched.torch_side.record",
        "date": datetime.date.today().isoformat(),
        "host": {"machine": platform.machine(), "device": str(target.device), "torch": torch.__version__},
        "prompts": source,
        "prompt_rows": len(rows),
        "prompt_passes_used": used / len(rows),
        **fingerprint,
    }
    metadata = _settings_told(s, drafter.block_size) | {
        "target": target_name,
        "drafter": drafter_name,
        "licence": licence,
        "provenance": provenance,
    }
    trace = _assemble(done, metadata, source)
    if out is not None:
        trace.save(out)
        parts.remove()
    return trace


def _check(s: Settings) -> None:
    _ = s.sampling  # refuses what is none
    if s.mode not in ("dense", "sequential"):
        raise TraceError(f"mode is {s.mode!r}; it must be 'dense' or 'sequential'")
    if s.max_tokens < 2 or s.samples < 1 or s.batch < 1:
        raise TraceError("recording needs max_tokens >= 2, samples >= 1 and batch >= 1")


def _settings_told(s: Settings, block_size: int) -> dict[str, Any]:
    """What the trace says of how it was drawn."""
    return {
        "mode": s.mode,
        "block_size": block_size,
        "temperature": s.temperature,
        "top_k": s.top_k,
        "top_p": s.top_p,
        "draft_sampling": "greedy" if s.greedy_draft else "sampled",
        "seed": s.seed,
        "confidence_sees_token": False,
    }


def _teller(
    progress: Callable[[int, int | None, str], None] | None, done: list[Recorded]
) -> Callable[[int], None]:
    """Reports the requests of the batch at work one by one."""

    def told(drafted: int) -> None:
        if progress is not None:
            progress(len(done) + drafted, None, f"{drafted} of the batch at work")

    return told


def _name(model: Target | Drafter | str) -> str:
    if isinstance(model, str):
        return Path(model).name
    return model.config.name if isinstance(model, Target) else model.config.kind


def _fingerprint(target: Target, drafter: Drafter, rows: list[dict[str, Any]], s: Settings) -> dict[str, Any]:
    return {
        **asdict(s),
        "dtype": str(target.dtype).removeprefix("torch."),
        "drafter_sha256": drafter_digest(drafter),
        "prompts_sha256": rows_digest(rows),
    }


def _batches(rows: list[dict[str, Any]], s: Settings) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Batches of (random key, row): `samples` passes over the rows, no key twice."""
    numbered = [(_TURNS * (i + n * len(rows)), row) for n in range(s.samples) for i, row in enumerate(rows)]
    for start in range(0, len(numbered), s.batch):
        yield numbered[start : start + s.batch]


def _record_batch(
    target: Target,
    drafter: Drafter,
    chosen: list[tuple[int, dict[str, Any]]],
    s: Settings,
    library: _Library,
    parts: Parts,
    told: Callable[[int], None],
) -> list[Recorded]:
    """All turns of a batch of prompts, first turns first."""
    replies: dict[int, list[str]] = {key: [] for key, _ in chosen}
    done: list[Recorded] = []
    for turn in range(max(len(row.get("turns", "x")) if "turns" in row else 1 for _, row in chosen)):
        keys, prompts, domains = [], [], []
        for key, row in chosen:
            turns = row.get("turns", ["the only one"])
            if turn >= min(len(turns), _TURNS) or len(replies[key]) < turn:
                continue
            if turn:
                ids = prompt_ids(target, turns[: turn + 1], replies[key], s.thinking)
            else:
                ids = ids_of(target, row, key, s.thinking)
            if s.max_prompt is None or len(ids) <= s.max_prompt:
                keys.append(key + turn)
                prompts.append(ids)
                domains.append(str(row.get("domain") or s.domain or "unknown"))
        if not prompts:
            break
        if s.mode == "dense":
            made = _dense_turn(target, drafter, prompts, keys, s, library, parts, told)
        else:
            made = _sequential_turn(target, drafter, prompts, keys, s, parts, told)
        for key, ids, domain, (rows, answer) in zip(keys, prompts, domains, made, strict=True):
            done.append(Recorded(rows, domain, len(ids)))
            if target.tokenizer is not None:
                text = [t for t in answer if t not in target.config.eos_token_ids]
                replies[key - turn].append(target.tokenizer.decode(text))
    return done


Turn = list[tuple[Rows, list[int]]]


def _dense_turn(
    target: Target,
    drafter: Drafter,
    prompts: list[list[int]],
    keys: list[int],
    s: Settings,
    library: _Library,
    parts: Parts,
    told: Callable[[int], None],
) -> Turn:
    made = []
    for text, key in zip(library.texts(prompts, keys), keys, strict=True):
        rows = parts.load_request(key)
        if rows is None:
            rows = dense_rows(target, drafter, text, s.sampling, s.seed, key)
            parts.save_request(key, rows)
        made.append((rows, text.tokens[text.prompt : text.prompt + text.answer].tolist()))
        told(len(made))
    return made


class _Library:
    """Sampled texts, kept in a folder when there is one: a file per batch and turn, named by what it
    depends on."""

    def __init__(self, folder: Path | None, target: Target, drafter: Drafter, s: Settings) -> None:
        self.folder, self.target, self.s = folder, target, s
        self.layers, self.lookahead = tuple(drafter.target_layer_ids), drafter.block_size

    def texts(self, prompts: list[list[int]], keys: list[int]) -> list[Text]:
        """The texts of these prompts, sampled unless they are in the folder."""
        s, target = self.s, self.target

        def sample() -> list[Text]:
            layers, ahead = self.layers, self.lookahead
            return sample_texts(target, layers, ahead, prompts, keys, s.max_tokens, s.sampling, s.seed)

        if self.folder is None:
            return sample()
        depends = [target.config.name, str(target.dtype), self.layers, self.lookahead, s.max_tokens]
        depends += [s.temperature, s.seed, prompts, keys]
        depends += [s.top_k, s.top_p] if s.top_k or s.top_p < 1 else []
        path = self.folder / f"{hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:16]}.texts"
        if path.is_file():
            config = target.config
            widths = Widths(config.hidden_size, config.hidden_size * len(self.layers), config.vocab_size)
            return load_texts(path, target.device, prompts, widths)
        texts = sample()
        save_texts(path, texts)
        return texts


def _precision(target: Target) -> torch.dtype:
    """On a CPU the drafter runs in float32, whatever the target does: it is small."""
    return torch.float32 if target.device.type == "cpu" else target.dtype


def _sequential_turn(
    target: Target,
    drafter: Drafter,
    prompts: list[list[int]],
    keys: list[int],
    s: Settings,
    parts: Parts,
    told: Callable[[int], None],
) -> Turn:
    requests = [Request(tuple(ids), s.max_tokens, key) for ids, key in zip(prompts, keys, strict=True)]
    outputs = generate(
        target,
        drafter,
        requests,
        "fixed",
        sampling=s.sampling,
        seed=s.seed,
        max_batch=s.batch,
        kept=parts.folder,
        progress=lambda finished, _: told(finished),
    )
    gamma = drafter.block_size
    return [
        (
            Rows(
                np.array([r.position for r in out.rounds], np.int64),
                np.array([r.confidence_logits for r in out.rounds], np.float32).reshape(-1, gamma),
                np.array([r.accepted for r in out.rounds], np.int64),
            ),
            out.output_ids,
        )
        for out in outputs
    ]


def _assemble(done: list[Recorded], metadata: dict[str, Any], source: str) -> Trace:
    done = [r for r in done if len(r.rows.position)]
    if not done:
        raise TraceError(
            f"{source}: nothing recorded: every prompt was too long, or every answer a single token; give "
            "others, or a longer --max-tokens"
        )
    counts = [len(r.rows.position) for r in done]
    return Trace.from_arrays(
        np.repeat(np.arange(len(done)), counts),
        np.concatenate([r.rows.position for r in done]),
        np.concatenate([r.rows.confidence_logit for r in done]),
        np.concatenate([r.rows.accepted for r in done]),
        domain=np.repeat([r.domain for r in done], counts),
        prompt_tokens=np.repeat([r.prompt_tokens for r in done], counts),
        metadata=metadata,
        where="recording",
    )
