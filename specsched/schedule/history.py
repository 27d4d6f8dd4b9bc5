"""`history:h`: how much to verify, from what was accepted before, for drafters without confidences."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..errors import PolicyError
from . import checks
from .policies import Policy

REMEMBERED = 4096  # requests besides the present ones whose acceptances are kept, the last to be planned


class History(Policy):
    """The best budget of survivals estimated from each request's own acceptances. Lossless.

    A request's acceptance by position is an average in which a step counts 1 - 1/h of the next one, anchored
    in that of all requests (`kernels.habit`). Confidences are not read: for n-gram and suffix drafts, MTP and
    EAGLE chains, and scores that see their own token, which bias every policy that reads them. `settle` must
    tell after every step what was accepted; `ids` say who is who, else rows are the same requests as before.
    """

    family = "history"
    code = kernels.HISTORY
    colour = "#882255"
    weighs_costs = True
    reads_confidence = False

    def __init__(self, steps: int = 8, minimum_gain: float | None = None) -> None:
        self.steps = checks.whole_number(steps, "h of policy history", 1)
        self.kept = 1.0 - 1.0 / self.steps
        self.minimum_gain = checks.gain(minimum_gain)
        self.name = f"history:{self.steps}"
        self.reset()

    @classmethod
    def read(cls, parameter: str | None, block_size: int | None, minimum_gain: float | None) -> Policy:
        steps = 8 if parameter is None else checks.typed_whole(f"history:{parameter}", parameter)
        return cls(steps, minimum_gain)

    def kernel_plan(self, max_running: int, block_size: int, profile_gain: float) -> kernels.Plan:
        return super().kernel_plan(max_running, block_size, profile_gain)._replace(theta=self.kept)

    def reset(self) -> None:
        self._habits: dict[int, NDArray[np.float64]] = {}
        self._common = np.zeros((2, 0))
        self._planned: tuple[list[int], NDArray[np.int32]] | None = None

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
        if self._planned is not None:
            raise PolicyError(
                f"policy {self.name}: settle() was not told what became of the last plan; call it every step"
            )
        s = checks.costs(sps, c)
        requests, block = c.shape
        who = np.arange(requests) if ids is None else checks.request_ids(ids, requests)
        if self._common.shape[1] != block:
            self._habits, self._common = {}, np.zeros((2, block))
        names = [int(i) for i in who]
        for i in names:  # the least recently planned come first
            self._habits[i] = self._habits.pop(i) if i in self._habits else np.zeros((2, block))
        while len(self._habits) > REMEMBERED + requests:
            del self._habits[next(iter(self._habits))]
        survival, work = np.empty(c.shape), checks.work(c.size)
        checks.refuse(kernels.take_both(c, s, survival), c, s)  # confidences are not used, but not ignored
        habits = np.array([self._habits[i] for i in names]).reshape(requests, 2, block)
        kernels.expect_all(habits, self._common, survival)
        budget = int(kernels.best_budget(survival, s, self.minimum_gain or 0.0, work))
        kernels.top_k(survival, budget, lengths, work)
        self._planned = names, lengths

    def settle(self, accepted: ArrayLike) -> None:
        if self._planned is None:
            raise PolicyError(f"policy {self.name}: settle() without a plan; call plan() first, once a step")
        names, lengths = self._planned
        block = self._common.shape[1]
        known = checks.acceptances(accepted, np.empty((len(names), block)))
        habits = np.array([self._habits[i] for i in names]).reshape(len(names), 2, block)
        kernels.remember_all(habits, self._common, lengths, known, self.kept)
        self._habits.update(zip(names, habits, strict=True))
        self._planned = None
