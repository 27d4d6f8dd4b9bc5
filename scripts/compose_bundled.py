"""Make the bundled step profiles: five from aiconfigurator's kernels, two jagged ones from vidur's.

    pip install 'specsched[compose]'
    python scripts/compose_bundled.py [--kernels FOLDER] [NAME ...]

FOLDER holds vidur's kernel medians (vidur_a100_Meta-Llama-3-8B_us.csv, vidur_h100_Llama-2-70b-hf_us.csv:
tp, m and
one column per kernel, µs), which are not part of this repository; without it the two jagged profiles are
left alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from specsched.formats.kernels.aiconfigurator import compose_profile  # noqa: E402
from specsched.formats.kernels.vidur import compose_jagged  # noqa: E402
from specsched.profile.lint import lint  # noqa: E402

# TensorRT-LLM's tables for dense bfloat16: they are the ones held to end-to-end rows, and vLLM's are noisier.
COMPOSED = {
    "h100-sxm_qwen3-4b_bf16_tp1": {"gpu": "h100-sxm", "model": "qwen3-4b", "backend": "trtllm"},
    "h100-sxm_qwen3-8b_bf16_tp1": {"gpu": "h100-sxm", "model": "qwen3-8b", "backend": "trtllm"},
    "h200-sxm_qwen3-14b_bf16_tp1": {"gpu": "h200-sxm", "model": "qwen3-14b", "backend": "trtllm"},
    "h200-sxm_llama-3-70b_fp8_tp4": {"gpu": "h200-sxm", "model": "llama3-70b", "tensor": 4, "dtype": "fp8"},
    "h100-sxm_qwen3-30b-a3b_bf16_tp1": {"gpu": "h100-sxm", "model": "qwen3-30b-a3b"},
}
JAGGED = {
    "a100-sxm_llama-3-8b_fp16_tp1_jagged": (
        "vidur_a100_Meta-Llama-3-8B_us.csv",
        {"gpu": "a100-sxm", "model": "llama3-8b", "tensor": 1, "measured_model": "Meta-Llama-3-8B"},
    ),
    # The layers of Llama-2-70B and Llama-3-70B have the same shapes; only the vocabulary differs.
    "h100-sxm_llama-3-70b_fp16_tp4_jagged": (
        "vidur_h100_Llama-2-70b-hf_us.csv",
        {"gpu": "h100-sxm", "model": "llama3-70b", "tensor": 4, "measured_model": "Llama-2-70b-hf"},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--date", default="2026-11-30", help="date written into the provenance")
    parser.add_argument("names", nargs="*", default=[*COMPOSED, *JAGGED])
    arguments = parser.parse_args()
    for name in arguments.names:
        if name in COMPOSED:
            profile = compose_profile(**COMPOSED[name])
        elif arguments.kernels is not None:
            file, options = JAGGED[name]
            profile = compose_jagged(arguments.kernels / file, **options)
        else:
            print(f"{name}: left alone, its kernels need --kernels")
            continue
        assert profile.name == name, (profile.name, name)
        profile.provenance["date"] = arguments.date
        profile.save(ROOT / "profiles" / f"{name}.json")
        print(name, profile.fit)
        for finding in lint(profile):
            print("  lint:", finding)


if __name__ == "__main__":
    main()
