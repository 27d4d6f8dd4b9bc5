"""`lagged` that may stop drafting where it does not pay, and comes back by probing."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..errors import PolicyError
from . import checks
from .lagged import Lagged


class Bypass(Lagged):
    """`lagged:n`, with steps that draft nothing while that is expected to serve more. Lossless.

    Before every step `drafting` says for which requests to draft. It compares the greatest throughput that
    drafts are expected to bring with that of a plain step, both at the present number of requests and their
    present costs. What drafts bring is known from the last `window` rows drafted (an eighth of them while
    stopped), n steps old or older: survivals, corrected by how many of those verified were accepted (`settle`
    tells). Steps that draft for all are planned as `lagged:n` plans them, as if there were no others in
    between. Stopped, it probes now and then: `rows` requests, others each time, are drafted for and their
    whole blocks verified, so seldom that this takes no more than `share` of the time.

        drafted = policy.drafting(requests, block_size, sps, idle_sps)   # bool[R]; then draft for these
        lengths = policy.plan(confidence, sps, ids=ids)                  # other rows are not read
        policy.settle(accepted)                                          # int[R], of the drafts verified

    `least`: rows that are drafted before the first comparison. `gain`: the least relative gain to come back
    for, since the drafter has to read first what it missed.
    """

    family = "bypass"
    code = kernels.BYPASS
    engines_own = False
    colour = "#CC79A7"
    meaning = (
        "lagged that stops drafting for a request, or a step, where it does not pay, and probes to come back"
    )

    def __init__(
        self,
        lag: int = 2,
        minimum_gain: float | None = None,
        *,
        window: int = 4096,
        least: int = 128,
        gain: float = 0.01,
        share: float = 0.008,
        rows: int = 16,
    ) -> None:
        whole = {"window": window, "least": least, "rows": rows}
        numbers = {k: checks.whole_number(v, f"{k} of policy bypass", 1) for k, v in whole.items()}
        back = checks.real_number(gain, "gain of policy bypass", 0.0, 1e6)
        probing = checks.real_number(share, "share of policy bypass", 1e-9, 1.0)
        self._setting = np.array(
            [numbers["window"], numbers["least"], back, probing, numbers["rows"]], np.float64
        )
        super().__init__(lag, minimum_gain)
        self.name = f"bypass:{self.lag}"

    def kernel_plan(self, max_running: int, block_size: int, profile_gain: float) -> kernels.Plan:
        plan = super().kernel_plan(max_running, block_size, profile_gain)
        return plan._replace(bypass=self._setting)

    def reset(self) -> None:
        super().reset()
        self._memory, self._counters = kernels.make_memory(self.lag)
        self._decided: NDArray[np.bool_] | None = None  # for whom the coming step drafts
        # Survivals, for whom was drafted, and lengths of the step to be settled.
        self._planned: tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int32]] | None = None

    def drafting(
        self, requests: int, block_size: int, sps: ArrayLike | None = None, idle_sps: float | None = None
    ) -> NDArray[np.bool_]:
        number = checks.whole_number(requests, "the number of requests", 0)
        if self._planned is not None:
            raise PolicyError(
                f"policy {self.name}: settle() was not told what became of the last plan; call it every step"
            )
        shape = np.empty((number, checks.whole_number(block_size, "the block size", 1)))
        s = checks.costs(sps, shape)
        checks.refuse(kernels.check_costs(s, number, shape.size), shape, s)
        if idle_sps is None:
            raise PolicyError(f"policy {self.name} needs idle_sps: steps per second when nothing is drafted")
        idle = checks.real_number(idle_sps, "idle_sps", 0.0, 1e300)
        drafted = first = 0
        if number > 0:
            setting, memory, counters = self._setting, self._memory, self._counters
            drafted = int(kernels.decide(memory, counters, number, shape.shape[1], s, idle, setting))
            first = int(kernels.first_row(counters, drafted, number))
        self._decided = (np.arange(number) - first) % max(number, 1) < drafted
        return self._decided.copy()

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
        decided = self._decided
        if decided is None or len(decided) != len(c):
            rows = "nothing" if decided is None else f"{len(decided)} requests"
            raise PolicyError(
                f"policy {self.name} plans {len(c)} requests, and drafting() was asked for {rows} before; "
                "call drafting() and then plan(), once a step"
            )
        survival = np.empty(c.shape)
        read = np.where(decided[:, np.newaxis], c, 0.0)
        if len(c) and decided.all():
            super()._plan(c, lengths, sps, ids, accepted)
            kernels.survival(c, survival)
        else:
            s = checks.costs(sps, c)
            checks.refuse(kernels.take_both(read, s, survival), read, s)
            budget = int(kernels.priced_drafts(s, len(c), int(decided.sum()) * c.shape[1]))
            kernels.top_k(survival, budget, lengths, checks.work(c.size))
        self._decided, self._planned = None, (survival, decided, lengths)

    def settle(self, accepted: ArrayLike) -> None:
        if self._planned is None:
            raise PolicyError(f"policy {self.name}: settle() without a plan; call plan() first, once a step")
        survival, decided, lengths = self._planned
        known = checks.acceptances(accepted, survival)
        if len(decided):
            drafted = int(decided.sum())
            first = int(kernels.first_row(self._counters, drafted, len(decided)))
            entry = self._memory[kernels.latest(self._memory, self._counters)]
            kernels.note(survival, first, drafted, lengths, known, entry)
        self._planned = None
