"""`sla:S`: the verification budget goes to requests that are behind the speed promised to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..errors import PolicyError
from . import checks
from .lagged import Lagged
from .policies import Policy


class Paced(Lagged):
    """`lagged` with a weight a request, by how far it is behind the S tokens/s it was promised. Lossless.

    Θ counts each token of a request by its weight: 1 while it is behind, `least` from `margin` ahead on, a
    line in between. So drafts of those behind are verified first, and the step gets only as long as is worth
    it to them. A weight belongs to a request and follows from its past, so it neither changes the order of
    its positions nor sees a draft. Where nobody or everybody is behind it plans what `lagged` plans.

        policy.pace(speed)                                  # float64[R]: tokens/s of each request so far
        lengths = policy.plan(confidence, sps, ids=ids)
    """

    family = "sla"
    code = kernels.PACED
    engines_own = False
    colour = "#117733"

    def __init__(self, sla: float, lag: int = 2, *, margin: float = 0.3, least: float = 0.3) -> None:
        self.sla = checks.real_number(sla, "S of policy sla, in tokens/s,", 1e-9, 1e12)
        self._setting = np.array(
            [
                self.sla,
                checks.real_number(margin, "margin of policy sla", 1e-9, 1e12),
                checks.real_number(least, "least of policy sla", 1e-9, 1.0),
            ]
        )
        super().__init__(lag, 0.0)
        self.name = f"sla:{repr(self.sla).removesuffix('.0')}"

    @classmethod
    def read(cls, parameter: str | None, block_size: int | None, minimum_gain: float | None) -> Policy:
        if parameter is None:
            raise PolicyError("policy sla needs the tokens/s that each user is promised, as in sla:80")
        return cls(checks.typed_real(f"sla:{parameter}", parameter))

    def kernel_plan(self, max_running: int, block_size: int, profile_gain: float) -> kernels.Plan:
        return super().kernel_plan(max_running, block_size, profile_gain)._replace(pace=self._setting)

    def reset(self) -> None:
        super().reset()
        self._speed: NDArray[np.float64] | None = None

    def pace(self, speed: ArrayLike) -> None:
        self._speed = np.array(speed, np.float64)
        if self._speed.ndim != 1 or not (self._speed >= 0.0).all():
            raise PolicyError(f"policy {self.name}: speeds are tokens/s >= 0, one a request; got {speed!r}")

    def _plan(
        self,
        c: NDArray[np.float64],
        lengths: NDArray[np.int32],
        sps: ArrayLike | None,
        ids: ArrayLike | None,
        accepted: ArrayLike | None,
    ) -> None:
        if len(c) and (self._speed is None or len(self._speed) != len(c)):
            told = "none" if self._speed is None else len(self._speed)
            raise PolicyError(
                f"policy {self.name} plans {len(c)} requests and was told the speed of {told}; call pace() "
                "before plan(), every step"
            )
        self._weight = np.empty(len(c))
        if self._speed is not None:
            kernels.weigh(self._speed, *self._setting, self._weight)
        super()._plan(c, lengths, sps, ids, accepted)
        self._speed = None

    def _budget(self, past: kernels.Work, shape: tuple[int, int], sps: NDArray[np.float64]) -> int:
        status = kernels.check_costs(sps, shape[0], shape[0] * shape[1])
        if status < 0:
            return int(status)
        worth = past.survival[: shape[0] * shape[1]].reshape(shape).copy()
        kernels.scale(worth, self._weight)
        return int(kernels.paced_budget(worth, self._weight, sps, checks.work(worth.size)))

    def _fill(
        self, c: NDArray[np.float64], budget: int, lengths: NDArray[np.int32], work: kernels.Work
    ) -> int:
        status = super()._fill(c, budget, lengths, work)
        if status >= 0:
            worth = work.survival[: c.size].reshape(c.shape).copy()
            kernels.scale(worth, self._weight)
            kernels.top_k(worth, budget, lengths, checks.work(c.size))
        return status
