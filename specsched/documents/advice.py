"""`specsched/advice/1`: settings to type into an engine, and what each is worth."""

from typing import Annotated, Literal, TypedDict

from .shared import About, CalibrationNote, Interval, LeftOut, Policy, RunsIn, Warnings


class Traffic(TypedDict):
    """What the advice is for."""

    kind: Literal["sla", "users", "rate"]
    value: Annotated[float, "tokens/s of a user, users of one engine, or requests/s of one engine"]
    share: Annotated[float, "share of the requests that must get the SLA"]


class Candidate(TypedDict):
    """One policy at this traffic, with the profile's own captured sizes and no limit of requests."""

    policy: Annotated[str, "off, fixed:k, schedule (by batch size, the rows of `schedule`), lagged:n"]
    users: Annotated[int, "users of one engine in this run; of arrivals, the mean number decoding"]
    capacity: Annotated[int | None, "users carried at the SLA; null where that was not asked or searched"]
    capacity_interval: Annotated[Interval | None, "what the noise of the trace leaves"]
    throughput: Annotated[float, "output tokens per second of the engine; 0: it has no cost, or does not fit"]
    throughput_interval: Interval | None
    slow_user: Annotated[float, "tokens/s that the share of the requests reach"]
    emitted_per_step: float | None
    steady: Annotated[bool, "false: arrivals pile up, or the load cannot be run"]


class Schedule(TypedDict):
    """Tokens to draft by batch size."""

    rows: Annotated[list[list[int]], "[first, last, k]: both batch sizes included"]
    accepted: Annotated[list[float], "share of blocks whose first 1, 2, ... drafts are accepted"]
    context: Annotated[float, "tokens of context of a request, mean over the time it decodes"]
    tolerance: Annotated[float, "of the best throughput of a batch size, given up for fewer rows"]


class Memory(TypedDict):
    """Where the GPUs' memory goes, in bytes of the whole engine; null: unknown and not counted."""

    total: int | None
    kept_free: Annotated[float, "share of the total"]
    target_weights: int | None
    drafter_weights: int | None
    target_kv_per_token: int | None
    drafter_kv_per_token: int | None
    graph: Annotated[int, "of one captured size, as was given (--graph-bytes); 0: unknown"]
    kv_tokens: Annotated[int | None, "that fit without a drafter, captured sizes of the profile counted"]
    kv_tokens_drafting: Annotated[int | None, "that fit beside the drafter"]


class Worth(TypedDict):
    """A simulated difference: the advised setting against what stands in `default`."""

    measure: str
    recommended: float
    default: float
    relative: Annotated[float | None, "recommended / default - 1; null where the default gives nothing"]
    interval: Annotated[Interval | None, "of `relative`: paired bootstrap over traced requests, 95 %"]


class Setting(TypedDict):
    """One setting, all others as advised."""

    name: Literal[
        "drafting", "num_speculative_tokens", "schedule", "adaptive", "lag", "capture_sizes", "max_num_seqs"
    ]
    value: Annotated[str, "as advised"]
    default: Annotated[str, "what it is held against: the engine's own, unless it says otherwise"]
    worth: Worth | None
    said: Annotated[str, "how to read it"]


class Paste(TypedDict):
    """What to paste."""

    command: Annotated[str, "one line for a POSIX shell; MODEL and DRAFTER stand where no name was given"]
    files: Annotated[dict[str, str], "{name: content} of small files that the command reads"]
    tables: Annotated[list[str], "names of tables that the command reads; `--out` writes them"]
    unverified: Annotated[list[str], "what of it was not read in the engine's own source, or not tried"]


class EngineAdvice(TypedDict):
    """The advice for one engine."""

    engine: Literal["vllm", "sglang", "trtllm"]
    title: str
    read_in: Annotated[str, "version whose options these are"]
    policy: Annotated[str, "off, fixed:k, schedule, lagged:n"]
    users: Annotated[int, "of one engine, at which the settings are compared"]
    num_speculative_tokens: Annotated[int, "0: drafting is off"]
    schedule: Annotated[list[list[int]] | None, "[first, last, k], where the engine is told one"]
    max_num_seqs: int
    capture_sizes: Annotated[list[int] | None, "in the engine's own unit; null: no captured sizes known"]
    capture_unit: Literal["tokens", "requests"]
    capture_bytes: Annotated[int | None, "that they take from the KV cache; null: unknown"]
    lag: Annotated[int | None, "steps by which budgets follow confidences; null: none are read"]
    settings: list[Setting]
    total: Annotated[Worth, "all of it against the engine told only to draft whole blocks"]
    paste: Paste


class Advice(TypedDict):
    """Settings for three engines."""

    schema: Literal["specsched/advice/1"]
    profile: str
    trace: str
    traffic: Traffic
    method: Annotated[str, "kind of drafter: dspark, dflash, eagle3, mtp"]
    gpus_per_engine: int
    block_size: int
    headline: str
    candidates: list[Candidate]
    schedule: Schedule
    memory: Memory
    engines: list[EngineAdvice]
    runs_in: Annotated[RunsIn | None, "of the best policy of all engines"]
    calibration: CalibrationNote
    warnings: Warnings
    not_modelled: LeftOut
    about: About


__all__ = ["Advice", "Candidate", "EngineAdvice", "Memory", "Paste", "Policy", "Schedule", "Setting", "Worth"]
