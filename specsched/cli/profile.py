"""`specsched profile`: what a step costs, measured, composed or estimated."""

from __future__ import annotations

import click


@click.group(invoke_without_command=True)
@click.pass_context
def profile(ctx: click.Context) -> None:
    """Make a step profile."""
