"""Parts that several documents have."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

Interval = Annotated[list[float], "[low, high]: what the noise of the trace leaves open, at 95 %"]
Warnings = Annotated[list[str], "what is doubtful about this document, each once"]
LeftOut = Annotated[list[str], "what is not modelled"]
Policy = Annotated[str, "canonical name of a verification policy"]
Lossless = Annotated[
    bool | None, "the text's distribution stays the target's at temperature > 0; null: not proved"
]
Share = Annotated[float, "share of the requests that get what is promised: the SLA and all limits"]
Fraction = Annotated[float, "share of the requests that must get what is promised"]
Speed = Annotated[float, "output tokens per second of one user"]
Loose = Annotated[dict[str, Any], "as the file has it"]


class Spread(TypedDict, total=False):
    """A mean and quantiles over requests; empty where there are none."""

    mean: float
    p05: Annotated[float, "the greatest value that 95 % reach"]
    p50: float
    p95: Annotated[float, "the least value that 95 % do not exceed"]
    p99: float


class LimitsStated(TypedDict):
    """Limits on a request's times, kept together with its speed unless they have a share of their own."""

    ttft_seconds: Annotated[float | None, "arrival to first token: the wait for a place, and prefill"]
    itl_seconds: Annotated[float | None, "longest time between two deliveries of a request's tokens"]
    e2e_seconds: Annotated[float | None, "arrival to last token"]
    shares: Annotated[dict[str, float], "by ttft, itl, e2e: a limit that this share keeps by itself"]


class Goodput(TypedDict):
    """What is served of good requests: those that keep all limits without a share of their own."""

    share: Annotated[float, "of the requests, good"]
    requests_per_second: Annotated[float, "good ones, of all engines together"]
    tokens_per_second: Annotated[float, "output tokens of good requests"]
    shares: Annotated[dict[str, float], "of the requests that keep each promise alone: speed, ttft, ..."]


class SpreadIntervals(TypedDict):
    """Intervals of a spread."""

    mean: Interval | None
    p05: Interval | None
    p50: Interval | None


class Intervals(TypedDict):
    """Bootstrap intervals over distinct traced requests; null where nothing was drafted."""

    tps_user: SpreadIntervals
    emitted_per_step: Interval | None
    verify_tokens_per_request: Interval | None
    rejected_share: Interval | None
    throughput: NotRequired[Annotated[Interval | None, "closed loops alone: what arrives is served"]]


class Summary(TypedDict):
    """What one run measured, within its measured window."""

    throughput: Annotated[float, "output tokens per second of all engines together"]
    tps_user: Annotated[Spread, "output tokens per second of one user"]
    emitted_per_step: Annotated[float, "tokens of a request and step"]
    verify_tokens_per_request: Annotated[float, "1 + drafts verified of a request and step"]
    rejected_share: Annotated[float, "of the verified drafts"]
    step_seconds: float
    tokens_per_pass: Annotated[float, "anchors and drafts of a decoding pass"]
    budget_per_pass: Annotated[float, "drafts verified in a decoding pass"]
    concurrency_mean: Annotated[float, "requests decoding, over time"]
    extrapolated_steps: Annotated[int, "steps past the last point of the profile"]
    outside_steps: Annotated[
        dict[str, float],
        "share of steps below or above what a term was measured at: verify_below, overhead_above, ...",
    ]
    off_graph_steps: Annotated[int, "steps above the capture limit"]
    preemptions: int
    blocked_steps: Annotated[int, "steps before which a request waited for KV memory"]
    full_steps: Annotated[int, "steps before which a request waited for a place"]
    prefill_tokens: int
    seconds: Annotated[float, "length of the measured window"]
    steps: int
    requests: Annotated[int, "measured"]
    distinct_requests: Annotated[int, "of the trace, among the measured"]
    tpot_seconds: Annotated[Spread, "time per output token of a request, after its first: 1 / its speed"]
    end_to_end_seconds: Annotated[Spread, "arrival to last token"]
    ttft_seconds: NotRequired[Annotated[Spread, "arrival to first token, where prefill is simulated"]]
    itl_seconds: Annotated[Spread, "longest time between two deliveries of a request's tokens"]
    wait_seconds: Annotated[Spread, "arrival to a place in the batch"]
    tps_user_without_wait: Annotated[Spread, "tokens per second from a place on, prefill left out"]
    tps_user_with_wait: Annotated[Spread, "the same with the wait for a place in the time"]
    intervals: NotRequired[Intervals]


class CalibrationNote(TypedDict):
    """How the confidences were calibrated."""

    method: Annotated[str, "sts, affine, none"]
    fitted_on: Annotated[int | None, "requests; null: a file was given"]
    replayed: Annotated[int, "requests"]
    temperatures: NotRequired[Annotated[list[float], "one a position of the block"]]


class About(TypedDict):
    """Where the inputs come from, a line each."""

    profile: str
    trace: str


class RunsIn(TypedDict):
    """Where a policy runs today."""

    engines: str
    confidences: Annotated[Literal["not needed", "invented", "recorded"], "those of the trace"]
    said: Annotated[str, "one line"]


class InputFile(TypedDict):
    """One file that a command read."""

    input: Annotated[str, "the option that named it"]
    name: str
    bytes: int
    sha256: str


class MadeWith(TypedDict):
    """What a document was made with, for who makes it again."""

    versions: dict[str, str]
    inputs: list[InputFile]
