"""The top group: its help, its version, and the commands it holds."""

from __future__ import annotations

import click

from .calibrate import calibrate
from .common import App
from .convert import convert
from .drafter import drafter
from .inspect import inspect
from .plan import plan
from .profile import profile
from .simulate import simulate
from .sweep import sweep
from .trace import trace
from .warmup import warmup


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from .. import __version__

        click.echo(f"specsched {__version__}")
        ctx.exit()


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version.",
)
def main() -> None:
    """Plan speculative decoding: users per GPU at a promised speed, and the verification policy to run.

    Three inputs make an answer: a step profile (what a forward pass costs), a confidence trace (what the
    drafter proposes and the target accepts) and a workload (how requests arrive). Bundled profiles and traces
    go by name; `specsched inspect` lists them.

    \b
    First answer:
      specsched simulate --trace qwen3-4b-chat --sla 120
    How many GPUs for a traffic:
      specsched plan --trace qwen3-4b-chat --profile h100-sxm_qwen3-8b_bf16_tp1 --sla 80 --rate 50
    """


for _command in (simulate, plan, sweep, profile, trace, calibrate, convert, inspect, drafter, warmup):
    main.add_command(_command)
