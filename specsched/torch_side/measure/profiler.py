"""The step profiler: `measure_profile` times real steps here and fits the additive cost of a step.

What is timed lives in `cuda` (a decoder of the model's shape on a GPU, CUDA graphs) and
`engine` (the small engine on a CPU); which steps in `grid`, how in `run`,
the fit in `fit`, the profile in `assembly`, the machine in `host`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...errors import SpecschedError
from ...files.disk import bundled_dir
from ...profile import StepProfile
from ...profile.architecture import find_model
from ...profile.shapes import MODELS, require_plain
from ..drafter.base import Drafter
from ..drafter.dspark import load_drafter
from ..target.decoder import Target
from ..target.weights import load_target
from . import host
from .assembly import assemble
from .engine import EngineBench
from .grid import engine_points
from .run import Plan, Progress, run_points

_CPU_PLAN = Plan(replays=40, rounds=5, budget_seconds=600.0)
_CPU_QUICK_PLAN = Plan(replays=20, rounds=5, budget_seconds=40.0)
_CPU_REQUESTS, _CPU_QUICK = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 4, 8, 16)


def measure_profile(
    gpu: str,
    model: str,
    *,
    tensor: int = 1,
    dtype: str = "bfloat16",
    block_size: int | None = None,
    capture_limit: int = 512,
    quick: bool = False,
    drafter: str | None = None,
    device: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> StepProfile:
    """Measure a step profile on this machine.

    gpu: the GPU that must be here (`h100`, `h200-sxm`, `rtx 4090`), or "cpu". model: on a GPU a preset of
    `shapes` or a `config.json`; on a CPU `tiny`, `smollm2` or a target's folder, measured in float32 with
    `drafter` (default: the bundled one of that name), both as `decode.py` runs them. On a GPU `drafter` is a
    config, built with random weights, and `device` the index of the card where several have that name.
    `quick`: a coarse grid, under two minutes on a GPU (else under ten), under one on a CPU.
    Interrupted runs and steps that do not fit in memory leave a profile of what was measured, with a note.
    Raises SpecschedError when the GPU is not here.
    """
    if gpu.lower() == "cpu":
        return _cpu(model, drafter, block_size, quick, seed, progress)
    host.refuse_rocm()
    index = host.find_device(gpu, host.cuda_devices(), device)
    if tensor != 1:
        raise SpecschedError(
            f"--tensor {tensor}: measuring times one GPU; use --source compose for several, or --tensor 1"
        )
    from .card import Card
    from .cuda import measure_cuda

    shape = find_model(model)
    require_plain(shape, "measuring")
    card = Card(index)
    return measure_cuda(
        card,
        host.gpu_key(gpu, card.name),
        shape,
        dtype=dtype,
        block_size=block_size,
        capture_limit=capture_limit,
        quick=quick,
        drafter=drafter,
        seed=seed,
        progress=progress,
    )


def _cpu(
    model: str,
    drafter: str | None,
    block_size: int | None,
    quick: bool,
    seed: int,
    progress: Progress | None,
) -> StepProfile:
    if model.lower() in MODELS:
        raise SpecschedError(
            f"--gpu cpu really runs the model, and {model} is not here; choose tiny or smollm2 (bundled), or "
            "the folder of a small target; --source roofline or compose price large models"
        )
    target = load_target(model)
    drafts = load_drafter(drafter or _bundled_drafter(model), target, block_size=block_size)
    plan = replace(_CPU_QUICK_PLAN if quick else _CPU_PLAN, seed=seed)
    requests = _CPU_QUICK if quick else _CPU_REQUESTS
    contexts = (192, 64) if quick else (192, 64, 384)
    return measure_engine(target, drafts, requests, contexts, plan, prompts=(16, 64, 192), progress=progress)


def _bundled_drafter(model: str) -> str:
    """The bundled drafter of a bundled target; the Markov head where there are several."""
    names = [p.parent.name for p in bundled_dir("models").glob("*/config.json")]
    own = sorted(n for n in names if n.startswith(f"{model}-dspark"))
    if not own:
        raise SpecschedError(
            f"no bundled drafter belongs to {model!r}; give one (--drafter). "
            f"Bundled: {', '.join(names) or 'none'}"
        )
    return next((n for n in own if n.endswith("markov")), own[0])


def measure_engine(
    target: Target,
    drafter: Drafter,
    requests: tuple[int, ...],
    contexts: tuple[int, ...],
    plan: Plan,
    prompts: tuple[int, ...] = (),
    progress: Progress | None = None,
) -> StepProfile:
    """Profile of the small engine serving this target and drafter on the target's device.

    requests: loads R to time; contexts: mean tokens of context per request; prompts: prefill lengths. In the
    profile, verify + attention is the target's pass, draft(R) all that a drafting step does more than one
    without drafts, overhead(R) the host's work of a step without drafts (`StepTiming.host_seconds`).
    """
    before = host.conditions(target.device)
    bench = EngineBench(target, drafter, max(requests), max(contexts), plan.seed)
    points = engine_points(drafter.block_size, requests, contexts, prompts)
    run = run_points(bench, points, plan, progress)
    c = target.config
    width = torch.finfo(target.dtype).bits // 8
    document = {
        "name": f"cpu_{c.name.lower().replace('/', '-')}_{_short(target.dtype)}",
        "gpu": {"name": before["cpu"], "count": 1, "memory_bytes": host.memory_bytes()},
        "model": {
            "name": c.name,
            "weight_bytes": sum(p.numel() for p in target.parameters()) * width,
            "kv_bytes_per_token": 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * width,
            "dtype": str(target.dtype).removeprefix("torch."),
        },
    }
    notes = (
        "The package's own small engine on a CPU, whole steps: the figures predict that engine, no other. "
        "Random normal KV and anchors; ragged and even verification lengths; overhead is the engine's own "
        "host work, draft includes planning with `lagged`."
    )
    kind, memory = drafter.config.kind, drafter.memory()
    return assemble(document, run, drafter.block_size, kind, before, notes, memory=memory)


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
