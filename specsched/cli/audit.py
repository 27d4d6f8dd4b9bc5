"""`specsched audit`: does a policy look at what it must not?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..errors import PolicyError
from .options import Command, file_option, force_option, json_option
from .output import echo, print_json, stdout_kept, warn, wrote
from .progress import Progress
from .values import Whole


@click.command(cls=Command, short_help="Does a policy look at what it must not?")
@click.argument("policy", required=False, metavar="[MODULE:FUNCTION]")
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Ask about the leak in this file instead of searching. A file never loads code: name the policy "
    "too, unless it is a bundled one.",
)
@click.option(
    "--systems",
    type=Whole(0, 10**7),
    default=1000,
    show_default=True,
    metavar="N",
    help="Random systems to try when the tiny ones show nothing.",
)
@click.option(
    "--past",
    type=Whole(0, 64),
    default=4,
    show_default=True,
    metavar="N",
    help="Most earlier steps of a random system; more than any lag in the policy.",
)
@click.option("--seed", type=Whole(0, 2**31), default=0, show_default=True, help="Of the random systems.")
@click.option(
    "--confidence-sees-token",
    "sees_token",
    is_flag=True,
    help="Let confidences depend on the draft they judge, as most engines' logs do.",
)
@file_option("-o", "--output", what="Write the leak, if one is found, to this file; it replays.")
@json_option
@force_option
@click.pass_context
def audit(
    ctx: click.Context,
    policy: str | None,
    replay: Path | None,
    systems: int,
    past: int,
    seed: int,
    sees_token: bool,
    output: Path | None,
    as_json: bool,
) -> int:
    """Search a policy for decisions that would change the served text; the smallest one found is shown.

    MODULE is imported (from the working folder too) and FUNCTION called as policy(confidence, sps, history),
    to return int[R], 0..γ drafts to verify of each request. confidence is float64[R, γ], sps
    float64[> R(1+γ)] with steps per second at B tokens; history.ids is int64[R],
    history.drafts int64[R, γ], history.steps the earlier steps, oldest first, each with ids, confidence,
    drafts, lengths and accepted (int32[R]). An object or a class with plan(confidence,
    sps, ids=ids) will do, and so will the name of a bundled policy.

    Whether draft k of a request is verified must not change with that draft, nor with the confidences and
    drafts behind it. Every input of tiny systems is tried, then random larger ones; finding nothing is no
    proof beyond what was tried, which the answer counts. Exit codes: 0 no leak found, 1 a leak, 2 a policy
    that cannot be audited.

    \b
    Examples:
      specsched audit mymodule:policy -o leak.json
      specsched audit mymodule:policy --replay leak.json
      specsched audit lagged:2
    """
    if replay is not None:
        idle = {"systems": "--systems", "past": "--past", "seed": "--seed", "output": "-o"}
        idle["sees_token"] = "--confidence-sees-token"
        typed = [o for p, o in idle.items() if ctx.get_parameter_source(p) is ParameterSource.COMMANDLINE]
        warn(f"{option} does nothing with --replay" for option in typed)
        return _replay(policy, replay, as_json)
    if policy is None:
        raise PolicyError("name what to audit: MODULE:FUNCTION, or a bundled policy such as lagged:2")
    from .. import report
    from ..audit import audit as search
    from ..audit import load
    from ..files.output import write_json

    with stdout_kept(), Progress("step", workers=False) as progress:
        found = search(load(policy), systems, past, seed, sees_token, progress)
    if as_json:
        print_json(found)
    else:
        echo(report.audit_text(found))
    if found["leak"] is not None and output is not None:
        write_json(output, found["leak"])
        wrote([output])
    return int(found["found"])


def _replay(policy: str | None, path: Path, as_json: bool) -> int:
    """Show a leak's file under the policy; 1 where it still leaks."""
    from .. import report, schedule
    from ..audit import load, named_in
    from ..audit import replay as ask

    name = policy or named_in(path)
    if policy is None and name.partition(":")[0] not in schedule.POLICIES:
        raise PolicyError(
            f"{path} is about {name}, and a file never loads code: name the policy to run, as in "
            f"specsched audit {name} --replay {path}"
        )
    with stdout_kept():
        found, leaks = ask(path, load(name))
    shown: dict[str, Any] = {**found}
    if as_json:
        print_json(shown)
    else:
        verdict = "leaks" if leaks else "does not leak"
        echo(f"{name} {verdict} in the system of {path}\n\n{report.leak_text(shown)}")
    return int(leaks)
