"""The profile document `specsched/profile/1`: read strictly."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ProfileError
from ..files.reader import Reader
from .curve import BEYONDS, LOOKUPS, Curve
from .decision import Decision

SCHEMA = "specsched/profile/1"

_KEYS = (
    "schema",
    "name",
    "gpu",
    "model",
    "parallel",
    "bias_seconds",
    "sync_seconds",
    "verify",
    "capture",
    "eager",
    "attention",
    "overhead",
    "draft",
    "prefill",
    "scheduler",
    "provenance",
    "fit",
    "samples",
)

# Reading one missed token costs the drafter 0.0104 of what drafting a block for one request costs: estimated
# from shapes, for a five-layer DSpark drafter of Qwen3-8B at block 7 (README of profiles/).
CATCH_UP = 0.0104

# Bounds no machine reaches: beyond them the unit or the file is wrong, and sums of costs would lose meaning.
MOST_SECONDS = 3600.0
LEAST_SECONDS = 1e-100  # above 0: what is less has no reciprocal worth the name
MOST_TOKENS = 2**31 - 1
MOST_KV_TOKENS = 10**12
MOST_COUNTS = {
    "count": 10**5,
    "tensor": 10**5,
    "data": 10**5,
    "memory_bytes": 10**13,  # of one GPU
    "weight_bytes": 10**15,
    "kv_bytes_per_token": 10**10,
    "max_context": 2**31 - 1,
}
_DRAFTER = ("block_size", "drafter", "weight_bytes", "kv_bytes_per_token")
METHODS = ("measured", "composed", "roofline", "imported", "fitted")


def read_curve(read: Reader, key: str, axis: str, least: int, beyond: str = "slope") -> Curve | None:
    """The curve under `key`, or None; `beyond` is what holds past its end unless the block says otherwise."""
    block = read.block(key)
    if block is None:
        return None
    more = {"verify": ("lookup", "beyond"), "draft": (*_DRAFTER, "beyond")}.get(key, ("beyond",))
    block.only((axis, "seconds", *more))
    # An empty curve means "none": as docs/files.md writes an unused block: {"tokens": [], "seconds": []}.
    if key != "verify" and block.document.get(axis) == [] and block.document.get("seconds") == []:
        return None
    x = block.rising(axis, least, MOST_KV_TOKENS if axis == "kv_tokens" else MOST_TOKENS)
    y = _seconds(block, "seconds")
    if len(x) != len(y):
        raise block.fail(
            "seconds", f"has {len(y)} entries and {axis} has {len(x)}; each point needs one of both"
        )
    x.setflags(write=False)
    y.setflags(write=False)
    lookup = block.text("lookup", "linear", LOOKUPS) if key == "verify" else "linear"
    return Curve(x, y, lookup, block.text("beyond", beyond, BEYONDS))


def _seconds(block: Reader, key: str) -> np.ndarray:
    """Times, each 0 or one of which there are finitely many a second."""
    values: np.ndarray = block.numbers(key, most=MOST_SECONDS)
    tiny = np.flatnonzero((values > 0.0) & (values < LEAST_SECONDS))
    if tiny.size:
        i = int(tiny[0])
        raise block.fail(f"{key}[{i}]", f"is {values[i]:g}; that is no time: give 0, or check the number")
    return values


def points(curve: Curve, axis: str) -> dict[str, Any]:
    return {axis: curve.x.astype(np.int64).tolist(), "seconds": curve.y.tolist()}


def read_capture(read: Reader) -> tuple[np.ndarray | None, int | None]:
    """(captured sizes int64[n], stated limit), or (None, None) where nothing is captured."""
    block = read.block("capture")
    if block is None:
        return None, None
    block.only(("sizes", "limit"))
    if block.document.get("sizes") == []:
        return None, None
    sizes = block.rising("sizes", 1, MOST_TOKENS).astype(np.int64)
    limit = block.integer("limit", int(sizes[-1]), 1, MOST_TOKENS)
    if limit < sizes[0]:
        raise block.fail(
            "limit", f"is {limit}, below the smallest captured size {sizes[0]}; no pass would be captured"
        )
    sizes.setflags(write=False)
    return sizes, limit


def read_counts(read: Reader, key: str, whole: tuple[str, ...]) -> dict[str, Any]:
    """A free-form block whose entries `whole` must be whole numbers where they are given."""
    values = read.mapping(key)
    block = read.block(key)
    for name in whole:
        if block is not None and block.has(name):
            least = 1 if name in ("count", "tensor", "data") else 0
            values[name] = block.integer(name, minimum=least, most=MOST_COUNTS[name])
    return values


def read_provenance(read: Reader) -> dict[str, Any]:
    """The free-form provenance block; its method must be a known one where it is given."""
    block = read.block("provenance")
    if block is not None and block.has("method"):
        block.text("method", choices=METHODS)
    return read.mapping("provenance")


def read_decision(scheduler: Reader) -> Decision | None:
    """`scheduler.table`, or None; raises ProfileError naming the wrong entry."""
    block = scheduler.block("table")
    if block is None:
        return None
    block.only(("tokens", "seconds", "lookup", "beyond", "requests", "request_seconds"))
    lookup, beyond = block.text("lookup", "linear", LOOKUPS), block.text("beyond", "clamp", BEYONDS)
    if block.has("request_seconds") and not block.has("requests"):
        raise block.fail("request_seconds", "is given without requests; give both, or neither")
    tokens = _table_curve(block, "tokens", "seconds", lookup, beyond)
    requests = (
        _table_curve(block, "requests", "request_seconds", "linear", "clamp")
        if block.has("requests")
        else None
    )
    least = float(tokens.y.min()) + (0.0 if requests is None else float(requests.y.min()))
    if least <= 0.0:
        raise block.fail("seconds", "has an entry 0: steps per second would be infinite; give whole steps")
    return Decision(tokens, requests)


def _table_curve(block: Reader, axis: str, seconds: str, lookup: str, beyond: str) -> Curve:
    x, y = block.rising(axis, 1, MOST_TOKENS), _seconds(block, seconds)
    if len(x) != len(y):
        raise block.fail(
            seconds, f"has {len(y)} entries and {axis} has {len(x)}; each point needs one of both"
        )
    x.setflags(write=False)
    y.setflags(write=False)
    return Curve(x, y, lookup, beyond)


def read_fields(document: Any, where: str) -> dict[str, Any]:
    """The fields of a StepProfile from a parsed document; ProfileError names `where` and the wrong key."""
    read = Reader(document, where, ProfileError)
    schema = document.get("schema")
    if schema != SCHEMA:
        raise read.fail(
            "schema",
            f"is {schema!r}; expected {SCHEMA!r} (another tool's table? `specsched convert` reads those)",
        )
    read.only(_KEYS)
    if not read.has("verify"):
        raise read.fail("verify", "is missing; give its tokens and seconds, the cost of a pass of B tokens")
    verify = read_curve(read, "verify", "tokens", 1)
    assert verify is not None
    sizes, limit = read_capture(read)
    draft, block_size, drafter = read.block("draft"), None, None
    if draft is not None and draft.has("block_size"):
        block_size = draft.integer("block_size", minimum=1, most=10**4)
    if draft is not None and draft.has("drafter"):
        drafter = draft.text("drafter")
    memory: dict[str, int | None] = {}
    for key in ("weight_bytes", "kv_bytes_per_token"):
        given = draft is not None and draft.has(key)
        memory[key] = draft.integer(key, minimum=0, most=MOST_COUNTS[key]) if draft and given else None
    scheduler = read.block("scheduler") or Reader({}, where, ProfileError)
    scheduler.only(("minimum_gain", "enabling_fraction", "idle_draft", "catch_up", "table"))
    samples = document.get("samples") or []
    if not isinstance(samples, list):
        raise read.fail("samples", "must be a list of raw measurements, or null")
    return dict(
        name=read.text("name"),
        verify=verify,
        bias_seconds=read.number("bias_seconds", 0.0, most=MOST_SECONDS),
        sync_seconds=read.number("sync_seconds", 0.0, most=MOST_SECONDS),
        capture_sizes=sizes,
        capture_limit=limit,
        eager=read_curve(read, "eager", "tokens", 1, verify.beyond),
        attention=read_curve(read, "attention", "kv_tokens", 0),
        overhead=read_curve(read, "overhead", "requests", 0, verify.beyond),
        draft=read_curve(read, "draft", "requests", 0, verify.beyond),
        draft_block_size=block_size,
        drafter=drafter,
        draft_weight_bytes=memory["weight_bytes"],
        draft_kv_bytes_per_token=memory["kv_bytes_per_token"],
        prefill=read_curve(read, "prefill", "tokens", 1),
        minimum_gain=scheduler.number("minimum_gain", 0.0, most=1e6),
        enabling_fraction=scheduler.number("enabling_fraction", 0.0, below=1.0),
        idle_draft=scheduler.number("idle_draft", 0.0, most=1.0),
        catch_up=scheduler.number("catch_up", CATCH_UP, most=1e3),
        decision=read_decision(scheduler),
        gpu=read_counts(read, "gpu", ("count", "memory_bytes")),
        model=read_counts(read, "model", ("weight_bytes", "kv_bytes_per_token", "max_context")),
        parallel=read_counts(read, "parallel", ("tensor", "data")),
        provenance=read_provenance(read),
        fit=read.mapping("fit") or None,
        samples=list(samples),
        where=where,
    )
