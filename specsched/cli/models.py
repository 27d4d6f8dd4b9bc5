"""What every command that runs a target or a drafter asks for: models, prompts, sampling, device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..errors import SpecschedError, quoted
from ..extras import extra_module
from .values import Real, Temperature, Whole

Decorator = Callable[[Any], Any]

target_option = click.option(
    "--target",
    default="smollm2",
    show_default=True,
    metavar="MODEL",
    help="tiny, smollm2 or a Hugging Face folder.",
)
drafter_option = click.option(
    "--drafter", required=True, metavar="MODEL", help="A drafter's folder, or a bundled name."
)
device_option = click.option(
    "--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu or cuda."
)


def _prompts_file(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    from ..files.strict import is_file

    if not is_file(value):  # pipes are read once the command runs
        raise SpecschedError(f"no file {str(value)!r}; --prompts is a JSON list of prompts")
    return value


prompts_option = click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    required=True,
    callback=_prompts_file,
    metavar="FILE",
    help="JSON list of {prompt, turns or prompt_ids, domain}, or JSONL.",
)


def temperature_option(default: float) -> Decorator:
    """`--temperature T`."""
    return click.option(
        "--temperature",
        type=Temperature(),
        default=default,
        show_default=True,
        metavar="T",
        help="Sampling temperature.",
    )


def sampling_options(command: Any) -> Any:
    """`--top-k`, `--top-p` and `--greedy-draft`."""
    for option in (
        click.option(
            "--greedy-draft", is_flag=True, help="Draft the first choice at any temperature, as engines do."
        ),
        click.option(
            "--top-p",
            type=Real(above=0, maximum=1),
            default=1.0,
            show_default=True,
            metavar="P",
            help="Of the likeliest tokens those that hold P (target and drafter).",
        ),
        click.option(
            "--top-k",
            type=Whole(0, 10**6),
            default=0,
            show_default=True,
            metavar="K",
            help="Of the likeliest tokens K (target and drafter; 0: all).",
        ),
    ):
        command = option(command)
    return command


thinking_option = click.option(
    "--thinking/--no-thinking",
    default=None,
    help="enable_thinking of the chat template (Qwen3 and others); the template's own choice if unsaid.",
)


def length_option(default: int, least: int = 1) -> Decorator:
    """`--max-tokens N`."""
    return click.option(
        "--max-tokens",
        type=Whole(least, 10**6),
        default=default,
        show_default=True,
        metavar="N",
        help="Longest output.",
    )


def batch_option(default: int) -> Decorator:
    """`--batch N`."""
    return click.option(
        "--batch",
        type=Whole(1, 4096),
        default=default,
        show_default=True,
        metavar="N",
        help="Requests side by side.",
    )


def max_prompt_option(default: int | None = None) -> Decorator:
    """`--max-prompt N`."""
    return click.option(
        "--max-prompt",
        type=Whole(1, 10**7),
        default=default,
        show_default=default is not None,
        metavar="N",
        help="Leave out prompts of more tokens.",
    )


def usable_device(name: str) -> str:
    """`name` (`cpu`, `cuda` or `cuda:1`), where this machine has it; SpecschedError where not."""
    torch = extra_module("torch", "torch", "running a drafter")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *["cuda"] * (cards > 0), *(f"cuda:{i}" for i in range(cards))]
    if name not in there:
        raise SpecschedError(f"device {quoted(name)} is not there; this machine has: {', '.join(there)}")
    return name
