"""`specsched/explain/1`: what lies between a policy and the hindsight reference, part by part."""

from typing import Annotated, Literal, TypedDict

from .shared import About, CalibrationNote, Interval, LeftOut, Lossless, Policy, Warnings

Tokens = Annotated[float, "output tokens per second of one engine"]


class Part(TypedDict):
    """One cause: what the throughput would gain without it, those before it already gone."""

    cause: Annotated[str, "calibration, lag (or rule), ranking, unwanted drafts, budget"]
    tokens_per_second: Annotated[float, "their sum over all parts is `gap`"]
    share: Annotated[float | None, "of the gap; null where there is none"]
    throughput: Annotated[float, "tokens/s once this cause is gone"]
    interval: Annotated[Interval | None, "of that throughput"]
    said: Annotated[str, "what is done away with"]


class Confidences(TypedDict):
    """The policy again with other confidences."""

    confidences: Annotated[str, "given, raw, exact, T x 0.5, T x 2"]
    throughput: Tokens
    interval: Interval | None
    loss: Annotated[float, "relative to exact confidences; below 0: more than with them"]
    error: Annotated[
        float, "mean absolute difference of survival and share accepted, over bins and positions"
    ]


class Explanation(TypedDict):
    """Where the rest goes."""

    schema: Literal["specsched/explain/1"]
    profile: str
    trace: str
    policy: Policy
    lossless: Lossless
    concurrency: Annotated[int, "users of one engine"]
    throughput: Tokens
    interval: Interval | None
    reference: Annotated[float, "tokens/s of hindsight: a myopic reference, no bound"]
    gap: Annotated[float, "reference - throughput"]
    parts: list[Part]
    confidences: list[Confidences]
    calibration: CalibrationNote
    warnings: Warnings
    not_modelled: LeftOut
    about: About
