"""Policies by name: `lagged:2`. Every printed name can be typed back."""

from __future__ import annotations

import difflib
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import PolicyError
from ..files import read_json
from .policies import (
    BatchTable,
    EarlyStop,
    Fixed,
    Global,
    Hindsight,
    Lagged,
    Off,
    Policy,
    Threshold,
)

# -- names -----------------------------------------------------------------------------------------------

NAMES = ("off", "fixed", "threshold", "early-stop", "lagged", "global", "hindsight", "batch-table")


class PolicySpec(NamedTuple):
    """A policy as plain values; `name` is canonical and can be parsed again."""

    code: int
    parameter: float
    table: NDArray[np.int64] | None
    name: str


def make(spec: str, block_size: int | None = None, minimum_gain: float = 0.0) -> Policy:
    """The policy that `spec` names: `name[:parameter]`, as on the command line.

    off, fixed:k (k in 1..γ, without it γ), threshold:θ, early-stop, lagged:n (default 2), global, hindsight,
    batch-table:FILE (JSON). `block_size` γ, where known, bounds k. `minimum_gain` is the least predicted gain
    for which `lagged`, `global` and `hindsight` trim at all. Raises PolicyError.
    """
    name, parameter = _split(spec)
    if name == "fixed":
        policy: Policy = Fixed(block_size if parameter is None else _number(spec, parameter, int))
    elif name == "threshold":
        if parameter is None:
            raise PolicyError("policy threshold needs its θ in [0, 1], as in threshold:0.3")
        policy = Threshold(_number(spec, parameter, float))
    elif name == "lagged":
        policy = Lagged(2 if parameter is None else _number(spec, parameter, int), minimum_gain)
    elif name == "batch-table":
        if parameter is None:
            raise PolicyError("policy batch-table needs a JSON file, as in batch-table:FILE")
        policy = BatchTable(read_json(parameter, PolicyError), os.fspath(parameter))
    elif parameter is not None:
        raise PolicyError(f"policy {name} takes no parameter; write {name}, not {spec!r}")
    elif name in ("global", "hindsight"):
        policy = Global(minimum_gain) if name == "global" else Hindsight(minimum_gain)
    else:
        policy = Off() if name == "off" else EarlyStop()
    longest = int(policy.parameter) if name == "fixed" else 0
    longest = int(policy.table[:, 2].max()) if policy.table is not None else longest
    if block_size is not None and longest > block_size:
        raise PolicyError(
            f"policy {policy.name} verifies {longest} drafts but blocks have {block_size}; choose at "
            f"most {block_size}"
        )
    return policy


def parse(spec: str, block_size: int | None = None) -> PolicySpec:
    """`make` without the machinery: code, parameter, table and canonical name."""
    policy = make(spec, block_size)
    return PolicySpec(policy.code, policy.parameter, policy.table, policy.name)


def default_policies(block_size: int) -> list[str]:
    """The canonical names compared when nobody names any."""
    names = ["off", "fixed:1", f"fixed:{block_size}", "threshold:0.3", "early-stop", "lagged:2"]
    return list(dict.fromkeys(names))


def _split(spec: str) -> tuple[str, str | None]:
    if not isinstance(spec, str):
        raise PolicyError(f"a policy is named by text such as 'lagged:2', not by {spec!r}")
    name, colon, parameter = spec.strip().partition(":")
    if name not in NAMES:
        near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PolicyError(f"no policy {name!r}; {hint}policies: {', '.join(NAMES)}")
    if colon and not parameter:
        raise PolicyError(
            f"policy {spec!r} ends before its parameter; write it behind the colon, or no colon"
        )
    return name, parameter if colon else None


def _number(spec: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise PolicyError(f"policy {spec!r}: {text!r} is not {what}") from None
