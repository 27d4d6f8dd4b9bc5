"""`specsched trace`: record a trace with a drafter, or synthesise one from acceptance rates."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import SpecschedError
from ..extras import extra_module
from . import inputs
from .made_with import made_with
from .models import (
    batch_option,
    device_option,
    drafter_option,
    length_option,
    max_prompt_option,
    prompts_option,
    sampling_options,
    target_option,
    temperature_option,
    thinking_option,
    usable_device,
)
from .options import Group, check_outputs, file_option, json_option, out_option
from .output import command_line, echo, print_json, warn, wrote
from .progress import Progress
from .values import Real, Whole

if TYPE_CHECKING:
    from ..trace import Trace


@click.group(cls=Group)
def trace() -> None:
    """Make a confidence trace: what a drafter proposes and what its target accepts.

    \b
    Examples:
      specsched trace record --target smollm2 --drafter ./drafter --prompts prompts.json -o mine.parquet
      specsched trace synth --acceptance 0.8,0.75,0.7 -o mine.parquet
    """


class Acceptance(click.ParamType):  # type: ignore[type-arg]
    """Acceptance per position: rates, a mean length, a published domain, or a file of `specsched convert`."""

    name = "acceptance"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A list of rates, or the text as it is."""
        if not isinstance(value, str) or os.path.isfile(value) or value in ("chat", "math", "code"):
            return value
        rate = Real(minimum=0, maximum=1)
        kind, colon, rest = value.partition(":")
        if colon and kind in ("marginal", "conditional"):
            return kind, [rate.convert(part.strip(), param, ctx) for part in rest.split(",")]
        if colon and kind == "length":
            length, _, block = rest.partition(":")
            if not block:
                self.fail(
                    f"{value!r} lacks the block size; give length:MEAN:K, as in length:2.7:4", param, ctx
                )
            return kind, (
                Real(minimum=1).convert(length, param, ctx),
                Whole(1, 127).convert(block, param, ctx),
            )
        if "," not in value and not value.replace(".", "").isdigit():
            self.fail(
                f"{value!r} is neither rates such as 0.8,0.75,0.7 (or marginal:0.8,0.6,0.42, or "
                "length:2.7:4), nor chat, math or code, nor a file",
                param,
                ctx,
            )
        return "rates", [rate.convert(part.strip(), param, ctx) for part in value.split(",")]


def _output(command: Any) -> Any:
    """`-o FILE`, or `--out DIR` for the trace, what it holds and its picture."""
    named = file_option("-o", "--output", what="The trace to write (.parquet); this or --out.")
    return named(out_option(command))


@trace.command()
@click.option(
    "--acceptance",
    type=Acceptance(),
    required=True,
    metavar="RATES|NAME|FILE",
    help="Acceptance of each position given that all before were accepted: 0.8,0.75,...; chat, math or code "
    "(the paper's figures); or a file of counters (docs/formats.md).",
)
@_output
@click.option(
    "--requests", type=Whole(1, 10**6), default=320, show_default=True, metavar="N", help="Requests."
)
@click.option(
    "--output-tokens",
    type=Real(minimum=1),
    default=200.0,
    show_default=True,
    metavar="N",
    help="Mean length.",
)
@click.option(
    "--prompt-tokens",
    type=Real(minimum=0),
    default=100.0,
    show_default=True,
    metavar="N",
    help="Mean prompt.",
)
@click.option(
    "--auc",
    type=Real(minimum=0.5, maximum=0.999),
    metavar="A",
    help="How well confidences rank. [default: the paper's]",
)
@click.option(
    "--ece",
    type=Real(minimum=0, maximum=0.9),
    metavar="E",
    help="Raw calibration error, on the overconfident side. [default: the paper's]",
)
@click.option(
    "--domain", metavar="NAME", help="Domain to write in every row. [default: the acceptance's name]"
)
@inputs.seed_option
@json_option
def synth(acceptance: Any, output: Path | None, out: Path | None, as_json: bool, **options: Any) -> None:
    """Synthesise a dense trace from per-position acceptance, when that is all one has.

    \b
    Examples:
      specsched trace synth --acceptance 0.82,0.78,0.75,0.72 -o mine.parquet
      specsched trace synth --acceptance marginal:0.58,0.45,0.32 -o from_a_log.parquet
      specsched trace synth --acceptance chat --requests 500 --ece 0 -o perfect.parquet
      specsched trace synth --acceptance metrics.txt -o from_counters.parquet
    """
    path = _required(output, out)
    from ..trace import synthesise

    note = None
    if isinstance(acceptance, tuple):
        acceptance, note = _stated(*acceptance)
    elif os.path.isfile(acceptance):
        acceptance, note = _rates(Path(acceptance))
    made = synthesise(acceptance, name=path.stem, note=note, **options)
    _finish(made, path, out, as_json)


def _required(output: Path | None, out: Path | None) -> Path:
    if output is None:
        if out is None:
            raise click.UsageError("give -o FILE, the trace to write, or --out DIR")
        output = out / "trace.parquet"
        check_outputs(out, "report.html", "trace.parquet", "trace.json", "trace.png")
    if output.suffix != ".parquet":
        raise SpecschedError(f"{output} does not end in .parquet; a trace is a Parquet file")
    return output


def _stated(kind: str, given: Any) -> tuple[list[float], str | None]:
    """Conditional rates from what was typed, and what must be said of them."""
    from ..formats.acceptance import doubtful, from_mean_length, from_survival

    if kind == "length":
        found = from_mean_length(given[0], given[1], "--acceptance", "--acceptance")
        return found.conditional.tolist(), found.notes[0]
    if kind == "marginal":
        return from_survival(given, 0, False, "--acceptance marginal").conditional.tolist(), None
    if kind == "rates" and (problem := doubtful(given)):
        raise SpecschedError(f"--acceptance {','.join(map(str, given))}: {problem}")
    return list(given), None


def _rates(path: Path) -> tuple[list[float], str | None]:
    """Conditional acceptance from a file, ours or another tool's counters, and what must be said of it."""
    from .. import formats

    found = formats.read(path)
    if found.kind != "acceptance":
        raise SpecschedError(f"{path} is a {found.kind}, not acceptance rates; it needs no synthesis")
    note = (
        "trimming was on where its acceptance was counted: the rates may be too high or too low"
        if found.object.censored
        else None
    )
    return [float(rate) for rate in found.object.conditional], note


def _finish(made: Trace, path: Path, out: Path | None, as_json: bool) -> None:
    from .. import report
    from ..inspection import inspect_trace

    found = inspect_trace(made)
    if as_json:
        warn(found["warnings"])
        print_json(found)
    else:
        echo(report.inspection_text(found))
    made.save(path)
    wrote([path])
    if out is not None:
        from ..files.output import write_json
        from ..report.page import trace_page, write_page
        from ..report.pictures import trace_png, write_picture

        written = [out / "trace.json", out / "trace.png"]
        write_json(written[0], found)
        write_picture(written[1], trace_png(made))
        page = trace_page(made, found, made_with(), command_line(click.get_current_context()))
        wrote([write_page(out, page), *written])


@trace.command()
@target_option
@drafter_option
@prompts_option
@_output
@click.option(
    "--mode",
    type=click.Choice(["dense", "sequential"]),
    default="dense",
    show_default=True,
    help="Every position, or the steps taken.",
)
@temperature_option(1.0)
@sampling_options
@thinking_option
@length_option(200, least=2)
@click.option(
    "--samples",
    type=Whole(1, 10**6),
    default=1,
    show_default=True,
    metavar="N",
    help="Passes over the prompts.",
)
@click.option("--anchors", type=Whole(1, 10**9), metavar="N", help="Stop once so many anchors are recorded.")
@batch_option(32)
@max_prompt_option()
@click.option(
    "--texts",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep sampled texts here; other drafters are then recorded on the same ones (dense mode).",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Of the target; bfloat16 is several times faster where the machine multiplies it.",
)
@click.option("--domain", metavar="NAME", help="Domain of prompts that name none.")
@click.option("--licence", metavar="TEXT", help="Licence of the prompts, to be kept in the file.")
@device_option
@inputs.seed_option
@json_option
def record(output: Path | None, out: Path | None, prompts: Path, as_json: bool, **options: Any) -> None:
    """Record a trace from a target, a drafter and prompts; interrupted, the same command goes on.

    \b
    Examples:
      specsched trace record --target smollm2 --drafter ./drafter --prompts prompts.json -o mine.parquet
      specsched trace record --target ./llama --drafter ./dspark --prompts p.jsonl --device cuda -o t.parquet
    """
    path = _required(output, out)
    torch = extra_module("torch", "torch", "recording a trace")
    usable_device(options["device"])
    from ..torch_side.recording.recorder import record as record_trace

    names = options.pop("target"), options.pop("drafter")
    options["dtype"] = getattr(torch, options["dtype"])
    with Progress("request", workers=False) as progress:
        made = record_trace(*names, prompts, path, names=names, progress=progress, **options)
    _finish(made, path, out, as_json)
