"""`specsched/fit/1`: what benchmark runs say of an engine and a drafter."""

from typing import Annotated, Literal, NotRequired, TypedDict

from .shared import Warnings


class FittedUnknown(TypedDict):
    """One unknown of the fit."""

    name: str
    label: str
    value: Annotated[float, "in `unit`"]
    unit: str
    interval: Annotated[list[float], "[low, high], 95 %, by the Jacobian at the solution"]
    determined: Annotated[Literal["yes", "in part", "no"], "by the runs; `no`: what is assumed stands"]
    seen: Annotated[float, "share of the assumed variance that the runs removed"]
    assumed: Annotated[str, "what is assumed of it before any run"]


class FittedRun(TypedDict):
    """One figure of one run, measured and fitted."""

    source: str
    policy: str
    users: int
    text: str | None
    what: Annotated[Literal["user", "total", "length"], "tokens/s of a user, of all; tokens a step"]
    measured: float
    fitted: float
    error: Annotated[float, "fitted / measured - 1"]
    left_out_error: Annotated[float, "the same, predicted without this run (to first order)"]


class FitErrors(TypedDict):
    """Absolute relative errors over all figures."""

    median: float
    p90: float
    left_out_median: float
    left_out_p90: float
    noise_factor: Annotated[float, "scatter by the noise stated, at least 1"]


class Prediction(TypedDict):
    """A policy at a load of the runs, in their setting."""

    policy: str
    users: int
    user: Annotated[float, "tokens/s of a user: 1 / median time per output token"]
    user_interval: list[float]
    total: Annotated[float, "output tokens/s of all, from the first request to the last"]
    total_interval: list[float]
    verified: Annotated[float, "tokens verified per request and step, its anchor included"]


class JudgedRun(TypedDict):
    """One figure of a run that the fit did not see."""

    source: str
    policy: str
    users: int
    text: str | None
    what: Annotated[Literal["user", "total"], "tokens/s of a user, of all"]
    measured: float
    predicted: float
    error: Annotated[float, "predicted / measured - 1"]


class Judgement(TypedDict):
    """A fit held against runs that it did not see."""

    fitted_on: Annotated[list[str], "the runs of the fit"]
    runs: list[JudgedRun]
    user: Annotated[dict[str, float] | None, "figures, median and p90 of |error|, bias: mean error"]
    total: Annotated[dict[str, float] | None, "the same, of throughput"]
    signs_right: Annotated[int, "pairs of arms at one load of which the faster is said"]
    signs_compared: Annotated[int, "pairs that differ by more than `signs_noise`"]
    signs_noise: float


class FitDocument(TypedDict):
    """What benchmark runs say of an engine and a drafter."""

    schema: Literal["specsched/fit/1"]
    headline: str
    unknowns: list[FittedUnknown]
    runs: list[FittedRun]
    errors: FitErrors
    singular_values: Annotated[
        list[float], "of the data's Jacobian in units of what is assumed; above 1: seen"
    ]
    predictions: list[Prediction]
    judged: NotRequired[Annotated[Judgement, "with --judge"]]
    assumed: list[str]
    warnings: Warnings
