"""`specsched profile`: what a step costs: measured, composed from kernels, or estimated; overhead fitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import SpecschedError
from ..extras import extra_module
from . import inputs
from .options import file_option, json_option, not_over_input, out_option
from .output import print_json, warn, wrote
from .progress import Progress
from .values import Real, Whole

if TYPE_CHECKING:
    from ..profile import StepProfile

SOURCES = ["measure", "compose", "roofline"]


@click.group(invoke_without_command=True, short_help="What a step costs: measured, composed, estimated.")
@click.option(
    "--gpu", metavar="GPU", help="h100, h200, a100, b200, l40s, ...; cpu measures the bundled model here."
)
@click.option(
    "--model",
    metavar="MODEL",
    help="A preset, or a Hugging Face config.json; on a cpu tiny, smollm2 or a target's folder. [default: "
    "qwen3-8b; on a cpu tiny]",
)
@click.option(
    "--drafter", metavar="MODEL", help="With --gpu cpu, the drafter to time. [default: the bundled one]"
)
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    default="measure",
    show_default=True,
    help="Time steps on this machine, compose published kernel timings, or estimate from vendor limits.",
)
@file_option("-o", "--output", what="The profile to write. [default: its name, in this folder]")
@click.option(
    "--tensor",
    type=Whole(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="GPUs of one engine.",
)
@click.option(
    "--dtype", default="bfloat16", show_default=True, metavar="TYPE", help="bfloat16, float16 or fp8."
)
@click.option(
    "--block-size",
    type=Whole(1, 64),
    metavar="K",
    help="Drafts per request. [default: 7; on a cpu the drafter's]",
)
@click.option(
    "--backend",
    type=click.Choice(["vllm", "sglang", "trtllm"]),
    default="vllm",
    show_default=True,
    help="Whose kernels to compose.",
)
@click.option(
    "--capture-limit",
    type=Whole(1, 10**6),
    default=512,
    show_default=True,
    metavar="TOKENS",
    help="Largest captured graph.",
)
@inputs.seed_option
@click.option("--quick", is_flag=True, help="Measure a coarse grid, in under two minutes.")
@json_option
@out_option
@click.pass_context
def profile(ctx: click.Context, **options: Any) -> None:
    """Make a step profile: what one forward pass costs on a GPU.

    \b
    Examples:
      specsched profile --gpu h100 --model qwen3-8b -o mine.json
      specsched profile --gpu cpu --quick
      specsched profile --gpu h200 --model qwen3-14b --source compose
      specsched profile --gpu b200 --model ./config.json --source roofline --tensor 2
      specsched profile fit-overhead --profile mine.json --sweep off.csv -o real.json
    """
    if ctx.invoked_subcommand is not None:
        return
    if options["gpu"] is None:
        raise click.UsageError(
            "give --gpu: which GPU to measure, compose or estimate (cpu: this machine)", ctx
        )
    if options["model"] is None:
        options["model"] = "tiny" if options["gpu"].lower() == "cpu" else "qwen3-8b"
    made = {"measure": _measured, "compose": _composed, "roofline": _roofline}[options["source"]](options)
    _finish(made, options["output"], options["as_json"], options["out"])


def _measured(options: dict[str, Any]) -> StepProfile:
    measure = extra_module("specsched.torch_side.measure.profiler", "torch", "measuring a profile")
    with Progress("point", workers=False) as progress:
        made: StepProfile = measure.measure_profile(
            options["gpu"],
            options["model"],
            tensor=options["tensor"],
            dtype=options["dtype"],
            block_size=options["block_size"],
            capture_limit=options["capture_limit"],
            quick=options["quick"],
            drafter=options["drafter"],
            seed=options["seed"],
            progress=progress,
        )
    warn(made.provenance.get("warnings") or [])
    return made


def _composed(options: dict[str, Any]) -> StepProfile:
    extra_module("aiconfigurator_core", "compose", "--source compose")
    from ..formats.kernels.aiconfigurator import compose_profile

    return compose_profile(
        options["gpu"],
        options["model"],
        tensor=options["tensor"],
        dtype=options["dtype"],
        backend=options["backend"],
        block_size=options["block_size"] or 7,
        capture_limit=options["capture_limit"],
    )


def _roofline(options: dict[str, Any]) -> StepProfile:
    from ..profile.roofline import roofline_profile

    return roofline_profile(
        options["gpu"],
        options["model"],
        tensor=options["tensor"],
        dtype=options["dtype"],
        block_size=options["block_size"] or 7,
    )


def _finish(made: StepProfile, output: Path | None, as_json: bool, out: Path | None) -> None:
    """Save the profile and show what it holds."""
    from .. import report
    from ..inspection import inspect_profile

    written = []
    if output is None:
        output = (out or Path()) / f"{made.name}.json"
        if output.exists():
            raise SpecschedError(f"{output} is there already; name the file to write with -o")
    made.save(output)
    written.append(output)
    if out is not None:
        from ..report.pictures import profile_png, write_picture

        write_picture(out / "profile.png", profile_png(made))
        written.append(out / "profile.png")
    found = inspect_profile(made)
    if as_json:
        warn(found["warnings"])
        print_json(made.to_dict())
    else:
        click.echo(report.inspection_text(found))
    wrote(written)


@profile.command("fit-overhead")
@click.option(
    "--profile",
    "table",
    required=True,
    metavar="PROFILE",
    help="The table: a .json file, else a bundled name.",
)
@click.option(
    "--sweep",
    type=click.Path(path_type=Path),
    required=True,
    metavar="CSV",
    help="Measured without speculation: columns concurrency and tok_s_user.",
)
@click.option(
    "--context",
    type=Real(minimum=0),
    default=0.0,
    show_default=True,
    metavar="TOKENS",
    help="Mean context of a request during the sweep.",
)
@click.option(
    "--arm", metavar="NAME", help="Rows of the column arm to use. [default: nospec, off, baseline, ...]"
)
@file_option("-o", "--output", what="The profile to write; this or --out.")
@json_option
@out_option
def fit_overhead(
    table: str,
    sweep: Path,
    context: float,
    arm: str | None,
    output: Path | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Fit the host work that a cost table misses, from a measured sweep without speculation.

    \b
    Example:
      specsched profile fit-overhead --profile table.json --sweep off.csv -o real.json
    """
    if output is None and out is None:
        raise click.UsageError("give -o FILE, the profile to write, or --out DIR")
    if not sweep.is_file():
        raise SpecschedError(
            f"no file {str(sweep)!r}; --sweep is a CSV with columns concurrency and tok_s_user"
        )
    not_over_input(output, table, sweep)
    from ..profile import load_profile
    from ..profile.overhead import fit_overhead as fit

    _finish(fit(load_profile(table), sweep, context=context, arm=arm), output, as_json, out)
