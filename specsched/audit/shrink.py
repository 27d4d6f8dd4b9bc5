"""The smallest form of a leak: nothing can be left out of it, and no value in it be simpler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .curves import CURVES, curve
from .subject import Subject
from .system import Leak, Longs, Past, System, most_tokens


def holds(subject: Subject, leak: Leak) -> bool:
    """Whether the policy still decides by what it must not see."""
    one = subject.verifies(leak.system, leak.row, leak.position)
    return leak.is_fair() and one != subject.verifies(leak.other, leak.row, leak.position)


def shrink(subject: Subject, leak: Leak) -> Leak:
    """`leak` made smaller until no single step of `simpler` keeps it a leak. Ends: every step weighs less."""
    while True:
        smaller = (each for each in simpler(leak) if holds(subject, each))
        found = next(smaller, None)
        if found is None:
            return leak
        leak = found


def simpler(leak: Leak) -> Iterator[Leak]:
    """Every leak that is one step simpler: without an earlier step, a request, a position; a change undone; a
    value or the costs plainer."""
    system = leak.system
    yield from (replace(leak, system=_without_step(system, i)) for i in range(len(system.past)))
    yield from _without_requests(leak)
    yield from _without_positions(leak)
    tried = [*_undone(leak), *_plainer(leak), *_plainer_costs(leak)]
    weight = _weight(leak)
    yield from (each for each in tried if _weight(each) < weight)


def _fitted(system: System) -> System:
    """`system` with costs no longer than its largest pass asks for."""
    most = most_tokens(system.past, *_shape(system))
    return replace(system, sps=system.sps[: most + 1])


def _shape(system: System) -> tuple[int, int]:
    return system.ids.size, system.block


def _without_step(system: System, i: int) -> System:
    return _fitted(replace(system, past=system.past[:i] + system.past[i + 1 :]))


def _without_requests(leak: Leak) -> Iterator[Leak]:
    """Without one request: of the present and everywhere, or of one earlier step."""
    system = leak.system
    for row, gone in enumerate(system.ids):
        if row == leak.row:
            continue
        keep = system.ids != gone
        past = tuple(_past_rows(step, step.ids != gone) for step in system.past if (step.ids != gone).any())
        less = replace(
            system,
            past=past,
            ids=system.ids[keep],
            confidence=system.confidence[keep],
            drafts=system.drafts[keep],
        )
        yield replace(leak, system=_fitted(less), row=leak.row - (row < leak.row))
    for i, step in enumerate(system.past):
        for gone in step.ids[: step.ids.size if step.ids.size > 1 else 0]:
            past = (*system.past[:i], _past_rows(step, step.ids != gone), *system.past[i + 1 :])
            yield replace(leak, system=_fitted(replace(system, past=past)))


def _past_rows(step: Past, keep: NDArray[np.bool_]) -> Past:
    return Past(step.ids[keep], step.confidence[keep], step.drafts[keep], step.accepted[keep])


def _without_positions(leak: Leak) -> Iterator[Leak]:
    """Without one position of every block, other than the leak's own."""
    system = leak.system
    for j in range(system.block - 1, -1, -1):
        if j == leak.position - 1:
            continue
        keep = np.arange(system.block) != j
        past = tuple(
            Past(p.ids, p.confidence[:, keep], p.drafts[:, keep], np.minimum(p.accepted, system.block - 1))
            for p in system.past
        )
        less = replace(
            system, past=past, confidence=system.confidence[:, keep], drafts=system.drafts[:, keep]
        )
        yield replace(
            leak,
            system=_fitted(less),
            position=leak.position - (j < leak.position - 1),
            confidence=leak.confidence[keep],
            drafts=leak.drafts[keep],
        )


def _undone(leak: Leak) -> Iterator[Leak]:
    """With one entry of the other present as in the first."""
    mine, k = leak.system, leak.position
    for j in range(leak.system.block):
        if leak.confidence[j] != mine.confidence[leak.row, j]:
            yield replace(leak, confidence=_set(leak.confidence, j, mine.confidence[leak.row, j]))
        if j != k - 1 and leak.drafts[j] != mine.drafts[leak.row, j]:
            yield replace(leak, drafts=_set(leak.drafts, j, mine.drafts[leak.row, j]))


def _plainer(leak: Leak) -> Iterator[Leak]:
    """With one confidence, draft, id or acceptance plainer; shared entries change in both presents."""
    system = leak.system
    for place in np.ndindex(*system.confidence.shape):
        row, j = place
        for value in _plainer_confidences(float(system.confidence[place])):
            base = replace(system, confidence=_set(system.confidence, place, value))
            mine = row == leak.row and leak.confidence[j] == system.confidence[place]
            yield replace(
                leak, system=base, confidence=_set(leak.confidence, j, value) if mine else leak.confidence
            )
        if system.drafts[place]:
            base = replace(system, drafts=_set(system.drafts, place, 0))
            mine = row == leak.row and leak.drafts[j] == system.drafts[place]
            yield replace(leak, system=base, drafts=_set(leak.drafts, j, 0) if mine else leak.drafts)
    for j in range(system.block):
        for value in _plainer_confidences(float(leak.confidence[j])):
            yield replace(leak, confidence=_set(leak.confidence, j, value))
        for token in range(int(leak.drafts[j])):
            yield replace(leak, drafts=_set(leak.drafts, j, token))
    yield _renumbered(leak)
    for i, step in enumerate(system.past):
        for plainer in _plainer_steps(step):
            yield replace(
                leak, system=replace(system, past=(*system.past[:i], plainer, *system.past[i + 1 :]))
            )


def _plainer_steps(step: Past) -> Iterator[Past]:
    for place in np.ndindex(*step.confidence.shape):
        for value in _plainer_confidences(float(step.confidence[place])):
            yield replace(step, confidence=_set(step.confidence, place, value))
    if step.drafts.any():
        yield replace(step, drafts=np.zeros_like(step.drafts))
    if step.accepted.any():
        yield replace(step, accepted=np.zeros_like(step.accepted))


def _renumbered(leak: Leak) -> Leak:
    """With ids 0, 1, 2, ... in the order in which they appear."""
    system = leak.system
    number: dict[int, int] = {}
    for one in (system.ids, *(step.ids for step in system.past)):
        for i in one.tolist():
            number.setdefault(i, len(number))

    def renumbered(ids: Longs) -> Longs:
        return np.array([number[i] for i in ids.tolist()], np.int64)

    past = tuple(replace(step, ids=renumbered(step.ids)) for step in system.past)
    return replace(leak, system=replace(system, past=past, ids=renumbered(system.ids)))


def _plainer_costs(leak: Leak) -> Iterator[Leak]:
    system = leak.system
    most = most_tokens(system.past, *_shape(system))
    for name in CURVES:
        yield replace(leak, system=replace(system, sps=curve(name, system.ids.size, most)))


def _plainer_confidences(value: float) -> list[float]:
    return [v for v in (1.0, 0.5, round(value, 1), round(value, 2)) if _length(v) < _length(value)]


def _length(value: float) -> int:
    """How much there is to read in a confidence: 1 says nothing."""
    return 0 if value == 1.0 else len(repr(value)) + (value != 0.5)


def _weight(leak: Leak) -> tuple[int, ...]:
    """What the steps that leave nothing out must lower: changes, then how plain costs and values are."""
    system = leak.system
    mine = system.confidence[leak.row], system.drafts[leak.row]
    changes = int((mine[0] != leak.confidence).sum() + (mine[1] != leak.drafts).sum())
    steps = (*(step.confidence for step in system.past), system.confidence, leak.confidence)
    tokens = (*(step.drafts for step in system.past), system.drafts, leak.drafts)
    others = (*(step.ids for step in system.past), system.ids, *(step.accepted for step in system.past))
    values = sum(_length(value) for step in steps for value in step.ravel().tolist())
    whole = sum(int(np.abs(each).sum()) for each in (*tokens, *others))
    return changes, _costs_rank(system), values, whole


def _costs_rank(system: System) -> int:
    most = most_tokens(system.past, *_shape(system))
    for rank, name in enumerate(CURVES):
        if np.array_equal(system.sps, curve(name, system.ids.size, most)):
            return rank
    return len(CURVES)


def _set(array: NDArray[Any], place: Any, value: float) -> NDArray[Any]:
    changed = array.copy()
    changed[place] = value
    return changed
