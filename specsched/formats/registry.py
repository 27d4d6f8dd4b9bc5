"""Which file is whose: signatures, the readers behind them, and the writers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..calibration import Calibration, load_calibration
from ..errors import FormatError, UnknownFormat, nearest
from ..files.guard import reading
from ..files.strict import refuse_infinite
from ..profile import StepProfile, load_profile
from ..trace import Trace, load_trace
from . import atom, deepspec, inference_lab, llamacpp, modelopt, specdecbench, specspecs, sts, trtllm
from .acceptance import SCHEMA as ACCEPTANCE_SCHEMA
from .acceptance import Acceptance
from .borrowed import borrow_attention
from .clients import aiperf
from .document import Hints
from .opened import Opened, open_file
from .sglang import benchmark as sglang_benchmark
from .sglang import dump as sglang_dump
from .sglang import tables as sglang
from .vllm import benchmark as vllm_benchmark
from .vllm import cache as vllm_cache
from .vllm import costs as vllm
from .vllm import counters as vllm_counters
from .vllm import latency as vllm_latency
from .vllm import responses as vllm_responses
from .vllm import steps as vllm_steps

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
    if ours or opened.keys >= atom.KEYS:
        return False
    return opened.syntax == "json" and bool(opened.keys & {sts.SGLANG, sts.TRTLLM})


def _schema(opened: Opened) -> str | None:
    if opened.syntax == "json" and isinstance(opened.data, dict):
        schema = opened.data.get("schema")
        return schema if isinstance(schema, str) else None
    return "specsched/trace/1" if opened.syntax == "parquet" and "specsched" in opened.metadata else None


def _is_requests(opened: Opened) -> bool:
    return vllm_responses.unwrapped(opened) is not None


def _read_requests(opened: Opened, hints: Hints) -> Any:
    rows = vllm_responses.unwrapped(opened)
    assert rows is not None
    return vllm_counters.read_requests(rows, hints)


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
    Format("vllm-cache", "profile", _keyed("json", vllm_cache.KEYS), vllm_cache.read, vllm_cache.KEYS),
    Format("vllm-steps", "trace", vllm_steps.recognise, vllm_steps.read, frozenset({vllm_steps.KEY})),
    Format(
        "vllm-latency",
        "profile",
        _keyed("json", vllm_latency.LATENCY),
        vllm_latency.read_latency,
        vllm_latency.LATENCY,
    ),
    Format("vllm-requests", "acceptance", _is_requests, _read_requests, frozenset({"metrics"})),
    Format(
        "vllm-bench-serve",
        "acceptance",
        _keyed("json", vllm_benchmark.SERVE),
        vllm_benchmark.read_serve,
        vllm_benchmark.SERVE,
    ),
    Format("vllm-log", "acceptance", vllm_benchmark.is_log, vllm_benchmark.read_log, frozenset()),
    Format(
        "sglang-meta",
        "acceptance",
        sglang_benchmark.is_meta,
        sglang_benchmark.read_meta,
        frozenset({"meta_info"}),
    ),
    Format(
        "sglang-bench-serving",
        "acceptance",
        _json_rows(sglang_benchmark.SERVING),
        sglang_benchmark.read_serving,
        sglang_benchmark.SERVING,
    ),
    Format(
        "specdec-bench", "acceptance", _keyed("json", specdecbench.KEYS), specdecbench.read, specdecbench.KEYS
    ),
    Format("aiperf", "acceptance", aiperf.has_acceptance, aiperf.read_acceptance, aiperf.SUMMARY),
    Format("deepspec-records", "trace", _json_rows(deepspec.KEYS), deepspec.read, deepspec.KEYS),
    Format(
        "vllm-prometheus",
        "acceptance",
        vllm_counters.is_prometheus,
        vllm_counters.read_prometheus,
        frozenset(),
    ),
    Format("atom", "profile", _keyed("json", atom.KEYS), atom.read, atom.KEYS),
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
    **dict.fromkeys(
        ("gpu", "model", "dtype", "name", "source", "licence", "date", "drafter", "run_id", "take"), str
    ),
    **dict.fromkeys(("gpu_count", "memory_bytes", "weight_bytes", "kv_bytes_per_token", "max_context"), int),
    **dict.fromkeys(("tensor", "block_size", "graph_batch", "capture_limit", "batch_size"), int),
    **dict.fromkeys(("input_len", "output_len"), int),
    **dict.fromkeys(("min_match", "temperature"), float),
    "attention_from": str,
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
    with reading(path, FormatError):
        return _read(path, hints)


def _read(path: str | os.PathLike[str], hints: dict[str, Any]) -> Converted:
    opened = open_file(path)
    matches = [form for form in FORMATS if form.recognise(opened)]
    if not matches:
        raise UnknownFormat(_unknown(opened))
    if len(matches) > 1:
        names = " and ".join(form.name for form in matches)
        raise FormatError(
            f"{opened.path} could be {names}: seen {opened.seen}. Keep the keys of one of them and convert "
            "again"
        )
    form = matches[0]
    if opened.syntax == "json" and form.name in ("specsched", "sts"):
        refuse_infinite(opened.data, str(opened.path), FormatError)
    found, notes = form.read(opened, hints)
    objects = tuple(found) if isinstance(found, list) else (found,)
    if hints.get("attention_from"):
        objects, more = borrow_attention(objects, hints["attention_from"], str(opened.path))
        notes = [*notes, *more]
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
            hint = nearest(name, HINTS) or f" known: {', '.join(HINTS)}"
            raise FormatError(f"unknown hint {name!r};{hint}")
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
    """What was seen, and the nearest format with the keys it would still need; or what else reads it."""
    from .benchmarks import reader_of

    if reader_of(opened) is not None:
        return (
            f"{opened.path} is a benchmark result without counters of drafts by position: no step costs "
            "and no "
            f"acceptance are in it. `specsched inspect {opened.path}` shows its runs, `specsched fit` "
            "learns from them"
        )
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
