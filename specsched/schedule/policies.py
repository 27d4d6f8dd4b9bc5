"""The verification policies, as users and engines call them: how many drafts of each request to verify.

    lengths = schedule.make("lagged:2").plan(confidence, sps, ids=ids)      # once a step

`confidence` float64[R, γ] holds, for R requests and blocks of γ drafts, the calibrated probability that a
position is accepted given that all before it were; `sps[B]` the steps per second of a pass of B tokens,
anchors included (`StepProfile.sps` makes it). The answer is int32[R], 0..γ drafts for each request.

Policies and their admission order are those of DSpark (arXiv 2607.05147), section 5 and Algorithm 1.
"Lossless" means that the served text has the target's own law: docs/losslessness.md says why and when. This
file is the policies, `checks` what they accept, `kernels` the arithmetic. The functions may be
called from several threads at once; a policy object belongs to one engine.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..errors import PolicyError
from . import checks
from .checks import checked_gain


class Policy:
    """One verification policy. `make(policy.name)` makes the same policy again."""

    name: str  # canonical, its parameter included
    code: int  # kernels.OFF ... kernels.BATCH_TABLE
    parameter: float = 0.0  # k, θ or lag, for the policies that have one
    table: NDArray[np.int64] | None = None  # rows (first R, last R, k) of a batch table
    drafts: bool = True  # False: nothing is drafted and the cost of drafting is not paid
    minimum_gain: float = 0.0  # least predicted gain to trim for; 0: what the profile says, in a simulation
    pays_sync: bool = False  # True: B depends on present confidences, so the step waits for them
    _reads_confidence: bool = True
    _biased: bool = False

    def __repr__(self) -> str:
        return f"<policy {self.name}>"

    def lossless(self, confidence_sees_token: bool = False) -> bool:
        """Whether the served text keeps the target's law at temperature > 0.

        `confidence_sees_token`: the confidence of a position uses the probability of the very token drafted
        there, as most engines' logs do. Then only policies that do not read confidences are lossless.
        """
        return not self._biased and not (confidence_sees_token and self._reads_confidence)

    def plan(
        self,
        confidence: ArrayLike,
        sps: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        accepted: ArrayLike | None = None,
    ) -> NDArray[np.int32]:
        """Verification lengths int32[R] of one step. Call it once a step.

        confidence [R, γ] in [0, 1]; sps [> R(1 + γ)], for policies that weigh costs (others do not read it);
        ids int64[R], who is who, read by `lagged`; accepted int[R] in 0..γ, read by `hindsight`.
        Raises PolicyError naming the request and position, or the B, that is wrong.
        """
        c = checks.confidences(confidence)
        lengths = np.empty(c.shape[0], np.int32)
        self._plan(c, lengths, sps, ids, accepted)
        return lengths

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
        raise NotImplementedError

    def length_for(self, requests: int) -> int:
        """The k that all of `requests` requests verify; only `off`, `fixed` and `batch-table` have one."""
        raise PolicyError(f"policy {self.name} has no length that depends on the number of requests alone")

    def reset(self) -> None:
        """Forget all earlier steps."""


class _SameLength(Policy):
    """Policies that give every request the same length, whatever the confidences."""

    _reads_confidence = False

    def _plan(self, c, lengths, sps, ids, accepted):  # type: ignore[no-untyped-def]
        requests, block = c.shape
        status = kernels.take_confidence(c, checks.work(c.size).survival[: c.size].reshape(c.shape))
        if status < 0:
            checks.refuse(status, c)
        length = self._length(requests, block) if requests else 0
        if length > block:
            raise PolicyError(
                f"policy {self.name} verifies {length} drafts of each of {requests} requests, but blocks "
                f"have {block}; choose at most {block}"
            )
        lengths[:] = length

    def _length(self, requests: int, block: int) -> int:
        return self.length_for(requests)


class Off(_SameLength):
    """No drafting: one token a step for every request."""

    code = kernels.OFF
    name = "off"
    drafts = False

    def length_for(self, requests: int) -> int:
        return 0


class Fixed(_SameLength):
    """Verify k drafts of every request; without k the whole block. fixed:1 is the MTP-1 baseline."""

    code = kernels.FIXED

    def __init__(self, k: int | None = None) -> None:
        self.parameter = 0.0 if k is None else float(checks.whole_number(k, "k of policy fixed", 1))
        self.name = "fixed" if k is None else f"fixed:{int(self.parameter)}"

    def length_for(self, requests: int) -> int:
        if not self.parameter:
            raise PolicyError(
                "policy fixed without k means the whole block; name k, or give make() the block_size"
            )
        return int(self.parameter)

    def _length(self, requests: int, block: int) -> int:
        return int(self.parameter) or block


class BatchTable(_SameLength):
    """One k for all requests, looked up by their number: what engines call dynamic speculative decoding.

    rows: [[first, last, k], ...], first and last inclusive, from 1 request up without gaps; None as the last
    row's `last` is no end. file: where the rows were read, for the name.
    """

    code = kernels.BATCH_TABLE

    def __init__(self, rows: Any, file: str = "") -> None:
        self.file = file or "batch table"
        self.table: NDArray[np.int64] = checks.batch_table(rows, self.file)
        self.name = f"batch-table:{file}" if file else "batch-table"

    def length_for(self, requests: int) -> int:
        length = int(kernels.table_length(self.table, requests))
        if length < 0:
            raise PolicyError(
                f"{self.file} covers 1..{self.table[-1, 1]} requests but there are {requests}; add a row, "
                f"or end the last one with null"
            )
        return length


class Threshold(Policy):
    """Extend every request while its survival is at least θ."""

    code = kernels.THRESHOLD
    pays_sync = True

    def __init__(self, theta: float) -> None:
        self.parameter = checks.real_number(theta, "θ of policy threshold", 0.0, 1.0)
        self.name = f"threshold:{repr(self.parameter).removesuffix('.0')}"

    def _plan(self, c, lengths, sps, ids, accepted):  # type: ignore[no-untyped-def]
        status = kernels.plan_threshold(c, self.parameter, lengths, checks.work(c.size).survival)
        if status < 0:
            checks.refuse(status, c)


class EarlyStop(Policy):
    """Algorithm 1; see `early_stop`."""

    code = kernels.EARLY_STOP
    name = "early-stop"
    pays_sync = True

    def _plan(self, c, lengths, sps, ids, accepted):  # type: ignore[no-untyped-def]
        s = checks.costs(sps, c)
        status = kernels.plan_early_stop(c, s, lengths, *checks.work(c.size))
        if status < 0:
            checks.refuse(status, c, s)


class Global(Policy):
    """The best budget of the present survivals. Not lossless: kept to measure what the bias would buy."""

    code = kernels.GLOBAL
    name = "global"
    pays_sync = True
    _biased = True

    def __init__(self, minimum_gain: float = 0.0) -> None:
        self.minimum_gain = checked_gain(minimum_gain)

    def _plan(self, c, lengths, sps, ids, accepted):  # type: ignore[no-untyped-def]
        s = checks.costs(sps, c)
        status = kernels.plan_unconstrained(c, s, self.minimum_gain, lengths, *checks.work(c.size))
        if status < 0:
            checks.refuse(status, c, s)


class Hindsight(Global):
    """The best budget when it is known what will be accepted: a myopic reference, no bound, not lossless."""

    code = kernels.HINDSIGHT
    name = "hindsight"
    pays_sync = False

    def _plan(self, c, lengths, sps, ids, accepted):  # type: ignore[no-untyped-def]
        checks.refuse(kernels.take_confidence(c, np.empty(c.shape)), c)  # they are not used, but not ignored
        known = checks.acceptances(accepted, c)[:, np.newaxis] > np.arange(c.shape[1])
        super()._plan(known.astype(np.float64), lengths, sps, ids, None)


class _Snapshot:
    """A step to be looked back at: its survivals with their tally, and whose row each is."""

    __slots__ = ("ids", "shape", "slots", "work")

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape  # (R, γ)
        self.work = kernels.make_work(*shape)
        self.ids = self.slots = np.empty(0, np.int64)  # int64[R], and a hash table from id to row

    def name(self, ids: ArrayLike, last: _Snapshot | None, policy: str) -> None:
        """Say whose the rows are; the index of the last step serves again when nobody came or went."""
        who = checks.request_ids(ids, self.shape[0])
        if last is not None and last.ids.tobytes() == who.tobytes():
            self.ids, self.slots = last.ids, last.slots
            return
        self.ids = who.copy()  # the caller may write into its own array before the next step
        self.slots = np.empty(2 << who.size.bit_length(), np.int64)
        twice = kernels.index_ids(self.ids, self.slots)
        if twice >= 0:
            raise PolicyError(
                f"policy {policy}: ids[{twice}] is {who[twice]}, as an earlier row is; give each row its own"
            )


class Lagged(Policy):
    """The best budget of the survivals of `lag` steps ago, filled by the top of the present ones. Lossless.

    Nothing waits for the present confidences to know the budget, so launches can be prepared ahead. Every
    present request brings its survivals of `lag` steps ago, or 1 at every position if it has none; R and the
    costs are the present ones. While no step of `lag` calls ago exists at all, the whole block is verified.

    `ids` say who is who. Without them rows are taken to be the same requests as before, and a change of R (or
    of γ) starts a new history. Give ids always or never: a change between calls raises PolicyError.
    """

    code = kernels.LAGGED

    def __init__(self, lag: int = 2, minimum_gain: float = 0.0) -> None:
        if lag == 0:
            raise PolicyError("lag 0 would be policy global, which is not lossless; name that, or a lag >= 1")
        self.lag = checks.whole_number(lag, "the lag of policy lagged", 1)
        self.parameter = float(self.lag)
        self.minimum_gain = checked_gain(minimum_gain)
        self.name = f"lagged:{self.lag}"
        self.reset()

    def reset(self) -> None:
        self._past: deque[_Snapshot] = deque()
        self._spare: _Snapshot | None = None  # a step just forgotten: the next one's memory
        self._with_ids = False
        self._recalled = kernels.make_work(0, 1)

    def _plan(self, c, lengths, sps, ids, accepted):  # type: ignore[no-untyped-def]
        s = checks.costs(sps, c)
        requests, block = shape = c.shape
        past = self._past
        last = past[-1] if past else None
        if last is not None:
            if self._with_ids != (ids is not None):
                had = "had" if self._with_ids else "had no"
                raise PolicyError(
                    f"policy {self.name}: earlier steps {had} ids; give them always or never, or reset()"
                )
            if last.shape != shape and (ids is None or last.shape[1] != block):
                past, last = deque(), None
        present = self._spare
        if present is None or present.shape != shape:
            present = _Snapshot(shape)
        if ids is not None:
            present.name(ids, last, self.name)
        known = len(past) == self.lag
        if known:
            looked_at = self._look_at(past[0], present) if ids is not None else past[0].work
            budget = status = kernels.budget_of_past(requests, block, s, self.minimum_gain, *looked_at)
        else:
            budget, status = c.size, kernels.check_costs(s, requests, c.size)
        if status >= 0:
            status = kernels.plan_top_k(c, budget, lengths, *present.work)
        if status < 0:
            checks.refuse(status, c, s)
        if not known:
            lengths[:] = block
        # Nothing was refused: from here on the step is part of the history.
        self._spare = past.popleft() if known else None
        past.append(present)
        self._past, self._with_ids = past, ids is not None

    def _look_at(self, past: _Snapshot, present: _Snapshot) -> kernels.Work:
        """Survivals of `past` with their tally, in the order of the present requests."""
        if past.ids is present.ids:
            return past.work
        size = past.shape[0] * past.shape[1]
        if self._recalled.survival.size < present.shape[0] * present.shape[1]:
            self._recalled = kernels.make_work(*present.shape)
        survival = past.work.survival[:size].reshape(past.shape)
        kernels.recall(present.ids, past.ids, past.slots, survival, *self._recalled)
        return self._recalled
