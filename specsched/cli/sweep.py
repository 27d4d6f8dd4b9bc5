"""`specsched sweep`: grids of runs, resumable."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..extras import extra_module
from .made_with import made_with
from .options import Command, check_outputs, json_option, out_option, writable_folder
from .output import command_line, echo, print_json, warn, wrote
from .progress import Progress, compiling_told
from .values import Whole


@click.command(cls=Command)
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Dask scheduler to run on, e.g. tcp://host:8786. [default: threads here]",
)
@click.option("--workers", type=Whole(1, 4096), metavar="N", help="Threads. [default: this machine's cores]")
@click.option("--retry-failed", is_flag=True, help="Repeat the points that failed before.")
@json_option
@out_option
@click.pass_context
def sweep(
    ctx: click.Context,
    spec: Path,
    cluster: str | None,
    workers: int | None,
    retry_failed: bool,
    as_json: bool,
    out: Path | None,
) -> None:
    """Run every point of a grid: policies, profiles, traces, loads, rates, block sizes, seeds.

    Results go to a Parquet dataset as they finish; the same command again runs only what is missing. A point
    that fails is recorded with its error and does not stop the others; the exit code is then 1.

    \b
    A grid.toml:
      traces = ["chat", "code"]
      policies = ["off", "early-stop", "lagged"]
      concurrencies = [1, 8, 64]
      seeds = [0, 1]
      [run]
      requests = 2000
      sla = 80.0

    Other axes: profiles, lags, block_sizes, arrivals, rates; [run] takes calibration, prefill and the other
    settings of a run, and a list there is one more axis.

    \b
    Examples:
      specsched sweep grid.toml --out grid
      specsched sweep grid.toml --out grid --cluster tcp://10.0.0.5:8786
    """
    if not os.path.isfile(spec):
        raise click.UsageError(f"{spec}: no such file; SPEC is a TOML file that lists the grid")
    if cluster is not None:
        extra_module("distributed", "cluster", "--cluster")
    from .. import sweep as runner

    folder = out if out is not None else spec.with_suffix("")
    writable_folder(folder)
    check_outputs(folder, "report.html")
    with compiling_told(), Progress("point") as progress:
        try:
            summary = runner.run(
                spec, folder, cluster=cluster, workers=workers, progress=progress, retry_failed=retry_failed
            )
        except KeyboardInterrupt:
            click.echo(f"what is done is in {folder}; the same command goes on from there", err=True)
            raise
    from ..report.page import sweep_page, write_page

    summary = {**summary, "made_with": made_with()}
    if as_json:
        warn(summary.get("warnings", []))
        print_json(summary)
    else:
        from .. import report

        echo(report.sweep_text(summary))
    wrote([write_page(folder, sweep_page(summary, command_line(ctx)))])
    if summary["failed"]:
        ctx.exit(1)
