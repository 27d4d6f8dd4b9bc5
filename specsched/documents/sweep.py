"""`specsched/sweep/1`: what a sweep did; its rows are in the Parquet file it names."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from .shared import MadeWith, Warnings


class Failure(TypedDict):
    """A point that failed."""

    key: str
    trace: str
    profile: str
    policy: str
    seed: int
    load: Annotated[Any, "users of one engine, or the arrivals"]
    error: str


class SweepSummary(TypedDict):
    """What a sweep did."""

    schema: Literal["specsched/sweep/1"]
    name: str
    out: Annotated[str, "folder"]
    results: Annotated[str, "Parquet file, a row a point"]
    axes: Annotated[dict[str, Any], "what varies"]
    points: int
    already_done: int
    ran: int
    failed: int
    failures: Annotated[list[Failure], "the first 20"]
    table: Annotated[
        list[dict[str, Any]], "a row a setting: what varies, seeds excepted, and means over seeds"
    ]
    warnings: Warnings
    made_with: NotRequired[Annotated[MadeWith, "by the command line"]]
