"""A stand-in for the parts of vLLM that the plugin watches, with the signatures of vLLM 0.32 and 0.33.

It steps an engine of a few requests with planted confidences and acceptances. Nothing in it knows the
plugin; `truth` is what it did. The GPU is played: a copy "arrives" only when its event is waited for, so that
a reader who looks too early sees zeros.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import numpy as np

RUNNER = "vllm.v1.worker.gpu.model_runner"
ASYNC = "vllm.v1.worker.gpu.async_utils"
GROUPS = "vllm.distributed.parallel_state"
GAMMA = 3

SOURCE_ASYNC = """
import contextlib
import numpy as np

PENDING = []

@contextlib.contextmanager
def stream(to_stream, from_stream):
    yield

def async_copy_to_np(x):
    out = np.zeros_like(x)
    PENDING.append((out, x))
    return out

class Event:
    def synchronize(self):
        for out, x in PENDING:
            out[...] = x
        PENDING.clear()

class AsyncOutput:
    def __init__(self, model_runner_output, sampler_output, num_sampled_tokens, main_stream, copy_stream,
                 check_ep_fault, pending_aux_output):
        self.model_runner_output = model_runner_output
        self.sampler_output = sampler_output
        with stream(copy_stream, main_stream):
            copy_stream.wait_stream(main_stream)
            self.num_sampled_tokens_np = async_copy_to_np(num_sampled_tokens)
            self.copy_event = Event()

    def get_output(self):
        self.copy_event.synchronize()
        return self.model_runner_output
"""

SOURCE_RUNNER = """
from types import SimpleNamespace as Some
import numpy as np
from vllm.v1.worker.gpu.async_utils import AsyncOutput

class AdaptiveVerificationManager:
    def __init__(self, slots, gamma):
        self.num_speculative_steps, self.num_bonus_tokens = gamma, 1
        self._cudagraph_limit = 0
        self._stale_confidences = [Some(np=np.ones((slots, gamma), np.float32)) for _ in range(2)]
        self._stale_idx = 0
        self.cost_tables = None
        self._now = np.ones((slots, gamma), np.float32)

    def set_cost_curves(self, draft_curve, verify_curve):
        self.cost_tables = (draft_curve, verify_curve)

    def record_confidences(self, confidence_probs, input_batch):
        self._stale_idx ^= 1
        self._now[input_batch.idx_mapping_np] = confidence_probs
        self._stale_confidences[self._stale_idx ^ 1].np[...] = self._now

class GPUModelRunner:
    def __init__(self, manager, curves):
        self.adaptive_verification, self.curves = manager, curves
        self.execute_model_state = None
        self.speculator = Some(use_acceptance_estimator=False)
        self.req_states = Some(prompt_len=Some(np=np.zeros(8, np.int32)))
        self.speculative_config = Some(
            model="org/drafter", method="dspark", draft_sample_method="probabilistic",
            rejection_sample_method="standard")
        self.parallel_config = Some(tensor_parallel_size=2)
        self.model_config = Some(model="org/target")
        self.dp_rank = 0

    def capture_model(self, *, profile_only=False):
        if self.adaptive_verification is not None and not profile_only:
            self.adaptive_verification._cudagraph_limit = 8
            self.adaptive_verification.set_cost_curves(*self.curves)
        return 17

    def sample_tokens(self, grammar_output):
        batch, result = self.execute_model_state.input_batch, self.execute_model_state.result
        self.execute_model_state = None
        stream = Some(wait_stream=lambda other: None)
        out = AsyncOutput(
            model_runner_output=Some(req_ids=list(batch.req_ids)), sampler_output=result,
            num_sampled_tokens=result.num_sampled, main_stream=stream, copy_stream=stream,
            check_ep_fault=False, pending_aux_output=None)
        if self.adaptive_verification is not None:
            self.adaptive_verification.record_confidences(result.confidence, batch)
        return out
"""


def modules(rank: int = 0) -> dict[str, types.ModuleType]:
    """Every package above the runner and what it imports; the runner itself is left to `Finder`."""
    made = {}
    for name in (ASYNC, GROUPS, RUNNER):
        parts = name.split(".")
        for end in range(1, len(parts)):
            package = types.ModuleType(".".join(parts[:end]))
            package.__path__ = []
            made[package.__name__] = package
    made[GROUPS] = types.ModuleType(GROUPS)
    made[GROUPS].get_tp_group = lambda: types.SimpleNamespace(rank_in_group=rank)  # type: ignore[attr-defined]
    made[ASYNC] = types.ModuleType(ASYNC)
    exec(SOURCE_ASYNC, made[ASYNC].__dict__)
    return made


class Finder:
    """Finds the stand-in's runner, as the path finder finds vLLM's."""

    def __init__(self, source: str = SOURCE_RUNNER) -> None:
        self.source = source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != RUNNER:
            return None
        import importlib.machinery

        return importlib.machinery.ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self.source, module.__dict__)


def run(steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """Serve: import the runner as vLLM's worker does, start it, and take `steps` steps.

    Returns what happened, a dictionary a step and request that verified drafts: id, prompt, drafted,
    verified, accepted, confidence (of these drafts).
    """
    import importlib

    runner_module = importlib.import_module(RUNNER)
    rng = np.random.default_rng(seed)
    manager = runner_module.AdaptiveVerificationManager(8, GAMMA)
    curves = ([(1, 0.9), (4, 1.3)], [(1, 5.0), (4, 5.2), (8, 6.5), (16, 31.25)])
    runner = runner_module.GPUModelRunner(manager, curves)
    assert runner.capture_model(profile_only=True) == 17
    assert runner.capture_model() == 17
    assert manager.cost_tables == curves
    truth: list[dict[str, Any]] = []
    waiting: list[Any] = []  # asynchronous scheduling: outputs are fetched one step late
    known: dict[int, np.ndarray] = {}
    for _ in range(steps):
        slots = np.sort(rng.choice(8, size=4, replace=False))
        fresh = [slot not in known for slot in slots]
        drafted = np.array([0 if new else rng.integers(1, GAMMA + 1) for new in fresh], np.int32)
        verified = np.array([rng.integers(0, d + 1) for d in drafted], np.int32)
        accepted = np.array([rng.integers(0, v + 1) for v in verified], np.int32)
        runner.req_states.prompt_len.np[slots] = slots + 10
        batch = types.SimpleNamespace(
            req_ids=[f"r{slot}" for slot in slots],
            idx_mapping_np=slots,
            num_tokens=int(verified.sum()) + len(slots),
            num_draft_tokens_per_req=drafted if drafted.any() else None,
        )
        for i, slot in enumerate(slots):
            if drafted[i]:
                truth.append(
                    {
                        "id": f"r{slot}",
                        "prompt": int(slot) + 10,
                        "drafted": int(drafted[i]),
                        "verified": int(verified[i]),
                        "accepted": int(accepted[i]),
                        "confidence": known[int(slot)],
                    }
                )
        confidence = rng.uniform(0.05, 0.99, (len(slots), GAMMA)).astype(np.float32)
        result = types.SimpleNamespace(
            num_sampled=accepted + 1, num_rejected=verified - accepted, confidence=confidence
        )
        runner.execute_model_state = types.SimpleNamespace(input_batch=batch, result=result)
        waiting.append(runner.sample_tokens(None))
        known |= {int(slot): confidence[i] for i, slot in enumerate(slots)}
        if len(waiting) > 1:
            assert waiting.pop(0).get_output().req_ids
    for output in waiting:
        assert output.get_output().req_ids
    return truth


@contextlib.contextmanager
def installed(rank: int = 0, source: str = SOURCE_RUNNER) -> Any:
    """vLLM's names in `sys.modules` and on the path, for a while."""
    before, path = dict(sys.modules), list(sys.meta_path)
    sys.modules.update(modules(rank))
    sys.meta_path.insert(0, Finder(source))  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path[:] = path
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
            del sys.modules[name]
        sys.modules.update({k: v for k, v in before.items() if k.split(".")[0] == "vllm"})
