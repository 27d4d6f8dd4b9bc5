"""`specsched/runs/1`: every policy at every load that was asked for."""

from typing import Annotated, Literal, NotRequired, TypedDict

from .shared import (
    About,
    CalibrationNote,
    Goodput,
    LeftOut,
    LimitsStated,
    Loose,
    Lossless,
    MadeWith,
    Policy,
    Share,
    Speed,
    Summary,
    Warnings,
)


class BacklogRow(TypedDict):
    """Whether what waits grows; see `simulator.backlog`."""

    early: Annotated[float, "requests in the system, mean of the second quarter of the arrivals"]
    late: Annotated[float, "of the last quarter"]
    rise: Annotated[float, "requests"]
    noise: Annotated[float, "requests: a rise below this is no trend"]
    per_second: Annotated[float, "requests per second by which the backlog grows"]
    arrivals_seconds: float
    stay_seconds: Annotated[float, "mean, from arrival to the last token"]
    grows: bool


class RunRow(Summary):
    """One run, its summary included."""

    policy: Policy
    lossless: Lossless
    concurrency: Annotated[int | None, "users of one engine; null with arrivals"]
    backlog: NotRequired[BacklogRow]
    share_at_sla: NotRequired[Annotated[Share | None, "null: no request decoded anything"]]
    goodput: NotRequired[Annotated[Goodput | None, "where something is promised"]]


class Runs(TypedDict):
    """Runs at given loads."""

    schema: Literal["specsched/runs/1"]
    profile: str
    trace: str
    arrivals: str
    rate: Annotated[float | None, "requests per second; null in a closed loop"]
    burstiness: Annotated[float | None, "coefficient of variation of the gaps between arrivals"]
    arrivals_requests: int | None
    recorded: Annotated[bool | None, "the arrivals are of a file, not drawn"]
    portion: Annotated[Loose | None, "what of a long file is replayed"]
    prefill: str
    sla_tps: Speed | None
    limits: LimitsStated
    calibration: CalibrationNote
    warnings: Warnings
    not_modelled: LeftOut
    runs: list[RunRow]
    about: About
    made_with: NotRequired[Annotated[MadeWith, "by the command line"]]
