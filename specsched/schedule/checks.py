"""What `schedule` accepts: coercion to the arrays kernels take, and errors that say what to do instead."""

from __future__ import annotations

import hashlib
import math
import threading
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernels
from ..errors import PolicyError, quoted

NO_END = np.iinfo(np.int64).max  # the end of a batch table's last row when it is null


_ARRAY, _FLOAT64 = np.ndarray, np.dtype(np.float64)


class _Scratch(threading.local):
    """Work arrays of this thread, grown to the largest plan it has made."""

    size = 0
    work: kernels.Work | None = None


_scratch = _Scratch()


def work(size: int) -> kernels.Work:
    """Work arrays for plans of R * γ = `size` candidates, this thread's own."""
    if size > _scratch.size or _scratch.work is None:
        _scratch.size = max(size, 2 * _scratch.size)
        _scratch.work = kernels.make_work(_scratch.size, 1)
    return _scratch.work


def confidences(confidence: ArrayLike) -> NDArray[np.float64]:
    """float64[R, γ], C-contiguous; values are checked by the kernel that reads them."""
    # What engines hand in every step needs no coercion; a call to find that out would be felt.
    if type(confidence) is _ARRAY and confidence.dtype is _FLOAT64 and confidence.ndim == 2:  # noqa: SIM102
        if confidence.flags.c_contiguous and confidence.shape[1]:
            return confidence
    array = _float_array(confidence, "confidence", "give one row a request, γ columns")
    if array.ndim != 2 or np.ndim(confidence) != 2 or array.shape[1] == 0:
        raise PolicyError(
            f"confidence has shape {np.shape(confidence)}; give one row a request and γ >= 1 columns: (R, γ)"
        )
    return array


def costs(sps: ArrayLike | None, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[> R(1 + γ)], C-contiguous; values are checked by the kernel that reads them."""
    most = confidence.shape[0] + confidence.size
    if type(sps) is _ARRAY and sps.dtype is _FLOAT64 and sps.ndim == 1 and sps.size > most:  # noqa: SIM102
        if sps.flags.c_contiguous:
            return sps
    if sps is None:
        raise PolicyError(
            "this policy weighs costs: give sps, the steps per second at B = 0, 1, 2, ... tokens"
        )
    array = _float_array(sps, "sps", "entry B is the steps per second at B tokens")
    if array.ndim != 1 or np.ndim(sps) != 1:
        raise PolicyError(
            f"sps has shape {np.shape(sps)}; give one dimension, entry B for a pass of B tokens"
        )
    if array.size <= most:
        requests, block = confidence.shape
        raise PolicyError(
            f"sps is too short: {array.size} entries, but {requests} requests with blocks of {block} need "
            f"{most + 1} (up to B = {most} tokens); make it with max_tokens={most}"
        )
    return array


def _float_array(values: ArrayLike, what: str, fix: str) -> NDArray[np.float64]:
    """float64, C-contiguous, from lists, arrays, or torch tensors of any dtype, device and gradient."""
    tensor: Any = values
    if callable(getattr(tensor, "detach", None)):  # a torch tensor, which numpy takes only when it is plain
        values = tensor.detach().cpu().double().numpy()
    try:
        return np.ascontiguousarray(values, np.float64)
    except (TypeError, ValueError) as e:
        raise PolicyError(f"{what} is not an array of numbers ({e}); {fix}") from None


def refuse(status: int, confidence: NDArray[np.float64], sps: NDArray[np.float64] | None = None) -> None:
    """Raise what a kernel's status below 0 says (see `kernels`); do nothing for others."""
    if status >= 0:
        return
    index = -1 - int(status)
    if index < confidence.size:
        row, column = divmod(index, confidence.shape[1])
        raise PolicyError(
            f"confidence[{row}, {column}] is {confidence[row, column]} (request {row}, position {column + 1} "
            f"of 1..{confidence.shape[1]}); confidences are probabilities in [0, 1]: calibrate logits first"
        )
    tokens = index - confidence.size
    assert sps is not None
    raise PolicyError(
        f"sps[{tokens}] is {sps[tokens]} (a pass of B = {tokens} tokens); steps per second are finite and "
        f">= 0, and 0 where a pass must not go"
    )


def request_ids(ids: ArrayLike, requests: int) -> NDArray[np.int64]:
    """int64[R], C-contiguous: whole numbers as they are, text by a digest of it."""
    array = np.asarray(ids)
    if array.dtype.kind in "US":
        return _digests(array, requests)
    if array.shape != (requests,):
        raise PolicyError(
            f"ids have shape {array.shape} but confidence has {requests} rows; give one id a row"
        )
    if array.dtype.kind not in "iu" and requests > 0:
        raise PolicyError(f"ids are {array.dtype}; give whole numbers or text, one a request")
    return np.ascontiguousarray(array, np.int64)


def _digests(names: NDArray[Any], requests: int) -> NDArray[np.int64]:
    """63 bits of a hash of each name: two of a thousand requests meet once in 10^13 steps."""
    if names.shape != (requests,):
        raise PolicyError(
            f"ids have shape {names.shape} but confidence has {requests} rows; give one id a row"
        )
    digests = [hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in names.tolist()]
    return np.frombuffer(b"".join(digests), np.int64) & np.int64(2**63 - 1)


def acceptances(accepted: ArrayLike | None, confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """int64[R] within 0..γ."""
    if accepted is None:
        raise PolicyError(
            "policy hindsight needs accepted: how many drafts of each request would be accepted"
        )
    requests, block = confidence.shape
    array = np.asarray(accepted)
    if array.shape != (requests,) or (array.dtype.kind not in "iu" and requests > 0):
        raise PolicyError(
            f"accepted is {array.dtype} of shape {array.shape}; give {requests} whole numbers, one a request"
        )
    array = array.astype(np.int64)
    wrong = np.flatnonzero((array < 0) | (array > block))
    if wrong.size:
        raise PolicyError(
            f"accepted[{wrong[0]}] is {array[wrong[0]]}; blocks of {block} accept 0..{block} drafts"
        )
    return array


def whole_number(value: Any, what: str, least: int, most: int = 2**63 - 1) -> int:
    """An int in [least, most]; integral floats pass, booleans do not."""
    try:
        number = int(value)
        exact = number == value and not isinstance(value, (bool, np.bool_))
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact or number < least:
        raise PolicyError(f"{what} is {quoted(value)}; give a whole number >= {least}")
    if number > most:
        raise PolicyError(f"{what} is {quoted(value)}; give a whole number from {least} to {most}")
    return number


def real_number(value: Any, what: str, low: float, high: float) -> float:
    """A float in [low, high]."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high or math.isinf(number):
        within = f"in [{low:g}, {high:g}]" if math.isfinite(high) else f">= {low:g}"
        raise PolicyError(f"{what} is {value!r}; give a number {within}")
    return number


def gain(minimum_gain: float | None) -> float | None:
    """A minimum predicted gain, or None where the profile is asked."""
    return None if minimum_gain is None else real_number(minimum_gain, "minimum_gain", 0.0, math.inf)


def typed_whole(spec: str, text: str) -> int:
    """The parameter of a policy as typed."""
    try:
        return int(text)
    except ValueError:
        raise PolicyError(f"policy {spec!r}: {text!r} is not a whole number") from None


def typed_real(spec: str, text: str) -> float:
    """The parameter of a policy as typed."""
    try:
        return float(text)
    except ValueError:
        raise PolicyError(f"policy {spec!r}: {text!r} is not a number") from None


def fits_block(name: str, longest: int, block_size: int | None) -> None:
    """Refuse a policy that verifies more drafts than a block has."""
    if block_size is not None and longest > block_size:
        raise PolicyError(
            f"policy {name} verifies {longest} drafts but blocks have {block_size}; choose at "
            f"most {block_size}"
        )


def batch_table(rows: Any, where: str) -> NDArray[np.int64]:
    """int64[n, 3] of [[first, last, k], ...]: R from 1 up, no gaps; null as the last `last` is no end."""

    def bad(what: str) -> NoReturn:
        raise PolicyError(
            f"{where}: {what}; write [[first, last, k], ...] for 1, 2, 3, ... requests without gaps"
        )

    if not isinstance(rows, (list, tuple, np.ndarray)) or len(rows) == 0:
        bad("no list of rows")
    table = np.empty((len(rows), 3), np.int64)
    expected = 1
    for i, row in enumerate(rows):
        if not isinstance(row, (list, tuple, np.ndarray)) or len(row) != 3:
            bad(f"row {i + 1} is {row!r}, not three numbers")
        first, last, k = row
        if last is None:
            if i + 1 < len(rows):
                bad(f"row {i + 1} has no end but is not the last")
            last = NO_END
        first = whole_number(first, f"{where}: first of row {i + 1}", 1)
        last = whole_number(last, f"{where}: last of row {i + 1}", 1)
        k = whole_number(k, f"{where}: k of row {i + 1}", 0)
        if first != expected or last < first:
            bad(f"row {i + 1} covers {first}..{last} requests where {expected}.. comes next")
        table[i] = first, last, k
        expected = last + 1
    return table
