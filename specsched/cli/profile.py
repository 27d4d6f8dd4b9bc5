"""`specsched profile`: what a step costs: measured, composed from kernels, or estimated; overhead fitted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import SpecschedError
from ..extras import extra_module
from . import inputs
from .made_with import made_with
from .options import Group, check_outputs, file_option, json_option, out_option
from .output import command_line, echo, print_json, warn, wrote
from .progress import Progress
from .values import Real, Whole

if TYPE_CHECKING:
    from ..profile import StepProfile
    from ..profile.speeds import Sweep

SOURCES = ["measure", "compose", "roofline"]


@click.group(cls=Group, invoke_without_command=True)
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
    "--drafter",
    metavar="MODEL",
    help="The drafter to time; on a GPU built from its config with random weights. [default: the bundled "
    "one; on a GPU the paper's]",
)
@click.option(
    "--device",
    type=Whole(0, 63),
    metavar="INDEX",
    help="Which card, where several have the name. [default: the first]",
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
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="URL",
    help="Measure a running OpenAI-compatible server instead; twice: one without drafting, one with.",
)
@click.option(
    "--clients",
    type=Whole(1, 4096),
    default=32,
    show_default=True,
    metavar="N",
    help="With --engine, the most requests at once.",
)
@inputs.seed_option
@click.option("--quick", is_flag=True, help="Measure a coarse grid, in under two minutes (else under ten).")
@json_option
@out_option
@click.pass_context
def profile(ctx: click.Context, /, **options: Any) -> None:
    """Make a step profile: what one forward pass costs on a GPU.

    Measuring on a GPU is experimental: it has not run on one yet.

    \b
    Examples:
      specsched profile --gpu h100 --model qwen3-8b -o mine.json
      specsched profile --gpu cpu --quick
      specsched profile --gpu h200 --model qwen3-14b --source compose
      specsched profile --engine http://localhost:8000 --clients 64 -o mine.json
      specsched profile --gpu b200 --model ./config.json --source roofline --tensor 2
      specsched profile fit-overhead --profile mine.json --sweep off.csv --context 1000 -o real.json
    """
    if ctx.invoked_subcommand is not None:
        return
    if options["engines"]:
        if options["gpu"] is not None:
            raise click.UsageError("--engine measures a server, --gpu a card here: give one of them", ctx)
        _finish(_engine(options), options["output"], options["as_json"], options["out"])
        return
    if options["gpu"] is None:
        raise click.UsageError(
            "give --gpu: which GPU to measure, compose or estimate (cpu: this machine)", ctx
        )
    if options["model"] is None:
        options["model"] = "tiny" if options["gpu"].lower() == "cpu" else "qwen3-8b"
    check_outputs(options["out"], "report.html", "profile.png")
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
            device=options["device"],
            seed=options["seed"],
            progress=progress,
        )
    warn(made.provenance.get("warnings") or [])
    return made


def _engine(options: dict[str, Any]) -> StepProfile:
    """Measure running servers; the raw runs and the acceptance go beside the profile."""
    module = extra_module("specsched.engine_client", "engine", "measuring a running engine")
    base = options["out"] or Path()
    runs = (options["output"] or base / "engine.json").with_suffix(".runs")
    setting = module.Setting(clients=options["clients"], seed=options["seed"])
    with Progress("level", workers=False) as progress:
        made, acceptance = module.measure_engine(options["engines"], runs, setting, progress)
    warn(made.provenance.get("warnings") or [])
    if acceptance is not None:
        acceptance.save(runs / "acceptance.json")
        wrote([runs / "acceptance.json"])
    profile: StepProfile = made
    return profile


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
    from ..files.output import check_output, file_name
    from ..inspection import inspect_profile

    if output is None:
        output = (out or Path()) / f"{file_name(made.name)}.json"
        check_output(output)
    found = inspect_profile(made)
    if as_json:
        warn(found["warnings"])
        print_json(made.to_dict())
    else:
        echo(report.inspection_text(found))
    made.save(output)
    wrote([output])
    if out is not None:
        from ..report.page import profile_page, write_page
        from ..report.pictures import profile_png, write_picture

        write_picture(out / "profile.png", profile_png(made))
        page = profile_page(made, found, made_with(), command_line(click.get_current_context()))
        wrote([write_page(out, page), out / "profile.png"])


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
    "--prompt-tokens",
    type=Whole(0, 10**7),
    metavar="N",
    help="Prompt of the sweep's requests. [default: its column input_tokens]",
)
@click.option(
    "--output-tokens",
    type=Whole(2, 2**20),
    metavar="N",
    help="Output of the sweep's requests. [default: its column output_tokens]",
)
@click.option(
    "--prefill",
    type=click.Choice(["disaggregated", "chunked"]),
    help="How the sweep's engine got its prompts. [default: chunked, where prompts are given]",
)
@click.option(
    "--batch-tokens",
    type=Whole(1, 10**7),
    metavar="N",
    help="Most tokens in a pass of that engine with prefill chunks in it. [default: 8192]",
)
@click.option(
    "--start",
    type=click.Choice(["staggered", "together"]),
    help="How the sweep's users began: at different times, or all at once with requests of equal lengths, as "
    "a client with a maximum concurrency has them. [default: staggered]",
)
@click.option(
    "--context",
    type=Real(minimum=0),
    metavar="TOKENS",
    help="Mean context of a request during the sweep, where its prompts were prefilled elsewhere.",
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
    arm: str | None,
    output: Path | None,
    as_json: bool,
    out: Path | None,
    **setting: Any,
) -> None:
    """Fit the host work that a cost table misses, from a measured sweep without speculation.

    The sweep's own prompts are replayed, so that prefill and attention are not counted twice. How its users
    began matters where prompts are long: --start together replays it as `specsched fit` does, which also
    finds what drafting costs. Speeds by load are shown: of the table alone, as measured, and refitted.

    \b
    Examples:
      specsched profile fit-overhead --profile mine.json --sweep off.csv --context 1000 -o real.json
      specsched profile fit-overhead --profile mine.json --sweep off.csv --prompt-tokens 1000 \\
        --output-tokens 200 -o real.json
    """
    if output is None and out is None:
        raise click.UsageError("give -o FILE, the profile to write, or --out DIR")
    if not os.path.isfile(sweep):
        raise SpecschedError(
            f"no file {str(sweep)!r}; --sweep is a CSV with columns concurrency and tok_s_user"
        )
    check_outputs(out, "report.html", "profile.png")
    from ..profile import load_profile
    from ..profile.overhead import fit_overhead as fit
    from ..profile.overhead import slower_loads
    from ..profile.speeds import read_sweep
    from ..report.overhead import overhead_text

    held, base = read_sweep(sweep, arm), inputs.load_given(table, "profile", load_profile)
    warn(inputs.said())
    replay = _replay(held, setting)
    if setting["context"] and base.attention is None:
        warn([f"profile {base.name!r} states no attention cost: --context changes nothing"])
    made = fit(base, held, context=setting["context"], replay=replay)
    warn(slower_loads(made))
    if replay is None and setting["context"] is None:
        warn(
            [
                "the prompt length of the sweep is not given: right where they were prefilled elsewhere; "
                "else give --prompt-tokens, or --prefill chunked later counts their prefill twice"
            ]
        )
    _finish(made, output, as_json, out)
    if not as_json:
        echo("\n" + overhead_text(made))


def _replay(sweep: Sweep, setting: dict[str, Any]) -> Any:
    """How fast a profile is in the sweep's own setting, or None where its prompts are not said."""
    prompt = sweep.prompt_tokens if setting["prompt_tokens"] is None else setting["prompt_tokens"]
    length = sweep.output_tokens if setting["output_tokens"] is None else setting["output_tokens"]
    names = ("prompt_tokens", "output_tokens", "prefill", "batch_tokens", "start")
    given = [f"--{name.replace('_', '-')}" for name in names if setting[name] is not None]
    if setting["context"] is not None:
        if given:
            raise click.UsageError(
                f"--context stands for the sweep's prompts; give it or {given[0]}, not both"
            )
        return None
    if prompt is None:
        if given:
            raise click.UsageError(f"{given[0]} does nothing without --prompt-tokens, the sweep's prompts")
        return None
    if length is None:
        raise click.UsageError("give --output-tokens too: only the prompt length of the sweep is known")
    prefill = setting["prefill"] or "chunked"
    if setting["batch_tokens"] is not None and prefill != "chunked":
        raise click.UsageError("--batch-tokens does nothing without --prefill chunked")
    if setting["start"] == "together":
        from ..fitting.together import together

        return together(prompt, length, prefill, setting["batch_tokens"] or 8192)
    from ..simulator import Serving
    from ..simulator.undrafted import speed_without_drafts

    chunk = {} if setting["batch_tokens"] is None else {"batch_tokens": setting["batch_tokens"]}

    def speed(candidate: StepProfile, users: int) -> float:
        return speed_without_drafts(candidate, users, prompt, length, Serving(prefill=prefill, **chunk))

    return speed
