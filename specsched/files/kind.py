"""What a file plainly is, so that inputs given in each other's place are refused by what they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import SpecschedError, WorkloadError
from .disk import bundled_dir
from .strict import parse_json, read_text

_BUNDLED = {"profile": ("profiles", ".json"), "trace": ("traces", ".parquet")}
_WORDS = {"profile": "a step profile", "trace": "a confidence trace", "calibration": "a calibration"}
_ANSWERS = ("answer", "plan", "runs", "sweep", "convert")
# Counters of drafts and accepted tokens, in the spellings of the tools that `specsched convert` reads.
_COUNTERS = (
    "spec_decode_num_",
    "spec_accept_length",
    "SpecDecoding metrics:",
    '"acceptance_histogram"',
    '"marginal_accept_rates"',
    '"conditional_accept_rates"',
)


def kind_of_file(path: Path) -> str | None:
    """ "trace" for any Parquet file, the kind of our own JSON ("profile", "calibration", "acceptance", ...),
    "acceptance" for counters of other tools; None where the content does not say, or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(4) == b"PAR1":
                return "trace"
        text = read_text(path, SpecschedError)
    except (OSError, SpecschedError):
        return None
    try:
        document = parse_json(text, str(path), SpecschedError, finite=False)
    except SpecschedError:
        document = None
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, str) and schema.startswith("specsched/"):
        return schema.split("/")[1]
    return "acceptance" if any(word in text for word in _COUNTERS) else None


def refuse_other_kind(given: Any, wanted: str, error: type[SpecschedError]) -> None:
    """Raise where `given` is plainly not of the kind `wanted` ("profile" or "trace").

    An object that is not a path raises WorkloadError; a file or bundled name of another kind `error`.
    Nothing is said of what is missing, broken or of no known kind: the reader does that.
    """
    if not isinstance(given, (str, os.PathLike)):
        kind = {"StepProfile": "profile", "Trace": "trace"}.get(type(given).__name__)
        if kind is None:
            what = type(given).__name__
            raise WorkloadError(f"expected {_WORDS[wanted]}, a path or a bundled name; got {what}")
        raise WorkloadError(_swapped("the object given", kind, wanted))
    path = Path(given)
    kind = kind_of_file(path) if path.is_file() else _bundled_kind(path, wanted)
    if kind is None or kind == wanted:
        return
    if kind == "acceptance":
        synth = f"; make a trace of them: `specsched trace synth --acceptance {given} -o mine.parquet`"
        use = synth if wanted == "trace" else ""
        raise error(f"{given} holds acceptance rates, not {_WORDS[wanted]}{use}")
    if kind == "calibration":
        raise error(
            f"{given} is a calibration, where {_WORDS[wanted]} belongs; give it as --calibration {given}"
        )
    if kind in _BUNDLED:
        raise error(_swapped(str(given), kind, wanted))
    if kind in _ANSWERS:
        raise error(f"{given} is an answer of this package ({kind}), where {_WORDS[wanted]} belongs")


def _bundled_kind(path: Path, wanted: str) -> str | None:
    """The kind of a bare name that is bundled, `wanted` before the other; None where it is not."""
    if path.parent != Path():
        return None
    for kind in (wanted, *(kind for kind in _BUNDLED if kind != wanted)):
        folder, suffix = _BUNDLED[kind]
        if (bundled_dir(folder) / f"{path.name.removesuffix(suffix)}{suffix}").is_file():
            return kind
    return None


def _swapped(name: str, kind: str, wanted: str) -> str:
    return (
        f"{name} is {_WORDS[kind]}, where {_WORDS[wanted]} belongs; swap the two: the trace comes first "
        "(--trace), then the profile (--profile)"
    )
