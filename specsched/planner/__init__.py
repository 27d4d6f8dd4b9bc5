"""The planner's questions: users per engine at a promised speed, engines for the traffic.

answer      users one engine carries, by policy
capacity    the search for that number
plan        engines, GPUs and cost for the traffic
fleet       trials of a fleet, and the search for the smallest
margin      what one engine more or less is worth
runs        runs at given loads, without a promise to keep
advice      settings to type into the engine
explain     what lies between a policy and the hindsight reference
headline    the answer in a sentence
"""

from .advice import advise
from .answer import answer
from .explain import explain
from .plan import plan
from .runs import runs

__all__ = [
    "advise",
    "answer",
    "explain",
    "plan",
    "runs",
]
