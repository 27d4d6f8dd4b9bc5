"""`specsched convert`: profiles, traces and calibrations of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import SpecschedError
from .options import Command, OutputFile, force_option, json_option
from .output import echo, print_json
from .values import Whole

NUMERIC = frozenset(
    {"gpu_count", "memory_bytes", "weight_bytes", "kv_bytes_per_token", "max_context", "tensor", "block_size"}
    | {"graph_batch", "min_match", "capture_limit", "batch_size", "input_len", "output_len"}
)
TARGETS = ["specsched", "sglang", "sglang-1d", "trtllm", "vllm"]


class Hint(click.ParamType):  # type: ignore[type-arg]
    """`KEY=VALUE`: a number where it reads as one; `a.b=VALUE` is key b of the hint a."""

    name = "hint"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """(key, value) of one hint."""
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        key = key.replace("-", "_")
        if not equals or not key or not text:
            self.fail(f"{value!r} is not KEY=VALUE, e.g. gpu_count=4", param, ctx)
        for number in (int, float):
            try:
                return key, number(text)
            except ValueError:
                continue
        if key in NUMERIC:
            self.fail(f"{key} is {text!r}; it is a number", param, ctx)
        return key, text


@click.command(cls=Command)
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", type=OutputFile())
@click.option(
    "--to",
    "form",
    type=click.Choice(TARGETS),
    default="specsched",
    show_default=True,
    help="Whose format to write.",
)
@click.option("--requests", type=Whole(1, 10**6), metavar="R", help="Requests of a 1-D table.")
@click.option("--context", type=Whole(0, 10**8), metavar="TOKENS", help="Context of a request there.")
@click.option(
    "--hint",
    "hints",
    type=Hint(),
    multiple=True,
    metavar="KEY=VALUE",
    help="What IN does not say: gpu, model, gpu_count, memory_bytes, weight_bytes, kv_bytes_per_token, "
    "licence, name, attention-from (a profile whose attention is borrowed), or what an error asks for; "
    "repeat for more.",
)
@force_option
@json_option
def convert(
    source: str,
    target: Path,
    form: str,
    requests: int | None,
    context: int | None,
    hints: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Read a file of another tool, or write one for it; what IN is, is told by what is in it.

    IN is a path or a bundled name. OUT becomes a profile (.json), trace (.parquet) or calibration (.json) of
    ours, or with --to that of an engine. Counters without confidences become per-position acceptance, from
    which `specsched trace synth` makes a trace.

    \b
    Examples:
      specsched convert sglang_table.json mine.json --hint gpu=H100
      specsched convert vllm.csv mine.json --hint attention-from=h100-sxm_qwen3-8b_bf16_tp1
      specsched convert h100-sxm_qwen3-8b_bf16_tp1 for_sglang.json --to sglang
      specsched convert mine.json one_dim.json --to sglang-1d --requests 64
      specsched convert sts.json calibration.json
    """
    from .. import formats
    from ..files.output import check_output, file_name
    from ..inspection import find

    path_in = find(source)
    found = formats.read(path_in, **_nested(hints))
    _suffix_fits(target, found.kind, form)
    options = {"requests": requests, "context": context}
    notes = [*found.notes, *_trimming(found.objects)]
    written = []
    # Several tables in one file: each beside the other, under its own name.
    several = len(found.objects) > 1
    paths = [
        target.with_stem(f"{target.stem}-{file_name(o.name)}") if several else target for o in found.objects
    ]
    beside = [path.with_stem(f"{path.stem}_draft") for path in paths if form == "vllm"]
    for path in [*paths, *beside]:
        check_output(path)
    for item, path in zip(found.objects, paths, strict=True):
        notes += formats.write(item, path, form, **{k: v for k, v in options.items() if v is not None})
        written.append(path)
    if as_json:
        print_json(
            {
                "schema": "specsched/convert/1",
                "kind": found.kind,
                "from": found.format,
                "to": form,
                "files": [str(path) for path in written],
                "notes": notes,
            }
        )
        return
    for path in written:
        what = "acceptance rates" if found.kind == "acceptance" else f"a {found.kind}"
        echo(f"{source}: {what} in the format of {found.format}; written to {path} in the format of {form}")
    for note in notes:
        echo(f"note: {note}")


def _trimming(objects: tuple[Any, ...]) -> list[str]:
    """What must be said of tables by which nothing is trimmed, or by artefact."""
    from ..profile import StepProfile
    from ..profile.trimming import trimming

    return [f"{told}." for o in objects if isinstance(o, StepProfile) and (told := trimming(o))]


def _suffix_fits(target: Path, kind: str, form: str) -> None:
    """Refuse a name that promises another kind of file than what is written."""
    suffix = ".csv" if form == "vllm" else ".parquet" if kind == "trace" else ".json"
    if target.suffix != suffix:
        what = "acceptance rates are" if kind == "acceptance" else f"a {kind} is"
        raise SpecschedError(f"{target} does not end in {suffix}; {what} written as {suffix} for {form}")


def _nested(hints: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in hints:
        outer, _, inner = key.partition(".")
        if inner:
            result.setdefault(outer, {})[inner] = value
        else:
            result[key] = value
    return result
