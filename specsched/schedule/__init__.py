"""The verification policies, as users and engines call them.

policies    one class a policy: plan() says how many drafts of each request to verify
names       policies by name: `lagged:2`
functions   the planning rules as plain functions
checks      what they check of their arguments
"""

from .bypass import Bypass
from .functions import best_budget, early_stop, survival, threshold, top_k
from .history import History
from .lagged import Lagged
from .names import POLICIES, default_policies, is_bundled, make, parse
from .paced import Paced
from .policies import BatchTable, EarlyStop, Fixed, Global, Hindsight, Off, Policy, SameLength, Threshold

__all__ = [
    "POLICIES",
    "BatchTable",
    "Bypass",
    "EarlyStop",
    "Fixed",
    "Global",
    "Hindsight",
    "History",
    "Lagged",
    "Off",
    "Paced",
    "Policy",
    "SameLength",
    "Threshold",
    "best_budget",
    "default_policies",
    "early_stop",
    "is_bundled",
    "make",
    "parse",
    "survival",
    "threshold",
    "top_k",
]
