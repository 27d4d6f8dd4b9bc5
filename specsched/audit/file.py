"""Leaks as files that replay (`specsched/leak/1`). A file names its policy and never loads it."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from ..documents.audit import LeakDocument, LeakPresent, Served
from ..errors import PolicyError
from ..files import Reader, read_json
from .subject import Subject
from .system import Leak, Past, System, most_tokens

SCHEMA: Literal["specsched/leak/1"] = "specsched/leak/1"
_TARGET = 0.7  # Appendix A's: 0.7 and 0.3 under a drafter that draws each half of the time


def document(subject: Subject, leak: Leak) -> LeakDocument:
    """The leak with what the policy answers in both presents."""
    system, other = leak.system, leak.other
    return {
        "schema": SCHEMA,
        "policy": subject.name,
        "request": leak.row,
        "position": leak.position,
        "sees_token": leak.sees_token,
        "sps": system.sps.tolist(),
        "steps": [
            {
                "ids": step.ids.tolist(),
                "confidence": step.confidence.tolist(),
                "drafts": step.drafts.tolist(),
                "accepted": step.accepted.tolist(),
            }
            for step in system.past
        ],
        "ids": system.ids.tolist(),
        "confidence": system.confidence.tolist(),
        "drafts": system.drafts.tolist(),
        "presents": [_present(subject, each, leak.row) for each in (system, other)],
        "law": law(subject, leak),
    }


def _present(subject: Subject, system: System, row: int) -> LeakPresent:
    return {
        "drafts": system.drafts[row].tolist(),
        "confidence": system.confidence[row].tolist(),
        "length": int(subject.lengths(system)[row]),
    }


def law(subject: Subject, leak: Leak) -> Served:
    """What the policy makes of the token at the leak's position: every draft and outcome, exactly.

    The world: drafts before the position are certain and accepted; there the drafter draws each present's
    token half of the time, the target the first one with 0.7, the other one with 0.3; confidences and drafts
    behind it follow the token as in the leak; all else is as it is. Leviathan et al.: an accepted draft
    stays, a rejected one is drawn from max(0, p_t - p_d), an unverified one from p_t.
    """
    served = 0.0
    for token, system in enumerate((leak.system, leak.other)):
        target = _TARGET if token == 0 else 1 - _TARGET
        accepted = min(1.0, target / 0.5)
        residual = 1.0  # max(0, p_t - p_d) is all on the first token, which the target prefers
        through = accepted * (token == 0) + (1 - accepted) * residual
        verified = subject.verifies(system, leak.row, leak.position)
        served += 0.5 * (through if verified else _TARGET)
    token = int(leak.system.drafts[leak.row, leak.position - 1])
    return {"token": token, "target": _TARGET, "served": round(served, 12)}


def read(path: str | os.PathLike[str]) -> tuple[str, Leak]:
    """The policy's name and the leak of a file. Raises PolicyError naming file and entry."""
    reader = Reader(read_json(path, PolicyError), str(path), PolicyError)
    reader.text("schema", choices=(SCHEMA,))
    reader.only(LeakDocument.__annotations__)
    confidence, ids = _table(reader, "confidence", 1.0), _row(reader, "ids")
    requests, block = confidence.shape
    if len(set(ids.tolist())) != requests or ids.size != requests:
        raise reader.fail("ids", f"must be {requests} different numbers, one a row of confidence")
    drafts = _like(reader, "drafts", (requests, block))
    row = reader.integer("request", most=requests - 1)
    position = reader.integer("position", minimum=1, most=block)
    past = tuple(_step(each, block) for each in _objects(reader, "steps"))
    sps = reader.numbers("sps")
    if sps.size <= most_tokens(past, requests, block):
        raise reader.fail("sps", f"needs an entry for up to {most_tokens(past, requests, block)} tokens")
    sees_token = reader.document.get("sees_token")
    if not isinstance(sees_token, bool):
        raise reader.fail("sees_token", "must be true or false")
    presents = _objects(reader, "presents")
    if len(presents) != 2:
        raise reader.fail("presents", "must be two objects: the first present and the other")
    other = presents[1]
    theirs, tokens = other.numbers("confidence", most=1.0), _row(other, "drafts")
    if theirs.size != block or tokens.size != block:
        raise reader.fail("presents[1]", f"must have {block} confidences and drafts, as the blocks have")
    leak = Leak(System(sps, past, ids, confidence, drafts), row, position, theirs, tokens, sees_token)
    if not leak.is_fair():
        raise reader.fail(
            "presents", "differ before the position, or not in its draft: no leak shows between them"
        )
    return reader.text("policy"), leak


def named_in(path: str | os.PathLike[str]) -> str:
    """The policy that a leak's file was found in, by the name it was given then; nothing is loaded."""
    return read(path)[0]


def _step(reader: Reader, block: int) -> Past:
    confidence = _table(reader, "confidence", 1.0)
    ids, accepted = _row(reader, "ids"), _row(reader, "accepted", block)
    if confidence.shape[1] != block or ids.size != len(confidence) or accepted.size != len(confidence):
        raise reader.fail("confidence", f"must have {block} columns, and a row for each of ids and accepted")
    if len(set(ids.tolist())) != ids.size:
        raise reader.fail("ids", "names a request twice; give each its own")
    return Past(ids, confidence, _like(reader, "drafts", confidence.shape), accepted)


def _objects(reader: Reader, key: str) -> list[Reader]:
    values = reader.document.get(key)
    if not isinstance(values, list):
        raise reader.fail(key, "must be a list of objects")
    return [
        Reader(value, reader.where, reader.error, f"{reader.prefix}{key}[{i}].")
        for i, value in enumerate(values)
    ]


def _row(reader: Reader, key: str, most: float = 2**53) -> np.ndarray[Any, np.dtype[np.int64]]:
    values = reader.numbers(key, most=most)
    if (values != np.floor(values)).any():
        raise reader.fail(key, "must be whole numbers")
    return values.astype(np.int64)


def _table(reader: Reader, key: str, most: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = reader.document.get(key)
    if not isinstance(rows, list) or not rows:
        raise reader.fail(key, "must be a list of rows, one a request")
    inside = Reader(
        {f"{key}[{i}]": row for i, row in enumerate(rows)}, reader.where, reader.error, reader.prefix
    )
    read_rows = [inside.numbers(name, most=most) for name in inside.document]
    if len({row.size for row in read_rows}) != 1:
        raise reader.fail(key, "has rows of different lengths; every block holds as many drafts")
    return np.array(read_rows)


def _like(reader: Reader, key: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    table = _table(reader, key, 2**53)
    if table.shape != shape or (table != np.floor(table)).any():
        raise reader.fail(key, f"must be whole numbers in {shape[0]} rows of {shape[1]}, as confidence is")
    return table.astype(np.int64)
