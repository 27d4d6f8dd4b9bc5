"""Draw the bundled synthetic traces `qwen3-4b-chat`, `-math` and `-code`, and print what came out.

    python scripts/synth_traces.py [FOLDER]

Acceptance is that of figure 2, miscalibration and shape of the confidences that of figure 6 of arXiv
2607.05147; lengths are assumed. The same seeds give the same rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from specsched.inspection import inspect_trace
from specsched.trace import synthesise

REQUESTS = 400
# Mean output and prompt tokens, assumed; and a seed.
DOMAINS = {"chat": (180.0, 120.0, 1), "math": (160.0, 110.0, 2), "code": (150.0, 160.0, 3)}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "traces"
    for domain, (output, prompt, seed) in DOMAINS.items():
        name = f"qwen3-4b-{domain}"
        trace = synthesise(
            domain, requests=REQUESTS, output_tokens=output, prompt_tokens=prompt, seed=seed, name=name
        )
        trace.save(folder / f"{name}.parquet")
        held = inspect_trace(trace)
        per_position = held["positions"]
        print(f"{name}: {held['rows']} rows, {held['requests']} requests")
        per_step, per_anchor = held["emitted_per_step"], held["emitted_per_anchor"]
        print(f"  tokens per step {per_step:.3f} (per dense anchor {per_anchor:.3f})")
        print("  acceptance     ", *(f"{p:.3f}" for p in held["conditional_acceptance"]))
        for key in ("ece", "auc"):
            print(f"  {key} of survival", *(f"{p[key]:.3f}" for p in per_position))


if __name__ == "__main__":
    main()
