"""`specsched trace`: record a trace with a drafter, or synthesise one from acceptance rates."""

from __future__ import annotations

import click


@click.group()
def trace() -> None:
    """Make a confidence trace."""
