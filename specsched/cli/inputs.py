"""The three inputs of `simulate`, `plan` and the options that name them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from ..errors import SpecschedError
from .values import Limit, Real, Whole, milliseconds

if TYPE_CHECKING:
    from ..profile import StepProfile
    from ..trace import Trace

DEFAULT_PROFILE = "h100-sxm_qwen3-8b_bf16_tp1"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

trace_option = click.option(
    "--trace",
    required=True,
    metavar="TRACE",
    help="Confidence trace: a .parquet file, else a bundled name; chat:0.7,code:0.3 is a mixture by shares.",
)
profile_option = click.option(
    "--profile",
    metavar="PROFILE",
    help="Step profile: a .json file, else a bundled name. [default: the bundled one of the trace's model, "
    f"else {DEFAULT_PROFILE}]",
)
policy_option = click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="A verification policy; repeat to compare. One of off, fixed:k, threshold:x, early-stop, lagged:n, "
    "bypass:n, sla:S, history:h, batch-table:FILE, and for study global and hindsight; or MODULE:NAME, your "
    "own, as `audit` takes it, in Python and slower. [default: off, fixed:1, the full block, "
    "threshold:0.3, early-stop, lagged:2]",
)
calibration_option = click.option(
    "--calibration",
    metavar="sts|affine|none|FILE",
    default="sts",
    show_default=True,
    help="Fit the confidences on half of the trace's requests (by --seed) and replay the others; none "
    "replays raw confidences; or a calibration file.",
)
prefill_option = click.option(
    "--prefill",
    type=click.Choice(["auto", "chunked", "disaggregated", "free", "none"]),
    default="auto",
    show_default=True,
    help="Whether the engine prefills its prompts, in chunks that join the decode steps (chunked), or they "
    "arrive prefilled (disaggregated; free and none mean it too). auto: chunked where prefilling takes more "
    "than 10% of the decoding time at the answer's load and the profile prices it.",
)
context_option = click.option(
    "--context",
    type=Whole(0, 10**8),
    metavar="TOKENS",
    help="Context tokens of every request, fixed. [default: prompt plus position, growing]",
)
seed_option = click.option(
    "--seed", type=Whole(0, 2**63 - 1), default=0, show_default=True, metavar="S", help="Seed of every draw."
)
block_size_option = click.option(
    "--block-size", type=Whole(1, 1000), metavar="K", help="Replay shorter blocks. [default: the trace's]"
)
workers_option = click.option(
    "--workers", type=Whole(1, 4096), metavar="N", help="Threads. [default: the machine's cores]"
)


def requests_option(default: int, what: str) -> Decorator:
    """`--requests N`, counting `what`."""
    return click.option(
        "--requests", type=Whole(1, 10**8), default=default, show_default=True, metavar="N", help=what
    )


fraction_option = click.option(
    "--sla-fraction",
    type=Real(above=0, maximum=1),
    default=0.95,
    show_default=True,
    metavar="F",
    help="Share of requests that must get what is promised: the SLA and all limits at once.",
)
sla_option = click.option(
    "--sla", type=Real(above=0), metavar="S", help="Output tokens/s every user is promised."
)
tpot_option = click.option(
    "--tpot-ms",
    type=milliseconds(),
    metavar="MS",
    help="The same promise as time per output token: --tpot-ms 20 is --sla 50.",
)


def _limit(name: str, what: str) -> Decorator:
    return click.option(f"--{name}-ms", type=Limit(), metavar="MS[@SHARE]", help=what)


# What is promised to every user, wherever something is: `promise` reads them.
promise_group = (
    sla_option,
    tpot_option,
    _limit(
        "ttft",
        "Longest time to the first token, prefill and the wait for a place in it; the engine prefills "
        "then. Limits count together: a request is good when it keeps all of them and the SLA. With a "
        "share, as in 500@0.99, a limit counts by itself: so many of all requests must keep it.",
    ),
    _limit("itl", "Longest pause between two deliveries of a request's tokens."),
    _limit("e2e", "Longest time from arrival to the last token."),
    fraction_option,
)


SHORTEST_TPOT_MS = 0.1  # no engine writes 10,000 tokens a second to one user


def speed(options: dict[str, Any]) -> None:
    """Make `--tpot-ms` the SLA in `options`; refused beside `--sla`."""
    milliseconds = options.pop("tpot_ms")
    if milliseconds is not None:
        if options["sla"] is not None:
            raise click.UsageError("--sla and --tpot-ms say the same promise in two ways; give one of them")
        options["sla"] = 1000.0 / milliseconds
        if milliseconds < SHORTEST_TPOT_MS:
            raise click.UsageError(
                f"--tpot-ms {milliseconds:g} is {options['sla']:,.0f} tokens/s for every user, which no "
                "engine serves; give milliseconds, not seconds"
            )


def promise(options: dict[str, Any]) -> None:
    """`speed`, and `limits` of the limits given."""
    speed(options)
    from ..simulator import Limits

    given = {name: options.pop(f"{name}_ms", None) for name in ("ttft", "itl", "e2e")}
    found = {name: limit for name, limit in given.items() if limit is not None}
    options["limits"] = Limits(
        **{f"{name}_seconds": limit.milliseconds / 1000.0 for name, limit in found.items()},
        shares={name: limit.share for name, limit in found.items() if limit.share is not None},
    )


enabling_option = click.option(
    "--enabling-cost",
    type=Real(minimum=0, maximum=0.99),
    metavar="F",
    help="Share of every step lost once drafting is on. [default: the profile's]",
)

idle_draft_option = click.option(
    "--idle-draft",
    type=Real(minimum=0, maximum=1),
    metavar="F",
    help="Share of the drafting cost that a step of bypass or batch-table pays when it drafts nothing (1: "
    "the engine keeps the draft forward). [default: the profile's]",
)
catch_up_option = click.option(
    "--catch-up",
    type=Real(minimum=0, maximum=1000),
    metavar="F",
    help="What reading a token missed meanwhile costs the drafter, as a share of drafting for one request. "
    "[default: the profile's]",
)


serving_group = (
    prefill_option,
    context_option,
    click.option(
        "--max-running",
        type=Whole(1, 10**6),
        metavar="N",
        help="Most requests decoding at once. [default: 256 with arrivals]",
    ),
    click.option(
        "--batch-tokens",
        type=Whole(1, 10**7),
        default=8192,
        show_default=True,
        metavar="N",
        help="Most tokens in a pass that has prefill chunks in it.",
    ),
    click.option(
        "--kv-reserve",
        type=Real(minimum=0, maximum=0.99),
        default=0.1,
        show_default=True,
        metavar="F",
        help="Share of GPU memory kept free of KV.",
    ),
    click.option(
        "--graph-bytes",
        type=Whole(0, 10**12),
        default=0,
        show_default=True,
        metavar="N",
        help="Memory that each captured size takes from the KV cache.",
    ),
    enabling_option,
    idle_draft_option,
    catch_up_option,
)


def together(*options: Decorator) -> Decorator:
    """Stack options in the order in which the help should list them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def serving_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `serving_group` as keywords of `simulate`."""
    names = ("prefill", "context", "max_running", "batch_tokens", "kv_reserve", "graph_bytes")
    return {name: options[name] for name in names}


class Inputs(NamedTuple):
    """What a run is given; which part of the trace is replayed is settled with the calibration, later."""

    trace: Trace
    profile: StepProfile


def load_inputs(options: dict[str, Any]) -> Inputs:
    """Load trace and profile, of another tool's format too; what must be said of them is kept for `said`."""
    from ..profile import load_profile
    from ..trace import load_trace

    confidences: Trace = load_given(options["trace"], "trace", load_trace)
    name = options["profile"] or profile_of(confidences)
    step_profile: StepProfile = load_given(name, "profile", load_profile)
    stated = {
        "enabling_fraction": options["enabling_cost"],
        "idle_draft": options["idle_draft"],
        "catch_up": options["catch_up"],
    }
    changed = {key: value for key, value in stated.items() if value is not None}
    step_profile = dataclasses.replace(step_profile, **changed)
    return Inputs(confidences, step_profile)


def profile_of(trace: Trace) -> str:
    """The bundled profile of the model that `trace` names as its target, else DEFAULT_PROFILE."""
    from ..files.disk import bundled_names
    from ..profile import load_profile
    from ..simulator.mismatch import same_model

    target = trace.metadata.get("target")
    if isinstance(target, str) and target not in ("", "unknown"):
        for name in bundled_names("profiles", ".json"):
            if same_model(target, str(load_profile(name).model.get("name", ""))):
                return name
    return DEFAULT_PROFILE


def said() -> list[str]:
    """What this command line makes doubtful by itself: files read through another format."""
    context = click.get_current_context(silent=True)
    return [] if context is None else context.meta.setdefault("specsched.said", [])


def load_given(name: str, kind: str, load: Callable[[str], Any]) -> Any:
    """The file or bundled name, else what `specsched convert` would make of it."""
    try:
        return load(name)
    except SpecschedError:
        if not os.path.isfile(name):
            raise
        from .. import formats

        try:
            found = formats.read(name)
            if found.kind != kind and kind in _PARTS:  # a file of two parts gives the one that is wanted
                found = _part(name, kind) or found
        except SpecschedError:
            found = None
        if found is None or found.format == "specsched" or len(found.objects) != 1:
            raise
        if found.kind != kind:
            raise SpecschedError(_in_the_place_of(name, kind, found.kind, found.format)) from None
    note = " ".join(found.notes)
    said().append(f"{name} was read as {found.format}, as `specsched convert` would: {note}")
    return found.object


# The part of a file with several that becomes each kind: see the hint `take`.
_PARTS = {"profile": "steps", "calibration": "temperatures"}


def _part(name: str, kind: str) -> Any:
    from .. import formats

    try:
        found = formats.read(name, take=_PARTS[kind])
    except SpecschedError:
        return None
    return found if found.kind == kind else None


def _in_the_place_of(name: str, wanted: str, kind: str, form: str) -> str:
    """The sentence for another tool's file of the wrong kind, with what to type."""
    told = {
        "profile": f"give it as --profile {name}",
        "trace": f"give it as --trace {name}",
        "calibration": f"`specsched convert {name} calibration.json` makes a file for --calibration",
        "acceptance": f"make a trace of it: `specsched trace synth --acceptance {name} -o mine.parquet`",
    }
    held = "acceptance rates" if kind == "acceptance" else f"a {kind}"
    return f"{name} holds {held} in the format of {form}, where a {wanted} belongs; {told[kind]}"


def idle(profile: StepProfile, prefill: str | None) -> list[str]:
    """One sentence for every option typed that changes nothing, with prompts prefilled as they were."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    from ..simulator.idle import idle_settings

    options = context.params
    typed = [n for n in options if context.get_parameter_source(n) is ParameterSource.COMMANDLINE]
    sla, policies = options.get("sla"), options.get("policies") or ()
    found = idle_settings(profile, typed, prefill=prefill, sla=sla, policies=policies)
    return [f"--{name.replace('_', '-')} {why}" for name, why in found.items()]


def canonical_policies(policies: tuple[str, ...], block_size: int) -> list[str] | None:
    """The canonical names of the policies asked for, checked before any work; None for the default set."""
    if not policies:
        return None
    from ..simulator.own import policy_of

    names = [policy_of(spec, block_size).name for spec in policies]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SpecschedError(f"--policy {sorted(twice)[0]} is given twice; name every policy once")
    return names
