"""All numba code of the package: what an engine runs every step, and the loop that replays an engine.

    jit         how everything here is compiled, and when a cached result is stale
    compiling   word of it, when it begins
    order       survivals and the admission order, without a sort
    few         the same for few candidates, by merging
    habit       what a request's own drafts let expect, without confidences
    outlook     what drafting is expected to bring, from past steps alone
    budget      the planning rules built on them
    entry       the same with their arguments checked: what `schedule` calls
    identity    who is who between steps
    state       what the engine loop is given and what moves in it
    clock       which group steps next
    step        one step of one rank: gather, plan, execute
    queue       how requests come
    places      who runs: admitted, preempted, finished
    commit      what a step that ends leaves behind
    engine      the loop
    ask         the same for a policy that is not compiled
    resample    quantiles of bootstrap resamples

Conventions. R rows (requests), γ columns (draft positions), arrays C-contiguous. `survival` rows never
rise from left to right. `sps[B]` is steps per second at B tokens in the pass, anchors included: a plan of
k drafts costs `sps[R + k]`. Nothing here allocates: scratch memory comes in as `Work`. Kernels trust their
input, `schedule` and `simulator` validate; `entry` alone checks, where a second pass would cost as much.
"""

from .ask import Asked, make_asked, run_to_plan
from .budget import (
    best_budget,
    early_stop,
    paced_budget,
    priced_drafts,
    scale,
    table_length,
    threshold,
    top_k,
    unconstrained,
    weigh,
)
from .compiling import told_of_compiling
from .engine import run_engine
from .entry import (
    budget_of_past,
    check_costs,
    plan_budget,
    plan_early_stop,
    plan_threshold,
    plan_top_k,
    plan_unconstrained,
    take_both,
    take_confidence,
)
from .habit import expect_all, remember_all
from .identity import index_ids, recall
from .order import Work, make_work, survival
from .outlook import decide, first_row, latest, make_memory, note
from .resample import first_beyond
from .state import (
    ASKED,
    BATCH_TABLE,
    BYPASS,
    DONE,
    EARLY_STOP,
    FIXED,
    GLOBAL,
    HINDSIGHT,
    HISTORY,
    LAGGED,
    LEAST_OUTSTANDING,
    OFF,
    PACED,
    RANKED,
    REFUSED,
    ROUND_ROBIN,
    THRESHOLD,
    TWO_CHOICES,
    WANTED,
    Plan,
    Scratch,
    Settings,
    State,
    World,
    make_scratch,
    make_state,
)

__all__ = [
    "ASKED",
    "BATCH_TABLE",
    "BYPASS",
    "DONE",
    "EARLY_STOP",
    "FIXED",
    "GLOBAL",
    "HINDSIGHT",
    "HISTORY",
    "LAGGED",
    "LEAST_OUTSTANDING",
    "OFF",
    "PACED",
    "RANKED",
    "REFUSED",
    "ROUND_ROBIN",
    "THRESHOLD",
    "TWO_CHOICES",
    "WANTED",
    "Asked",
    "Plan",
    "Scratch",
    "Settings",
    "State",
    "Work",
    "World",
    "best_budget",
    "budget_of_past",
    "check_costs",
    "decide",
    "early_stop",
    "expect_all",
    "first_beyond",
    "first_row",
    "index_ids",
    "latest",
    "make_asked",
    "make_memory",
    "make_scratch",
    "make_state",
    "make_work",
    "note",
    "paced_budget",
    "plan_budget",
    "plan_early_stop",
    "plan_threshold",
    "plan_top_k",
    "plan_unconstrained",
    "priced_drafts",
    "recall",
    "remember_all",
    "run_engine",
    "run_to_plan",
    "scale",
    "survival",
    "table_length",
    "take_both",
    "take_confidence",
    "threshold",
    "told_of_compiling",
    "top_k",
    "unconstrained",
    "weigh",
]
