"""`specsched/answer/1`: users per engine at a promised speed."""

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
    Summary,
    Warnings,
)

Binds = Literal["speed", "ttft", "itl", "e2e", "memory", "profile", "ladder"]
Pair = Annotated[list[int], "[first, last], or [low, high]"]


class CurveRow(TypedDict):
    """One load of a policy's curve; figures as in a run's summary."""

    concurrency: Annotated[int, "users of one engine"]
    throughput: float
    tps_user: Spread
    emitted_per_step: float
    verify_tokens_per_request: float
    rejected_share: float
    step_seconds: float
    tokens_per_pass: float
    budget_per_pass: float
    off_graph_steps: int
    extrapolated_steps: int
    steps: int
    share_at_sla: Share
    share_interval: Interval
    keeps_tps: Annotated[float, "the highest SLA that this load keeps, memory and price aside; limits within"]
    limits_kept: Annotated[bool, "limits with a share of their own are kept"]
    memory_held: Annotated[bool, "KV memory held every user all the time"]
    priced: Annotated[bool, "false: too many steps lie past the end of a table that goes on flat"]


class IfSteps(TypedDict):
    """How steep the capacity is in the cost of a step, to 2 %."""

    costlier: Annotated[int, "users when every step takes `by` longer"]
    cheaper: Annotated[int, "users when every step takes `by` less"]
    by: float


class IfAcceptance(TypedDict):
    """How steep the capacity is in the acceptance of drafts, to 2 %."""

    lower: Annotated[int, "users when every draft is accepted `by` less often"]
    higher: Annotated[int, "users when every draft is accepted `by` more often"]
    by: float


class CapacityAt(TypedDict):
    """The capacity at another SLA."""

    sla_tps: Speed
    capacity: int


class Ladder(TypedDict):
    """How a capacity is found among the loads; the page reads those of other SLAs from them likewise."""

    rungs: Annotated[list[int], "loads tried in this order, up to the first that fails"]
    refined: Annotated[bool, "between the last that passes and the first that fails, to one user"]
    to_spare: Annotated[float, "rungs that reach the SLA so many times: captured loads between are left out"]


class Capacity(TypedDict):
    """How many users fit, and what ends it."""

    capacity: Annotated[int, "users of one engine before the first load that fails"]
    capacity_interval: Pair
    capacity_per_gpu: float
    binds: Annotated[Binds, "what ends the capacity"]
    capacity_if_steps: Annotated[IfSteps | None, "null: the loads were given"]
    pockets: Annotated[list[Pair], "loads beyond the capacity that pass again"]


class PolicyRow(Capacity):
    """One policy of the answer."""

    policy: Policy
    lossless: Lossless
    capacity_at: Annotated[list[CapacityAt], "at other SLAs, where they were explored (`--out`)"]
    capacity_if_acceptance: Annotated[IfAcceptance | None, "null: not explored, or nothing is drafted"]
    captured_loads: Annotated[list[int], "loads on either side of a captured size"]
    refused_loads: Annotated[list[int], "loads tried for which the profile has no cost"]
    throughput_at_capacity: Annotated[float, "output tokens per second of one engine; 0 at capacity 0"]
    at_capacity: Annotated[Summary | None, "the run at the capacity; null at capacity 0"]
    hindsight_share: Annotated[
        float | None, "throughput over that of the myopic reference, which is no bound"
    ]
    goodput: Annotated[Goodput | None, "at the capacity; null at capacity 0"]
    curve: list[CurveRow]


# `from` is a word of Python: the functional form.
Crossover = TypedDict(
    "Crossover",
    {
        "from": Policy,
        "to": Policy,
        "between": Annotated[list[int], "[load, next load]"],
        "concurrency": Annotated[int, "the later of the two"],
    },
)
Crossover.__doc__ = "Where the lossless policy of highest throughput changes along the loads."


class AnswerSettings(TypedDict):
    """What the answer was asked with."""

    requests: int
    seed: int
    prefill: str
    context: int | None
    loads: Annotated[Literal["given", "ladder"], "given: the capacity is one of the loads asked for"]
    kv_reserve: float


class Origins(TypedDict):
    """Provenance of the inputs, as their files have it."""

    profile: Loose
    trace: Loose


class Answer(TypedDict):
    """How many users one engine carries at a promised speed, under which policy."""

    schema: Literal["specsched/answer/1"]
    sla_tps: Speed
    sla_fraction: Fraction
    limits: LimitsStated
    profile: str
    trace: str
    gpus_per_engine: int
    block_size: int
    recommended_runs_in: Annotated[RunsIn | None, "where the recommended policy runs today"]
    recommended: Annotated[str | None, "the lossless policy of most users; null: nobody gets the SLA"]
    headline: str
    warnings: Warnings
    not_modelled: LeftOut
    calibration: CalibrationNote
    settings: AnswerSettings
    provenance: Origins
    crossovers: list[Crossover]
    ladder: Ladder
    policies: list[PolicyRow]
    about: About
    made_with: NotRequired[Annotated[MadeWith, "by the command line"]]
