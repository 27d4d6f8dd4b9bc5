"""`specsched/plan/1`: how many GPUs the traffic needs."""

from typing import Annotated, Literal, NotRequired, TypedDict

from .shared import (
    About,
    CalibrationNote,
    Fraction,
    Goodput,
    Interval,
    LeftOut,
    LimitsStated,
    Loose,
    Lossless,
    MadeWith,
    Policy,
    RunsIn,
    Share,
    Speed,
    Spread,
    Warnings,
)

Binds = Literal["traffic", "speed", "itl", "e2e", "memory", "queueing", "profile"]


class FleetRow(TypedDict):
    """One fleet that was tried."""

    engines: int
    gpus: int
    share_at_sla: Share
    share_interval: Interval
    backlog_grows: bool


class PlanFigures(TypedDict, total=False):
    """What the fewest engines do; absent where no number of engines is enough."""

    share_at_sla: Share
    goodput: Goodput | None
    throughput: Annotated[float, "output tokens per second of the fleet"]
    tps_user: Spread
    tpot_seconds: Annotated[Spread, "time per output token of a request, after its first: 1 / its speed"]
    end_to_end_seconds: Annotated[Spread, "arrival to last token"]
    ttft_seconds: Spread | None
    itl_seconds: Annotated[Spread, "longest time between two deliveries of a request's tokens"]
    wait_seconds: Annotated[Spread, "arrival to a place in the batch"]
    tps_user_without_wait: Spread
    tps_user_with_wait: Spread
    emitted_per_step: float
    verify_tokens_per_request: float
    rejected_share: float
    requests_per_engine: Annotated[float, "decoding, over time"]
    cost_per_hour: Annotated[float, "in the currency of the GPU hour"]
    cost_per_million_tokens: float


class PlanRow(PlanFigures):
    """One policy of the plan."""

    policy: Policy
    lossless: Lossless
    engines: Annotated[int | None, "fewest that keep the promise; null: no number does"]
    engines_fewest: Annotated[int | None, "as simulated; `engines` leans to the safe side"]
    gpus: int | None
    gpus_interval: Annotated[list[int | None] | None, "[low, high]; high null: not known"]
    binds: Annotated[Binds, "what keeps one engine fewer from the promise"]
    curve: list[FleetRow]


class Worth(TypedDict):
    """What a little more is worth to the recommended fleet, in requests per second."""

    rate: Annotated[float, "the highest that it carries at the promise"]
    one_more_engine: float
    capture_limit_doubled: NotRequired[float]
    capture_limit: NotRequired[Annotated[list[int | None], "[now, doubled], tokens"]]
    last_block_position: NotRequired[float]
    block_size: NotRequired[int]


class HourRow(TypedDict):
    """One hour, or ten minutes, of recorded arrivals."""

    start_seconds: float
    start: Annotated[str | None, "date, where the file has one"]
    requests: int
    rate: Annotated[float, "requests per second"]
    gpus: int


class Hours(TypedDict):
    """What each hour needs, estimated, and what a fleet that follows it would save."""

    policy: Policy
    bin_seconds: float
    method: str
    table: list[HourRow]
    gpus_peak: Annotated[int, "of the fleet that carries every hour"]
    gpus_mean: Annotated[float, "of a fleet that follows the arrivals, over time"]
    gpu_hours_peak: float
    gpu_hours_following: float
    saving: Annotated[float, "share of the GPU hours"]
    cost_peak: float | None
    cost_following: float | None


class PlanSettings(TypedDict):
    """What the plan was asked with."""

    prefill: str
    router: str
    context: int | None
    max_running: int
    seed: int


class Plan(TypedDict):
    """The fewest GPUs that carry the traffic at a promised speed, for each policy."""

    schema: Literal["specsched/plan/1"]
    sla_tps: Speed
    sla_fraction: Fraction
    limits: LimitsStated
    rate: Annotated[float, "requests per second, as asked"]
    rate_simulated: float
    burstiness: Annotated[float | None, "coefficient of variation of the gaps between arrivals"]
    requests: int
    recorded: Annotated[bool, "the arrivals are of a file, not drawn"]
    profile: str
    trace: str
    gpus_per_engine: int
    gpu_cost_per_hour: float | None
    currency: NotRequired[Annotated[str, "of all costs, as it was named"]]
    recommended: Annotated[str | None, "the lossless policy of fewest engines"]
    headline: str
    recommended_runs_in: RunsIn | None
    policies: list[PlanRow]
    marginal: Worth | None
    calibration: CalibrationNote
    settings: PlanSettings
    warnings: Warnings
    not_modelled: LeftOut
    portion: Annotated[Loose | None, "what of a long file is planned for"]
    hours: Hours | None
    about: About
    made_with: NotRequired[Annotated[MadeWith, "by the command line"]]
