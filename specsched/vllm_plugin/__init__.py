"""A plugin that vLLM loads by itself: it records what adaptive verification measures and decides.

    register   the entry point (`vllm.general_plugins`), called in every process of vLLM
    hooks      what is put around vLLM's own methods, once vLLM has imported them
    recorder   the files, written by a thread of their own

Being installed does nothing. With the environment variable SPECSCHED_RECORD=FOLDER the first worker writes
into FOLDER, at every start of the engine under a new time:

    vllm-TIME-verify.csv, vllm-TIME-draft.csv   the engine's cost curves (formats/vllm/costs.py reads them)
    vllm-TIME-steps.jsonl                       a line a step: confidences, drafts verified and accepted
                                                (formats/vllm/steps.py reads it); no text and no token ids

SPECSCHED_RECORD_MB bounds the last one (256). Private names of vLLM change between releases, so recording is
pinned to the releases they were read in; in another one a line in the log says so, and nothing is touched.
Nothing of vLLM, torch or numba is imported here: the hooks wait until vLLM itself has imported its runner.

Read in the source distributions of vLLM 0.32.0 (commit 5df63a720) and 0.33.0 (commit 4ba787ec9):

    vllm/plugins/__init__.py                    load_general_plugins: calls `register` in every process
    vllm/v1/worker/gpu/model_runner.py          GPUModelRunner.capture_model, .sample_tokens(grammar_output),
                                                .execute_model_state.input_batch, .adaptive_verification,
                                                .speculator, .req_states, .speculative_config,
                                                .parallel_config, .model_config, .dp_rank; the module's
                                                AdaptiveVerificationManager and AsyncOutput
    vllm/v1/worker/gpu/spec_decode/adaptive_verification.py
                                                AdaptiveVerificationManager.set_cost_curves(draft_curve,
                                                verify_curve), ._cudagraph_limit, ._stale_confidences,
                                                ._stale_idx, .num_speculative_steps, .num_bonus_tokens
    vllm/v1/worker/gpu/async_utils.py           AsyncOutput(..., sampler_output, main_stream, copy_stream),
                                                .get_output, .num_sampled_tokens_np, .model_runner_output;
                                                stream, async_copy_to_np
    vllm/v1/worker/gpu/input_batch.py           InputBatch.req_ids, .num_tokens, .idx_mapping_np,
                                                .num_draft_tokens_per_req; get_num_sampled_and_rejected:
                                                verified logits = sampled + rejected
    vllm/v1/worker/gpu/states.py                RequestState.prompt_len.np
    vllm/v1/worker/gpu/spec_decode/speculator.py  use_acceptance_estimator
    vllm/distributed/parallel_state.py          get_tp_group().rank_in_group

Adaptive verification came with pull request 47808.
"""

from __future__ import annotations

import logging
import os

from .hooks import TARGET, Hooks, when_imported

VERSIONS = ("0.32.0", "0.33.0")
FOLDER, MEGABYTES = "SPECSCHED_RECORD", "SPECSCHED_RECORD_MB"

# Below vLLM's own logger, so that its handler and level are ours.
logger = logging.getLogger("vllm.specsched")
_registered = False


def register() -> None:
    """Put the hooks in place where SPECSCHED_RECORD asks for it. Never raises; a second call does nothing."""
    global _registered
    folder = os.environ.get(FOLDER)
    if not folder or _registered:
        return
    _registered = True
    try:
        version = _vllm_version()
        if version not in VERSIONS:
            logger.warning(
                "specsched: nothing is recorded: vLLM is %s, its private names were read in %s",
                version,
                " and ".join(VERSIONS),
            )
            return
        hooks = Hooks(folder, _limit(), version)
        when_imported(TARGET, hooks.install)
    except Exception as error:  # an engine must start whatever happens here
        logger.warning("specsched: nothing is recorded: %r", error)


def _vllm_version() -> str:
    """The release, without the part that names a build (+cu129)."""
    from importlib.metadata import version

    return version("vllm").split("+")[0]


def _limit() -> int:
    """Bytes the file of steps may grow to."""
    given = os.environ.get(MEGABYTES, "256")
    if not given.isdecimal() or not 1 <= int(given) <= 10**6:
        raise ValueError(f"{MEGABYTES} is {given!r}; it must be a whole number from 1 to 1000000")
    return int(given) * 10**6
