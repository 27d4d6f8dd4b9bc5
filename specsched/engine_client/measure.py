"""The whole measurement of running engines: levels run or read back, counters around them, the profile."""

from __future__ import annotations

import asyncio
import datetime
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from ..errors import FormatError, SpecschedError
from ..files import atomic_write, read_json, write_json
from ..formats.acceptance import Acceptance
from ..formats.opened import open_file
from ..formats.vllm.counters import read_prometheus
from ..profile import StepProfile
from ..version import VERSION
from .client import Clock, counters, model_of
from .fit import profile_of
from .levels import Level, run_level

SPREAD = 0.02
Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Setting:
    """Loads and lengths. `prompts`: two lengths or more tell what context costs."""

    clients: int = 32
    prompts: tuple[int, ...] = (128, 1024)
    output_tokens: int = 128
    waves: int = 3
    seed: int = 0

    @property
    def loads(self) -> list[int]:
        """1, 2, 4, ... and the most."""
        return sorted({1 << i for i in range(self.clients.bit_length())} | {self.clients})


def measure_engine(
    urls: Sequence[str],
    runs: Path,
    setting: Setting,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[StepProfile, Acceptance | None]:
    """Profile of the engines at `urls` (one without drafts; perhaps one with), and the acceptance seen.

    Raw runs go into the folder `runs`, one file a level; what is there for the same setting is not measured
    again. Raises SpecschedError where nothing could be measured.
    """
    return asyncio.run(measure(urls, runs, setting, progress, clock))


async def measure(
    urls: Sequence[str], runs: Path, setting: Setting, progress: Progress | None, clock: Clock
) -> tuple[StepProfile, Acceptance | None]:
    """`measure_engine`, in a loop that is running."""
    runs.mkdir(parents=True, exist_ok=True)
    report = progress or (lambda done, total, text: None)
    levels: list[Level] = []
    warnings: list[str] = []
    seen: Acceptance | None = None
    model = "unknown"
    for number, url in enumerate(urls):
        async with httpx.AsyncClient(
            base_url=url.rstrip("/"), timeout=600.0, limits=_limits(setting)
        ) as client:
            try:
                model = await model_of(client)
                found = await _engine(client, model, number, runs, setting, report, clock, warnings)
                levels += found
            except httpx.HTTPError as error:
                raise SpecschedError(
                    f"{url} does not answer ({error or type(error).__name__}); is the server up?"
                ) from None
            seen = _acceptance(runs, number) or seen
    _told_spread(levels, warnings)
    provenance = {
        "method": "measured",
        "source": f"a running engine, from outside, by `specsched profile --engine` ({', '.join(urls)})",
        "licence": "yours",
        "date": datetime.date.today().isoformat(),
        "tool": f"specsched {VERSION}",
        "notes": "Whole steps of the engine by load, the host's work included, one token a request: a step "
        "that verifies several tokens a request reads the cost of as many requests. Waves of "
        f"{', '.join(map(str, setting.loads))} clients, prompts of {', '.join(map(str, setting.prompts))} "
        f"tokens, {setting.output_tokens} tokens out.",
    }
    _write_sweep(runs / "sweep.csv", [v for v in levels if not v.drafting], setting.prompts[0])
    name = "engine_" + re.sub(r"[^a-z0-9.]+", "-", model.lower()).strip("-")
    block = None if seen is None else seen.block_size
    return profile_of(name, levels, block, provenance, warnings), seen


def _limits(setting: Setting) -> httpx.Limits:
    return httpx.Limits(max_connections=setting.clients + 4, max_keepalive_connections=setting.clients + 4)


async def _engine(
    client: httpx.AsyncClient,
    model: str,
    number: int,
    runs: Path,
    setting: Setting,
    report: Progress,
    clock: Clock,
    warnings: list[str],
) -> list[Level]:
    """The levels of one engine; ends early, with a warning, where the server dies or holds no more."""
    total = len(setting.loads) * len(setting.prompts)
    levels: list[Level] = []
    done = 0
    for prompt in setting.prompts:
        for clients in setting.loads:
            text = f"{client.base_url}, {clients} clients, prompts of {prompt} tokens"
            report(done, total, text)
            try:
                level = await _level(client, model, number, runs, setting, (clients, prompt), clock)
            except httpx.HTTPError as error:
                if not levels:
                    raise
                why = str(error) or type(error).__name__
                warnings.append(
                    f"The server stopped answering at {clients} clients ({why}); measured until then."
                )
                return levels
            except SpecschedError as error:
                if not levels:
                    raise
                warnings.append(f"{error}; larger loads of that length were not tried.")
                break
            done += 1
            if level.step_seconds is None:
                warnings.append(
                    f"{client.base_url} did not decode {clients} requests of {prompt} tokens together (it "
                    "queued some, or they were too short); larger loads of that length were not tried."
                )
                break
            levels.append(level)
    report(total, total, "done")
    return levels


async def _level(
    client: httpx.AsyncClient,
    model: str,
    number: int,
    runs: Path,
    setting: Setting,
    load: tuple[int, int],
    clock: Clock,
) -> Level:
    clients, prompt = load
    path = runs / f"engine{number}_prompt{prompt}_clients{clients}.json"
    key = {
        "url": str(client.base_url),
        "model": model,
        "output_tokens": setting.output_tokens,
        "waves": setting.waves,
        "seed": setting.seed,
    }
    if path.exists():
        kept = read_json(path, SpecschedError)
        if isinstance(kept, dict) and kept.get("setting") == key:
            return Level.from_dict(kept)
    before = await counters(client)
    start = runs / f"engine{number}_metrics_before.txt"
    if not start.exists():
        _write(start, before)
    rng = np.random.default_rng((setting.seed, clients, prompt))
    lengths = prompt, setting.output_tokens
    level = await run_level(client, model, clients, lengths, setting.waves, rng, clock)
    after = await counters(client)
    level.drafting = _drafts(after) > _drafts(before)
    write_json(path, {"setting": key, **level.to_dict()})
    _write(runs / f"engine{number}_metrics_after.txt", after)
    return level


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as stream:
        stream.write(text)


def _drafts(text: str) -> float:
    """Drafts counted by a server so far, all its engines together; 0 where it counts none."""
    found = re.findall(r"^\S*spec_decode_num_drafts(?:_total)?(?:\{.*\})?\s+(\S+)", text, re.MULTILINE)
    return sum(float(value) for value in found)


def _acceptance(runs: Path, number: int) -> Acceptance | None:
    """Acceptance between the first scrape of an engine and the last; None where it did not draft."""
    before, after = (runs / f"engine{number}_metrics_{when}.txt" for when in ("before", "after"))
    if not after.exists() or _drafts(after.read_text()) <= _drafts(before.read_text()):
        return None
    try:
        return read_prometheus(open_file(after), {"before": str(before)})[0]
    except FormatError:
        return None


def _told_spread(levels: Sequence[Level], warnings: list[str]) -> None:
    found = [v.spread for v in levels if v.spread is not None]
    if found and (middle := float(np.median(found))) > SPREAD:
        warnings.append(f"Waves of one load lie {middle:.1%} apart (the goal is {SPREAD:.0%}).")


def _write_sweep(path: Path, levels: Sequence[Level], prompt: int) -> None:
    """Speeds by load without drafts, as `profile fit-overhead --sweep` reads them."""
    rows = [
        f"{v.clients},{v.speed:.6g},{v.prompt_tokens},{v.output_tokens}"
        for v in levels
        if v.prompt_tokens == prompt
    ]
    _write(path, "\n".join(["concurrency,tok_s_user,input_tokens,output_tokens", *rows]) + "\n")
