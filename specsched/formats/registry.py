"""Which file is whose: signatures, the readers behind them, and the writers."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..calibrate import Calibration, load_calibration
from ..errors import FormatError
from ..profile import StepProfile, load_profile
from ..trace import Trace, load_trace
from . import inference_lab, llamacpp, modelopt, sglang, sglang_dump, specspecs, sts, trtllm, vllm
from .acceptance import SCHEMA as ACCEPTANCE_SCHEMA
from .acceptance import Acceptance
from .document import Hints
from .export import additive_parts, steps_at, whole_step
from .opened import Opened, open_file

KINDS = ("profile", "trace", "calibration", "acceptance")


@dataclass(frozen=True)
class Converted:
    """What a file held. `kind`: profile, trace, calibration or acceptance; `format`: whose file it was.

    `objects`: StepProfile, Trace, Calibration or Acceptance, one unless the file holds several tables.
    `notes`: sentences the user must see (what was assumed, left out, or cannot be known).
    """

    kind: str
    format: str
    objects: tuple[Any, ...]
    notes: tuple[str, ...] = ()

    @property
    def object(self) -> Any:
        """The only object; raises `FormatError` listing them when there are several."""
        if len(self.objects) != 1:
            names = ", ".join(getattr(o, "name", str(o)) for o in self.objects)
            raise FormatError(
                f"the {self.format} file holds {len(self.objects)} tables ({names}); choose one by its hint"
            )
        return self.objects[0]


@dataclass(frozen=True)
class Format:
    """One kind of file: its name, what `read` makes of it, how it is recognised, and its keys in words."""

    name: str
    kind: str
    recognise: Callable[[Opened], bool]
    read: Callable[[Opened, Hints], tuple[Any, list[str]]]
    keys: frozenset[str]


def _keyed(syntax: str, keys: frozenset[str]) -> Callable[[Opened], bool]:
    return lambda opened: opened.syntax == syntax and opened.keys >= keys


def _json_rows(keys: frozenset[str]) -> Callable[[Opened], bool]:
    # One row of a JSON-lines file is plain JSON.
    return lambda opened: opened.syntax in ("jsonl", "json") and opened.keys >= keys


def _as_rows(read: Callable[[Opened, Hints], Any]) -> Callable[[Opened, Hints], Any]:
    def rows(opened: Opened, hints: Hints) -> Any:
        if opened.syntax == "json":
            opened = Opened(opened.path, "jsonl", [opened.data], opened.keys)
        return read(opened, hints)

    return rows


def _is_sts(opened: Opened) -> bool:
    ours = str(_schema(opened)).startswith("specsched/")
    return opened.syntax == "json" and bool(opened.keys & {sts.SGLANG, sts.TRTLLM}) and not ours


def _schema(opened: Opened) -> str | None:
    if opened.syntax == "json" and isinstance(opened.data, dict):
        schema = opened.data.get("schema")
        return schema if isinstance(schema, str) else None
    return "specsched/trace/1" if opened.syntax == "parquet" and "specsched" in opened.metadata else None


def _is_requests(opened: Opened) -> bool:
    rows = opened.data if opened.syntax == "jsonl" else [opened.data] if opened.syntax == "json" else []
    return any(vllm.speculative(row) for row in rows)


def _ours(prefix: str) -> Callable[[Opened], bool]:
    return lambda opened: (_schema(opened) or "").startswith(prefix)


FORMATS: tuple[Format, ...] = (
    Format(
        "specsched",
        "profile",
        _ours("specsched/profile/"),
        lambda o, h: (load_profile(o.path), []),
        frozenset({"schema", "verify"}),
    ),
    Format(
        "specsched", "trace", _ours("specsched/trace/"), lambda o, h: (load_trace(o.path), []), frozenset()
    ),
    Format(
        "specsched",
        "calibration",
        _ours("specsched/calibration/"),
        lambda o, h: (load_calibration(o.path), []),
        frozenset({"schema", "temperatures"}),
    ),
    Format(
        "specsched",
        "acceptance",
        _ours(ACCEPTANCE_SCHEMA),
        lambda o, h: (Acceptance.from_dict(o.data, str(o.path)), []),
        frozenset({"schema", "conditional"}),
    ),
    Format("sglang-1d", "profile", _keyed("json", sglang.ONE_D), sglang.read_one_d, sglang.ONE_D),
    Format(
        "sglang",
        "profile",
        _keyed("json", frozenset({"bias_seconds", "theta_seconds"})),
        sglang.read_additive,
        sglang.ADDITIVE,
    ),
    Format(
        "sglang-rounds", "profile", _json_rows(sglang.ROUNDS), _as_rows(sglang.read_rounds), sglang.ROUNDS
    ),
    Format(
        "sglang-one-batch",
        "profile",
        _json_rows(sglang.ONE_BATCH),
        _as_rows(sglang.read_one_batch),
        sglang.ONE_BATCH,
    ),
    Format("sglang-dump", "trace", sglang_dump.recognise, sglang_dump.read, frozenset({"records", "gamma"})),
    Format("trtllm", "profile", _keyed("json", trtllm.STEP_TABLE), trtllm.read_step_table, trtllm.STEP_TABLE),
    Format("trtllm-exact", "profile", _keyed("json", trtllm.EXACT), trtllm.read_exact, trtllm.EXACT),
    Format("vllm", "profile", _keyed("csv", vllm.VERIFY), vllm.read_cost, vllm.VERIFY),
    Format("vllm-draft", "profile", _keyed("csv", vllm.DRAFT), vllm.read_draft_alone, vllm.DRAFT),
    Format("vllm-latency", "profile", _keyed("json", vllm.LATENCY), vllm.read_latency, vllm.LATENCY),
    Format("vllm-requests", "acceptance", _is_requests, vllm.read_requests, frozenset({"metrics"})),
    Format("vllm-prometheus", "acceptance", vllm.is_prometheus, vllm.read_prometheus, frozenset()),
    Format("sts", "calibration", _is_sts, sts.read, frozenset({sts.SGLANG})),
    Format(
        "inference-lab-steps",
        "profile",
        _keyed("csv", inference_lab.STEP_TABLE),
        inference_lab.read_step_table,
        inference_lab.STEP_TABLE,
    ),
    Format(
        "inference-lab",
        "trace",
        _keyed("parquet", inference_lab.BANK),
        inference_lab.read_bank,
        inference_lab.BANK,
    ),
    Format(
        "inference-lab-scores",
        "trace",
        lambda o: o.syntax == "parquet" and o.keys >= inference_lab.SCORES and "accept" not in o.keys,
        inference_lab.read_scores_alone,
        inference_lab.SCORES,
    ),
    Format("specspecs", "acceptance", _keyed("parquet", specspecs.DRAFTS), specspecs.read, specspecs.DRAFTS),
    Format(
        "specspecs-sequences",
        "acceptance",
        _keyed("parquet", specspecs.SEQUENCES),
        specspecs.read_sequences_alone,
        specspecs.SEQUENCES,
    ),
    Format("llamacpp", "trace", llamacpp.recognise, llamacpp.read, frozenset({"p", "acc"})),
    Format(
        "modelopt",
        "acceptance",
        modelopt.recognise,
        modelopt.read,
        frozenset({"conditional_accept_rates", "marginal_accept_rates"}),
    ),
)
# Hints every reader understands or that an error of one of them asks for, and what they must be.
HINTS: dict[str, type] = {
    **dict.fromkeys(("gpu", "model", "dtype", "name", "source", "licence", "date", "drafter", "run_id"), str),
    **dict.fromkeys(("gpu_count", "memory_bytes", "weight_bytes", "kv_bytes_per_token", "max_context"), int),
    **dict.fromkeys(("tensor", "block_size", "graph_batch", "capture_limit", "batch_size"), int),
    **dict.fromkeys(("input_len", "output_len"), int),
    **dict.fromkeys(("min_match", "temperature"), float),
    **dict.fromkeys(("draft", "scores", "before", "runs", "select"), object),
}
PROFILE_TARGETS = ("specsched", "sglang", "sglang-1d", "trtllm", "vllm")
CALIBRATION_TARGETS = ("specsched", "sglang", "trtllm")


def read(path: str | os.PathLike[str], **hints: Any) -> Converted:
    """Read any known file, recognised by its content.

    Hints fill what a file does not hold: `gpu`, `model`, `gpu_count`, `memory_bytes`, `weight_bytes`,
    `kv_bytes_per_token`, `licence`, `name` for all; others are named in the errors that ask for them.
    Raises `FormatError` for a file that is empty, broken, unknown, or could be two things.
    """
    hints = _checked(hints)
    opened = open_file(path)
    matches = [form for form in FORMATS if form.recognise(opened)]
    if not matches:
        raise FormatError(_unknown(opened))
    if len(matches) > 1:
        names = " and ".join(form.name for form in matches)
        raise FormatError(
            f"{opened.path} could be {names}: seen {opened.seen}. Keep the keys of one of them and convert "
            "again"
        )
    form = matches[0]
    found, notes = form.read(opened, hints)
    objects = tuple(found) if isinstance(found, list) else (found,)
    kinds = {StepProfile: "profile", Trace: "trace", Calibration: "calibration", Acceptance: "acceptance"}
    return Converted(kinds.get(type(objects[0]), form.kind), form.name, objects, tuple(notes))


def _checked(hints: dict[str, Any]) -> dict[str, Any]:
    """Hints that are known and of their type; a misspelt one must never be ignored in silence."""
    checked: dict[str, Any] = {}
    for name, value in hints.items():
        if value is None:
            continue
        kind = HINTS.get(name)
        if kind is None:
            near = difflib.get_close_matches(name, HINTS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(HINTS)}"
            raise FormatError(f"unknown hint {name!r}; {hint}")
        if kind in (int, float):
            whole = kind is int
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
                raise FormatError(f"hint {name} is {value!r}; it must be a number of at least 0")
            if whole and value != int(value):
                raise FormatError(f"hint {name} is {value!r}; it must be a whole number")
            value = kind(value)
        elif kind is str:
            value = str(value)
        checked[name] = value
    return checked


def _unknown(opened: Opened) -> str:
    """What was seen, and the nearest format with the keys it would still need."""
    near = max(FORMATS, key=lambda form: len(form.keys & opened.keys) / (len(form.keys) or 99))
    known = ", ".join(sorted({form.name for form in FORMATS}))
    message = f"{opened.path}: no known format. Seen: {opened.seen}. Known: {known}."
    if near.keys & opened.keys:
        missing = ", ".join(sorted(near.keys - opened.keys))
        message += (
            f" Nearest: {near.name}, which would also need {missing}."
            if missing
            else f" Nearest: {near.name}."
        )
    return message


def write(obj: Any, path: str | os.PathLike[str], to: str, **options: Any) -> list[str]:
    """Write a profile or calibration as another engine's file; returns notes on what the format cannot hold.

    Profiles: `to` = specsched, sglang (additive), sglang-1d (option `requests`), trtllm, vllm (CSV, and a
    second
    `*_draft.csv` when drafting costs something). Options `context` (tokens per request, default 2048 where
    attention is priced), `max_requests` (256), `max_tokens`. Calibrations: `to` = specsched, sglang, trtllm.
    """
    if to == "specsched" and isinstance(obj, StepProfile | Trace | Calibration | Acceptance):
        obj.save(path)
        return []
    if isinstance(obj, Calibration) and to in CALIBRATION_TARGETS:
        sts.write(obj, path, to)
        return []
    if isinstance(obj, StepProfile) and to in PROFILE_TARGETS:
        return _write_profile(obj, path, to, options)
    what = type(obj).__name__
    can = {"StepProfile": PROFILE_TARGETS, "Calibration": CALIBRATION_TARGETS}.get(what, ("specsched",))
    article = "an" if what[0] in "AEIO" else "a"
    raise FormatError(f"{article} {what} cannot be written as {to!r}; it can be written as {', '.join(can)}")


def _write_profile(
    profile: StepProfile, path: str | os.PathLike[str], to: str, options: dict[str, Any]
) -> list[str]:
    context, most = options.get("context"), options.get("max_tokens")
    if to == "sglang-1d":
        if not options.get("requests"):
            raise FormatError(
                "sglang-1d has no axis for requests: give requests, the number that will run (--requests R)"
            )
        tokens, seconds, notes = steps_at(profile, int(options["requests"]), context, most)
        sglang.write_one_d(path, tokens, seconds)
        return notes
    if to == "vllm":
        return _write_vllm(profile, path, options)
    parts = additive_parts(profile, context, options.get("max_requests"), most)
    notes = list(parts.notes)
    if to == "sglang":
        sglang.write_additive(path, parts)
        if profile.minimum_gain or profile.enabling_fraction:
            notes.append("minimum_gain and enabling_fraction have no place in SGLang's table.")
    else:
        trtllm.write_step_table(path, parts, profile.minimum_gain)
    return notes


def _write_vllm(profile: StepProfile, path: str | os.PathLike[str], options: dict[str, Any]) -> list[str]:
    """Verify cost by tokens at the requests that would fill them, draft cost by requests beside it."""
    path = Path(path)
    parts = additive_parts(
        profile,
        options.get("context"),
        options.get("max_requests"),
        options.get("max_tokens"),
        drafting=False,
    )
    tokens, notes = parts.tokens, list(parts.notes)
    context = options.get("context")
    if profile.capture_sizes is not None:
        limit = profile.graph_limit or 0
        sizes = profile.capture_sizes[profile.capture_sizes <= limit]
        tokens = np.concatenate([sizes, tokens[tokens > limit]])
    width = 1 + (profile.draft_block_size or 7)
    comments = [f"{profile.name}: verify cost of a step"]
    if profile.capture_sizes is not None:
        comments.append(f"capture limit {profile.graph_limit}")
    seconds = []
    for size in tokens:
        requests = int(options.get("requests") or max(1, -(-int(size) // width)))
        seconds.append(whole_step(profile, int(size), requests, context, drafting=False))
    if profile.attention is not None or profile.overhead is not None:
        asked = options.get("requests")
        at = f"{asked} requests" if asked else f"B / {width} requests, all drafts verified"
        notes.append(f"vLLM's table has no axis for requests: host and attention costs are those of {at}.")
    vllm.write_cost(path, "batch_tokens", tokens, np.array(seconds), comments)
    if profile.draft is not None:
        beside = path.with_name(f"{path.stem}_draft{path.suffix or '.csv'}")
        curve = profile.draft
        vllm.write_cost(beside, "num_reqs", curve.x, curve.y, [f"{profile.name}: draft cost by requests"])
        notes.append(f"Draft cost by requests is in {beside.name}.")
    return notes
