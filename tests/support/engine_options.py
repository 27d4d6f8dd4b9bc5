"""Parsers of engines' options, described by hand: names and types as their own sources have them.

vLLM 0.33.0      vllm/engine/arg_utils.py, vllm/config/{speculative,compilation,scheduler}.py,
                 vllm/v1/spec_decode/dynamic/utils.py
SGLang 0.5.23    sglang/srt/arg_groups/fields/{model,spec,schedule,exec_,parallel}.py and speculative_hook.py,
                 sglang/srt/environ.py, sglang/srt/speculative/dspark_components/{dspark_sps,dspark_sts}.py
TensorRT-LLM     tensorrt_llm/llmapi/llm_args.py of the main branch at 0004396 (2026-11). Its models refuse
                 unknown keys. The confidence options are those of its release 1.4.0rc4, not in that file.

Of the options alone those that the advice may use: an unknown one fails.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

VLLM_METHODS = {"dspark", "dflash", "eagle3", "mtp"}
SGLANG_ALGORITHMS = {"DSPARK", "DFLASH", "EAGLE3", "NEXTN"}
SGLANG_ENVIRONMENT = {
    "SGLANG_RAGGED_VERIFY_MODE": {"static", "cap-accept", "compact"},
    "SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS": None,  # a whole number; 2 unless set
}
TRTLLM_DECODING = {"DSpark", "DFlash", "Eagle3", "MTP"}
TRTLLM_DYNAMIC = TRTLLM_DECODING - {"DSpark"}  # support_dynamic_draft_len


class Refused(Exception):
    """What the engine would not take."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise Refused(message)


def words(command: str) -> tuple[dict[str, str], list[str]]:
    """(environment, argv) of a command, read as a POSIX shell reads it."""
    found = shlex.split(command)
    environment = {}
    while "=" in found[0]:
        name, _, value = found.pop(0).partition("=")
        environment[name] = value
    return environment, found


def at_least(least: int) -> Any:
    def whole(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return whole


# -- vLLM --------------------------------------------------------------------------------------------------


def vllm(command: str) -> argparse.Namespace:
    """`vllm serve MODEL ...`, with its speculative config checked."""
    environment, argv = words(command)
    assert not environment
    assert argv[:2] == ["vllm", "serve"]
    parser = _Parser(allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--speculative-config", "-sc", type=json.loads)
    parser.add_argument("--max-num-seqs", type=at_least(1))
    parser.add_argument("--cudagraph-capture-sizes", type=at_least(1), nargs="+")
    parser.add_argument("--tensor-parallel-size", "-tp", type=at_least(1))
    found = parser.parse_args(argv[2:])
    if found.speculative_config is not None:
        _vllm_speculative(found.speculative_config)
    return found


def _vllm_speculative(config: dict[str, Any]) -> None:
    types: dict[str, Any] = {
        "method": str,
        "model": str,
        "num_speculative_tokens": int,
        "num_speculative_tokens_per_batch_size": list,
        "draft_sample_method": str,
        "enable_adaptive_verification": bool,
    }
    _only(config, types)
    if config["method"] not in VLLM_METHODS or config["num_speculative_tokens"] <= 0:
        raise Refused(str(config))
    if config.get("draft_sample_method", "greedy") not in ("greedy", "probabilistic"):
        raise Refused("draft_sample_method")
    rows = config.get("num_speculative_tokens_per_batch_size")
    if rows is None:
        return
    before = 0
    for row in rows:
        if len(row) != 3 or not all(type(v) is int for v in row):
            raise Refused(f"{row} is no range and length")
        first, last, k = row
        if not (0 < first <= last and k >= 0 and first > before):
            raise Refused(f"{rows} overlap, or are not sorted")
        if k > config["num_speculative_tokens"]:
            raise Refused(f"{k} exceeds num_speculative_tokens")
        before = last
    if not rows or rows[0][0] != 1:
        raise Refused("the first range must start at 1")


# -- SGLang ------------------------------------------------------------------------------------------------


def sglang(command: str) -> tuple[dict[str, str], argparse.Namespace]:
    """`python -m sglang.launch_server ...`, environment and cross-checks of its hooks included."""
    environment, argv = words(command)
    for name, value in environment.items():
        allowed = SGLANG_ENVIRONMENT[name]
        if allowed is not None and value not in allowed:
            raise Refused(f"{name}={value}")
    assert argv[:3] == ["python", "-m", "sglang.launch_server"]
    parser = _Parser(allow_abbrev=False)
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model")
    for name in ("num-steps", "eagle-topk", "num-draft-tokens", "dflash-block-size", "dspark-block-size"):
        parser.add_argument(f"--speculative-{name}", type=int)
    parser.add_argument("--speculative-dspark-sps-table-path")
    parser.add_argument("--speculative-dspark-confidence-sts-path")
    parser.add_argument("--max-running-requests", type=int)
    parser.add_argument("--cuda-graph-bs-decode", type=int, nargs="+")
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int)
    found = parser.parse_args(argv[3:])
    algorithm = found.speculative_algorithm
    if algorithm is not None and algorithm not in SGLANG_ALGORITHMS:
        raise Refused(algorithm)
    if found.speculative_dspark_block_size is not None and (
        algorithm != "DSPARK" or found.speculative_dspark_block_size <= 0
    ):
        raise Refused("DSpark requires a positive block size")
    if (
        algorithm in ("EAGLE3", "NEXTN")
        and found.speculative_num_draft_tokens != found.speculative_num_steps + 1
    ):
        raise Refused("a chain of k steps has k + 1 draft tokens")
    if found.speculative_dspark_sps_table_path and environment.get("SGLANG_RAGGED_VERIFY_MODE") != "compact":
        raise Refused("the table would be without effect")
    return environment, found


def sglang_table(path: Path) -> None:
    """The additive table as `SpsAdditiveCostTable` takes it."""
    table = json.loads(path.read_text())
    _only(
        table,
        dict.fromkeys(("bs_probes", "alpha_seconds", "m_probes", "theta_seconds"), list)
        | {"bias_seconds": float},
    )
    if table["bias_seconds"] <= 0:
        raise Refused("bias_seconds must be > 0")
    for probes, values in (("bs_probes", "alpha_seconds"), ("m_probes", "theta_seconds")):
        if table[probes] != sorted(set(table[probes])) or len(table[probes]) != len(table[values]):
            raise Refused(probes)


def temperatures(path: Path, key: str) -> list[float]:
    """Of a calibration by sequential temperature scaling: all above 0."""
    found: list[float] = json.loads(path.read_text())[key]
    if not found or min(found) <= 0:
        raise Refused("temperatures must all be > 0")
    return found


# -- TensorRT-LLM ------------------------------------------------------------------------------------------


def trtllm(command: str) -> str:
    """`trtllm-serve MODEL --config FILE`: the file."""
    environment, argv = words(command)
    assert not environment
    assert argv[0] == "trtllm-serve"
    parser = _Parser(allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--config", "--extra_llm_api_options", required=True)
    return str(parser.parse_args(argv[1:]).config)


def trtllm_config(content: dict[str, Any]) -> None:
    """The parsed YAML as LLM arguments."""
    types = {
        "max_batch_size": int,
        "tensor_parallel_size": int,
        "cuda_graph_config": dict,
        "speculative_config": dict,
    }
    _only(content, types)
    graphs = content.get("cuda_graph_config")
    if graphs is not None:
        _only(graphs, {"enable_padding": bool, "batch_sizes": list})
        if any(type(size) is not int or size < 1 for size in graphs["batch_sizes"]):
            raise Refused("batch_sizes")
    speculative = content.get("speculative_config")
    if speculative is not None:
        _trtllm_speculative(speculative)


def _trtllm_speculative(config: dict[str, Any]) -> None:
    types: dict[str, Any] = {
        "decoding_type": str,
        "max_draft_len": int,
        "speculative_model": str,
        "draft_len_schedule": dict,
    }
    if config["decoding_type"] == "DSpark":  # 1.4.0rc4
        types |= {
            "enable_confidence_scheduling": bool,
            "confidence_cost_table_path": str,
            "confidence_calibration_path": str,
            "confidence_min_predicted_gain": float,
        }
    _only(config, types)
    if config["decoding_type"] not in TRTLLM_DECODING or config["max_draft_len"] < 1:
        raise Refused(str(config))
    if config.get("enable_confidence_scheduling") and not config.get("confidence_cost_table_path"):
        raise Refused("confidence scheduling requires a profiled cost table")
    lengths = config.get("draft_len_schedule")
    if lengths is None:
        return
    if config["decoding_type"] not in TRTLLM_DYNAMIC or any(type(b) is not int or b < 1 for b in lengths):
        raise Refused("draft_len_schedule")
    if lengths[min(lengths)] != config["max_draft_len"] or max(lengths.values()) > config["max_draft_len"]:
        raise Refused("the smallest batch size must have max_draft_len")


def _only(found: dict[str, Any], types: dict[str, Any]) -> None:
    """Known keys of their types (a bool is no int), as strict models have them."""
    for key, value in found.items():
        if key not in types:
            raise Refused(f"{key}: extra inputs are not permitted")
        if type(value) is not types[key] and not (types[key] is float and type(value) is int):
            raise Refused(f"{key}: {value!r} is not of type {types[key].__name__}")
