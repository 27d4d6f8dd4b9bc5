"""From runs as files have them to cases that can be simulated: who drafted what, on which text, at which
load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import SpecschedError
from ..formats.acceptance import from_mean_length
from ..formats.runs import Measured
from ..schedule import parse
from .forward import Case, Observed
from .steps import Setting
from .texts import Text, shape

NOISE = 0.03  # of a figure of one run, where repeats do not show it
LENGTH_NOISE = 0.02
_ENOUGH = 60  # prompts a place: of more the first say the same
_FEWEST = 64
_RISE = 1.2  # a user's speed at more users by that at fewer: more is no scatter
_PASSES = 8  # prompts a place where a file does not say how many


@dataclass(frozen=True)
class Benchmark:
    """What the files do not say of how they were measured; None: they must.

    `users`: at once. `prompts`: requests of a run. `prefill`: chunked or disaggregated. `noise`: relative, of
    a speed.
    `block_size`: drafts a request, for runs of policies that do not say it. `capture_limit`: tokens of the
    largest captured graph, where no prior says.
    """

    users: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prompts: int | None = None
    prefill: str = "chunked"
    batch_tokens: int = 8192
    block_size: int | None = None
    capture_limit: int | None = None
    noise: float | None = None


@dataclass(frozen=True)
class Laid:
    """All of a fit's data: cases, texts by name, what was observed, and what had to be assumed."""

    cases: tuple[Case, ...]
    texts: dict[str, Text]
    observed: tuple[Observed, ...]
    assumed: tuple[str, ...]


def lay_out(runs: Sequence[Measured], benchmark: Benchmark) -> Laid:
    """Cases, texts and observations of these runs; raises SpecschedError naming what a run lacks."""
    if not runs:
        raise SpecschedError("no runs to fit")
    assumed: list[str] = []
    complete = [completed(run, benchmark, assumed) for run in runs]
    _refuse_totals(complete)
    drafters = _drafters(complete)
    texts: dict[str, Text] = {}
    cases: list[Case] = []
    for run, drafter in zip(complete, drafters, strict=True):
        policy = str(run.policy)
        name = None
        if policy != "off":
            name = "/".join(filter(None, [drafter, run.text])) or "text"
            same = [r for r, d in zip(complete, drafters, strict=True) if (d, r.text) == (drafter, run.text)]
            if name not in texts:
                texts[name] = _text(name, same, benchmark, assumed)
        setting = setting_of(run, benchmark)
        rates = _own_rates(run, texts[name]) if name is not None else None
        cases.append(Case(run, policy, setting, name, drafter if name else None, rates))
    noise, said = _noise(complete, benchmark)
    assumed.append(said)
    return Laid(tuple(cases), texts, tuple(_observed(cases, noise)), tuple(dict.fromkeys(assumed)))


def completed(run: Measured, benchmark: Benchmark, assumed: list[str]) -> Measured:
    """The run with what its file does not say filled in; `assumed` takes sentences on what had to be.

    Raises SpecschedError naming what is missing and how to give it.
    """
    run = replace(run, users=run.users if run.users is not None else benchmark.users).checked()
    if run.users is None:
        raise SpecschedError(
            f"{run.source}: how many users at once (max concurrency) is not in it; give --users, or run the "
            "client with a maximum concurrency"
        )
    policy = _policy(run, benchmark)
    filled: dict[str, Any] = {"policy": policy}
    for key, option in (("prompt_tokens", "--prompt-tokens"), ("output_tokens", "--output-tokens")):
        value = getattr(run, key) if getattr(run, key) is not None else getattr(benchmark, key)
        if value is None:
            raise SpecschedError(
                f"{run.source}: its requests' {key.replace('_', ' ')} are not said; give {option}"
            )
        filled[key] = int(value)
    if filled["output_tokens"] < 2:
        raise SpecschedError(f"{run.source}: outputs of {filled['output_tokens']} tokens decode nothing")
    prompts = run.prompts or benchmark.prompts
    if prompts is None:
        prompts = prompts_of(run.users)
        assumed.append(
            f"runs that do not say how many prompts they had: {_PASSES} a user (at least {_FEWEST})"
        )
    filled["prompts"] = max(int(prompts), run.users)
    return replace(run, **filled)


def prompts_of(users: int) -> int:
    """Requests of a run, where nobody says."""
    return max(_PASSES * users, _FEWEST)


def setting_of(run: Measured, benchmark: Benchmark) -> Setting:
    """How a `completed` run was made, of at most as many prompts as say something."""
    assert run.users and run.output_tokens and run.prompts  # noqa: PT018
    assert run.prompt_tokens is not None
    most = max(_ENOUGH * run.users, _FEWEST)
    return Setting(
        run.users, run.prompt_tokens, run.output_tokens, min(run.prompts, most),
        benchmark.prefill, benchmark.batch_tokens,
    )  # fmt: skip


def _refuse_totals(runs: Sequence[Measured]) -> None:
    """Raise for a user's speed that rises with the users: it is that of all of them together."""
    arms: dict[tuple[Any, ...], list[Measured]] = {}
    for run in runs:
        key = (run.policy, run.arm, run.text, run.drafter, run.prompt_tokens, run.output_tokens)
        if run.user is not None:
            arms.setdefault(key, []).append(run)
    for held in arms.values():
        least, most = (pick(held, key=lambda r: r.users or 0) for pick in (min, max))
        if (least.users or 0) < (most.users or 0) and (most.user or 0.0) > _RISE * (least.user or 0.0):
            raise SpecschedError(
                f"{most.source}: {most.user:,.0f} tokens/s of one user at {most.users} users, and "
                f"{least.user:,.0f} at "
                f"{least.users} ({least.source}): a user is no faster among more; is that the total of "
                "all users "
                "(tok_s_total), or another setting?"
            )


def _policy(run: Measured, benchmark: Benchmark) -> str:
    """The canonical policy of a run: said, else off or the full block by its counters."""
    block = len(run.conditional) if run.conditional is not None else benchmark.block_size
    if run.policy is not None:
        return parse(run.policy, block or 7)
    if run.conditional is None and run.accept_length is None:
        if run.silent:
            raise SpecschedError(
                f"{run.source}: nothing in it says whether the engine drafted; say --arm {run.file}=off, or "
                f"which policy it ran (--arm {run.file}=fixed:7)"
            )
        return "off"
    if run.trimmed:
        raise SpecschedError(
            f"{run.source}: fewer drafts than whole blocks were verified, so a policy trimmed; say "
            "which with "
            f"--arm {run.arm or run.source}=lagged:2 (or another)"
        )
    if block is None:
        raise SpecschedError(f"{run.source}: it drafted, but how many tokens is not said; give --block-size")
    return f"fixed:{block}"


def _drafters(runs: Sequence[Measured]) -> list[str | None]:
    """Whose drafts each run verified: named, or one for all, unless two arms do the same under other
    names."""
    out: list[str | None] = []
    for run in runs:
        if run.policy == "off":
            out.append(None)
            continue
        same = {r.arm for r in runs if r.policy == run.policy}
        out.append(run.drafter or (str(run.arm) if len(same) > 1 else "drafter"))
    return out


def _block(run: Measured, benchmark: Benchmark) -> int | None:
    if run.conditional is not None:
        return len(run.conditional)
    name, _, parameter = str(run.policy).partition(":")
    return int(parameter) if name == "fixed" else benchmark.block_size


def _text(name: str, runs: Sequence[Measured], benchmark: Benchmark, assumed: list[str]) -> Text:
    """Rates by position where counted, else a stated shape at the mean length, else at nobody's level."""
    blocks = [b for run in runs if (b := _block(run, benchmark)) is not None]
    if not blocks:
        raise SpecschedError(f"{runs[0].source}: how many tokens are drafted is not said; give --block-size")
    block = max(blocks)
    decoded = max(int(run.output_tokens or 0) for run in runs)
    counted = [
        run.conditional for run in runs if run.conditional is not None and len(run.conditional) == block
    ]
    if counted:
        return Text(name, tuple(np.mean(counted, axis=0).tolist()), True, decoded)
    lengths = [
        run.accept_length for run in runs if run.accept_length is not None and _block(run, benchmark) == block
    ]
    if lengths:
        assumed.append(f"{name}: one acceptance rate at every position, from the mean accepted length")
        mean = float(np.mean(lengths))
        found = from_mean_length(mean, block, runs[0].source, runs[0].source)
        return Text(name, tuple(found.conditional.tolist()), False, decoded)
    assumed.append(
        f"{name}: no counter says what is accepted; its level is fitted, its shape that of figure 2, chat"
    )
    return Text(name, shape(block), False, decoded)


def _noise(runs: Sequence[Measured], benchmark: Benchmark) -> tuple[float, str]:
    """Relative noise of a speed: given, seen in repeats, or assumed."""
    if benchmark.noise is not None:
        return benchmark.noise, f"noise of a speed: {benchmark.noise:.1%}, given"
    groups: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        value = run.total or run.user
        key = (run.policy, run.arm, run.text, run.users, run.prompt_tokens, run.output_tokens)
        groups.setdefault(key, []).append(math.log(value or 1.0))
    repeated = [g for g in groups.values() if len(g) > 1]
    if repeated:
        degrees = sum(len(g) - 1 for g in repeated)
        seen = math.sqrt(sum((len(g) - 1) * float(np.var(g, ddof=1)) for g in repeated) / degrees)
        return max(
            seen, 0.005
        ), f"noise of a speed: {max(seen, 0.005):.1%}, from {len(repeated)} repeated loads"
    return NOISE, f"noise of a speed: {NOISE:.0%}, assumed (no load was repeated)"


def _own_rates(run: Measured, text: Text) -> tuple[float, ...] | None:
    """What was counted by position in this very run: texts of one kind differ, and a speed goes with its
    own."""
    if run.conditional is not None and len(run.conditional) == len(text.rates):
        return run.conditional
    return None


def _length_noise(cases: Sequence[Case]) -> float:
    """Relative noise of a mean accepted length: as the runs of a text scatter (a gauge read once scatters a
    lot), else assumed."""
    groups: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        if case.text is not None and case.run.accept_length is not None:
            groups.setdefault((case.text, case.policy), []).append(math.log(case.run.accept_length))
    several = [g for g in groups.values() if len(g) > 1]
    if not several:
        return LENGTH_NOISE
    degrees = sum(len(g) - 1 for g in several)
    return max(
        LENGTH_NOISE, math.sqrt(sum((len(g) - 1) * float(np.var(g, ddof=1)) for g in several) / degrees)
    )


def _observed(cases: Sequence[Case], noise: float) -> list[Observed]:
    out = []
    of_lengths = _length_noise(cases)
    for i, case in enumerate(cases):
        run = case.run
        # A speed of a drafting run holds what its requests accepted by chance, too.
        here = noise if case.text is None else math.hypot(noise, LENGTH_NOISE)
        if run.user is not None:
            out.append(Observed(i, "user", run.user, here))
        if run.total is not None:
            out.append(Observed(i, "total", run.total, here))
        if case.text is not None and case.rates is None and run.accept_length is not None:
            out.append(Observed(i, "length", run.accept_length, of_lengths))
    return out
