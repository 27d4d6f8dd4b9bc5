"""Policies by name: `lagged:2`. Every printed name can be typed back."""

from __future__ import annotations

from ..errors import PolicyError, nearest
from .bypass import Bypass
from .history import History
from .lagged import Lagged
from .paced import Paced
from .policies import BatchTable, EarlyStop, Fixed, Global, Hindsight, Off, Policy, Threshold

# What a bundled policy may not override: the compiled loop would not see it.
_OF_THE_PLAN = ("plan", "_plan", "kernel_plan", "drafting", "pace", "settle")

# The one table of policies: what can be typed, in the order in which messages list it.
POLICIES: dict[str, type[Policy]] = {
    policy.family: policy
    for policy in (
        Off,
        Fixed,
        Threshold,
        EarlyStop,
        Lagged,
        Bypass,
        Paced,
        History,
        Global,
        Hindsight,
        BatchTable,
    )
}


def make(spec: str, block_size: int | None = None, minimum_gain: float | None = None) -> Policy:
    """The policy that `spec` names: `family[:parameter]`, as on the command line.

    off, fixed:k (k in 1..γ, without it γ), threshold:θ, early-stop, lagged:n and bypass:n (default 2),
    sla:S, history:h (default 8), global, hindsight, batch-table:FILE (JSON). `block_size` γ, where known,
    bounds k. `minimum_gain` is the least predicted gain for which `lagged`, `bypass`, `history`, `global` and
    `hindsight` trim at all; None: none here, in a simulation the profile's.
    Raises PolicyError.
    """
    if not isinstance(spec, str):
        raise PolicyError(f"a policy is named by text such as 'lagged:2', not by {spec!r}")
    family, colon, parameter = spec.strip().partition(":")
    if family not in POLICIES:
        hint = nearest(family.lower(), POLICIES)
        own = parameter.replace(".", "").isidentifier() and not hint
        more = "; one of your own, MODULE:NAME, runs in simulate and plan alone" if own else ""
        raise PolicyError(f"no policy {family!r};{hint} policies: {', '.join(POLICIES)}{more}")
    if colon and not parameter:
        raise PolicyError(
            f"policy {spec!r} ends before its parameter; write it behind the colon, or no colon"
        )
    return POLICIES[family].read(parameter if colon else None, block_size, minimum_gain)


def parse(spec: str, block_size: int | None = None) -> str:
    """The canonical name of what `spec` names; raises PolicyError as `make` does."""
    return make(spec, block_size).name


def default_policies(block_size: int) -> list[str]:
    """The canonical names compared when nobody names any."""
    names = ["off", "fixed:1", f"fixed:{block_size}", "threshold:0.3", "early-stop", "lagged:2"]
    return list(dict.fromkeys(names))


def is_bundled(policy: Policy) -> bool:
    """Whether the compiled loop plans what `policy.plan` does: nothing of the plan is overridden."""
    own = POLICIES.get(getattr(policy, "family", ""))
    if own is None or not isinstance(policy, own):
        return False
    return all(getattr(type(policy), name) is getattr(own, name) for name in _OF_THE_PLAN)
