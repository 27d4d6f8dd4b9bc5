"""What is put around vLLM's methods: each calls the original first or unchanged, and may only watch.

A step, as vLLM 0.32 and 0.33 go through it, and what is taken where:

    sample_tokens(step t)
      AsyncOutput.__init__       queues copies of the results to the host
                                   <- one more, of the rejected drafts: 4 bytes a request
      record_confidences         waits for last step's confidences, which arrived while the GPU worked
    <- ids, drafts scheduled, and those confidences: they belong to the drafts verified in step t
    AsyncOutput.get_output       waits for the copies, in whichever thread asks
    <- sampled and rejected counts: verified = sampled + rejected - 1, accepted = sampled - 1

No wait is added anywhere. An error of ours switches the recording off with one line in the log.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .recorder import Recorder, Step, write_curves

logger = logging.getLogger("vllm.specsched")

TARGET = "vllm.v1.worker.gpu.model_runner"
_WATCHED = {
    "AdaptiveVerificationManager": ("set_cost_curves",),
    "GPUModelRunner": ("capture_model", "sample_tokens"),
    "AsyncOutput": ("__init__", "get_output"),
}
_STEP, _REJECTED, _CURVES = "_specsched_step", "_specsched_rejected", "_specsched_curves"


class Hooks:
    """The recording of one process. `folder`: where to; `limit`: bytes of steps; `version`: of vLLM."""

    def __init__(self, folder: str, limit: int, version: str) -> None:
        self.folder, self.limit, self.version = folder, limit, version
        self.stamp = time.strftime("%Y%m%d-%H%M%S")
        self.on = True
        self.sampling = False  # inside sample_tokens of a step that is recorded
        self.recorder: Recorder | None = None
        self.helpers: ModuleType | None = None

    # --- putting them in place ------------------------------------------------------------------------------

    def install(self, module: ModuleType) -> None:
        """Wrap the watched methods of vLLM's runner module; where one is missing, none."""
        for name, methods in _WATCHED.items():
            for method in methods:
                if not callable(getattr(getattr(module, name, None), method, None)):
                    logger.warning("specsched: nothing is recorded: this vLLM has no %s.%s", name, method)
                    return
        self.helpers = sys.modules[module.AsyncOutput.__module__]
        self._wrap(module.AdaptiveVerificationManager, "set_cost_curves", self._set_cost_curves)
        self._wrap(module.GPUModelRunner, "capture_model", self._capture_model)
        self._wrap(module.GPUModelRunner, "sample_tokens", self._sample_tokens)
        self._wrap(module.AsyncOutput, "__init__", self._make_output)
        self._wrap(module.AsyncOutput, "get_output", self._get_output)

    def _wrap(self, owner: type, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            return around(original, this, *args, **kwargs)

        setattr(owner, name, wrapper)

    def _watch(self, part: Callable[..., Any], *args: Any) -> Any:
        """The result of `part`, or None with the recording switched off where it fails."""
        if not self.on:
            return None
        try:
            return part(*args)
        except Exception as error:
            self._stop(f"recording stopped: {error!r}")
            return None

    def _stop(self, why: str) -> None:
        self.on = False
        logger.warning("specsched: %s", why)

    # --- around vLLM's methods ------------------------------------------------------------------------------

    def _set_cost_curves(self, original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(manager, *args, **kwargs)
        self._watch(self._keep_curves, manager, args, kwargs)
        return out

    def _capture_model(self, original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(runner, *args, **kwargs)
        self._watch(self._begin, runner)
        return out

    def _sample_tokens(self, original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self._watch(self._batch, runner)
        self.sampling = batch is not None
        try:
            out = original(runner, *args, **kwargs)
        finally:
            self.sampling = False
        if batch is not None:
            self._watch(self._attach, runner, batch, out)
        return out

    def _make_output(self, original: Callable[..., Any], output: Any, *args: Any, **kwargs: Any) -> None:
        if self.sampling:
            self._watch(self._copy_rejected, output, kwargs)
        original(output, *args, **kwargs)

    def _get_output(self, original: Callable[..., Any], output: Any) -> Any:
        out = original(output)
        if self.on and getattr(output, _STEP, None) is not None:
            self._watch(self._put, output)
        return out

    # --- what they take -------------------------------------------------------------------------------------

    def _keep_curves(self, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = dict(zip(("draft_curve", "verify_curve"), args, strict=False)) | kwargs
        setattr(manager, _CURVES, (list(names["draft_curve"]), list(names["verify_curve"])))

    def _begin(self, runner: Any) -> None:
        """Once the engine has measured its costs: write them, and open the file of steps."""
        manager = runner.adaptive_verification
        curves = getattr(manager, _CURVES, None)
        if not self._first_rank(runner):
            return
        if manager is None:
            self._stop("nothing is recorded: adaptive verification is off (enable_adaptive_verification)")
            return
        if curves is None:
            return  # a capture that only measures memory
        if manager.num_bonus_tokens != 1:
            self._stop(f"nothing is recorded: {manager.num_bonus_tokens} new tokens a step, known is 1")
            return
        about = self._about(runner, manager)
        write_curves(self.folder, self.stamp, curves, int(manager._cudagraph_limit), about)
        if self.recorder is None:
            self.recorder = Recorder(self.folder, self.stamp, self.limit, about, self._stop)
            logger.info("specsched: recording into %s", self.recorder.path)

    def _first_rank(self, runner: Any) -> bool:
        from vllm.distributed.parallel_state import get_tp_group

        return int(get_tp_group().rank_in_group) == 0 and int(runner.dp_rank) == 0

    def _about(self, runner: Any, manager: Any) -> dict[str, Any]:
        """What the file begins with; values that a configuration does not have are null."""
        speculative, draft = runner.speculative_config, getattr(runner.speculative_config, "model", None)
        estimated = getattr(runner.speculator, "use_acceptance_estimator", None)
        return {
            "vllm": self.version,
            "model": str(runner.model_config.model),
            "drafter": None if draft is None else str(draft),
            "block_size": int(manager.num_speculative_steps),
            "gpu_count": int(runner.parallel_config.tensor_parallel_size),
            "confidence": None if estimated is None else "estimator" if estimated else "head",
            "method": getattr(speculative, "method", None),
            "draft_sample_method": getattr(speculative, "draft_sample_method", None),
            "rejection_sample_method": getattr(speculative, "rejection_sample_method", None),
            "date": time.strftime("%Y-%m-%d"),
        }

    def _batch(self, runner: Any) -> Any:
        """The batch of the step that is about to be sampled, where it verifies drafts."""
        state = runner.execute_model_state
        if self.recorder is None or runner.adaptive_verification is None or state is None:
            return None
        return None if state.input_batch.num_draft_tokens_per_req is None else state.input_batch

    def _copy_rejected(self, output: Any, kwargs: dict[str, Any]) -> None:
        assert self.helpers is not None
        main, copies = kwargs["main_stream"], kwargs["copy_stream"]
        with self.helpers.stream(copies, main):
            copies.wait_stream(main)
            # The original's event comes later on the same stream: once it is there, so is this.
            rejected = self.helpers.async_copy_to_np(kwargs["sampler_output"].num_rejected)
        setattr(output, _REJECTED, rejected)

    def _attach(self, runner: Any, batch: Any, output: Any) -> None:
        if getattr(output, _REJECTED, None) is None:
            return
        manager, slots = runner.adaptive_verification, batch.idx_mapping_np
        step = Step(
            ids=[str(name) for name in batch.req_ids],
            tokens=int(batch.num_tokens),
            prompt=runner.req_states.prompt_len.np[slots],
            drafted=batch.num_draft_tokens_per_req.copy(),
            confidence=manager._stale_confidences[manager._stale_idx].np[slots],
        )
        setattr(output, _STEP, step)

    def _put(self, output: Any) -> None:
        step, rejected = getattr(output, _STEP), getattr(output, _REJECTED)
        setattr(output, _STEP, None)
        if step.ids != list(output.model_runner_output.req_ids):
            raise RuntimeError("the requests of a step came back in another order")
        rows = len(step.ids)
        step.sampled = output.num_sampled_tokens_np[:rows].copy()
        step.rejected = rejected[:rows].copy()
        assert self.recorder is not None
        self.recorder.put(step)


# --- waiting for vLLM -------------------------------------------------------------------------------------


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module `name` right after it is imported; at once where it is already.

    Importing it here would load a GPU runner into processes that only serve HTTP.
    """
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


class _AfterImport(MetaPathFinder):
    """Finds one module as all others would, and adds a call after its code has run."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            try:
                self.then(module)
            except Exception as error:  # the import is vLLM's, and must succeed
                logger.warning("specsched: nothing is recorded: %r", error)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
