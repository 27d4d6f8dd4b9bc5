"""`specsched inspect`: what a file holds, what is wrong with it, and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import SpecschedError, UnknownFormat
from .made_with import made_with
from .options import Command, check_outputs, file_option, json_option, out_option
from .output import command_line, echo, print_json, warn, wrote


@click.command(cls=Command)
@click.argument("file", required=False)
@file_option("--plot", what="Write the picture (PNG).")
@json_option
@out_option
def inspect(file: str | None, plot: Path | None, as_json: bool, out: Path | None) -> None:
    """What a profile, trace, calibration, acceptance or benchmark file, or a drafter's folder, holds, what is
    wrong with it, and its picture.

    FILE is a path or a bundled name; without it the bundled names are listed.

    \b
    Examples:
      specsched inspect
      specsched inspect h100-sxm_qwen3-8b_bf16_tp1 --plot profile.png
      specsched inspect chat.parquet
      specsched inspect ./drafter
    """
    if file is None:
        _list(as_json)
        return
    from ..files.kind import kind_of_file
    from ..inspection import find, inspect_drafter, inspect_object, is_model, load_any

    model = is_model(file)
    path = Path(file) if model else find(file)
    kind = "drafter" if model else kind_of_file(path)
    foreign, why = _foreign(path) if kind is None else (None, None)
    runs = _benchmark(path) if kind is None and foreign is None else None
    held: Any
    found: Any
    if model:
        held, found = None, inspect_drafter(file)
    elif runs is not None:
        held, found = runs
    elif kind == "acceptance" or (foreign is not None and foreign.kind == "acceptance"):
        held, found = _acceptance(path)
    elif foreign is not None:
        held = foreign.object
        found = inspect_object(held)
        note = " ".join(foreign.notes)
        found["warnings"].append(f"{file} was read as {foreign.format}, as `specsched convert` would: {note}")
    elif why is not None:  # another tool's, recognised and damaged
        raise why
    else:
        held = load_any(file)
        found = inspect_object(held)
    if out is not None:
        check_outputs(
            out, "report.html", f"{found['kind']}.json", *([f"{found['kind']}.png"] * (plot is None))
        )
    if as_json:
        warn(found["warnings"])
        print_json(found)
    else:
        echo(_text(held, found))
    wrote(_write(held, found, plot, out))


def _write(held: Any, found: Mapping[str, Any], plot: Path | None, out: Path | None) -> list[Path]:
    """The document and the picture, where they are asked for; returns the files."""
    from ..files.output import write_json
    from ..report.page import write_page
    from ..report.pictures import write_picture

    written = []
    if out is not None:
        plot = plot or out / f"{found['kind']}.png"
        written.append(out / f"{found['kind']}.json")
        write_json(written[-1], found)
        page = _page(held, found)
        if page is not None:
            written.append(write_page(out, page))
    picture = _picture(held) if plot is not None else None
    if plot is not None and picture is not None:
        write_picture(plot, picture)
        written.append(plot)
    return written


def _foreign(path: Path) -> tuple[Any, SpecschedError | None]:
    """(what `specsched convert` reads in a file that is none of ours, why it does not); None and None where
    no reader knows it."""
    from .. import formats

    try:
        found = formats.read(path)
    except UnknownFormat:
        return None, None
    except SpecschedError as e:
        return None, e
    return (found if len(found.objects) == 1 else None), None


def _benchmark(path: Path) -> tuple[Any, Mapping[str, Any]] | None:
    """Runs of a benchmark client; they have no picture. None for other files."""
    from ..formats.benchmarks import look
    from ..inspection import inspect_runs

    found = look(path)
    return None if found is None else (found, inspect_runs(found, path))


def _acceptance(path: Path) -> tuple[Any, Mapping[str, Any]]:
    """Acceptance rates, ours or the counters of another tool; they have no picture."""
    from .. import formats
    from ..inspection import inspect_acceptance

    read = formats.read(path)
    return read.object, inspect_acceptance(read.object, path, read.format)


def _list(as_json: bool) -> None:
    from ..files.disk import bundled_names

    names = {"profiles": bundled_names("profiles", ".json"), "traces": bundled_names("traces", ".parquet")}
    if as_json:
        print_json(names)
        return
    for kind, those in names.items():
        echo(f"bundled {kind}:")
        for name in those:
            echo(f"  {name}")


def _text(held: Any, found: Mapping[str, Any]) -> str:
    from .. import report

    if found["kind"] == "calibration":
        return report.calibration_text(held, [*found["warnings"], *found["lint"]])
    return report.inspection_text(found)


def _picture(held: Any) -> bytes | None:
    """The picture of what is held; a calibration alone has none (`specsched calibrate --plot` draws it)."""
    from ..profile import StepProfile
    from ..report import pictures
    from ..trace import Trace

    if isinstance(held, StepProfile):
        return pictures.profile_png(held, _roofline(held))
    return pictures.trace_png(held) if isinstance(held, Trace) else None


def _page(held: Any, found: Mapping[str, Any]) -> str | None:
    """The page of a profile or a trace; the others are tables, which the text has."""
    from ..profile import StepProfile
    from ..report import page
    from ..trace import Trace

    command = command_line(click.get_current_context())
    if isinstance(held, StepProfile):
        return page.profile_page(held, found, made_with(), command)
    return page.trace_page(held, found, made_with(), command) if isinstance(held, Trace) else None


def _roofline(profile: Any) -> tuple[Any, Any] | None:
    """(tokens, seconds) of the roofline of the same model and GPU, where both are known by name."""
    from ..errors import ProfileError
    from ..profile.roofline import roofline_profile

    gpu, model = str(profile.gpu.get("name", "")), str(profile.model.get("name", ""))
    try:
        bound = roofline_profile(
            _known_gpu(gpu), model, tensor=profile.gpus, dtype=profile.model.get("dtype", "")
        )
    except (ProfileError, KeyError, TypeError):
        return None
    import numpy as np

    last = profile.verify.x[-1] if profile.eager is None else profile.eager.x[-1]
    tokens = np.arange(1, int(last) + 1)
    return tokens, bound.verify_seconds(tokens) + bound.bias_seconds


def _known_gpu(name: str) -> str:
    """The key of a GPU by its full name or its key (`NVIDIA H100 SXM 80GB`, `h100-sxm`)."""
    from ..profile.shapes import GPUS

    for key, gpu in GPUS.items():
        words = key.replace("-", " ").split()
        if name == gpu.name or all(word in name.lower() for word in words):
            return key
    return name
