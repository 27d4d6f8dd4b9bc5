"""A `specsched/answer/1` made from a closed form: the report's input without a simulation."""

from __future__ import annotations

from typing import Any

POLICIES = {
    # name: (lossless, verified drafts at light load, share kept under load, acceptance ceiling)
    "off": (True, 0.0, 1.0, 0.0),
    "fixed:1": (True, 1.0, 1.0, 0.72),
    "fixed:7": (True, 7.0, 1.0, 2.35),
    "threshold:0.3": (True, 4.2, 1.0, 2.1),
    "early-stop": (True, 3.9, 0.5, 2.0),
    "lagged:2": (True, 6.0, 0.35, 2.3),
}
LOADS = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256]


def _row(name: str, users: int) -> dict[str, Any]:
    _, drafts, kept, ceiling = POLICIES[name]
    k = drafts * (kept + (1 - kept) / (1 + users / 60))
    emitted = 1 + ceiling * (1 - 0.5**k) if k else 1.0
    tokens = users * (1 + k)
    seconds = 0.0062 + 2.6e-6 * tokens * (1 + max(tokens - 256, 0) / 300) + (0.0011 if drafts else 0.0)
    speed = emitted / seconds
    return {
        "concurrency": users,
        "throughput": users * speed,
        "tps_user": {"mean": speed, "p05": speed * 0.8, "p50": speed * 0.98, "p95": speed * 1.25},
        "emitted_per_step": emitted,
        "verify_tokens_per_request": 1 + k,
        "rejected_share": (k - (emitted - 1)) / k if k else 0.0,
        "step_seconds": seconds,
        "share_at_sla": 0.95,
        "keeps_tps": speed * 0.8,
        "limits_kept": True,
        "memory_held": True,
        "priced": True,
    }


def _at(name: str, users: int) -> dict[str, Any]:
    row = _row(name, users)
    del row["concurrency"]
    spreads = {"tpot_seconds": spread(1 / row["tps_user"]["p50"]), "end_to_end_seconds": spread(4.0)}
    return row | {
        **spreads,
        "intervals": {"throughput": [0.97 * row["throughput"], 1.03 * row["throughput"]]},
    }


def spread(middle: float) -> dict[str, float]:
    """Of times around one."""
    return {"mean": middle, "p50": 0.98 * middle, "p95": 1.3 * middle, "p99": 1.5 * middle}


def answer(sla: float = 120.0) -> dict[str, Any]:
    """The fake answer at an SLA in tokens/s."""
    policies = []
    for name, (lossless, *_) in POLICIES.items():
        fits = [users for users in range(1, 400) if _row(name, users)["tps_user"]["p05"] >= sla]
        capacity = max(fits, default=0)
        curve = [_row(name, users) for users in sorted({*LOADS, max(capacity, 1)})]
        policies.append(
            {
                "policy": name,
                "lossless": lossless,
                "capacity": capacity,
                "capacity_interval": [max(capacity - 3, 0), capacity + 2 if capacity else 0],
                "capacity_per_gpu": float(capacity),
                "binds": "speed",
                "capacity_if_steps": {"costlier": int(0.9 * capacity), "cheaper": capacity + 4, "by": 0.1},
                "capacity_if_acceptance": {"lower": capacity - 1, "higher": capacity + 2, "by": 0.1},
                "capacity_at": [{"sla_tps": sla + 20.0, "capacity": capacity // 2}],
                "captured_loads": [],
                "refused_loads": [],
                "pockets": [],
                "at_capacity": _at(name, capacity) if capacity else None,
                "throughput_at_capacity": _row(name, capacity)["throughput"] if capacity else 0.0,
                "hindsight_share": 0.9,
                "curve": curve,
            }
        )
    best = max(policies, key=lambda policy: int(str(policy["capacity"])))
    return {
        "schema": "specsched/answer/1",
        "sla_tps": sla,
        "sla_fraction": 0.95,
        "profile": "h100-sxm_qwen3-8b_bf16_tp1",
        "trace": "qwen3-4b-chat",
        "gpus_per_engine": 1,
        "recommended": best["policy"],
        "headline": f"{best['policy']} carries {best['capacity']} users per GPU at {sla:g} tokens/s.",
        "warnings": ["the profile is composed from kernel measurements, not measured end to end"],
        "not_modelled": ["prefill (prompts arrive prefilled)", "network"],
        "calibration": {"method": "sts", "fitted_on": 1000, "replayed": 999, "temperatures": [1.0] * 7},
        "about": {"profile": "composed", "trace": "synthetic"},
        "ladder": {"rungs": LOADS, "refined": True, "to_spare": 1.25},
        "crossovers": [{"from": "fixed:7", "to": "lagged:2", "between": [12, 16], "concurrency": 16}],
        "policies": policies,
    }


def plan(sla: float = 80.0) -> dict[str, Any]:
    """A fake plan: `off` needs 11 GPUs, `fixed:7` none is enough for, `lagged:2` needs 5."""

    def held(name: str, gpus: int) -> dict[str, Any]:
        row = _row(name, 60)
        keys = ("throughput", "tps_user", "emitted_per_step", "verify_tokens_per_request", "rejected_share")
        return {
            "policy": name,
            "lossless": True,
            "engines": gpus,
            "gpus": gpus,
            "gpus_interval": [gpus - 1, gpus + 1],
            "binds": "speed",
            "share_at_sla": 0.97,
            "ttft_seconds": spread(0.03),
            "tpot_seconds": spread(0.01),
            "itl_seconds": spread(0.05),
            "wait_seconds": spread(0.004),
            "end_to_end_seconds": spread(3.0),
            "tps_user_without_wait": row["tps_user"],
            "tps_user_with_wait": {key: 0.9 * value for key, value in row["tps_user"].items()},
            "goodput": {
                "share": 0.97,
                "requests_per_second": 296.6,
                "tokens_per_second": 0.97 * row["throughput"],
                "shares": {"speed": 0.98, "ttft": 0.99},
            },
            "requests_per_engine": 57.3,
            "cost_per_hour": 2.5 * gpus,
            "cost_per_million_tokens": 0.059,
            "curve": [
                {"engines": n, "gpus": n, "share_at_sla": min(n / gpus, 0.97), "share_interval": [0.9, 1.0]}
                for n in (1, 2, 4, gpus)
            ],
            **{key: row[key] for key in keys},
        }

    hopeless = {key: None for key in ("engines", "gpus", "gpus_interval")}
    curve = [{"engines": 1, "gpus": 1, "share_at_sla": 0.0, "share_interval": [0.0, 0.0]}]
    return {
        "schema": "specsched/plan/1",
        "sla_tps": sla,
        "sla_fraction": 0.95,
        "limits": {"ttft_seconds": 0.5, "itl_seconds": None, "e2e_seconds": None, "shares": {}},
        "rate": 305.792,
        "burstiness": 1.02,
        "requests": 9717,
        "profile": "h100-sxm_qwen3-8b_bf16_tp1",
        "trace": "qwen3-4b-chat",
        "gpus_per_engine": 1,
        "recommended": "lagged:2",
        "headline": "305.8 requests/s need 5 GPUs with lagged:2; without drafting 11.",
        "policies": [
            held("off", 11),
            {"policy": "fixed:7", "lossless": True, **hopeless, "binds": "speed", "curve": curve},
            held("lagged:2", 5),
        ],
        "marginal": {
            "rate": 335.1,
            "one_more_engine": 67.8,
            "capture_limit_doubled": 22.5,
            "capture_limit": [512, 1024],
            "last_block_position": 1.81,
            "block_size": 7,
        },
        "calibration": {"method": "none", "fitted_on": 0, "replayed": 400},
        "warnings": ["the profile is composed"],
        "not_modelled": ["prefix caching"],
    }
