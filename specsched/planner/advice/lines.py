"""The lines to paste: shell commands quoted by `shlex`, JSON and YAML by their own rules.

Names of options as read in the versions of `engines`; tests hold every line to a frozen description of each
engine's parser (tests/support/engine_options.py).
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ...documents.advice import EngineAdvice, Paste
from ...profile import StepProfile
from .candidates import LAG, SCHEDULE

SGLANG_TABLE, SGLANG_STS = "sglang_sps.json", "sglang_sts.json"
TRTLLM_TABLE, TRTLLM_STS, TRTLLM_YAML = "trtllm_table.json", "trtllm_sts.json", "trtllm.yaml"
_ALGORITHM = {"dspark": "DSPARK", "dflash": "DFLASH", "eagle3": "EAGLE3", "mtp": "NEXTN"}
_DECODING = {"dspark": "DSpark", "dflash": "DFlash", "eagle3": "Eagle3", "mtp": "MTP"}
NOT_TRIED = "no line was run in a real engine: names and types were read in its source"


@dataclass(frozen=True)
class Names:
    """What the lines call things by."""

    model: str
    drafter: str
    method: str
    folder: str  # where tables lie; "" for the current one
    sampled: bool  # drafts are drawn from the drafter's distribution
    calibrated: bool

    def at(self, name: str) -> str:
        """The path of a table."""
        return str(PurePath(self.folder) / name) if self.folder else name


def paste(engine: EngineAdvice, profile: StepProfile, names: Names) -> Paste:
    """The lines of one engine."""
    make = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[engine["engine"]]
    return make(engine, profile, names)


def _command(environment: dict[str, str], words: list[str], options: list[list[Any]]) -> str:
    """One command on one line, quoted for a POSIX shell."""
    whole = [*words, *(str(word) for option in options for word in option)]
    return " ".join(
        [*(f"{key}={shlex.quote(value)}" for key, value in environment.items()), shlex.join(whole)]
    )


def _vllm(engine: EngineAdvice, profile: StepProfile, names: Names) -> Paste:
    options: list[list[Any]] = []
    unverified = [NOT_TRIED]
    if engine["num_speculative_tokens"]:
        config: dict[str, Any] = {"method": names.method}
        if names.method != "mtp":
            config["model"] = names.drafter
        config["num_speculative_tokens"] = engine["num_speculative_tokens"]
        if engine["schedule"]:
            config["num_speculative_tokens_per_batch_size"] = engine["schedule"]
        if names.sampled:
            config["draft_sample_method"] = "probabilistic"
        if engine["lag"] is not None:
            config["enable_adaptive_verification"] = True
            unverified.append(
                "vLLM measures the costs behind its budgets itself: they may differ from the profile"
            )
        options.append(["--speculative-config", json.dumps(config, separators=(",", ":"))])
    options.append(["--max-num-seqs", engine["max_num_seqs"]])
    if engine["capture_sizes"]:
        options.append(["--cudagraph-capture-sizes", *engine["capture_sizes"]])
    if (tensor := profile.parallel.get("tensor", 1)) > 1:
        options.append(["--tensor-parallel-size", tensor])
    command = _command({}, ["vllm", "serve", names.model], options)
    return {"command": command, "files": {}, "tables": [], "unverified": unverified}


def _sglang(engine: EngineAdvice, profile: StepProfile, names: Names) -> Paste:
    k, environment, tables = engine["num_speculative_tokens"], {}, []
    options: list[list[Any]] = [["--model-path", names.model]]
    if k:
        options.append(["--speculative-algorithm", _ALGORITHM[names.method]])
        if names.method != "mtp":
            options.append(["--speculative-draft-model-path", names.drafter])
        options += _sglang_length(names.method, k)
    if engine["lag"] is not None:
        environment = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
        if engine["lag"] != LAG:
            environment["SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS"] = str(engine["lag"])
        tables.append(SGLANG_TABLE)
        options.append(["--speculative-dspark-sps-table-path", names.at(SGLANG_TABLE)])
        if names.calibrated:
            tables.append(SGLANG_STS)
            options.append(["--speculative-dspark-confidence-sts-path", names.at(SGLANG_STS)])
    options.append(["--max-running-requests", engine["max_num_seqs"]])
    if engine["capture_sizes"]:
        options.append(["--cuda-graph-bs-decode", *engine["capture_sizes"]])
    if (tensor := profile.parallel.get("tensor", 1)) > 1:
        options.append(["--tp-size", tensor])
    words = ["python", "-m", "sglang.launch_server"]
    return {
        "command": _command(environment, words, options),
        "files": {},
        "tables": tables,
        "unverified": [NOT_TRIED],
    }


def _sglang_length(method: str, k: int) -> list[list[Any]]:
    """How a number of drafts is told: DSpark by its block, DFlash by the window verified, chains by steps."""
    if method == "dspark":
        return [["--speculative-dspark-block-size", k]]
    if method == "dflash":
        return [["--speculative-dflash-block-size", k + 1]]
    chain = [["--speculative-num-steps", k], ["--speculative-eagle-topk", 1]]
    return [*chain, ["--speculative-num-draft-tokens", k + 1]]


def _trtllm(engine: EngineAdvice, profile: StepProfile, names: Names) -> Paste:
    tables, unverified = [], [NOT_TRIED]
    content: dict[str, Any] = {"max_batch_size": engine["max_num_seqs"]}
    if (tensor := profile.parallel.get("tensor", 1)) > 1:
        content["tensor_parallel_size"] = tensor
    if engine["capture_sizes"]:
        content["cuda_graph_config"] = {"enable_padding": True, "batch_sizes": engine["capture_sizes"]}
        unverified.append(
            "its default pads no batch: passes between its sizes leave the graph there, not here"
        )
    k = engine["num_speculative_tokens"]
    if k:
        speculative: dict[str, Any] = {"decoding_type": _DECODING[names.method], "max_draft_len": k}
        if names.method != "mtp":
            speculative["speculative_model"] = names.drafter
        if engine["schedule"]:
            speculative["draft_len_schedule"] = _upper(engine["schedule"])
            unverified.append(
                "draft_len_schedule: keys are the last batch size of a length, as in the main branch of "
                "2026-11; older releases took them for the first"
            )
        if engine["lag"] is not None:
            tables.append(TRTLLM_TABLE)
            speculative["enable_confidence_scheduling"] = True
            speculative["confidence_cost_table_path"] = names.at(TRTLLM_TABLE)
            if names.calibrated:
                tables.append(TRTLLM_STS)
                speculative["confidence_calibration_path"] = names.at(TRTLLM_STS)
            if profile.minimum_gain:
                speculative["confidence_min_predicted_gain"] = profile.minimum_gain
            unverified.append(
                "enable_confidence_scheduling and the confidence_* options are those of 1.4.0rc4, whose "
                "source could not be read; earlier they were confidence_sps_table_path and "
                "confidence_sts_path with enable_ragged_verify, and other releases refuse both"
            )
            unverified.append(
                "its lag, and that it verifies one draft of every request at least, are not simulated"
            )
        content["speculative_config"] = speculative
    command = _command({}, ["trtllm-serve", names.model], [["--config", names.at(TRTLLM_YAML)]])
    return {
        "command": command,
        "files": {TRTLLM_YAML: yaml(content)},
        "tables": tables,
        "unverified": unverified,
    }


def _upper(rows: list[list[int]]) -> dict[int, int]:
    """{last batch size of a length: length}; above the last key nothing is drafted."""
    kept = rows[:-1] if rows[-1][2] == 0 else rows
    return {last: k for _, last, k in kept}


def yaml(content: dict[Any, Any], indent: int = 0) -> str:
    """A mapping of mappings, lists of numbers, numbers, booleans and strings as YAML 1.2."""
    lines = []
    for key, value in content.items():
        if isinstance(value, dict):
            lines.append(f"{' ' * indent}{key}:\n{yaml(value, indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{key}: {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(lines)


def policy_said(engine: EngineAdvice) -> str:
    """The policy as a reader knows it."""
    return "a schedule by batch size" if engine["policy"] == SCHEDULE else engine["policy"]
