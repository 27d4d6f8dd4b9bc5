"""What a profile, trace, calibration or drafter holds and what is wrong with it, a plain dictionary for each.

Every dictionary has "kind", "name", "warnings" (what every answer built on the file must say) and "lint"
(findings that deserve a look). Pictures of the same files are made by `report`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from .calibration import Calibration
from .calibration.calibration import SCHEMA as CALIBRATION
from .calibration.fit import GRID, evaluate
from .documents.inspection import (
    AcceptanceInspection,
    BenchmarkInspection,
    CalibrationInspection,
    DrafterInspection,
    DraftShare,
    Inspection,
    Lengths,
    PositionRow,
    ProfileInspection,
    RunRow,
    TraceInspection,
)
from .errors import FormatError, SpecschedError
from .extras import extra_module
from .files.disk import bundled_dir, bundled_names, read_json, resolve
from .files.kind import kind_of_file
from .profile import StepProfile
from .profile.document import SCHEMA as PROFILE
from .profile.lint import cliffs, knee, lint
from .trace import Trace, load_trace
from .trace.synthesis import walk

if TYPE_CHECKING:
    from .formats.acceptance import Acceptance
    from .formats.runs import Measured, Runs

CENSORED = "trimming was on where these rates were counted: they may be too high or too low"
FEW_REQUESTS = 100  # below this, intervals bootstrapped over requests are wide
FEW_EVENTS = 30  # below this, an acceptance rate is a guess


def load_any(name: str | os.PathLike[str]) -> StepProfile | Trace | Calibration:
    """The profile, trace or calibration in a file or of a bundled name; raises SpecschedError."""
    path = find(name)
    if path.suffix == ".parquet":
        return load_trace(path)
    try:
        document = read_json(path, FormatError)
    except FormatError:
        from .formats.opened import open_file

        opened = open_file(path)  # raises where the text is damaged, whatever it is
        if opened.syntax == "json":
            raise
        raise FormatError(
            f"{path}: not known to inspect. Seen: {opened.seen}. Arrivals go to `specsched plan --arrivals`, "
            "runs to `specsched fit`, and `specsched convert` reads other tools' files"
        ) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == CALIBRATION:
        return Calibration.from_dict(document, str(path))
    if schema == PROFILE:
        return StepProfile.from_dict(document, str(path))
    if kind_of_file(path) == "acceptance":
        raise FormatError(
            f"{path} holds acceptance rates, no confidences; "
            f"`specsched trace synth --acceptance {path} -o mine.parquet` makes a trace of them"
        )
    raise FormatError(
        f"{path}: schema is {schema!r}; inspect reads {PROFILE}, {CALIBRATION} and trace Parquet files "
        "(`specsched convert` reads other tools' files)"
    )


def inspect_file(name: str | os.PathLike[str]) -> Inspection:
    """What the file, a drafter's folder, or what has the bundled name holds; raises SpecschedError."""
    return inspect_drafter(name) if is_model(name) else inspect_object(load_any(name))


@overload
def inspect_object(held: StepProfile) -> ProfileInspection: ...
@overload
def inspect_object(held: Trace) -> TraceInspection: ...
@overload
def inspect_object(held: Calibration) -> CalibrationInspection: ...


def inspect_object(held: StepProfile | Trace | Calibration) -> Inspection:
    """What an already loaded profile, trace or calibration holds."""
    if isinstance(held, StepProfile):
        return inspect_profile(held)
    return inspect_trace(held) if isinstance(held, Trace) else inspect_calibration(held)


def is_model(name: str | os.PathLike[str]) -> bool:
    """Whether this is a model's folder, or a bundled one's name."""
    path = Path(name)
    bare = path.parent == Path() and not os.path.exists(path)
    return os.path.isfile((bundled_dir("models") / path if bare else path) / "config.json")


def inspect_drafter(name: str | os.PathLike[str]) -> DrafterInspection:
    """What a drafter's folder, or the bundled one of that name, holds; raises SpecschedError."""
    module = extra_module("specsched.torch_side.drafter.describe", "torch", "inspecting a drafter")
    return cast(DrafterInspection, module.describe(name))


def find(name: str | os.PathLike[str]) -> Path:
    """Path of a file, else of the bundled profile or trace of that name; raises FormatError."""
    for kind, suffix in (("profiles", ".json"), ("traces", ".parquet")):
        path = Path(name)
        bare = (
            path.parent == Path()
            and (bundled_dir(kind) / f"{path.name.removesuffix(suffix)}{suffix}").is_file()
        )
        if path.exists() or bare:
            return resolve(name, kind, suffix, FormatError)
    known = bundled_names("profiles", ".json") + bundled_names("traces", ".parquet")
    raise FormatError(f"no file {str(name)!r} and nothing bundled of that name; bundled: {', '.join(known)}")


# -- profile ---------------------------------------------------------------------------------------------


def inspect_profile(profile: StepProfile) -> ProfileInspection:
    """Range, knee, cliffs, capture limit, draft share, memory, provenance and findings of a profile."""
    verify = profile.verify
    warning = profile.provenance_warning
    return {
        "kind": "profile",
        "name": profile.name,
        "gpu": profile.gpu.get("name"),
        "gpus": profile.gpus,
        "model": profile.model.get("name"),
        "method": profile.provenance.get("method"),
        "source": profile.provenance.get("source"),
        "licence": profile.provenance.get("licence"),
        "points": len(verify.x) + (len(profile.eager.x) if profile.eager is not None else 0),
        "tokens": [int(verify.x[0]), int(verify.x[-1] if profile.eager is None else profile.eager.x[-1])],
        "lookup": "captured size" if profile.graph_limit is not None else verify.lookup,
        "decides_by": None if profile.decision is None else profile.decision.label,
        "capture_limit": profile.graph_limit,
        "captured_sizes": 0 if profile.capture_sizes is None else len(profile.capture_sizes),
        "first_pass_seconds": profile.seconds(1, 1, 0, draft=False),
        "knee_tokens": knee(profile),
        "cliffs": [
            {"before": c.before, "after": c.after, "ratio": c.ratio, "kind": c.kind} for c in cliffs(profile)
        ],
        "draft_share": _draft_share(profile),
        "kv_capacity_tokens": profile.kv_capacity_tokens(),
        "kv_capacity_drafting": profile.kv_capacity_tokens(drafting=True),
        "drafter_memory_known": profile.knows_drafter_memory,
        "fit": profile.fit,
        "warnings": [warning] if warning else [],
        "lint": [finding for finding in lint(profile) if finding != warning],
    }


def _draft_share(profile: StepProfile) -> list[DraftShare]:
    """Share of a step spent drafting, at whole blocks and 1,024 tokens of context a request."""
    if profile.draft is None:
        return []
    block = profile.draft_block_size or 7
    shares: list[DraftShare] = []
    for requests in profile.draft.x.astype(int).tolist():
        tokens = requests * (1 + block)
        try:
            whole = profile.seconds(tokens, requests, 1024.0 * requests)
        except SpecschedError:
            break
        shares.append({"requests": requests, "share": profile.draft_seconds(requests) / whole})
    return shares


# -- trace -----------------------------------------------------------------------------------------------


def inspect_trace(trace: Trace) -> TraceInspection:
    """Size, lengths, acceptance, tokens per step, AUC and ECE with its floor, and findings of a trace."""
    positions = evaluate(trace)["positions"]
    dense = trace.mode == "dense"
    visited = walk(trace.lengths, trace.accepted) if dense else np.ones(len(trace), bool)
    return {
        "kind": "trace",
        "name": trace.name,
        "mode": cast(Literal["dense", "sequential"], trace.mode),
        "block_size": trace.block_size,
        "rows": len(trace),
        "requests": len(trace.request_ids),
        "drafter": trace.metadata.get("drafter"),
        "target": trace.metadata.get("target"),
        "temperature": trace.metadata.get("temperature"),
        "licence": trace.metadata.get("licence"),
        "synthetic": trace.synthetic,
        "confidence_sees_token": trace.confidence_sees_token,
        "output_tokens": _spread(trace.output_tokens),
        "prompt_tokens": _spread(trace.prompt_tokens[trace.starts]),
        "arrivals": trace.arrival_seconds is not None,
        "domains": {
            name: int((trace.domain[trace.starts] == code).sum())
            for code, name in enumerate(trace.domain_names)
        },
        # Dense rows overweight easy stretches: what a decoder sees along its way is the second figure.
        "emitted_per_anchor": float(1.0 + trace.accepted.mean()),
        "emitted_per_step": float(1.0 + trace.accepted[visited].mean()),
        "conditional_acceptance": conditional_acceptance(trace.accepted[visited], trace.block_size),
        "positions": [_position(entry) for entry in positions],
        "warnings": trace.warnings,
        "lint": _lint_trace(trace, positions),
    }


def _position(entry: dict[str, Any]) -> PositionRow:
    """What `evaluate` found at one position, of the raw confidences alone."""
    return {
        "position": entry["position"],
        "accepted_share": entry["accepted_share"],
        "ece": entry["ece_before"],
        "noise_floor": entry["noise_floor"],
        "auc": entry["auc_before"],
        "brier": entry["brier_before"],
    }


def conditional_acceptance(accepted: np.ndarray, gamma: int) -> list[float | None]:
    """P(accepted >= k | accepted >= k - 1) for k = 1..γ; None where no row reached k - 1."""
    reached = np.array([(accepted >= k).sum() for k in range(gamma + 1)], dtype=float)
    return [float(reached[k] / reached[k - 1]) if reached[k - 1] else None for k in range(1, gamma + 1)]


def _spread(values: np.ndarray) -> Lengths:
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "max": int(values.max()),
    }


def _lint_trace(trace: Trace, positions: list[dict[str, Any]]) -> list[str]:
    found = []
    logit, gamma = trace.confidence_logit, trace.block_size
    if logit.min() >= 0.0 and logit.max() <= 1.0:
        found.append(
            "confidence_logit: all values lie in [0, 1]; these look like probabilities, and a logit is "
            "wanted: log(p / (1 - p))"
        )
    constant = [k + 1 for k in range(gamma) if logit[:, k].min() == logit[:, k].max()]
    if constant:
        found.append(
            f"confidence_logit is constant at position {constant[0]}: it tells no request from another"
        )
    area = positions[0]["auc_before"]
    if area is not None and area < 0.5:
        found.append(f"AUC at position 1 is {area:.2f}, worse than chance: is the sign of the logits turned?")
    elif area is not None and area < 0.6:
        found.append(f"AUC at position 1 is {area:.2f}: confidences hardly tell accepted from rejected")
    if trace.accepted.max() == trace.accepted.min():
        found.append(f"accepted is {trace.accepted[0]} in every row; is the column filled?")
    requests = len(trace.request_ids)
    if requests < FEW_REQUESTS:
        found.append(f"{requests} requests: fewer than {FEW_REQUESTS}, so intervals will be wide")
    rare = [k for k in range(1, gamma + 1) if (trace.accepted >= k).sum() < FEW_EVENTS]
    if rare:
        count = int((trace.accepted >= rare[0]).sum())
        found.append(
            f"position {rare[0]} was accepted {count} times in {len(trace)} rows: too few to judge it"
        )
    off = [p for p in positions if p["ece_before"] > 3.0 * p["noise_floor"]]
    if off and trace.metadata.get("provenance", {}).get("method") != "synthetic":
        worst = max(off, key=lambda p: p["ece_before"])
        found.append(
            f"raw confidences are miscalibrated: ECE {worst['ece_before']:.3f} at position "
            f"{worst['position']} (noise floor {worst['noise_floor']:.3f}): calibrate before scheduling"
        )
    return found


# -- calibration -----------------------------------------------------------------------------------------


def inspect_calibration(calibration: Calibration) -> CalibrationInspection:
    """Parameters, report and findings of a calibration."""
    about = calibration.about
    return {
        "kind": "calibration",
        "name": str(about.get("trace") or "calibration"),
        "method": calibration.method,
        "block_size": calibration.block_size,
        "temperatures": calibration.temperatures.tolist(),
        "shifts": calibration.shifts.tolist(),
        "about": about,
        "fit_requests": len(calibration.fit_requests),
        "held_out_requests": len(calibration.held_out_requests),
        "report": calibration.report,
        "warnings": ["the calibration was fitted on a synthetic trace"] if about.get("synthetic") else [],
        "lint": _lint_calibration(calibration),
    }


def _lint_calibration(calibration: Calibration) -> list[str]:
    found = []
    for k, t in enumerate(calibration.temperatures):
        if t <= GRID[0] * 1.001 or t >= GRID[-1] * 0.999:
            found.append(
                f"temperature {k + 1} is {t:g}, at the edge of the grid: temperature is not what is wrong"
            )
    held = calibration.report.get("held_out")
    if not held:
        found.append("no held-out report: the fit was never judged on requests it did not see")
        return found
    for entry in held.get("positions", []):
        if entry["ece_after"] > entry["ece_before"] + entry["noise_floor"]:
            found.append(
                f"position {entry['position']}: held-out ECE rose from {entry['ece_before']:.3f} to "
                f"{entry['ece_after']:.3f}; the fit does not carry over"
            )
        elif entry["ece_after"] > 3.0 * entry["noise_floor"]:
            other = "; try --method affine" if calibration.method == "sts" else ""
            found.append(
                f"position {entry['position']}: held-out ECE is still {entry['ece_after']:.3f} (noise floor "
                f"{entry['noise_floor']:.3f}){other}"
            )
    return found


# -- acceptance ------------------------------------------------------------------------------------------


def inspect_acceptance(rates: Acceptance, path: Path, file_format: str) -> AcceptanceInspection:
    """Acceptance rates in the file at `path`, ours or the counters of another tool."""
    document = rates.to_dict()
    del document["schema"]
    found = {
        "kind": "acceptance",
        "name": path.stem,
        "file": str(path),
        "format": file_format,
        "block_size": rates.block_size,
        **document,
        "warnings": [CENSORED] if rates.censored else [],
        "lint": [],
    }
    return cast(AcceptanceInspection, found)


# -- benchmarks ------------------------------------------------------------------------------------------


def inspect_runs(found: Runs, path: Path) -> BenchmarkInspection:
    """The runs of a benchmark client in the file at `path`."""
    return {
        "kind": "benchmark",
        "name": path.stem,
        "file": str(path),
        "tool": found.tool,
        "runs": [_run(run) for run in found.runs],
        "warnings": list(found.notes),
        "lint": _lint_runs(found),
    }


def _run(run: Measured) -> RunRow:
    return {
        "source": run.source,
        "arm": run.arm,
        "policy": run.policy,
        "users": run.users,
        "user": run.user,
        "total": run.total,
        "prompt_tokens": run.prompt_tokens,
        "output_tokens": run.output_tokens,
        "prompts": run.prompts,
        "accept_length": run.accept_length,
    }


def _lint_runs(found: Runs) -> list[str]:
    said = []
    without = sum(run.users is None for run in found.runs)
    if without:
        said.append(f"{without} runs do not say how many users were served at once: `fit` asks for --users")
    if any(run.silent for run in found.runs):
        said.append("nothing says whether the engine drafted: `fit` asks for --arm FILE=POLICY")
    if any(run.user is None for run in found.runs):
        said.append("a user's speed is missing (not streamed?): throughput alone tells less of a step")
    return said
