"""The lagged policy of section 5.2, and the steps it looks back at."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..errors import PolicyError
from . import checks
from .policies import Policy


class _Snapshot:
    """A step to be looked back at: its survivals, and whose row each is."""

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


MOST_STEPS = 1000  # the memory of a lag is a block a step and place; engines lag by two or three steps


class Lagged(Policy):
    """The best budget of the survivals of `lag` steps ago, filled by the top of the present ones. Lossless.

    Nothing waits for the present confidences to know the budget, so launches can be prepared ahead. Every
    present request brings its survivals of `lag` steps ago, or 1 at every position if it has none; R and the
    costs are the present ones. While no step of `lag` calls ago exists at all, the whole block is verified,
    or as many of the highest survivals as have a price (sps above 0).

    `ids` say who is who. Without them rows are taken to be the same requests as before, and a change of R (or
    of γ) starts a new history. Give ids always or never: a change between calls raises PolicyError.
    """

    family = "lagged"
    code = kernels.LAGGED
    colour = "#0072B2"
    meaning = (
        "the number of drafts that would have been best n steps ago, given to the surest drafts of "
        "now, so that "
        "launches wait for nothing"
    )
    runs_in = (
        "vLLM from 0.32 (enable_adaptive_verification), SGLang (DSpark, ragged verify mode compact) and "
        "TensorRT-LLM from 1.4.0rc4 (DSpark, enable_confidence_scheduling)"
    )
    weighs_costs = True
    engines_own = True

    def __init__(self, lag: int = 2, minimum_gain: float | None = None) -> None:
        if lag == 0:
            raise PolicyError("lag 0 would be policy global, which is not lossless; name that, or a lag >= 1")
        self.lag = checks.whole_number(lag, "the lag of policy lagged", 1, MOST_STEPS)
        self.minimum_gain = checks.gain(minimum_gain)
        self.name = f"lagged:{self.lag}"
        self.reset()

    @classmethod
    def read(cls, parameter: str | None, block_size: int | None, minimum_gain: float | None) -> Policy:
        return cls(
            2 if parameter is None else checks.typed_whole(f"lagged:{parameter}", parameter), minimum_gain
        )

    def kernel_plan(self, max_running: int, block_size: int, profile_gain: float) -> kernels.Plan:
        return super().kernel_plan(max_running, block_size, profile_gain)._replace(lag=self.lag)

    def reset(self) -> None:
        self._past: deque[_Snapshot] = deque()
        self._spare: _Snapshot | None = None  # a step just forgotten: the next one's memory
        self._with_ids = False
        self._recalled = kernels.make_work(0, 1)

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
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
            budget = status = self._budget(looked_at, shape, s)
        else:
            budget, status = c.size, kernels.check_costs(s, requests, c.size)
            if status >= 0:
                budget = int(kernels.priced_drafts(s, requests, c.size))
        if status >= 0:
            status = self._fill(c, budget, lengths, present.work)
        if status < 0:
            checks.refuse(status, c, s)
        if not known and budget == c.size:
            lengths[:] = block
        # Nothing was refused: from here on the step is part of the history.
        self._spare = past.popleft() if known else None
        past.append(present)
        self._past, self._with_ids = past, ids is not None

    def _budget(self, past: kernels.Work, shape: tuple[int, int], sps: NDArray[np.float64]) -> int:
        """Drafts to verify of (R, γ), by survivals looked back at; or a fault."""
        return int(kernels.budget_of_past(*shape, sps, self.minimum_gain or 0.0, *past))

    def _fill(
        self, c: NDArray[np.float64], budget: int, lengths: NDArray[np.int32], work: kernels.Work
    ) -> int:
        """The best `budget` present drafts, as `lengths`; their survivals stay in `work`. 0, or a fault."""
        return int(kernels.plan_top_k(c, budget, lengths, *work))

    def _look_at(self, past: _Snapshot, present: _Snapshot) -> kernels.Work:
        """Survivals of `past`, in the order of the present requests."""
        if past.ids is present.ids:
            return past.work
        size = past.shape[0] * past.shape[1]
        if self._recalled.survival.size < present.shape[0] * present.shape[1]:
            self._recalled = kernels.make_work(*present.shape)
        survival = past.work.survival[:size].reshape(past.shape)
        rows, block = present.shape
        recalled = self._recalled.survival[: rows * block].reshape(present.shape)
        kernels.recall(present.ids, past.ids, past.slots, survival, recalled)
        return self._recalled
