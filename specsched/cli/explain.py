"""`specsched explain`: what lies between a policy and the hindsight reference, part by part."""

from __future__ import annotations

from typing import Any

import click

from . import inputs
from .made_with import made_with
from .options import Command, check_outputs, json_option, out_option
from .output import command_line, echo, print_json, warn, wrote
from .values import Whole


@click.command(cls=Command, short_help="What keeps a policy from the hindsight reference, part by part.")
@inputs.together(
    inputs.trace_option,
    inputs.profile_option,
    click.option(
        "--policy",
        "policies",
        callback=lambda _context, _option, name: (name,),
        default="lagged:2",
        show_default=True,
        metavar="POLICY",
        help="The policy to explain, one of those of `simulate`.",
    ),
    click.option(
        "--concurrency",
        type=Whole(1, 10**6),
        default=64,
        show_default=True,
        metavar="N",
        help="Concurrent users of one engine.",
    ),
    inputs.calibration_option,
    *inputs.serving_group,
    inputs.block_size_option,
    inputs.requests_option(1000, "Requests measured in a run."),
    inputs.seed_option,
    inputs.workers_option,
    json_option,
    out_option,
)
@click.pass_context
def explain(ctx: click.Context, /, **options: Any) -> None:
    """Where the throughput goes that a policy leaves to the hindsight reference.

    One cause after the other is done away with: miscalibrated confidences, the lag, ranking, drafts that are
    verified and rejected, budgets set by expectation. What each gains is its part, and the parts sum to the
    gap. A second table runs the policy with other confidences: exact ones, raw ones, temperatures halved and
    doubled.

    \b
    Examples:
      specsched explain --trace qwen3-4b-chat --concurrency 100
      specsched explain --trace code --policy threshold:0.3 --calibration none --json
    """
    out = options["out"]
    check_outputs(out, "explain.json", "report.html")
    given = inputs.load_inputs(options)
    from .. import planner, report

    document = planner.explain(
        given.trace,
        given.profile,
        options["policies"][0],
        options["concurrency"],
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
        echo(report.explain_text(document))
    if out is not None:
        from ..files.output import write_json
        from ..report.page import explain_page, write_page

        write_json(out / "explain.json", document)
        wrote([write_page(out, explain_page(document, made_with(), command_line(ctx))), out / "explain.json"])
