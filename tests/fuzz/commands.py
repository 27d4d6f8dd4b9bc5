"""Every command that reads a file, each on small valid files built here, and the laws of a run on damage.

A run may answer (exit 0; a sweep with failed points 1) or refuse (2) in one printable sentence that names the
file. It may not end in a traceback, print what a terminal obeys, touch its input, leave a half-written file,
take more than 10 s or more than 2 GB.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
from click.testing import CliRunner, Result

from specsched import formats
from specsched.cli.app import main
from specsched.errors import SpecschedError, plain

SECONDS = 10
MOST_MEGABYTES = 2000
LONGEST = 320
_BEGIN = "specsched: error: "
_BUGS = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError,
    RuntimeError, AssertionError, RecursionError, NameError,
)  # fmt: skip
_HALF = re.compile(r"\.specsched-[0-9a-f]{16}\.tmp")


@dataclass(frozen=True)
class Case:
    """A command line, the file of the folder that is damaged, and what `out` holds when it begins."""

    words: tuple[str, ...]
    file: str
    begin: str | None = None
    also: tuple[str, ...] = ()  # names by which a refusal may call the damaged file, its own aside

    @property
    def name(self) -> str:
        return f"{' '.join(self.words[:2])} {self.file}".replace("/", "-").replace(" ", "-")


def _case(line: str, file: str | None = None, begin: str | None = None, also: str = "") -> Case:
    words = tuple(line.split())
    named = (
        next(word for word in words if "." in word and not word.startswith("out/")) if file is None else file
    )
    return Case(words, named, begin, tuple(also.split()))


def core_cases() -> list[Case]:
    """Commands that need no torch."""
    run = "simulate --trace trace.parquet --profile profile.json --requests 6 --workers 1"
    plain_run = f"{run} --policy off --calibration none"
    plan = "plan --trace trace.parquet --profile profile.json --sla 20 --requests 20 --workers 1 --policy off"
    limited = "--ttft-ms 900 --itl-ms 500@0.9 --e2e-ms 9000"
    fitted = "fit off.csv --profile profile.json --prompts 8 --policy off"
    said = "--arm inference_perf.json=off --arm guidellm.yaml:1=off"
    judged = f"{fitted} --judge inference_perf.json --judge guidellm.yaml {said}"
    overhead = "profile fit-overhead --profile profile.json --sweep speeds.csv -o out/p.json"
    advice = (
        "advise --trace trace.parquet --profile decided.json --calibration none --workers 1 --requests 20"
    )
    cases = [
        _case(f"{plain_run.replace('6', '20')} --concurrency 2 {limited} --json", "profile.json"),
        _case(f"{plan} --rate 2 --calibration none {limited} --json", "profile.json"),
        _case(f"{run} --policy own_policy:plan --concurrency 2 --calibration none", "trace.parquet"),
        _case(f"{run.replace('profile.', 'decided.')} --policy lagged:1 --concurrency 2", "decided.json"),
        _case(f"{run.replace('profile.', 'atom.')} --policy early-stop --concurrency 2", "atom.json"),
        _case("inspect atom.json --out out"),
        _case("inspect decided.json --out out"),
        _case("convert atom.json out/a.json"),
        _case("convert atom.json out/a.json --hint take=temperatures"),
        _case("convert aiperf.jsonl out/a.json"),
        _case("convert aiperf.json out/a.json"),
        _case(f"{advice} --concurrency 4 --engine sglang --out out", "decided.json"),
        _case(f"{advice} --sla 20 --json", "trace.parquet"),
        _case(f"{fitted} --out out", "off.csv"),
        _case(f"{judged} --json", "inference_perf.json"),
        _case(f"{judged} --out out", "guidellm.yaml"),
        _case(f"{overhead} --prompt-tokens 9 --output-tokens 4 --start together", "speeds.csv"),
        *[_case(f"inspect {seed.name} --json") for seed in corpus.clients() if seed.name != "decided.json"],
        _case("inspect profile.json --out out"),
        _case("inspect calibration.json"),
        _case("inspect acceptance.json --json"),
        _case("inspect trace.parquet --plot out/p.png"),
        _case(f"{run} --policy lagged:1 --concurrency 2 --calibration none", "trace.parquet"),
        _case(f"{run} --policy early-stop --concurrency 2 --calibration none", "profile.json"),
        _case(f"{run} --policy fixed:1 --concurrency 2 --calibration calibration.json", "calibration.json"),
        _case(f"{run} --policy batch-table:table.json --concurrency 2 --calibration none", "table.json"),
        _case(f"{plain_run.replace('6', '20')} --sla 20 --out out", "profile.json"),
        _case(f"{plan} --rate 2 --calibration none --out out", "trace.parquet"),
        _case("calibrate --trace trace.parquet --out out"),
        _case("trace synth --acceptance acceptance.json --requests 3 --out out"),
        _case("trace synth --acceptance vllm_metrics.txt --requests 3 -o out/t.parquet"),
        _case("profile --gpu h100 --model config.json --source roofline -o out/p.json"),
        _case(
            "profile fit-overhead --profile profile.json --sweep speeds.csv --context 9 -o out/p.json",
            "speeds.csv",
        ),
        _case(
            "profile fit-overhead --profile profile.json --sweep speeds.csv --context 9 -o out/p.json",
            "profile.json",
        ),
        _case("sweep sweep.toml --out out --workers 1"),
        _case("sweep sweep.toml --out out --workers 1", "out/parts/part-0000.parquet", "swept"),
        _case("convert profile.json out/p.json --to sglang"),
        _case("convert profile.json out/p.csv --to vllm"),
        _case("convert profile.json out/p.json --to trtllm"),
        _case("convert trace.parquet out/t.parquet"),
        _case("convert calibration.json out/c.json --to sglang"),
        _case("convert vllm_verify.csv out/p.json --hint draft=vllm_draft.csv", "vllm_draft.csv"),
    ]
    for seed in corpus.seeds():
        if corpus.load_workload in seed.readers and seed.name != "trace.parquet":
            cases.append(_case(f"{plain_run} --arrivals {seed.name}", seed.name))
            cases.append(_case(f"{plan} --calibration none --arrivals {seed.name}", seed.name))
        elif corpus.DATA / seed.name in set(corpus.DATA.iterdir()):
            cases.append(_case(f"inspect {seed.name}"))
            cases.append(_case(f"convert {seed.name} out/made.{_suffix(corpus.DATA / seed.name)}"))
    return cases


def _suffix(path: Path) -> str:
    try:
        return "parquet" if formats.read(path).kind == "trace" else "json"
    except SpecschedError:  # half of something, or in want of hints
        return "json"


def torch_cases() -> list[Case]:
    """Commands that read models, prompts, texts and what they resume from."""
    model = "--target target --drafter drafter"
    evaluate = f"drafter eval {model} --prompts prompts.json --max-tokens 3 --json"
    record = f"trace record {model} --prompts prompts.json --max-tokens 3 --json"
    sample = "drafter sample --target target --prompts prompts.json --shards 1 --per-domain 1 --max-tokens 2"
    train = "drafter train --target target --text shards -o out --steps 2 --layers 1 --block-size 2 --json"
    files = [
        ("target/config.json", "target"), ("target/model.safetensors", "target"),
        ("target/tokenizer.json", ""),
        ("target/tokenizer_config.json", ""), ("drafter/config.json", "drafter"),
        ("drafter/model.safetensors", "drafter"), ("prompts.json", ""),
    ]  # fmt: skip
    cases = [_case(evaluate, file, also=also) for file, also in files]
    cases += [_case(f"{record} -o out/t.parquet", file, also=also) for file, also in files]
    wide = evaluate.replace("--target target", "--target wide").replace("prompts.json", "ids.json")
    for name in ("eagle", "speculators"):
        for file in ("config.json", "model.safetensors"):
            eagle = wide.replace("--drafter drafter", f"--drafter {name}")
            cases += [_case(line, f"{name}/{file}", also=name) for line in (eagle, f"inspect {name}")]
    cases += [
        _case(f"{evaluate} --out out", "out/eval.parts/answer-0000001.json", "evaluation"),
        _case(f"{evaluate} --out out", "out/eval.parts/settings.json", "evaluation"),
        _case("inspect drafter --json", "drafter/config.json", also="drafter"),
        _case(evaluate.replace("prompts.json", "prompts.jsonl"), "prompts.jsonl"),
        _case(
            evaluate.replace("--target target", "--target sharded"), "sharded/model.safetensors.index.json"
        ),
        _case(evaluate.replace("--target target", "--target model.gguf"), "model.gguf", also="general.name"),
        _case(f"{evaluate} --calibration two.json", "two.json"),
        _case(f"{evaluate} --profile profile.json --policy early-stop", "profile.json"),
        _case(f"{sample} -o out/shards", "prompts.json"),
        _case(f"{sample} -o out/shards", "target/config.json", also="target"),
        _case(train, "shards/shard-0000.npz"),
        _case(train, "out/checkpoint.pt", "training"),
        _case(train, "out/text/shard-0000/meta.json", "training"),
        _case(train, "out/text/shard-0000/tokens.npy", "training"),
        _case(train, "out/text/shard-0000/top_ids.npy", "training"),
        _case(train, "out/text/shard-0000/features.npy", "training"),
        _case(f"{record} --mode sequential -o out/t.parquet", "drafter/config.json", also="drafter"),
        _case(f"{record} -o out/t.parquet", "out/t.parquet.parts/settings.json", "recording"),
        _case(f"{record} -o out/t.parquet", "out/t.parquet.parts/part-00000.npz", "recording"),
        _case(f"{record} --texts out/texts -o out/t.parquet", "out/texts/TEXTS", "texts"),
    ]
    return cases


def build(folder: Path, torch: bool) -> list[Case]:
    """Write every valid file into `folder`; returns the commands that read them."""
    for seed in corpus.seeds():
        (folder / seed.name).write_bytes(seed.raw)
    (folder / "table.json").write_text("[[1, 4, 2], [5, 64, 1]]")
    (folder / "sweep.toml").write_text(
        'traces = ["trace.parquet"]\nprofiles = ["profile.json"]\npolicies = ["off", "fixed:1"]\n'
        'concurrencies = [1]\n[run]\nrequests = 4\nsla = 20.0\ncalibration = "none"\n'
    )
    (folder / "off.csv").write_text(
        "concurrency,tok_s_user,arm,input_tokens,output_tokens\n1,150,off,9,4\n8,120,off,9,4\n"
    )
    (folder / "own_policy.py").write_text(
        "def plan(confidence, sps, history):\n    return (confidence > 0.5).sum(1)\n"
    )
    cases = core_cases()
    with contextlib.chdir(folder):
        _done("sweep", "sweep.toml", "--out", "swept", "--workers", "1")
        part = next(Path("swept/parts").glob("*.parquet"))
        cases = [_renamed(case, "part-0000.parquet", part.name) for case in cases]
        if torch:
            import model_files

            cases += [
                _renamed(case, "TEXTS", name)
                for name in [model_files.build(folder)]
                for case in torch_cases()
            ]
    return cases


def _renamed(case: Case, old: str, new: str) -> Case:
    return Case(case.words, case.file.replace(old, new), case.begin, case.also)


def _done(*words: str) -> None:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output


class TooLong(BaseException):
    """A command took more than SECONDS."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    def over(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak() -> float:
    """The most megabytes this process held since the last call; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0.0
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


@dataclass
class Found:
    """What a run on a damaged file did: the law it broke, if any, and what refused it."""

    broken: str | None
    code: int | None
    message: str
    caught: str | None  # where an error of our own code was that only a catch-all turned into a sentence


def content(folder: Path, case: Case) -> bytes:
    """The valid content of the file that is damaged."""
    if case.begin is None:
        return (folder / case.file).read_bytes()
    return (folder / case.begin / case.file.removeprefix("out/")).read_bytes()


def run(folder: Path, case: Case, raw: bytes, seconds: float = SECONDS) -> Found:
    """Run the command of `case` in `folder` with `raw` as its file; everything is restored afterwards."""
    with contextlib.chdir(folder):
        shutil.rmtree("out", ignore_errors=True)
        if case.begin is not None:
            shutil.copytree(case.begin, "out")
        path = Path(case.file)
        before = path.read_bytes()
        path.write_bytes(raw)
        _peak()
        try:
            with limited(seconds):
                result = CliRunner().invoke(main, list(case.words))
            broken = _broken(case, result, path, raw)
        except TooLong:
            return Found(f"takes more than {seconds:g} s", None, "", None)
        finally:
            if case.begin is None:
                path.write_bytes(before)
            memory = _peak()
        if broken is None and memory > MOST_MEGABYTES:
            broken = f"takes {memory:.0f} MB"
        return Found(broken, result.exit_code, result.stderr[-400:], _caught(result))


def _broken(case: Case, result: Result, path: Path, raw: bytes) -> str | None:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "".join(traceback.format_exception(result.exception))
    for text in (result.stdout, result.stderr):
        if bad := [c for c in text if not (c.isprintable() or c in "\n\t\r\u00a0")]:
            return f"prints {bad[:5]!r}"
    if "Traceback" in result.stderr:
        return "prints a traceback"
    if case.begin is None and path.read_bytes() != raw:
        return "changes its input"
    if half := [p.name for p in Path().rglob(".specsched-*") if _HALF.fullmatch(p.name)]:
        return f"leaves {half[0]}"
    if result.exit_code in (0, 1) and (result.exit_code == 0 or case.words[0] == "sweep"):
        return None
    if result.exit_code != 2:
        return f"ends with {result.exit_code}"
    last = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""
    if not last.startswith(_BEGIN):
        return f"says no error: {last!r}"
    said = last.removeprefix(_BEGIN)
    if len(said) > LONGEST:
        return f"says {len(said)} characters: {said}"
    names = (plain(path.name), *case.also)
    return None if any(name in said for name in names) else f"names no file: {said}"


def _caught(result: Result) -> str | None:
    """The place in our own code of an error that only `reading` or `damaged` turned into a sentence."""
    e: BaseException | None = result.exception
    while e is not None:
        cause = e.__context__
        frames = traceback.extract_tb(e.__traceback__)
        if (
            isinstance(e, SpecschedError)
            and cause is not None
            and not isinstance(cause, SpecschedError)
            and frames
            and frames[-1].name in ("reading", "damaged")
        ):
            inner = traceback.extract_tb(cause.__traceback__)[-1]
            ours = f"{os.sep}specsched{os.sep}" in inner.filename and type(cause) in _BUGS
            if ours:
                return f"{type(cause).__name__} {inner.filename.partition('/specsched/')[2]}:{inner.lineno}"
        e = cause
    return None
