"""The whole audit: tiny systems, then larger ones, what is found made small, and what was looked at said."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

import numpy as np

from ..documents.audit import AuditDocument, LeakDocument, Searched
from ..errors import PolicyError
from . import file, grid, sample
from .shrink import holds, shrink
from .subject import Subject
from .system import Leak

Report = Callable[[int, int, str], None]
MOST_PAST = 4

_NOT_COVERED = [
    "inputs beyond those counted: this is a search, which finds leaks and never proves that there are none",
    "what a policy knows beside its arguments (clocks, files, the settled text, state kept between calls)",
    "drafters that propose again what was forgotten: earlier steps' drafts and confidences count as settled",
]
_NOT_SEEN = "confidences that use the draft they judge (--confidence-sees-token lets them)"


def audit(
    subject: Subject,
    systems: int = 1000,
    past: int = MOST_PAST,
    seed: int = 0,
    sees_token: bool = False,
    progress: Report | None = None,
) -> AuditDocument:
    """Search `subject` for a leak: every input of tiny systems, then `systems` random ones.

    past: most earlier steps of a random system. sees_token: confidences may depend on the draft they judge,
    as softmax probabilities of the drafted token do. Stops at the first leak and makes it as small as it
    gets. Raises PolicyError for a policy that raises, changes its arguments, gives no lengths or is not
    deterministic.
    """
    searched: list[Searched] = []
    with _stdout_kept():
        leak = _on_grids(subject, seed, sees_token, searched, progress)
        if leak is None:
            leak = _on_samples(subject, (systems, past), seed, sees_token, searched, progress)
        found = None if leak is None else _smallest(subject, leak)
    return {
        "schema": "specsched/audit/1",
        "policy": subject.name,
        "found": found is not None,
        "leak": found,
        "searched": searched,
        "calls": subject.calls,
        "seed": seed,
        "sees_token": sees_token,
        "bound": _bound(searched, found),
        "not_covered": [*_NOT_COVERED, *([] if sees_token else [_NOT_SEEN])],
    }


def replay(path: str | os.PathLike[str], subject: Subject) -> tuple[LeakDocument, bool]:
    """A leak of a file with what `subject` answers now, and whether it still leaks there."""
    _, leak = file.read(path)
    with _stdout_kept():
        return file.document(subject, leak), holds(subject, leak)


def _on_grids(
    subject: Subject, seed: int, sees_token: bool, searched: list[Searched], progress: Report | None
) -> Leak | None:
    """Shapes by size, so that the first leak is one of the fewest cells, then of the fewest earlier steps."""
    for i, shape in enumerate(grid.SHAPES):
        if progress is not None:
            progress(i, len(grid.SHAPES), f"tiny systems, {shape.requests} x {shape.block}")
        row: Searched = {
            "what": f"every input: {_plural(shape.requests, 'request')}, blocks of {shape.block}, "
            f"{_plural(shape.past, 'earlier step')}",
            "systems": 0,
            "inputs": 0,
            "drafts": False,
        }
        searched.append(row)
        for system in grid.systems(shape, seed):
            leak, reads = grid.leak_of(subject, system, sees_token)
            row["systems"] += 1
            row["inputs"] += grid.inputs(shape, reads)
            row["drafts"] |= reads
            if leak is not None:
                return leak
    return None


def _on_samples(
    subject: Subject,
    many: tuple[int, int],
    seed: int,
    sees_token: bool,
    searched: list[Searched],
    progress: Report | None,
) -> Leak | None:
    systems, past = many
    row: Searched = {
        "what": f"random systems: up to {sample.MOST_REQUESTS} requests, blocks of up to "
        f"{sample.MOST_BLOCK}, up to {_plural(past, 'earlier step')}",
        "systems": 0,
        "inputs": 0,
        "drafts": False,
    }
    searched.append(row)
    subject.reads_drafts = False
    for i in range(systems):
        if progress is not None:
            progress(i, systems, "random systems")
        rng = np.random.default_rng([seed, i])
        leak = sample.leak_of(subject, sample.random_system(rng, past), rng, sees_token)
        row["systems"] += 1
        row["inputs"] += 1 + sample.CHANGES
        row["drafts"] = subject.reads_drafts
        if leak is not None:
            return leak
    return None


def _smallest(subject: Subject, leak: Leak) -> LeakDocument:
    if not holds(subject, leak):
        raise PolicyError(
            f"{subject.name} is not deterministic: what it answered in the search it does not answer again; "
            "an audited policy is a function of its arguments: keep no state outside of them"
        )
    return file.document(subject, shrink(subject, leak))


def _bound(searched: list[Searched], leak: LeakDocument | None) -> str:
    inputs = sum(row["inputs"] for row in searched)
    if leak is None:
        systems = sum(row["systems"] for row in searched)
        return f"no leak found in {inputs:,} inputs of {systems:,} systems; beyond them nothing is said"
    return (
        f"a leak after {inputs:,} inputs, as small as it gets: nothing more can be left out and no value "
        "made plainer"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def _stdout_kept() -> contextlib.AbstractContextManager[object]:
    """What a policy prints goes to stderr: stdout is the answer."""
    return contextlib.redirect_stdout(sys.stderr)
