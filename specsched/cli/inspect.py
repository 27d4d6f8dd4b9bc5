"""`specsched inspect`: what a file holds, what is wrong with it, and its picture."""

from __future__ import annotations

from pathlib import Path

import click

from . import common


@click.command(short_help="What a file holds, what is wrong with it, its picture.")
@click.argument("file", required=False)
@common.file_option("--plot", what="Write the picture (PNG).")
@common.json_option
@common.out_option
def inspect(file: str | None, plot: Path | None, as_json: bool, out: Path | None) -> None:
    """What a profile, trace or calibration holds, what is wrong with it, and its picture.

    FILE is a path or a bundled name; without it the bundled names are listed.

    \b
    Examples:
      specsched inspect
      specsched inspect h100-sxm_qwen3-8b_bf16_tp1 --plot profile.png
      specsched inspect chat.parquet
    """
    raise NotImplementedError
