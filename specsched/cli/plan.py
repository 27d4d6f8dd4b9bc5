"""`specsched plan`: how many GPUs the traffic needs."""

from __future__ import annotations

from typing import Any

import click

from . import inputs
from .options import Command, check_outputs, json_option, out_option
from .output import stdout_kept
from .progress import Progress, compiling_told
from .simulate import finish
from .values import Real, Whole


@click.command(cls=Command)
@inputs.together(
    inputs.trace_option,
    inputs.profile_option,
    *inputs.promise_group,
    click.option("--rate", type=Real(above=0), metavar="R", help="Requests per second of the whole fleet."),
    click.option(
        "--arrivals",
        metavar="SPEC",
        help="poisson:RATE, gamma:RATE:CV or a file of arrivals; with --rate a file is scaled to that rate.",
    ),
    click.option("--gpu-cost", type=Real(above=0), metavar="C", help="Cost of a GPU hour, in any currency."),
    click.option(
        "--currency", metavar="NAME", help="What --gpu-cost is in, for tables and the page; for example EUR."
    ),
    inputs.policy_option,
    inputs.calibration_option,
    *inputs.serving_group,
    click.option(
        "--router",
        type=click.Choice(["least-outstanding", "round-robin", "two-choices"]),
        default="least-outstanding",
        show_default=True,
        help="How requests are spread over the engines.",
    ),
    click.option(
        "--ranks-per-group",
        type=Whole(1, 1024),
        default=1,
        show_default=True,
        metavar="N",
        help="Data-parallel ranks that step together; the slowest sets the step.",
    ),
    inputs.requests_option(2000, "Requests of a trial run."),
    inputs.seed_option,
    inputs.workers_option,
    json_option,
    out_option,
)
@click.pass_context
def plan(ctx: click.Context, /, **options: Any) -> None:
    """The fewest GPUs that carry the traffic at a promised speed, the policy to run, and what it costs.

    \b
    Examples:
      specsched plan --trace qwen3-4b-chat --sla 80 --rate 50
      specsched plan --trace chat --profile my.json --sla 60 --rate 20 --prefill chunked --ttft-ms 500
      specsched plan --trace chat --sla 60 --arrivals azure.csv --rate 30 --out plan
    """
    inputs.promise(options)
    if options["sla"] is None:
        raise click.UsageError("give the promise: --sla S (tokens/s of a user) or --tpot-ms MS", ctx)
    rate, arrivals = options["rate"], options["arrivals"]
    if rate is None and arrivals is None:
        raise click.UsageError("give the traffic: --rate R, --arrivals FILE, or both", ctx)
    if arrivals is not None and arrivals.split(":")[0] == "closed":
        raise click.UsageError("--arrivals closed has no rate to plan for; use --rate R or a file", ctx)
    if rate is not None and arrivals is not None and arrivals.split(":")[0] in ("poisson", "gamma"):
        raise click.UsageError(f"--rate and --arrivals {arrivals} both state a rate; give one of them", ctx)

    check_outputs(options["out"], "report.html", "plan.json", "plan.png", "hours.png")
    from ..workload import parse_arrivals

    given = inputs.load_inputs(options)
    workload, burstiness = None, 1.0
    if arrivals is not None:
        workload = parse_arrivals(arrivals, requests=options["requests"], seed=options["seed"])
        if workload is not None and rate is not None:
            workload = workload.scaled(rate)
        elif workload is not None and not workload.recorded:  # the plan draws as many as it needs
            rate, burstiness = workload.metadata["rate"], workload.metadata["burstiness"]
            workload = None
    from .. import planner
    from ..planner.plan import headline

    with compiling_told(), stdout_kept(), Progress() as progress:
        document = planner.plan(
            given.trace,
            given.profile,
            options["sla"],
            rate=rate if workload is None else None,
            burstiness=burstiness,
            workload=workload,
            limits=options["limits"],
            gpu_cost=options["gpu_cost"],
            fraction=options["sla_fraction"],
            policies=inputs.canonical_policies(options["policies"], given.trace.block_size),
            requests=options["requests"],
            seed=options["seed"],
            calibration=options["calibration"],
            workers=options["workers"],
            progress=progress,
            router=options["router"],
            ranks_per_group=options["ranks_per_group"],
            **inputs.serving_options(options),
        )
    if options["currency"]:
        document["currency"] = options["currency"]
        document["headline"] = headline(document)
    finish(ctx, given, document, "plan", options)
