"""StepProfile: what one engine step costs on this GPU, in seconds (schema `specsched/profile/1`).

    seconds(B, R, N) = bias + verify(pad(B)) + attention(N) + overhead(R) + draft(R)      [+ sync]

B tokens in the pass, R requests, N context tokens read (summed over requests). The terms add because the
kernels of a step run one after another. Floating-point additions are made in one fixed order everywhere,
    ((bias + attention) + overhead) + draft [+ sync], + verify, and / (1 - enabling_fraction) if drafting,
so that the engine loop, which reads `tables`, agrees with `seconds` to the last bit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ProfileError
from ..files.disk import one_line_lists, read_json, resolve
from ..files.guard import reading
from ..files.kind import refuse_other_kind
from ..files.output import atomic_write
from .curve import Curve
from .decision import Decision
from .document import CATCH_UP, SCHEMA, points, read_fields
from .tables import NO_LIMIT, ProfileTables, attention_points, decision_arrays


@dataclass(frozen=True, eq=False)
class StepProfile:
    """Cost of one engine step; build it with `load_profile` or `StepProfile.from_dict`, which validate.

    `gpu`, `model`, `provenance`, `fit` and `samples` are kept as the file has them. `weight_bytes` and
    `kv_bytes_per_token` are those of the whole engine, summed over its `gpu.count` GPUs.
    """

    name: str
    verify: Curve
    bias_seconds: float = 0.0
    sync_seconds: float = 0.0
    capture_sizes: np.ndarray | None = None  # int64[n], strictly rising
    capture_limit: int | None = None  # as the file states it; `graph_limit` is what holds
    eager: Curve | None = None
    attention: Curve | None = None
    overhead: Curve | None = None
    draft: Curve | None = None
    draft_block_size: int | None = None
    drafter: str | None = None
    draft_weight_bytes: int | None = None  # of the whole engine, as those of the target; None: unknown
    draft_kv_bytes_per_token: int | None = None
    prefill: Curve | None = None
    minimum_gain: float = 0.0
    enabling_fraction: float = 0.0
    idle_draft: float = 0.0
    catch_up: float = CATCH_UP
    decision: Decision | None = None  # what the engine's scheduler divides by; None: the costs themselves
    gpu: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, int] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] | None = None
    samples: list[Any] = field(default_factory=list)
    where: str = field(default="", repr=False)  # the file it was read from, for messages

    def __repr__(self) -> str:
        tokens = f"{len(self.verify.x)} points to {self.verify.x[-1]:,.0f} tokens"
        return f"<profile {self.name}: {self.provenance.get('method', 'of unknown origin')}, {tokens}>"

    @property
    def label(self) -> str:
        """How messages name it: by its name, and by its file where that is called otherwise."""
        file = Path(self.where)
        known = file.suffix != ".json" or file.stem == self.name
        return f"profile {self.name!r}" + ("" if known else f" ({self.where})")

    # -- reading and writing -------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, document: Any, where: str = "profile") -> StepProfile:
        """Validate a parsed profile; raises ProfileError naming `where` and the key that is wrong."""
        profile = cls(**read_fields(document, where))
        profile._refuse_free_steps(where)
        return profile

    def _refuse_free_steps(self, where: str) -> None:
        floor = self.bias_seconds + min(float(c.y.min()) for c in (self.verify, self.eager) if c is not None)
        floor += float(self.overhead.y.min()) if self.overhead is not None else 0.0
        if floor <= 0.0:
            raise ProfileError(
                f"{where}: verify.seconds has an entry 0 while bias_seconds and overhead are 0: that "
                "step would take no time and its steps per second be infinite; give the time of a whole pass"
            )

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; `from_dict` of it gives the same profile."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "name": self.name,
            "gpu": self.gpu,
            "model": self.model,
            "parallel": self.parallel,
            "bias_seconds": self.bias_seconds,
            "sync_seconds": self.sync_seconds,
            "verify": points(self.verify, "tokens")
            | {"lookup": self.verify.lookup, "beyond": self.verify.beyond},
            "capture": None,
        }
        if self.capture_sizes is not None:
            document["capture"] = {"sizes": self.capture_sizes.tolist(), "limit": self.capture_limit}
        curves = (
            ("eager", self.eager, "tokens"),
            ("attention", self.attention, "kv_tokens"),
            ("overhead", self.overhead, "requests"),
            ("draft", self.draft, "requests"),
            ("prefill", self.prefill, "tokens"),
        )
        inherited = {"eager", "overhead", "draft"}
        for key, curve, axis in curves:
            document[key] = points(curve, axis) if curve is not None else None
            default = self.verify.beyond if key in inherited else "slope"
            if curve is not None and curve.beyond != default:
                document[key]["beyond"] = curve.beyond
        if self.draft is not None:
            document["draft"] |= {"block_size": self.draft_block_size, "drafter": self.drafter}
            taken = {
                "weight_bytes": self.draft_weight_bytes,
                "kv_bytes_per_token": self.draft_kv_bytes_per_token,
            }
            document["draft"] |= {key: value for key, value in taken.items() if value is not None}
        document["scheduler"] = {
            "minimum_gain": self.minimum_gain,
            "enabling_fraction": self.enabling_fraction,
        }
        for name, share, usual in (
            ("idle_draft", self.idle_draft, 0.0),
            ("catch_up", self.catch_up, CATCH_UP),
        ):
            if share != usual:
                document["scheduler"][name] = share
        if self.decision is not None:
            document["scheduler"]["table"] = self.decision.to_dict()
        return document | {"provenance": self.provenance, "fit": self.fit, "samples": self.samples}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile atomically, lists of numbers on one line each."""
        text = one_line_lists(self.to_dict())
        with atomic_write(path) as stream:
            stream.write(text + "\n")

    # -- cost ----------------------------------------------------------------------------------------------

    @property
    def graph_limit(self) -> int | None:
        """Largest token batch that runs in a captured graph: the last captured size within the limit."""
        if self.capture_sizes is None:
            return None
        limit = self.capture_limit if self.capture_limit is not None else int(self.capture_sizes[-1])
        return int(self.capture_sizes[self.capture_sizes <= limit][-1])

    def pad(self, tokens: Any) -> np.ndarray:
        """Tokens the pass really runs with: the next captured size up to the limit, unchanged above it."""
        tokens = np.asarray(tokens, dtype=np.int64)
        if self.capture_sizes is None:
            return np.asarray(tokens)
        usable = self.capture_sizes[self.capture_sizes <= self.graph_limit]
        padded = usable[np.minimum(np.searchsorted(usable, tokens, side="left"), len(usable) - 1)]
        out: np.ndarray = np.where(tokens <= usable[-1], padded, tokens)
        return out

    def verify_seconds(self, tokens: Any) -> np.ndarray:
        """verify(pad(B)) for each B >= 1: captured up to the limit, the eager curve above it, never blended.

        NaN above the limit where the profile has no eager curve.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        inside = self.verify(self.pad(tokens))
        if self.graph_limit is None:
            return inside
        outside = self.eager(tokens) if self.eager is not None else np.full(tokens.shape, np.nan)
        return np.where(tokens > self.graph_limit, outside, inside)

    def extrapolates(self, tokens: Any) -> np.ndarray:
        """bool, shape of `tokens`: the cost of B lies past the last point of the curve it is read from."""
        tokens = np.asarray(tokens, dtype=np.int64)
        past = self.pad(tokens) > self.verify.x[-1]
        if self.graph_limit is None:
            out: np.ndarray = past
            return out
        past_eager = tokens > self.eager.x[-1] if self.eager is not None else np.zeros(tokens.shape, bool)
        return np.where(tokens > self.graph_limit, past_eager, past)

    def below(self, tokens: Any) -> np.ndarray:
        """bool, shape of `tokens`: the cost of B lies below the first point of the curve it is read from."""
        tokens = np.asarray(tokens, dtype=np.int64)
        short = self.pad(tokens) < self.verify.x[0]
        if self.graph_limit is None:
            out: np.ndarray = short
            return out
        short_eager = tokens < self.eager.x[0] if self.eager is not None else np.zeros(tokens.shape, bool)
        return np.where(tokens > self.graph_limit, short_eager, short)

    def _base(
        self, requests: int, context_tokens: float, draft: bool, sync: bool, drafted: int | None = None
    ) -> float:
        """What a step costs whatever its B; the order of these additions is part of the contract."""
        base = self.bias_seconds + (
            float(self.attention(context_tokens)) if self.attention is not None else 0.0
        )
        base = base + (float(self.overhead(requests)) if self.overhead is not None else 0.0)
        for_whom = drafted if drafted is not None else requests
        if draft:
            base = base + self.draft_seconds(for_whom)
        base = base + self.sync_seconds if sync else base
        if drafted is not None and drafted < requests:
            left_out = self.draft_seconds(requests) - self.draft_seconds(drafted)
            base = base + self.idle_draft * left_out
        return base

    def draft_seconds(self, requests: int) -> float:
        """Seconds to draft one block for each of R requests; 0 for R = 0 or without a draft cost."""
        return float(self.draft(requests)) if self.draft is not None and requests > 0 else 0.0

    def seconds(
        self,
        tokens: int,
        requests: int,
        context_tokens: float,
        draft: bool = True,
        sync: bool = False,
        *,
        drafted: int | None = None,
        missed: int = 0,
    ) -> float:
        """Seconds of one step: B `tokens` (prefill chunks included), R `requests`, N `context_tokens` read.

        `draft`: the step drafts (its cost, and the enabling fraction, are paid). `sync`: the policy reads the
        present confidences before it can launch. `drafted`: requests drafted for by an engine that leaves the
        others out (it pays `idle_draft` of what it saves; 0: as `draft` False), whose drafter reads `missed`
        tokens first that were emitted while it did not draft. Raises ProfileError where the profile has no
        cost for B.
        """
        for name, value, least in (
            ("tokens", tokens, 1),
            ("requests", requests, 0),
            ("context_tokens", context_tokens, 0),
        ):
            if not value >= least:
                raise ProfileError(f"seconds: {name} is {value}; it must be at least {least}")
        verify = float(self.verify_seconds(tokens))
        if np.isnan(verify):
            raise ProfileError(self.refusal(tokens))
        draft = draft and drafted != 0
        base = self._base(requests, context_tokens, draft, sync, drafted)
        if drafted and missed:
            base = base + self.catch_up * missed * (self.draft_seconds(drafted) / drafted)
        total = base + verify
        return total / (1.0 - self.enabling_fraction) if draft and self.enabling_fraction > 0.0 else total

    def refusal(self, tokens: int) -> str:
        """Why a pass of `tokens` has no cost here, and what to do about it."""
        return (
            f"{self.label} has no cost for a pass of {tokens} tokens: its capture limit is "
            f"{self.graph_limit} and it has no eager curve; add an eager block, or run fewer tokens"
        )

    def sps(
        self,
        requests: int,
        context_tokens: float,
        max_tokens: int,
        prefill_tokens: int = 0,
        draft: bool = True,
        sync: bool = False,
    ) -> np.ndarray:
        """float64[max_tokens + 1]: entry B = steps per second of a pass of B + prefill_tokens tokens.

        Entry 0 is that of a pass of at least one token, so that it is finite. Entries for which the profile
        has no cost (above the capture limit without an eager curve) are 0: no schedule can prefer them.
        """
        for name, value in (
            ("requests", requests),
            ("context_tokens", context_tokens),
            ("max_tokens", max_tokens),
        ):
            if not value >= 0:
                raise ProfileError(f"sps: {name} is {value}; it must be at least 0")
        if prefill_tokens < 0:
            raise ProfileError(f"sps: prefill_tokens is {prefill_tokens}; it must be at least 0")
        tokens = np.maximum(np.arange(max_tokens + 1, dtype=np.int64) + int(prefill_tokens), 1)
        seconds = self._base(requests, context_tokens, draft, sync) + self.verify_seconds(tokens)
        if draft and self.enabling_fraction > 0.0:
            seconds = seconds / (1.0 - self.enabling_fraction)
        return np.nan_to_num(1.0 / seconds, nan=0.0)

    def decision_sps(self, requests: int, max_tokens: int, prefill_tokens: int = 0) -> np.ndarray | None:
        """float64[max_tokens + 1]: entry B = steps per second by the table that the engine's scheduler
        decides by; None where it decides by the costs (`sps`)."""
        if self.decision is None:
            return None
        tokens = np.maximum(np.arange(max_tokens + 1, dtype=np.int64) + int(prefill_tokens), 1)
        return np.asarray(1.0 / self.decision.seconds(tokens, requests))

    def tables(self, max_tokens: int, max_requests: int) -> ProfileTables:
        """Plain arrays for the engine loop, for B up to `max_tokens` and R up to `max_requests`."""
        tokens = np.maximum(np.arange(max_tokens + 1, dtype=np.int64), 1)
        requests = np.arange(max_requests + 1, dtype=np.float64)
        zeros = np.zeros(max_requests + 1)
        draft = self.draft(requests) if self.draft is not None else zeros.copy()
        draft[0] = 0.0
        x, y, slope = attention_points(self.attention)
        limit = self.graph_limit
        return ProfileTables(
            verify=np.ascontiguousarray(self.verify_seconds(tokens)),
            extrapolated=self.extrapolates(tokens).astype(np.uint8),
            overhead=self.overhead(requests) if self.overhead is not None else zeros,
            draft=draft,
            attention_x=np.ascontiguousarray(x),
            attention_y=np.ascontiguousarray(y),
            attention_slope=np.ascontiguousarray(slope),
            bias=self.bias_seconds,
            sync=self.sync_seconds,
            enabling_fraction=self.enabling_fraction,
            idle_draft=self.idle_draft,
            catch_up=self.catch_up,
            refused_above=limit if limit is not None and self.eager is None else NO_LIMIT,
            **decision_arrays(self.decision, tokens, max_requests),
        )

    def prefill_seconds(self, tokens: float) -> float | None:
        """Seconds of a pass that only prefills `tokens`; None where the profile has no prefill curve."""
        return float(self.prefill(tokens)) if self.prefill is not None else None

    # -- memory, provenance ----------------------------------------------------------------------------

    @property
    def gpus(self) -> int:
        """GPUs of one engine: `gpu.count`, else tensor x data parallel."""
        return int(
            self.gpu.get("count") or self.parallel.get("tensor", 1) * self.parallel.get("data", 1) or 1
        )

    @property
    def knows_drafter_memory(self) -> bool:
        """Whether the memory of the drafter's weights and of its own KV is known; it may be 0."""
        return self.draft_weight_bytes is not None and self.draft_kv_bytes_per_token is not None

    def kv_bytes(self, drafting: bool = False) -> int | None:
        """Bytes of KV that one token takes; `drafting`: in the drafter's cache too, as far as is known."""
        own = self.model.get("kv_bytes_per_token")
        return own + (self.draft_kv_bytes_per_token or 0) if own and drafting else own

    def kv_capacity_tokens(self, reserve: float = 0.1, drafting: bool = False) -> int | None:
        """KV tokens that fit beside the weights in (1 - reserve) of all GPUs' memory.

        `drafting`: a drafter is loaded; its weights, and its own KV of every token, count as far as they are
        known. None when memory, weights or KV size of the target are unknown; 0 when the weights alone do
        not fit.
        """
        if not 0.0 <= reserve < 1.0:
            raise ProfileError(f"kv_capacity_tokens: reserve is {reserve}; it must be at least 0 and below 1")
        memory, weights, per_token = (
            self.gpu.get("memory_bytes"),
            self.model.get("weight_bytes"),
            self.kv_bytes(drafting),
        )
        if not memory or not weights or not per_token:
            return None
        if drafting:
            weights += self.draft_weight_bytes or 0
        return max(int((memory * self.gpus * (1.0 - reserve) - weights) // per_token), 0)

    @property
    def provenance_warning(self) -> str | None:
        """What an answer must say about where these numbers come from; None when the step was measured."""
        method = self.provenance.get("method")
        said = {
            "composed": "is composed from separately measured kernels, not measured as a step",
            "roofline": "is a roofline estimate: 1.3-5 times optimistic, without cliffs; a last resort",
            "fitted": "is fitted to benchmark runs: what they do not show of a step is assumed",
            "imported": "was imported from another tool's table, which this package cannot check",
            None: "states no provenance: nobody knows where its numbers come from",
        }
        return f"profile {self.name!r} {said[method]}" if method in said else None


def load_profile(name: str | os.PathLike[str]) -> StepProfile:
    """A profile from a path, else the bundled one of that name.

    Raises ProfileError; WorkloadError for an object that is not a path (a trace in its place).
    """
    refuse_other_kind(name, "profile", ProfileError)
    path = resolve(name, "profiles", ".json", ProfileError)
    with reading(path, ProfileError, "step profile"):
        return StepProfile.from_dict(read_json(path, ProfileError), str(path))
