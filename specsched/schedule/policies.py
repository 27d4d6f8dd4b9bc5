"""The verification policies, as users and engines call them: how many drafts of each request to verify.

    lengths = schedule.make("lagged:2").plan(confidence, sps, ids=ids)      # once a step

`confidence` float64[R, γ] holds, for R requests and blocks of γ drafts, the calibrated probability that a
position is accepted given that all before it were; `sps[B]` the steps per second of a pass of B tokens,
anchors included (`StepProfile.sps` makes it). The answer is int32[R], 0..γ drafts for each request.

Policies and their admission order are those of DSpark (arXiv 2607.05147), section 5 and Algorithm 1.
"Lossless" means that the served text has the target's own law: docs/losslessness.md says why and when. This
file is the policies, `lagged` the one with a memory, `checks` what they accept, `kernels` the arithmetic. The
functions may be called from several threads at once; a policy object belongs to one engine.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..errors import PolicyError
from ..files import read_json, reading
from . import checks


class Policy:
    """One verification policy. `make(policy.name)` makes the same policy again.

    A class says all that others ask of it: the engine loop (`kernel_plan`), the search for capacity
    (`pass_width`), plots (`colour`), reports (`meaning`, `runs_in`), and how it is written (`read`).
    `names.POLICIES` lists the classes.
    """

    family: ClassVar[str]  # its name without a parameter
    code: ClassVar[int]  # kernels.OFF ... kernels.BATCH_TABLE
    colour: ClassVar[str] = "#666666"  # of its curves
    meaning: ClassVar[str] = "a policy of your own"  # what it does, for a reader of reports
    # Where it runs today, as of the versions this project reads formats of (docs/formats.md).
    runs_in: ClassVar[str] = "no released engine: it needs a scheduler of your own"
    drafts: ClassVar[bool] = True  # False: nothing is drafted and the cost of drafting is not paid
    weighs_costs: ClassVar[bool] = False  # True: it reads `sps`
    # True: engines have it, and decide by the table of the profile's scheduler where there is one.
    engines_own: ClassVar[bool] = False
    pays_sync: ClassVar[bool] = False  # True: B depends on present confidences, so the step waits for them
    reads_confidence: ClassVar[bool] = True
    biased: ClassVar[bool] = False  # True: not lossless whatever the confidences are
    name: str  # canonical, its parameter included
    minimum_gain: float | None = None  # least predicted gain to trim for; None: what the profile says

    def __repr__(self) -> str:
        return f"<policy {self.name}>"

    @classmethod
    def read(cls, parameter: str | None, block_size: int | None, minimum_gain: float | None) -> Policy:
        """The policy of `family:parameter`. Raises PolicyError for a parameter that cannot be."""
        if parameter is not None:
            raise PolicyError(
                f"policy {cls.family} takes no parameter; write {cls.family}, not "
                f"{cls.family + ':' + parameter!r}"
            )
        return cls()

    def lossless(self, confidence_sees_token: bool = False) -> bool | None:
        """Whether the served text keeps the target's own distribution at temperature > 0; None: not proved.

        `confidence_sees_token`: the confidence of a position uses the probability of the very token drafted
        there, as most engines' logs do. Then only policies that do not read confidences are lossless.
        """
        return not self.biased and not (confidence_sees_token and self.reads_confidence)

    def pass_width(self, block_size: int) -> int:
        """Most tokens of one request in a pass of blocks of γ; R requests need R times as many."""
        return 1 + block_size

    def kernel_plan(self, max_running: int, block_size: int, profile_gain: float) -> kernels.Plan:
        """The policy as the numbers that the engine loop reads, for up to `max_running` requests.

        `profile_gain`: the minimum gain of the profile, taken where the policy has none of its own.
        """
        gain = profile_gain if self.minimum_gain is None else self.minimum_gain
        return kernels.Plan(
            code=self.code,
            theta=0.0,
            lag=1,
            fixed=np.zeros(max_running + 1, dtype=np.int64),
            minimum_gain=float(gain),
            drafts=self.drafts,
            pays_sync=self.pays_sync,
            bypass=np.zeros(5),
            pace=np.ones(3),
        )

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

    def drafting(
        self, requests: int, block_size: int, sps: ArrayLike | None = None, idle_sps: float | None = None
    ) -> NDArray[np.bool_]:
        """For which of R requests the coming step drafts, as bool[R]: before anything is drafted.

        Blocks have γ = `block_size` drafts; sps [> R(1 + γ)] are the costs of a step that drafts for all,
        `idle_sps` the steps per second when nothing is drafted. Only `bypass` weighs them, and there a call
        before every `plan` is a must; other policies draft for all requests, or for none.
        """
        return np.full(checks.whole_number(requests, "the number of requests", 0), self.drafts)

    def pace(self, speed: ArrayLike) -> None:
        """Tell how fast each request has been so far, before the plan: float64[R] tokens/s, for `sla`."""

    def settle(self, accepted: ArrayLike) -> None:
        """Tell what became of the last plan: int[R], how many of its drafts were accepted."""

    def reset(self) -> None:
        """Forget all earlier steps."""


class SameLength(Policy):
    """Policies that give every request the same length, whatever the confidences.

    A subclass says its rule in `length_for`, or in `_length` where the rule needs the block's size. The
    engine loop looks the length up by the number of requests; a step whose length is 0 drafts nothing and
    does not pay for drafting.
    """

    code = kernels.BATCH_TABLE
    reads_confidence = False

    def length_for(self, requests: int) -> int:
        """The k that each of `requests` requests verifies."""
        raise NotImplementedError

    def kernel_plan(self, max_running: int, block_size: int, profile_gain: float) -> kernels.Plan:
        lengths = np.zeros(max_running + 1, dtype=np.int64)
        lengths[1:] = [self._length(r, block_size) for r in range(1, max_running + 1)]
        if lengths.max() > block_size:
            raise PolicyError(
                f"policy {self.name} verifies {lengths.max()} tokens but blocks hold {block_size}; "
                "lower its parameter"
            )
        return super().kernel_plan(max_running, block_size, profile_gain)._replace(fixed=lengths)

    def drafting(
        self, requests: int, block_size: int, sps: ArrayLike | None = None, idle_sps: float | None = None
    ) -> NDArray[np.bool_]:
        drafted = super().drafting(requests, block_size, sps, idle_sps)
        return drafted & (self._length(len(drafted), block_size) > 0) if len(drafted) else drafted

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
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
        """The k of each of `requests` requests with blocks of `block` drafts."""
        return self.length_for(requests)


class Off(SameLength):
    """No drafting: one token a step for every request."""

    family = name = "off"
    code = kernels.OFF
    colour = "#222222"
    meaning = "no drafting: every step gives each request one token"
    runs_in = "every engine"
    drafts = False

    def pass_width(self, block_size: int) -> int:
        return 1

    def length_for(self, requests: int) -> int:
        return 0


class Fixed(SameLength):
    """Verify k drafts of every request; without k the whole block. fixed:1 is the MTP-1 baseline."""

    family = "fixed"
    code = kernels.FIXED
    colour = "#D55E00"
    meaning = "verify the same number k of drafts of every request, whatever the load"
    runs_in = "every engine that drafts (vLLM, SGLang, TensorRT-LLM): their number of speculative tokens"

    def __init__(self, k: int | None = None) -> None:
        self.k = None if k is None else checks.whole_number(k, "k of policy fixed", 1)
        self.name = "fixed" if self.k is None else f"fixed:{self.k}"

    @classmethod
    def read(cls, parameter: str | None, block_size: int | None, minimum_gain: float | None) -> Policy:
        policy = cls(block_size if parameter is None else checks.typed_whole(f"fixed:{parameter}", parameter))
        checks.fits_block(policy.name, policy.k or 0, block_size)
        return policy

    def pass_width(self, block_size: int) -> int:
        return 1 + (block_size if self.k is None else self.k)

    def length_for(self, requests: int) -> int:
        if self.k is None:
            raise PolicyError(
                "policy fixed without k means the whole block; name k, or give make() the block_size"
            )
        return self.k

    def _length(self, requests: int, block: int) -> int:
        return block if self.k is None else self.k


class BatchTable(SameLength):
    """One k for all requests, looked up by their number: what engines call dynamic speculative decoding.

    rows: [[first, last, k], ...], first and last inclusive, from 1 request up without gaps; None as the last
    row's `last` is no end. file: where the rows were read, for the name.
    """

    family = "batch-table"
    colour = "#56B4E9"
    meaning = "one number of drafts for all requests, looked up by how many there are"
    runs_in = (
        "vLLM (num_speculative_tokens_per_batch_size) and TensorRT-LLM (draft_len_schedule, not for DSpark)"
    )

    def __init__(self, rows: Any, file: str = "") -> None:
        self.file = file or "batch table"
        self.table: NDArray[np.int64] = checks.batch_table(rows, self.file)
        self.name = f"batch-table:{file}" if file else "batch-table"

    @classmethod
    def read(cls, parameter: str | None, block_size: int | None, minimum_gain: float | None) -> Policy:
        if parameter is None:
            raise PolicyError("policy batch-table needs a JSON file, as in batch-table:FILE")
        with reading(parameter, PolicyError, "batch table"):
            policy = cls(read_json(parameter, PolicyError), os.fspath(parameter))
        checks.fits_block(policy.name, int(policy.table[:, 2].max()), block_size)
        return policy

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

    family = "threshold"
    code = kernels.THRESHOLD
    colour = "#E69F00"
    meaning = "verify a request's drafts while the chance that all of them are accepted is at least x"
    pays_sync = True

    def __init__(self, theta: float) -> None:
        self.theta = checks.real_number(theta, "θ of policy threshold", 0.0, 1.0)
        self.name = f"threshold:{repr(self.theta).removesuffix('.0')}"

    @classmethod
    def read(cls, parameter: str | None, block_size: int | None, minimum_gain: float | None) -> Policy:
        if parameter is None:
            raise PolicyError("policy threshold needs its θ in [0, 1], as in threshold:0.3")
        return cls(checks.typed_real(f"threshold:{parameter}", parameter))

    def kernel_plan(self, max_running: int, block_size: int, profile_gain: float) -> kernels.Plan:
        return super().kernel_plan(max_running, block_size, profile_gain)._replace(theta=self.theta)

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
        status = kernels.plan_threshold(c, self.theta, lengths, checks.work(c.size).survival)
        if status < 0:
            checks.refuse(status, c)


class EarlyStop(Policy):
    """Algorithm 1; see `early_stop`."""

    family = name = "early-stop"
    code = kernels.EARLY_STOP
    colour = "#009E73"
    meaning = (
        "add drafts, the surest first, and stop at the first that does not raise throughput (Algorithm 1)"
    )
    runs_in = "ROCm/ATOM"
    weighs_costs = True
    engines_own = True
    pays_sync = True

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
        s = checks.costs(sps, c)
        status = kernels.plan_early_stop(c, s, lengths, *checks.work(c.size))
        if status < 0:
            checks.refuse(status, c, s)


class Global(Policy):
    """The best budget of the present survivals. Not lossless: kept to measure what the bias would buy."""

    family = name = "global"
    code = kernels.GLOBAL
    colour = "#5B3FA0"
    meaning = "the best number of drafts for the present confidences; biased, for study only"
    weighs_costs = True
    pays_sync = True
    biased = True

    def __init__(self, minimum_gain: float | None = None) -> None:
        self.minimum_gain = checks.gain(minimum_gain)

    @classmethod
    def read(cls, parameter: str | None, block_size: int | None, minimum_gain: float | None) -> Policy:
        super().read(parameter, block_size, minimum_gain)
        return cls(minimum_gain)

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
        s = checks.costs(sps, c)
        status = kernels.plan_unconstrained(c, s, self.minimum_gain or 0.0, lengths, *checks.work(c.size))
        if status < 0:
            checks.refuse(status, c, s)


class Hindsight(Global):
    """The best budget when it is known what will be accepted: a myopic reference, no bound, not lossless."""

    family = name = "hindsight"
    code = kernels.HINDSIGHT
    colour = "#8a8a8a"
    meaning = "knows beforehand what will be accepted: a reference to compare with, which no engine can run"
    runs_in = "nowhere: it needs to know the future"
    pays_sync = False
    reads_confidence = False  # what will be accepted, in their place

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
        checks.refuse(kernels.take_confidence(c, np.empty(c.shape)), c)  # they are not used, but not ignored
        known = checks.acceptances(accepted, c)[:, np.newaxis] > np.arange(c.shape[1])
        super()._plan(known.astype(np.float64), lengths, sps, ids, None)
