"""`specsched drafter`: train a drafter, or run it."""

from __future__ import annotations

import click


@click.group()
def drafter() -> None:
    """Train and evaluate drafters."""
