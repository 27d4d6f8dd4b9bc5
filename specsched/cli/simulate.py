"""`specsched simulate`: the main question, or single runs at given loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import inputs
from .made_with import made_with
from .options import Command, check_outputs, json_option, out_option
from .output import command_line, echo, print_json, stdout_kept, warn, wrote
from .progress import Progress, compiling_told
from .values import Whole, Wholes

if TYPE_CHECKING:
    from ..report import Background


@click.command(cls=Command)
@inputs.together(
    inputs.trace_option,
    *inputs.promise_group,
    inputs.profile_option,
    inputs.policy_option,
    click.option(
        "--concurrency",
        type=Wholes(),
        metavar="1,2,4",
        help="Loads of the curves: concurrent users of one engine. [default: around the capacity]",
    ),
    inputs.calibration_option,
    click.option(
        "--arrivals",
        default="closed",
        show_default=True,
        metavar="SPEC",
        help="closed (a user asks again at once), poisson:RATE, gamma:RATE:CV or a file of arrivals.",
    ),
    *inputs.serving_group,
    inputs.block_size_option,
    inputs.requests_option(1000, "Requests measured in a run."),
    click.option(
        "--fail-under",
        type=Whole(1, 10**6),
        metavar="N",
        help="With --sla: exit with code 1 when the recommended policy carries fewer users than N.",
    ),
    inputs.seed_option,
    inputs.workers_option,
    json_option,
    out_option,
)
@click.pass_context
def simulate(ctx: click.Context, /, **options: Any) -> None:
    """How many users fit at a promised speed, and under which verification policy.

    With --sla S: the number of concurrent users one engine carries while 95% of requests (--sla-fraction)
    get S tokens/s or more, for each policy, within the limits on their times where some are given
    (--ttft-ms, --itl-ms, --e2e-ms). Without it, or with --arrivals, each policy is run at the loads given.

    \b
    Examples:
      specsched simulate --trace qwen3-4b-chat --sla 120
      specsched simulate --trace chat.parquet --sla 80 --profile my.json --out answer
      specsched simulate --trace math --policy lagged --policy fixed:3 --concurrency 1,8,64
      specsched simulate --trace chat --arrivals poisson:12 --sla 60 --ttft-ms 400 --e2e-ms 9000
      specsched simulate --trace qwen3-4b-chat --sla 100 --ttft-ms 300 --itl-ms 60@0.99
      specsched simulate --trace code --sla 100 --calibration none --json
      specsched simulate --trace chat.parquet --sla 80 --fail-under 20
    """
    inputs.promise(options)
    open_loop = options["arrivals"] != "closed"
    if open_loop and options["concurrency"]:
        raise click.UsageError("--arrivals and --concurrency exclude each other: arrivals set the load", ctx)
    if not open_loop and options["sla"] is None and not options["concurrency"]:
        raise click.UsageError(
            "give --sla S or --tpot-ms MS (how many users fit), --concurrency 1,2,4 (runs at those loads), "
            "or both",
            ctx,
        )
    capacity = options["sla"] is not None and not open_loop
    if options["fail_under"] is not None and not capacity:
        raise click.UsageError("--fail-under counts users at an SLA: give --sla, without --arrivals", ctx)
    if capacity:
        _capacity(ctx, options)
    else:
        _runs(ctx, options)


def _capacity(ctx: click.Context, options: dict[str, Any]) -> None:
    check_outputs(options["out"], "report.html", "answer.json", "pareto.png", "load.png")
    given = _load(options)
    from .. import planner

    with compiling_told(), stdout_kept(), Progress() as progress:
        answer = planner.answer(
            given.trace,
            given.profile,
            options["sla"],
            policies=inputs.canonical_policies(
                options["policies"], options["block_size"] or given.trace.block_size
            ),
            concurrency=options["concurrency"],
            sla_fraction=options["sla_fraction"],
            limits=options["limits"],
            requests=options["requests"],
            seed=options["seed"],
            calibration=options["calibration"],
            block_size=options["block_size"],
            explore=options["out"] is not None,
            workers=options["workers"],
            progress=progress,
            **inputs.serving_options(options),
        )
    finish(ctx, given, answer, "answer", options)
    _hold(ctx, answer, options["fail_under"])


def _hold(ctx: click.Context, answer: Mapping[str, Any], fewest: int | None) -> None:
    """Exit with code 1 where the recommended policy carries fewer users than were asked for."""
    carried = max(
        (p["capacity"] for p in answer["policies"] if p["policy"] == answer["recommended"]), default=0
    )
    if fewest is not None and carried < fewest:
        echo(f"specsched: {carried} users are fewer than --fail-under {fewest}", err=True)
        ctx.exit(1)


def _runs(ctx: click.Context, options: dict[str, Any]) -> None:
    check_outputs(options["out"], "report.html", "runs.json")
    given = _load(options)
    from .. import planner

    with compiling_told(), stdout_kept(), Progress() as progress:
        document = planner.runs(
            given.trace,
            given.profile,
            inputs.canonical_policies(options["policies"], options["block_size"] or given.trace.block_size),
            concurrency=options["concurrency"],
            arrivals=options["arrivals"],
            sla_tps=options["sla"],
            limits=options["limits"],
            requests=options["requests"],
            seed=options["seed"],
            calibration=options["calibration"],
            block_size=options["block_size"],
            workers=options["workers"],
            progress=progress,
            **inputs.serving_options(options),
        )
    finish(ctx, given, document, "runs", options)


def _load(options: dict[str, Any]) -> inputs.Inputs:
    return inputs.load_inputs(options)


def finish(
    ctx: click.Context,
    given: inputs.Inputs,
    document: Mapping[str, Any],
    kind: str,
    options: dict[str, Any],
) -> None:
    """Print an answer and write its files, both as `report` has them for its kind: answer, runs or plan."""
    from .. import report

    prefill = document.get("prefill") or document["settings"]["prefill"]
    told = [*inputs.said(), *inputs.idle(given.profile, prefill)]
    document = {
        **document,
        "warnings": [*document.get("warnings", []), *told],
        "made_with": made_with(profile=document["profile"]),
    }
    folder: Path | None = options["out"]
    if options["as_json"]:
        warn(document.get("warnings", []))
        print_json(document)
    else:
        echo(getattr(report, f"{kind}_text")(document))
    if folder is not None:
        write = getattr(report, f"write_{kind}")
        wrote(write(document, folder, command_line(ctx), _background(given, options)))


def _background(given: inputs.Inputs, options: dict[str, Any]) -> Background:
    """What stands behind the answer; the calibration is the answer's own, fitted the same way again."""
    from .. import report
    from ..calibration.holdout import split_and_calibrate

    _, calibration, _ = split_and_calibrate(given.trace, options["calibration"], options["seed"])
    return report.Background(given.trace, given.profile, calibration)
