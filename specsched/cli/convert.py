"""`specsched convert`: profiles, traces and calibrations of other tools."""

from __future__ import annotations

from pathlib import Path

import click

from . import common

TARGETS = ["specsched", "sglang", "sglang-1d", "trtllm", "vllm"]


@click.command(short_help="Files of other tools, read and written.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(TARGETS),
    default="specsched",
    show_default=True,
    help="Whose format to write.",
)
@click.option(
    "--requests",
    type=common.Whole(1, 10**6),
    metavar="R",
    help="Requests at which --to sglang-1d cuts the profile.",
)
@common.json_option
def convert(source: Path, target: Path, form: str, requests: int | None, as_json: bool) -> None:
    """Read a file of another tool, or write one for it; the format of IN is told by what is in it.

    \b
    Examples:
      specsched convert sglang_table.json mine.json
      specsched convert mine.json for_sglang.json --to sglang
      specsched convert mine.json one_dim.json --to sglang-1d --requests 64
    """
    raise NotImplementedError
