"""The verification policies, as users and engines call them.

policies    one class a policy: plan() says how many drafts of each request to verify
names       policies by name: `lagged:2`
functions   the planning rules as plain functions
checks      what they check of their arguments
"""

from .functions import best_budget, early_stop, survival, threshold, top_k
from .names import NAMES, PolicySpec, default_policies, make, parse
from .policies import BatchTable, EarlyStop, Fixed, Global, Hindsight, Lagged, Off, Policy, Threshold

__all__ = [
    "NAMES",
    "BatchTable",
    "EarlyStop",
    "Fixed",
    "Global",
    "Hindsight",
    "Lagged",
    "Off",
    "Policy",
    "PolicySpec",
    "Threshold",
    "best_budget",
    "default_policies",
    "early_stop",
    "make",
    "parse",
    "survival",
    "threshold",
    "top_k",
]
