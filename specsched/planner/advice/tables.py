"""The files that the lines name, as the engines read them: step costs, and the calibration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ... import formats
from ...calibration import Calibration
from ...documents.advice import Advice
from ...errors import FormatError
from ...files.output import atomic_write
from ...profile import StepProfile
from .lines import SGLANG_STS, SGLANG_TABLE, TRTLLM_STS, TRTLLM_TABLE

_FORMS = {SGLANG_TABLE: "sglang", SGLANG_STS: "sglang", TRTLLM_TABLE: "trtllm", TRTLLM_STS: "trtllm"}
NAMES = (*_FORMS, "trtllm.yaml", "vllm.sh", "sglang.sh", "trtllm.sh")


def write_tables(
    document: Advice, folder: Path, profile: StepProfile, calibration: Calibration | None
) -> Iterator[tuple[Path, list[str]]]:
    """Write commands, small files and tables of an advice; yields (path, notes on what it cannot hold).

    Contexts in the tables are the traffic's own, for as many requests as the engine is told to run.
    """
    context = round(document["schedule"]["context"])
    for engine in document["engines"]:
        paste = engine["paste"]
        yield _text(folder / f"{engine['engine']}.sh", paste["command"] + "\n"), []
        for name, content in paste["files"].items():
            yield _text(folder / name, content), []
        for name in paste["tables"]:
            thing = calibration if name in (SGLANG_STS, TRTLLM_STS) else profile
            options = (
                {} if thing is calibration else {"context": context, "max_requests": engine["max_num_seqs"]}
            )
            try:
                notes = formats.write(thing, folder / name, _FORMS[name], **options)
            except FormatError as error:
                notes = [f"{name} is not written, and its option must go: {error}"]
            yield folder / name, notes


def _text(path: Path, content: str) -> Path:
    with atomic_write(path) as stream:
        stream.write(content)
    return path
