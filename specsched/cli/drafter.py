"""`specsched drafter`: train a drafter on a target's own text, or run one and measure it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ..errors import SpecschedError
from . import inputs
from .made_with import made_with
from .models import (
    batch_option,
    device_option,
    drafter_option,
    length_option,
    max_prompt_option,
    prompts_option,
    sampling_options,
    target_option,
    temperature_option,
    thinking_option,
    usable_device,
)
from .options import (
    Group,
    OutputFolder,
    check_outputs,
    force_option,
    json_option,
    out_option,
    writable_folder,
)
from .output import command_line, echo, print_json, wrote
from .progress import Progress
from .values import Real, Whole

HEADS = {"none": "none", "markov": "vanilla", "gated": "gated", "rnn": "rnn"}


@click.group(cls=Group)
def drafter() -> None:
    """Train and evaluate drafters.

    \b
    Examples:
      specsched drafter eval --target smollm2 --drafter ./drafter --prompts prompts.json
      specsched drafter sample --target smollm2 --prompts prompts.json -o shards
      specsched drafter train --target smollm2 --text shards -o ./drafter
    """


@drafter.command("eval")
@target_option
@drafter_option
@prompts_option
@click.option("--policy", default="fixed", show_default=True, metavar="POLICY", help="Verification policy.")
@temperature_option(0.0)
@sampling_options
@thinking_option
@length_option(128)
@batch_option(16)
@click.option("--profile", metavar="PROFILE", help="Step profile, for policies that weigh costs.")
@click.option("--calibration", metavar="FILE", help="Calibration of the confidences.")
@device_option
@inputs.seed_option
@json_option
@out_option
def evaluate(
    target: str,
    drafter: str,
    prompts: Path,
    policy: str,
    temperature: float,
    top_k: int,
    top_p: float,
    greedy_draft: bool,
    thinking: bool | None,
    max_tokens: int,
    batch: int,
    profile: str | None,
    calibration: str | None,
    device: str,
    seed: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """Decode prompts with a drafter by rejection sampling, and measure what was accepted.

    With --out finished answers are kept there until the end: an interrupted evaluation resumes when the same
    command is given again.

    \b
    Examples:
      specsched drafter eval --target smollm2 --drafter ./drafter --prompts prompts.json
      specsched drafter eval --target tiny --drafter tiny-dspark-markov --prompts p.json --policy off --json
    """
    check_outputs(out, "report.html", "eval.json")
    device = usable_device(device)
    from ..calibration import load_calibration
    from ..profile import load_profile
    from ..torch_side.engine.evaluation import evaluate as run
    from ..torch_side.engine.sampling import Sampling

    with Progress("request", workers=False) as progress:
        found = run(
            target,
            drafter,
            prompts,
            policy=policy,
            sampling=Sampling(temperature, top_k, top_p, greedy_draft),
            max_tokens=max_tokens,
            thinking=thinking,
            seed=seed,
            max_batch=batch,
            profile=load_profile(profile) if profile is not None else None,
            calibration=load_calibration(calibration) if calibration is not None else None,
            device=device,
            parts=out / "eval.parts" if out is not None else None,
            progress=progress,
        )
    if as_json:
        print_json(found)
    else:
        from .. import report

        echo(report.drafter_text(found, target, drafter))
    if out is not None:
        from ..files.output import write_json
        from ..report.page import drafter_page, write_page

        write_json(out / "eval.json", found)
        page = drafter_page(found, target, drafter, made_with(), command_line(click.get_current_context()))
        wrote([write_page(out, page), out / "eval.json"])


@drafter.command("sample")
@target_option
@prompts_option
@click.option(
    "-o",
    "--output",
    "--out",
    type=OutputFolder(),
    required=True,
    metavar="FOLDER",
    help="Where the shards go; those already there are kept.",
)
@click.option(
    "--shards",
    type=Whole(1, 9999),
    metavar="N",
    help="How many to have in the end. [default: every prompt once]",
)
@click.option(
    "--per-domain",
    type=Whole(1, 10**5),
    default=80,
    show_default=True,
    metavar="N",
    help="Prompts of each domain in a shard.",
)
@length_option(256)
@max_prompt_option(500)
@temperature_option(1.0)
@device_option
@inputs.seed_option
@json_option
def sample(prompts: Path, output: Path, shards: int | None, as_json: bool, **options: Any) -> None:
    """Sample a target's own responses to your prompts: the text that `drafter train` learns from.

    A shard depends on the prompts, the seed and its number alone, so an interrupted run resumes. When a
    domain runs out of prompts it is asked again, with other draws.

    \b
    Examples:
      specsched drafter sample --target smollm2 --prompts prompts.json -o shards
      specsched drafter sample --target ./llama --prompts p.jsonl -o shards --shards 12 --device cuda
    """
    writable_folder(output)
    device = usable_device(options["device"])
    from ..torch_side.engine.prompts import Prompt, ids_of, read_prompts
    from ..torch_side.target.weights import load_target
    from ..torch_side.training.sample import write_shards

    rows = read_prompts(prompts)
    target = load_target(options["target"], device=device)
    asked: dict[str, list[tuple[list[int], Prompt]]] = {}
    for index, row in enumerate(rows):
        ids = ids_of(target, row, index)
        if 0 < len(ids) <= options["max_prompt"]:
            domain = str(row.get("domain", "all"))
            asked.setdefault(domain, []).append((ids, Prompt((), domain, prompts.name)))
    kept = sum(map(len, asked.values()))
    if kept == 0:
        raise SpecschedError(
            f"{prompts}: all {len(rows)} prompts are longer than {options['max_prompt']} tokens; "
            "raise --max-prompt"
        )
    echo(f"{kept} prompts of {len(rows)} in {len(asked)} domains", err=True)
    longest = max(map(len, asked.values()))
    paths = write_shards(
        target,
        asked,
        output,
        range(shards if shards is not None else -(-longest // options["per_domain"])),
        options["per_domain"],
        max_tokens=options["max_tokens"],
        temperature=options["temperature"],
        seed=options["seed"],
        told=lambda text: echo(text, err=True),
    )
    if as_json:
        print_json(
            {"schema": "specsched/samples/1", "shards": [str(path) for path in paths], "prompts": kept}
        )
    else:
        echo(f"{len(paths)} shards in {output}; specsched drafter train --text {output} learns from them")


@drafter.command()
@target_option
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Shards of the target's own text (`specsched drafter sample` writes them).",
)
@click.option(
    "-o",
    "--output",
    "--out",
    type=OutputFolder(),
    required=True,
    metavar="FOLDER",
    help="The drafter's folder; an interrupted training goes on there.",
)
@click.option(
    "--kind",
    type=click.Choice(["dspark", "dflash", "eagle3"]),
    default="dspark",
    show_default=True,
    help="Drafter.",
)
@click.option(
    "--head", type=click.Choice(list(HEADS)), default="markov", show_default=True, help="Head of dspark."
)
@click.option("--layers", type=Whole(1, 64), default=2, show_default=True, metavar="N", help="Depth.")
@click.option(
    "--block-size",
    type=Whole(1, 64),
    default=7,
    show_default=True,
    metavar="K",
    help="Drafts per request.",
)
@click.option(
    "--steps",
    type=Whole(1, 10**8),
    default=2000,
    show_default=True,
    metavar="N",
    help="Optimiser steps.",
)
@click.option(
    "--learning-rate",
    type=Real(above=0),
    default=1e-3,
    show_default=True,
    metavar="R",
    help="Peak rate.",
)
@click.option(
    "--draft-vocabulary",
    type=Whole(2, 10**7),
    metavar="N",
    help="Propose only the N likeliest. [default: all]",
)
@device_option
@inputs.seed_option
@force_option
@json_option
def train(text: Path, output: Path, as_json: bool, **options: Any) -> None:
    """Train a drafter on text sampled from its target; resumable, seeded, on a CPU or a CUDA device.

    \b
    Examples:
      specsched drafter train --target smollm2 --text shards -o ./drafter
      specsched drafter train --target ./llama --text shards -o ./drafter --head rnn --layers 3 --device cuda
    """
    from ..files.archive import files_of

    writable_folder(output)
    check_outputs(output, "config.json", "model.safetensors")
    shards = files_of(text, "*.npz", SpecschedError) if os.path.isdir(text) else []
    if not shards:
        raise SpecschedError(f"{text} holds no shards (*.npz); specsched drafter sample writes them")
    device = usable_device(options["device"])
    from ..torch_side.target.weights import load_target
    from ..torch_side.training.trainer import TrainSettings
    from ..torch_side.training.trainer import train as run

    target = load_target(options["target"], device=device)
    settings = TrainSettings(
        steps=options["steps"], learning_rate=options["learning_rate"], seed=options["seed"]
    )
    measured = run(
        target,
        shards,
        output,
        _shape(target.config, options),
        settings,
        draft_vocab_size=options["draft_vocabulary"],
    )
    if as_json:
        print_json({"schema": "specsched/training/1", "drafter": str(output), "held_out": measured})
    else:
        from .. import report

        echo(report.training_text(measured, str(output)))


def _shape(target: Any, options: dict[str, Any]) -> Any:
    """A drafter as wide as its target, reading five of its layers, as the paper's do."""
    from ..torch_side.drafter.config import DrafterConfig

    last = target.num_hidden_layers
    count = min(5, last)
    layers = sorted({round(i * (last - 1) / max(count - 1, 1)) for i in range(count)})
    dspark = options["kind"] == "dspark"
    head = HEADS[options["head"]] if dspark else "none"
    return DrafterConfig(
        kind=options["kind"],
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=1 if options["kind"] == "eagle3" else options["layers"],
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        block_size=options["block_size"],
        target_layer_ids=tuple(layers),
        markov_rank=0 if head == "none" else 64,
        markov_head_type=head,
        enable_confidence_head=dspark,
        confidence_head_with_markov=head != "none",
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        num_target_layers=last,
        shared_embeddings=True,
    )
