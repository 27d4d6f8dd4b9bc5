"""Benchmark results: how fast an engine served a load, as `specsched fit` learns from them.

One `Measured` is one run of a benchmark client at one load: what was asked (users, lengths, prompts), what
came out (speed of a user, throughput) and what the server counted of speculation, as far as the file says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import FormatError

MOST_SPEED = 1e6  # tokens/s of one user beyond which a unit is wrong
_SUM = 1.10  # users together are this much faster than their speeds add up to at most: rounding, means
_IDLE = 0.01  # users that decode less of the time than this: one of the two speeds is in another unit


@dataclass(frozen=True)
class Measured:
    """One run. Speeds in output tokens per second, times in seconds; None where the file does not say.

    `user`: speed of one user while it decodes, 1 / median time per output token. `total`: output tokens/s of
    all users, from the first request to the last. `accept_length`: tokens of a step of a request, the bonus
    included. `conditional`: acceptance by position given that all before were accepted. `trimmed`: fewer
    drafts were verified than whole blocks hold. `policy`: canonical, or None where nobody said. `silent`: the
    client writes nothing of drafts, so that their absence says nothing.
    """

    source: str
    users: int | None = None
    arm: str | None = None
    policy: str | None = None
    user: float | None = None
    total: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prompts: int | None = None
    accept_length: float | None = None
    conditional: tuple[float, ...] | None = None
    trimmed: bool = False
    drafter: str | None = None
    text: str | None = None
    silent: bool = False

    @property
    def file(self) -> str:
        """Name of the file it came from: `source` without the number of a run in it."""
        head, colon, tail = self.source.rpartition(":")
        return head if colon and tail.isdecimal() else self.source

    @property
    def drafted(self) -> bool | None:
        """Whether the run drafted, as far as its counters or its policy say."""
        if self.policy is not None:
            return self.policy != "off"
        return True if self.accept_length is not None or self.conditional is not None else None

    def checked(self) -> Measured:
        """Itself; raises FormatError where the figures cannot be of one run."""
        for name, value in (("a user's speed", self.user), ("throughput", self.total)):
            if value is not None and not 0.0 < value < MOST_SPEED * (self.users or 1):
                raise FormatError(
                    f"{self.source}: {name} of {value:g} tokens/s; check its unit (output tokens per second)"
                )
        if self.user is None and self.total is None:
            raise FormatError(f"{self.source}: neither a user's speed nor a throughput; nothing to fit")
        if self.users and self.user and self.total and self.total > _SUM * self.users * self.user:
            raise FormatError(
                f"{self.source}: {self.total:,.0f} tokens/s in all from {self.users} users at "
                f"{self.user:,.1f} each; one of the two is in another unit, or counts prompt tokens"
            )
        if self.users and self.user and self.total and self.total < _IDLE * self.users * self.user:
            share = self.total / (self.users * self.user)
            raise FormatError(
                f"{self.source}: {self.total:,.1f} tokens/s in all from {self.users} users at "
                f"{self.user:,.1f} each: "
                f"they would decode {share:.2%} of the time; a time is in another unit (s given as ms?)"
            )
        return self


@dataclass(frozen=True)
class Runs:
    """The runs of one file, with sentences on what was read how."""

    tool: str
    runs: tuple[Measured, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.runs)

    def with_(self, **settings: Any) -> Runs:
        """The same runs, what they do not say taken from `settings`."""
        filled = tuple(
            replace(run, **{k: v for k, v in settings.items() if v is not None and getattr(run, k) is None})
            for run in self.runs
        )
        return replace(self, runs=filled)
