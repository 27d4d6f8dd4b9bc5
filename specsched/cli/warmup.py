"""`specsched warmup`: compile once what the first answer would otherwise wait for."""

from __future__ import annotations

import time

import click

from .inputs import DEFAULT_PROFILE
from .options import json_option
from .output import echo, print_json


@click.command()
@json_option
def warmup(as_json: bool) -> None:
    """Compile the kernels now (about 25 s), so that the first answer does not wait for it.

    The result is cached beside the package; where that folder is read-only every process compiles for itself.

    \b
    Example:
      specsched warmup
    """
    start = time.monotonic()
    from .. import schedule
    from ..errors import TraceError
    from ..files import disk as files
    from ..profile import load_profile
    from ..simulator import simulate
    from ..trace import load_trace

    names = files.bundled_names("traces", ".parquet")
    if not names:
        raise TraceError("no bundled trace to warm up with; reinstall the package")
    trace, profile = load_trace(names[0]), load_profile(DEFAULT_PROFILE)
    few = trace.select(trace.request_ids[:8])
    for policy in schedule.default_policies(trace.block_size):
        simulate(few, profile, policy=policy, concurrency=2, requests=4)
    seconds = time.monotonic() - start
    if as_json:
        print_json({"schema": "specsched/warmup/1", "seconds": round(seconds, 3)})
    else:
        echo(f"kernels are ready after {seconds:.1f} s")
