"""`specsched advise`: what to type into vLLM, SGLang or TensorRT-LLM, and what it is worth."""

from __future__ import annotations

from typing import Any

import click

from . import inputs
from .made_with import made_with
from .options import Command, check_outputs, json_option, out_option
from .output import command_line, echo, print_json, warn, wrote
from .progress import compiling_told
from .values import Real, Whole

ENGINES = ("vllm", "sglang", "trtllm")


@click.command(cls=Command)
@inputs.together(
    inputs.trace_option,
    inputs.profile_option,
    inputs.sla_option,
    inputs.tpot_option,
    inputs.fraction_option,
    click.option(
        "--concurrency", type=Whole(1, 10**5), metavar="N", help="Instead of an SLA: users of one engine."
    ),
    click.option(
        "--rate",
        type=Real(above=0),
        metavar="R",
        help="Instead of an SLA: requests/s of one engine (Poisson).",
    ),
    click.option(
        "--engine",
        "engines",
        type=click.Choice(ENGINES),
        multiple=True,
        help="Print the lines of this engine; repeat for more. --out writes those of all. [default: all]",
    ),
    click.option(
        "--method",
        type=click.Choice(["dspark", "dflash", "eagle3", "mtp"]),
        default="dspark",
        show_default=True,
        help="Kind of drafter, by which engines name their options.",
    ),
    click.option(
        "--model", default="MODEL", show_default=True, metavar="NAME", help="The target, in the lines."
    ),
    click.option(
        "--drafter", default="DRAFTER", show_default=True, metavar="NAME", help="The drafter, in the lines."
    ),
    inputs.calibration_option,
    *inputs.serving_group,
    inputs.block_size_option,
    inputs.requests_option(600, "Requests measured in a run."),
    inputs.seed_option,
    inputs.workers_option,
    json_option,
    out_option,
)
@click.pass_context
def advise(ctx: click.Context, /, **options: Any) -> None:
    """Settings for vLLM, SGLang and TensorRT-LLM at this traffic, what each is worth, and the lines to paste.

    Whether to draft, how many tokens, a schedule by batch size, verification by confidences and its lag,
    sizes to capture, most requests at once. Each is simulated against what the engine does by itself. --out
    writes the lines and the tables that they name.

    \b
    Examples:
      specsched advise --trace qwen3-4b-chat --sla 80
      specsched advise --trace code --concurrency 64 --engine sglang --model Qwen/Qwen3-8B --out advice
      specsched advise --trace chat --profile my.json --rate 12 --method eagle3 --graph-bytes 60000000
    """
    inputs.speed(options)
    asked = {"--sla": options["sla"], "--concurrency": options["concurrency"], "--rate": options["rate"]}
    if sum(value is not None for value in asked.values()) != 1:
        raise click.UsageError(f"give the traffic by one of {', '.join(asked)} (or --tpot-ms)", ctx)
    from ..planner.advice import tables

    out = options["out"]
    check_outputs(out, "advice.json", "report.html", *tables.NAMES)
    given = inputs.load_inputs(options)
    from .. import planner, report

    with compiling_told():
        document = planner.advise(
            given.trace,
            given.profile,
            sla_tps=options["sla"],
            users=options["concurrency"],
            rate=options["rate"],
            sla_fraction=options["sla_fraction"],
            method=options["method"],
            model=options["model"],
            drafter=options["drafter"],
            folder=str(out) if out is not None else "",
            requests=options["requests"],
            seed=options["seed"],
            calibration=options["calibration"],
            block_size=options["block_size"],
            workers=options["workers"],
            **inputs.serving_options(options),
        )
    document["warnings"] += [*inputs.said(), *inputs.idle(given.profile, options["prefill"])]
    if options["as_json"]:
        warn(document["warnings"])
        print_json(document)
    else:
        echo(report.advice_text(document, options["engines"]))
    if out is not None:
        _write(ctx, document, given, options)


def _write(ctx: click.Context, document: Any, given: inputs.Inputs, options: dict[str, Any]) -> None:
    """The page, the document, the lines and the tables."""
    from ..calibration.holdout import split_and_calibrate
    from ..files.output import write_json
    from ..planner.advice.tables import write_tables
    from ..report.page import advice_page, write_page

    out = options["out"]
    _, calibration, _ = split_and_calibrate(given.trace, options["calibration"], options["seed"])
    write_json(out / "advice.json", document)
    page = write_page(out, advice_page(document, made_with(), command_line(ctx)))
    wrote([page, out / "advice.json"])
    for path, notes in write_tables(document, out, given.profile, calibration):
        if path.exists():
            wrote([path])
        for note in notes:
            echo(f"note: {path.name}: {note}", err=True)
