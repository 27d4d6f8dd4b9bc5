"""`specsched calibrate`: fit a calibration, and say how honest the confidences are before and after."""

from __future__ import annotations

from pathlib import Path

import click

from . import inputs
from .made_with import made_with
from .options import Command, check_outputs, file_option, json_option, out_option
from .output import command_line, echo, print_json, warn, wrote
from .values import Real


@click.command(cls=Command)
@inputs.together(
    inputs.trace_option,
    file_option("-o", "--output", what="Write the calibration (JSON)."),
    file_option("--plot", what="Write the reliability diagrams (PNG)."),
    click.option(
        "--method",
        type=click.Choice(["sts", "affine"]),
        default="sts",
        show_default=True,
        help="One temperature a position, or a temperature and a shift.",
    ),
    click.option(
        "--holdout",
        type=Real(above=0, maximum=0.99),
        default=0.5,
        show_default=True,
        metavar="F",
        help="Share of the requests kept out of the fit, to report on.",
    ),
    inputs.seed_option,
    json_option,
    out_option,
)
@click.pass_context
def calibrate(
    ctx: click.Context,
    trace: str,
    output: Path | None,
    plot: Path | None,
    method: str,
    holdout: float,
    seed: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """Fit the confidences of a trace by sequential temperature scaling; report on requests not used for it.

    \b
    Examples:
      specsched calibrate --trace chat.parquet
      specsched calibrate --trace chat -o chat.calibration.json --plot chat.png
      specsched calibrate --trace chat --method affine --json
    """
    from .. import report
    from ..calibration import fit_sts
    from ..report.page import calibration_page, write_page
    from ..report.pictures import reliability_png, write_picture
    from ..trace import load_trace

    if out is not None:
        check_outputs(
            out,
            "report.html",
            *(["calibration.json"] * (output is None) + ["reliability.png"] * (plot is None)),
        )
        output, plot = output or out / "calibration.json", plot or out / "reliability.png"
    loaded = load_trace(trace)
    fitted = fit_sts(loaded, holdout=holdout, seed=seed, method=method)
    if as_json:
        warn(loaded.warnings)
        print_json(fitted.to_dict())
    else:
        echo(report.calibration_text(fitted, loaded.warnings))
    if output is not None:
        fitted.save(output)
    if plot is not None:
        write_picture(plot, reliability_png(loaded, fitted))
    wrote(path for path in (output, plot) if path is not None)
    if out is not None:
        page = calibration_page(loaded, fitted, loaded.warnings, made_with(), command_line(ctx))
        wrote([write_page(out, page)])
