"""`specsched fit`: a profile and a trace from benchmark runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import SpecschedError
from . import inputs
from .made_with import made_with
from .options import Command, check_outputs, file_option, json_option, out_option
from .output import command_line, echo, print_json, warn, wrote
from .values import Real, Whole

if TYPE_CHECKING:
    from ..fitting import Fit
    from ..formats.runs import Measured
    from ..profile import StepProfile


class Arm(click.ParamType):  # type: ignore[type-arg]
    """`NAME=POLICY`: which policy an arm, or a file that is one run, was measured with; `skip` leaves it
    out."""

    name = "arm"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """(name, policy) of one arm."""
        if isinstance(value, tuple):
            return value
        name, equals, policy = value.rpartition("=")
        if not equals or not name or not policy:
            self.fail(f"{value!r} is not NAME=POLICY, e.g. 'adaptive.json=lagged:2'", param, ctx)
        return name, policy


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--profile",
    "prior",
    metavar="PROFILE",
    help="A profile to begin with: a file, of another tool's format too, or a bundled name.",
)
@click.option("--gpu", metavar="GPU", help="Without a profile: begin with the limits of this GPU and ...")
@click.option("--model", metavar="MODEL", help="... this model, a preset or a Hugging Face config.json.")
@click.option(
    "--tensor", type=Whole(1, 64), default=1, show_default=True, metavar="N", help="GPUs of the engine."
)
@click.option(
    "--dtype", default="bfloat16", show_default=True, metavar="TYPE", help="Of the weights, with --gpu."
)
@click.option(
    "--arm",
    "arms",
    type=Arm(),
    multiple=True,
    metavar="NAME=POLICY",
    help="The policy an arm (or a file of one run) was measured with, where its name or counters do not say; "
    "skip leaves it out. Repeat for more.",
)
@click.option("--users", type=Whole(1, 10**6), metavar="N", help="Users at once, where files do not say.")
@click.option("--prompt-tokens", type=Whole(0, 10**7), metavar="N", help="Prompts, where files do not say.")
@click.option("--output-tokens", type=Whole(2, 2**20), metavar="N", help="Outputs, where files do not say.")
@click.option("--prompts", type=Whole(1, 10**7), metavar="N", help="Requests of a run. [default: 8 a user]")
@click.option("--block-size", type=Whole(1, 127), metavar="K", help="Drafts, where files do not say.")
@click.option(
    "--prefill",
    type=click.Choice(["chunked", "disaggregated"]),
    default="chunked",
    show_default=True,
    help="How the engine got its prompts.",
)
@click.option(
    "--batch-tokens",
    type=Whole(1, 10**7),
    default=8192,
    show_default=True,
    metavar="N",
    help="Most tokens in a pass with prompts in it.",
)
@click.option(
    "--capture-limit",
    type=Whole(1, 10**6),
    metavar="TOKENS",
    help="Largest captured graph, if no profile says.",
)
@click.option(
    "--noise",
    type=Real(above=0, maximum=1),
    metavar="F",
    help="Relative noise of a speed. [default: from repeated loads, else 0.03]",
)
@click.option(
    "--judge",
    "judges",
    multiple=True,
    metavar="FILE",
    help="Runs that the fit does not see and is judged by: errors by load, and which arm is faster; repeat.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="Predict this policy at the loads of the runs; repeat. [default: off and lagged:2, where drafted]",
)
@file_option("-o", "--output", what="The profile to write; this or --out.")
@file_option("--trace-output", what="The trace to write (.parquet).")
@json_option
@out_option
def fit(
    runs: tuple[str, ...],
    policies: tuple[str, ...],
    judges: tuple[str, ...],
    output: Path | None,
    trace_output: Path | None,
    as_json: bool,
    out: Path | None,
    **options: Any,
) -> None:
    """Learn what a step costs and what is accepted from how fast benchmarks ran.

    RUNS are results of `vllm bench serve`, of SGLang's bench_serving, AIPerf, GuideLLM, inference-perf or
    llm-d, or a CSV with columns concurrency, tok_s_user and/or tok_s_total, and arm; any mix of loads and
    policies. The benchmark is simulated as it
    was run, and the profile and the trace are fitted to it. What the runs do not say is told, and stays as
    assumed.

    \b
    Examples:
      specsched fit off.json k7.json --gpu h100 --model qwen3-8b -o mine.json --trace-output mine.parquet
      specsched fit sweep.csv --profile table.json --prompt-tokens 256 --output-tokens 512 --out fitted
      specsched fit sweep.csv adaptive.json --arm adaptive.json=lagged:2 --policy fixed:3 -o mine.json
      specsched fit off.csv --profile table.json --judge k7.csv --judge adaptive.csv --arm adaptive=lagged:2
    """
    names = ("report.html", "fit.json", "fit.png", "profile.json", "trace.parquet")
    check_outputs(out, *names)
    if trace_output is not None and trace_output.suffix != ".parquet":
        raise SpecschedError(f"{trace_output} does not end in .parquet; a trace is a Parquet file")
    from ..fitting import Benchmark
    from ..fitting import fit as solve
    from ..fitting.document import fit_document
    from ..report.fit import fit_text

    arms = dict(options["arms"])
    measured, unseen = _read(runs, arms, judges)
    prior = _prior(options)
    keys = (
        "users",
        "prompt_tokens",
        "output_tokens",
        "prompts",
        "prefill",
        "batch_tokens",
        "block_size",
        "capture_limit",
    )
    benchmark = Benchmark(noise=options["noise"], **{key: options[key] for key in keys})
    found = solve(measured, prior, benchmark)
    asked = list(policies) or (["off", "lagged:2"] if found.laid.texts else [])
    document = fit_document(found, _canonical(asked, found), unseen)
    if as_json:
        warn([*inputs.said(), *document["warnings"]])
        print_json(document)
    else:
        warn(inputs.said())
        echo(fit_text(dict(document)))
    _write(found, dict(document), output, trace_output, out)


def _read(
    runs: tuple[str, ...], arms: dict[str, str], judges: tuple[str, ...]
) -> tuple[list[Measured], list[Measured]]:
    """(runs to fit, runs to judge by)."""
    from ..formats.benchmarks import read_runs

    _refuse_repeated(runs, judges)
    fitted: list[Measured] = []
    unseen: list[Measured] = []
    for paths, into in ((runs, fitted), (judges, unseen)):
        for path in paths:
            held = read_runs(path, arms)
            inputs.said().extend(held.notes)
            into += held.runs
    found = [*fitted, *unseen]
    same = sorted({run.source for run in fitted} & {run.source for run in unseen})
    if same:
        raise SpecschedError(f"{same[0]} is a run of two files of one name; rename one of them")
    known = {name for run in found for name in (run.arm, run.source, run.file)}
    for name, policy in arms.items():
        if name not in known and policy != "skip":
            shown = ", ".join(sorted({str(r.arm or r.source) for r in found}))
            raise SpecschedError(f"--arm {name}={policy}: no arm or file of that name; there are {shown}")
    return fitted, unseen


def _refuse_repeated(runs: tuple[str, ...], judges: tuple[str, ...]) -> None:
    """A file twice would count twice, and one that is fitted is no judge."""
    fitted, judged = ([os.path.realpath(path) for path in paths] for paths in (runs, judges))
    for path, real in zip(judges, judged, strict=True):
        if real in fitted:
            raise SpecschedError(f"{path} is fitted and judged by; judge a fit by runs that it did not see")
    for path, real in zip((*runs, *judges), (*fitted, *judged), strict=True):
        if (*fitted, *judged).count(real) > 1:
            raise SpecschedError(f"{path} is given twice; give every file once")


def _prior(options: dict[str, Any]) -> StepProfile | None:
    from ..profile import load_profile

    if options["prior"] is not None:
        if options["gpu"] or options["model"]:
            raise click.UsageError("--profile and --gpu are both beginnings; give one of them")
        held: StepProfile = inputs.load_given(options["prior"], "profile", load_profile)
        return held
    if (options["gpu"] is None) != (options["model"] is None):
        raise click.UsageError("--gpu and --model belong together: the limits of one for the other")
    if options["gpu"] is None:
        return None
    from ..profile.roofline import roofline_profile

    return roofline_profile(
        options["gpu"],
        options["model"],
        tensor=options["tensor"],
        dtype=options["dtype"],
        block_size=options["block_size"] or 7,
    )


def _canonical(policies: list[str], found: Fit) -> list[str]:
    from ..schedule import parse

    blocks = [len(text.rates) for text in found.laid.texts.values()]
    if not blocks and policies != [p for p in policies if p == "off"]:
        raise SpecschedError(
            "no run drafted, so nothing is known of what would be accepted: --policy off alone"
        )
    return [parse(policy, max(blocks, default=1)) for policy in policies]


def _write(
    found: Fit, document: dict[str, Any], output: Path | None, trace_output: Path | None, out: Path | None
) -> None:
    trace = found.trace() if trace_output is not None or out is not None else None
    profile = found.profile()
    if output is not None:
        profile.save(output)
        wrote([output])
    if trace_output is not None:
        if trace is None:
            raise SpecschedError("no run drafted, so there is no trace to write; leave --trace-output out")
        trace.save(trace_output)
        wrote([trace_output])
    if out is None:
        return
    from ..files.output import write_json
    from ..report.fit import fit_png
    from ..report.page import fit_page, write_page
    from ..report.pictures import write_picture

    write_json(out / "fit.json", document)
    write_picture(out / "fit.png", fit_png(document))
    page = fit_page(document, made_with(), command_line(click.get_current_context()))
    profile.save(out / "profile.json")
    written = [write_page(out, page), out / "fit.json", out / "fit.png", out / "profile.json"]
    if trace is not None:
        trace.save(out / "trace.parquet")
        written.append(out / "trace.parquet")
    wrote(written)
