"""What an audit of a policy looked at and found (`specsched/audit/1`), one leak (`specsched/leak/1`)."""

from typing import Annotated, Literal, TypedDict

Confidences = Annotated[list[list[float]], "one row a request, γ columns, in [0, 1]"]
Tokens = Annotated[list[list[int]], "one row a request, γ columns"]
Ids = Annotated[list[int], "who is who, one a request"]


class LeakStep(TypedDict):
    """An earlier step; what the policy answered in it comes from the policy."""

    ids: Ids
    confidence: Confidences
    drafts: Tokens
    accepted: Annotated[list[int], "drafts that the target would accept, 0..γ"]


class LeakPresent(TypedDict):
    """The present of the request that is treated unequally, in one of the two cases."""

    drafts: list[int]
    confidence: list[float]
    length: Annotated[int, "what the policy answered for this request"]


class Served(TypedDict):
    """What comes of it where the request's drafts are drawn between the two presents, half and half."""

    token: Annotated[int, "the first present's draft at the position"]
    target: Annotated[float, "its probability by the target"]
    served: Annotated[float, "its probability as served, exact"]


class LeakDocument(TypedDict):
    """Two presents that differ in one draft and what may follow from it, and are treated unequally there."""

    schema: Literal["specsched/leak/1"]
    policy: str
    request: Annotated[int, "row of the request"]
    position: Annotated[int, "1..γ: verified in one of the two presents alone"]
    sees_token: Annotated[bool, "a confidence was let depend on the draft it judges"]
    sps: Annotated[list[float], "steps per second at B = 0, 1, 2, ... tokens"]
    steps: Annotated[list[LeakStep], "oldest first"]
    ids: Ids
    confidence: Annotated[Confidences, "of all requests, in the first present"]
    drafts: Annotated[Tokens, "of all requests, in the first present"]
    presents: Annotated[list[LeakPresent], "of the request: the first, the other"]
    law: Served


class Searched(TypedDict):
    """One part of the search."""

    what: str
    systems: int
    inputs: Annotated[int, "different ones shown to the policy"]
    drafts: Annotated[bool, "drafts were varied with the confidences: the policy looks at them"]


class AuditDocument(TypedDict):
    """Whether a leak was found, and what was looked at."""

    schema: Literal["specsched/audit/1"]
    policy: str
    found: bool
    leak: LeakDocument | None
    searched: list[Searched]
    calls: Annotated[int, "of the policy, repeated ones and earlier steps included"]
    seed: int
    sees_token: Annotated[bool, "confidences were let depend on the draft they judge"]
    bound: Annotated[str, "what none was found in, or where one was"]
    not_covered: list[str]
