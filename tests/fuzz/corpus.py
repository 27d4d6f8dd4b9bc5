"""One small valid file of every format that is read, built here, and the readers it is given to."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import client_cases
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from profile_cases import small

from specsched import formats
from specsched.calibration import Calibration, load_calibration
from specsched.formats.benchmarks import look, read_runs
from specsched.inspection import inspect_file
from specsched.profile import load_profile
from specsched.profile.architecture import find_model
from specsched.profile.speeds import read_sweep
from specsched.sweep import read_spec
from specsched.trace import Trace, load_trace
from specsched.workload import load_workload

DATA = Path(__file__).parent.parent / "formats" / "data"
Reader = Callable[[Path], Any]


@dataclass(frozen=True)
class Seed:
    """A valid file (`name`, `raw`) and what reads it."""

    name: str
    raw: bytes
    readers: tuple[Reader, ...]


def _trace(arrivals: bool = True) -> bytes:
    rng = np.random.default_rng(0)
    lengths = [4, 3, 5]
    stream = io.BytesIO()
    trace = Trace.from_arrays(
        np.repeat(np.arange(3), lengths),
        np.concatenate([np.arange(n) for n in lengths]),
        rng.normal(size=(12, 3)).astype(np.float32),
        rng.integers(0, 4, 12),
        domain=["a"] * 7 + ["b"] * 5,
        prompt_tokens=[9] * 12,
        arrival_seconds=np.repeat([0.0, 1.0, 2.5], lengths) if arrivals else None,
    )
    pq.write_table(trace.to_arrow(), stream)
    return stream.getvalue()


def _table(**columns: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 64, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "intermediate_size": 32, "max_position_embeddings": 512, "rope_theta": 1e4, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "eos_token_id": 3, "hidden_act": "silu",
}  # fmt: skip
_DRAFTS = {
    "run_id": ["r"] * 3, "sequence_id": [0, 0, 1], "step": [0, 1, 0], "k": [2, 2, 2],
    "acceptances": [[True, False], [True, True], [False, False]], "acceptance_length": [1, 2, 0],
}  # fmt: skip
_ARRIVALS = b"arrival_seconds,prompt_tokens,output_tokens,domain\n" + b"".join(
    b"%.1f,%d,%d,%s\n" % (i * 0.7, 5 + i, 3 + i % 4, b"ab"[i % 2 : i % 2 + 1]) for i in range(20)
)
_SERVEGEN = b"client,t_s,rate_rps,cv,family,p1,p2\n0,0,0.1,1,Gamma,1,1\n1,600,0.2,1,Weibull,0.9,2\n"
_MOONCAKE = b"".join(
    b'{"timestamp": %d, "input_length": 6, "output_length": 5}\n' % (i * 300) for i in range(20)
)
_SWEEP = b'traces = ["chat"]\npolicies = ["off"]\nconcurrencies = [1]\n[run]\nrequests = 10\nsla = 60.0\n'
_ATOM = {
    "version": 1, "identity": {"gpu_name": "AMD Instinct MI355X", "tensor_parallel_size": 8},
    "draft_width": 3, "max_num_seqs": 4, "sts_temperatures": [1.5, 1.2, 1.1],
    "sps_table": [200.0, *(200.0 - 5.0 * b for b in range(16))],
}  # fmt: skip
_DECIDES = {
    "tokens": [1, 8, 64], "seconds": [0.005, 0.006, 0.02], "lookup": "floor", "beyond": "clamp",
    "requests": [1, 4], "request_seconds": [0.001, 0.002],
}  # fmt: skip
_SERVE = {
    "completed": 64, "failed": 0, "max_concurrency": 8, "median_tpot_ms": 9.0, "mean_tpot_ms": 9.0,
    "output_throughput": 850.0, "total_input_tokens": 640, "total_output_tokens": 1280,
    "request_throughput": 40.0, "duration": 1.5, "total_token_throughput": 900.0, "request_rate": "inf",
    "tokenizer_id": "t",
    "spec_decode_acceptance_rate": 60.0, "spec_decode_per_position_acceptance_rates": [0.7, 0.5],
    "spec_decode_num_drafts": 600, "spec_decode_draft_tokens": 1200,
}  # fmt: skip


def _lines(rows: list[Any]) -> bytes:
    return b"".join(_json(row) + b"\n" for row in rows)


def _yaml(document: Any) -> bytes:
    return bytes(yaml.safe_dump(document).encode())


def _records() -> list[Any]:
    """AIPerf's requests, a few of each user, with the engine's counters of accepted drafts."""
    stats = {
        "acceptance_histogram": {"0": 20, "1": 30, "2": 10}, "num_spec_tokens": 2, "num_draft_tokens": 120,
        "num_spec_steps": 60, "num_accepted_draft_tokens": 50,
    }  # fmt: skip
    return [row | {"spec_decode_acceptance": stats} for row in client_cases.records()[::20]]


def clients() -> list[Seed]:
    """One run each, as benchmark clients report it; the tables of ATOM and of a scheduler."""
    counted = {"pooled_spec_decode_acceptance_histogram": {"0": 900, "1": 600, "2": 300}}
    runs: tuple[Reader, ...] = (read_runs, look)
    both: tuple[Reader, ...] = (formats.read, inspect_file)
    return [
        Seed("aiperf.json", _json(client_cases.aiperf() | counted), (*runs, formats.read)),
        Seed("aiperf.jsonl", _lines(_records()), (*runs, formats.read)),
        Seed("guidellm.json", _json(client_cases.guidellm()), runs),
        Seed("guidellm.yaml", _yaml(client_cases.guidellm(old=True)), runs),
        Seed("inference_perf.json", _json(client_cases.inference_perf()), runs),
        Seed("llmd.json", _json(client_cases.llmd_new()), runs),
        Seed("llmd.yaml", _yaml(client_cases.llmd_old()), runs),
        Seed("serve.json", _json(_SERVE), runs),
        Seed("atom.json", _json(_ATOM), (formats.read, _temperatures)),
        Seed("decided.json", _json(small(scheduler={"table": _DECIDES})), (load_profile, *both)),
    ]


def _temperatures(path: Path) -> Any:
    return formats.read(path, take="temperatures")


def _acceptance() -> bytes:
    found = formats.read(DATA / "modelopt_profile.json").object
    return _json(found.to_dict())


def _drafting(path: Path) -> Any:
    return formats.read(DATA / "vllm_verify.csv", draft=path)


def _timed(path: Path) -> Any:
    """The latency of a run needs its sizes and a second run of another length."""
    runs = [(DATA / "vllm_latency_long.json", 8, 16, 264)]
    return formats.read(path, batch_size=8, input_len=16, output_len=64, runs=runs)


def _timed_long(path: Path) -> Any:
    runs = [(DATA / "vllm_latency_short.json", 8, 16, 64)]
    return formats.read(path, batch_size=8, input_len=16, output_len=264, runs=runs)


_HINTED: dict[str, tuple[Reader, ...]] = {
    "vllm_draft.csv": (_drafting,),
    "vllm_latency_short.json": (_timed,),
    "vllm_latency_long.json": (_timed_long,),
}


def seeds() -> list[Seed]:
    """Every seed, in a fixed order; their names end as users' files do."""
    calibration = Calibration(np.array([1.1, 0.9, 1.0]), np.zeros(3), about={"trace": "t"})
    both: tuple[Reader, ...] = (formats.read, inspect_file)
    arrivals: tuple[Reader, ...] = (load_workload,)
    own = [
        Seed("profile.json", _json(small()), (load_profile, *both)),
        Seed("calibration.json", _json(calibration.to_dict()), (load_calibration, *both)),
        Seed("acceptance.json", _acceptance(), both),
        Seed("config.json", _json(CONFIG), (find_model,)),
        Seed("trace.parquet", _trace(), (load_trace, load_workload, *both)),
        Seed("drafts.parquet", _table(**_DRAFTS), both),
        Seed(
            "flat.parquet",
            _table(arrival_seconds=[0.5 * i for i in range(20)], output_tokens=[5] * 20),
            arrivals,
        ),
        Seed("plain.csv", _ARRIVALS, arrivals),
        Seed("plain.csv.gz", gzip.compress(_ARRIVALS, mtime=0), arrivals),
        Seed("servegen.csv", _SERVEGEN, arrivals),
        Seed("mooncake.jsonl", _MOONCAKE, arrivals),
        Seed("speeds.csv", b"concurrency,tok_s_user\n1,15\n8,12\n32,9\n", (read_sweep,)),
        Seed("sweep.toml", _SWEEP, (read_spec,)),
    ]
    foreign = [p for p in sorted(DATA.iterdir()) if p.suffix != ".md"]
    return (
        own + clients() + [Seed(p.name, p.read_bytes(), (*both, *_HINTED.get(p.name, ()))) for p in foreign]
    )
