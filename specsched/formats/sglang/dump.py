"""SGLang's debug dump (`/server_info` → `internal_states[].dspark_info_record`): the richest trace an
engine emits.

A record is one step; a request's `verify_len` counts its anchor too. In `static` and `cap-accept` mode the
acceptance of the whole block is known (`correct_drafts + cap_trim`); in `compact` mode the engine verified
verify_len - 1 drafts and nobody knows what the rest would have done: those rows are lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import FormatError, quoted
from ...profile import StepProfile
from ...trace import Trace
from ..document import Hints
from ..opened import Opened
from ..rows import RowBuilder
from ..values import integer, records
from .steps import read_steps


def dumps(data: Any) -> Iterator[dict[str, Any]]:
    """Every dump inside a /server_info answer, one rank's record, or a list of them."""
    if isinstance(data, list):
        for item in data:
            yield from dumps(item)
    elif isinstance(data, dict):
        if "records" in data and ({"gamma", "verify_num_draft_tokens"} & set(data) or _has_steps(data)):
            yield data
        elif "dspark_info_record" in data:
            yield from dumps(data["dspark_info_record"])
        elif "internal_states" in data:
            yield from dumps(data["internal_states"])


def _has_steps(data: dict[str, Any]) -> bool:
    """Whether its first record is a step with requests: a dump copied out without its block size."""
    steps = data["records"]
    return bool(isinstance(steps, list) and steps and isinstance(steps[0], dict) and "reqs" in steps[0])


def recognise(opened: Opened) -> bool:
    return opened.syntax in ("json", "jsonl") and any(True for _ in dumps(opened.data))


def read(opened: Opened, hints: Hints) -> tuple[Trace | StepProfile, list[str]]:
    """A sequential trace of all steps of all ranks that carry confidences; with the hint `take=steps` a
    profile of the times of those steps.

    Raises `FormatError` when no request has confidences (dump with the component that records them).
    """
    where = str(opened.path)
    found = list(dumps(opened.data))
    if hints.get("take") not in (None, "trace", "steps"):
        raise FormatError(f"{where}: take={hints['take']!r}; a dump holds take=trace and take=steps")
    if hints.get("take") == "steps":
        return read_steps(opened, found, hints)
    gamma = _gamma(found, where)
    rows, censored, dropped, modes = RowBuilder(gamma), 0, 0, set()
    for rank, dump in enumerate(found):
        steps = records(dump["records"], f"{where}: records")
        for step in sorted(steps, key=lambda s: integer(s.get("forward_ct", 0), f"{where}: forward_ct")):
            mode = _mode(step, dump, where)
            for request in records(step.get("reqs") or [], f"{where}: reqs"):
                confidence = request.get("confidence")
                if confidence is None:
                    dropped += 1
                    continue
                accepted, cut = _accepted(request, mode, gamma, where, step)
                censored += cut
                modes.add(mode)
                name = f"{rank}/{request.get('rid', request.get('req_pool_index', '?'))}"
                rows.add(name, confidence, accepted, request.get("prefix_len"), where)
    if not rows:
        raise FormatError(
            f"{where}: {dropped} request steps, none with `confidence`; dump again with "
            "SGLANG_DSPARK_DEBUG_DUMP=all"
        )
    notes = []
    if dropped:
        notes.append(f"{dropped} request steps without confidences were left out.")
    if censored:
        share = censored / len(rows)
        notes.append(
            f"Censored: in {censored} of {len(rows)} rows ({share:.0%}) every verified draft was accepted "
            "and the trimmed "
            "ones were never tried; acceptance there is a lower bound. Record in cap-accept mode for whole "
            "blocks."
        )
    metadata = {
        "drafter": str(hints.get("drafter") or "unknown"),
        "target": str(hints.get("model") or "unknown"),
        "provenance": {"source": where, "format": "sglang-dump", "modes": sorted(modes)},
        "censored_rows": censored,
    }
    return rows.trace(metadata, notes, hints, where), notes


MODES = ("static", "cap-accept", "compact")


def _mode(step: dict[str, Any], dump: dict[str, Any], where: str) -> str:
    """How drafts were trimmed in a step: it decides what is known of those that were not verified."""
    mode = step.get("mode") or dump.get("mode") or "static"
    found = mode.lower().replace("_", "-") if isinstance(mode, str) else mode
    if mode not in MODES:
        near = f" (did you mean {found!r}?)" if found in MODES else ""
        raise FormatError(
            f"{where}: mode {quoted(mode)} is none of {', '.join(MODES)}{near}; whether drafts beyond the "
            "verified ones were tried depends on it"
        )
    return str(mode)


def _widths(dump: dict[str, Any], where: str) -> set[int]:
    """Numbers of confidences of the requests, which are the block size where the dump does not say it."""
    requests = [r for s in records(dump["records"], where) for r in records(s.get("reqs") or [], where)]
    found = {len(r["confidence"]) for r in requests if isinstance(r.get("confidence"), list)} - {0}
    if not found:
        raise FormatError(
            f"{where}: neither gamma nor a confidence; the file was cut, or is of another version"
        )
    return found


def _gamma(found: list[dict[str, Any]], where: str) -> int:
    sizes = set()
    for dump in found:
        if dump.get("gamma") is not None:
            sizes.add(integer(dump["gamma"], f"{where}: gamma", 1, 127))
        elif dump.get("verify_num_draft_tokens") is not None:
            width = dump["verify_num_draft_tokens"]
            sizes.add(integer(width, f"{where}: verify_num_draft_tokens", 2, 128) - 1)
        else:
            sizes |= _widths(dump, where)
    if len(sizes) != 1:
        raise FormatError(
            f"{where}: ranks disagree on the block size ({sorted(sizes)}); convert one rank at a time"
        )
    return sizes.pop()


def _accepted(
    request: dict[str, Any], mode: str, gamma: int, where: str, step: dict[str, Any]
) -> tuple[int, int]:
    """(drafts accepted, 1 when that number is only a lower bound)."""
    at = f"{where}: forward_ct {step.get('forward_ct', '?')}, rid {request.get('rid', '?')}"
    if "correct_drafts" not in request:
        raise FormatError(
            f"{at}: no `correct_drafts`; dump again with the component that records acceptances"
        )
    correct = integer(request["correct_drafts"], f"{at}: correct_drafts")
    if mode != "compact":
        correct += integer(request.get("cap_trim", 0), f"{at}: cap_trim")
    if not 0 <= correct <= gamma:
        raise FormatError(f"{at}: {correct} accepted drafts, but the block has {gamma}; is `gamma` right?")
    verified = integer(request.get("verify_len", gamma + 1), f"{at}: verify_len", 1) - 1
    if mode == "compact" and correct > verified:
        raise FormatError(
            f"{at}: {correct} drafts accepted of {verified} verified; the dump contradicts itself"
        )
    cut = int(mode == "compact" and correct == verified and verified < gamma)
    return correct, cut
