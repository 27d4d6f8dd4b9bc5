"""One run of 16 users as each benchmark client would report it, from the tools' own schemas.

A request of 256 prompt and 128 output tokens takes 0.2 s to the first token and 10 ms for each other one; 160
of them from 16 users last 15 s.
"""

from __future__ import annotations

from typing import Any

USERS, REQUESTS, PROMPT, OUTPUT = 16, 160, 256, 128
FIRST, TOKEN = 0.2, 0.010
REQUEST = FIRST + TOKEN * (OUTPUT - 1)
TOTAL = REQUESTS * OUTPUT / 15.0
EXPECTED = {
    "users": USERS, "user": 100.0, "total": TOTAL, "prompt_tokens": PROMPT, "output_tokens": OUTPUT,
    "prompts": REQUESTS,
}  # fmt: skip


def aiperf(config: dict[str, Any] | None = None) -> dict[str, Any]:
    """`profile_export_aiperf.json`: a metric is {unit, avg, p50, ...}; `input_config` of version 0.5."""

    def record(unit: str, value: float) -> dict[str, Any]:
        return {
            "unit": unit,
            "avg": value,
            "min": value,
            "max": value,
            "p50": value,
            "p99": value,
            "std": 0.0,
        }

    return {
        "request_throughput": {"unit": "requests/sec", "avg": REQUESTS / 15.0},
        "request_latency": record("ms", 1e3 * REQUEST),
        "request_count": {"unit": "requests", "avg": float(REQUESTS)},
        "time_to_first_token": record("ms", 1e3 * FIRST),
        "inter_token_latency": record("ms", 1e3 * TOKEN),
        "output_token_throughput": {"unit": "tokens/sec", "avg": TOTAL},
        "output_token_throughput_per_user": record("tokens/sec/user", 1.0 / TOKEN),
        "output_sequence_length": record("tokens", OUTPUT),
        "input_sequence_length": record("tokens", PROMPT),
        "input_config": config or {"endpoint": {"type": "chat"}, "loadgen": {"concurrency": USERS}},
        "was_cancelled": False,
        "error_summary": [],
    }


def records() -> list[dict[str, Any]]:
    """`profile_export.jsonl`: 16 users, each with ten requests of 1.5 s one after the other."""
    rows = []
    for user in range(USERS):
        for turn in range(REQUESTS // USERS):
            begun = 1_759_813_207_000_000_000 + turn * 1_500_000_000
            rows.append(
                {
                    "metadata": {
                        "session_num": user, "benchmark_phase": "profiling", "was_cancelled": False,
                        "request_start_ns": begun, "request_end_ns": begun + 1_500_000_000,
                    },
                    "metrics": {
                        "input_sequence_length": {"value": PROMPT, "unit": "tokens"},
                        "output_sequence_length": {"value": OUTPUT, "unit": "tokens"},
                        "inter_token_latency": {"value": 1e3 * TOKEN, "unit": "ms"},
                    },
                    "error": None,
                }
            )  # fmt: skip
    return rows


def guidellm(strategy: dict[str, Any] | None = None, old: bool = False) -> dict[str, Any]:
    """`benchmarks.json`; `old`: as up to 0.3, with the load under `args`."""

    def by_status(value: float) -> dict[str, Any]:
        held = {"mean": value, "median": value, "min": value, "max": value, "count": REQUESTS}
        return {"successful": held, "errored": None, "incomplete": None, "total": held}

    totals = {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    load = {"strategy": strategy or {"type_": "concurrent", "streams": USERS}}
    metrics = {
        "request_latency": by_status(REQUEST),
        "time_to_first_token_ms": by_status(1e3 * FIRST),
        "inter_token_latency_ms": by_status(1e3 * TOKEN),
        "time_per_output_token_ms": by_status(1e3 * REQUEST / OUTPUT),
        "prompt_token_count": by_status(PROMPT),
        "output_token_count": by_status(OUTPUT),
        "output_tokens_per_second": by_status(TOTAL),
    }
    if old:
        return {
            "benchmarks": [
                {"type_": "generative_benchmark", "args": load, "request_totals": totals, "metrics": metrics}
            ]
        }
    held = {"config": load, "metrics": {"request_totals": totals, **metrics}}
    return {"metadata": {"version": 2}, "config": {"spec": {}}, "benchmarks": [held]}


def inference_perf() -> dict[str, Any]:
    """`stage_0_lifecycle_metrics.json` of a `concurrent` stage; seconds."""

    def spread(value: float) -> dict[str, float]:
        return {"mean": value, "min": value, "median": value, "p99": value, "max": value}

    return {
        "load_summary": {
            "count": REQUESTS,
            "requested_rate": 10.0,
            "achieved_rate": 10.6,
            "concurrency": USERS,
        },
        "successes": {
            "count": REQUESTS,
            "latency": {
                "request_latency": spread(REQUEST),
                "time_per_output_token": spread(TOKEN),
                "time_to_first_token": spread(FIRST),
                "inter_token_latency": spread(3e-5),  # gaps of a stream: not a user's speed
            },
            "throughput": {"output_tokens_per_sec": TOTAL, "requests_per_sec": REQUESTS / 15.0},
            "prompt_len": spread(PROMPT),
            "output_len": spread(OUTPUT),
        },
        "failures": {"count": 0, "request_latency": None, "prompt_len": None},
    }


def llmd_old() -> dict[str, Any]:
    """llm-d's benchmark report 0.1, of vLLM's client, in milliseconds."""
    return {
        "version": "0.1",
        "scenario": {
            "host": {"type": ["replica"], "accelerator": [{"model": "H100", "count": 1}]},
            "load": {"name": "vllm-benchmark", "args": {"max_concurrency": USERS}},
        },
        "metrics": {
            "requests": {
                "total": REQUESTS, "failures": 0, "incomplete": 0,
                "input_length": {"units": "count", "mean": PROMPT},
                "output_length": {"units": "count", "mean": OUTPUT},
            },
            "latency": {
                "request_latency": {"units": "ms", "mean": 1e3 * REQUEST},
                "time_per_output_token": {"units": "ms/token", "mean": 1e3 * TOKEN, "p50": 1e3 * TOKEN},
                "time_to_first_token": {"units": "ms", "mean": 1e3 * FIRST},
                "inter_token_latency": {"units": "ms/token", "mean": 31.0, "p50": 30.0},
            },
            "throughput": {"output_tokens_per_sec": TOTAL},
        },
    }  # fmt: skip


def llmd_new(tool: str = "guidellm") -> dict[str, Any]:
    """llm-d's benchmark report 0.2, of GuideLLM, in seconds."""
    engine = {"kind": "inference_engine", "tool": "vllm", "role": "replica", "replicas": 1}
    return {
        "version": "0.2.1",
        "run": {"uid": "1"},
        "scenario": {
            "stack": [{"metadata": {}, "standardized": engine, "native": {}}],
            "load": {"standardized": {"tool": tool, "concurrency": USERS, "parallelism": 1}},
        },
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": {
                        "total": REQUESTS, "failures": 0,
                        "input_length": {"units": "count", "mean": PROMPT},
                        "output_length": {"units": "count", "mean": OUTPUT},
                    },
                    "latency": {
                        "request_latency": {"units": "s", "mean": REQUEST},
                        "time_to_first_token": {"units": "s", "mean": FIRST},
                        "inter_token_latency": {"units": "s/token", "mean": TOKEN, "p50": TOKEN},
                        "time_per_output_token": {"units": "s/token", "mean": REQUEST / OUTPUT},
                    },
                    "throughput": {"output_token_rate": {"units": "tokens/s", "mean": TOTAL}},
                }
            }
        },
    }  # fmt: skip
