"""The exact law of what speculative decoding serves: every draft, acceptance and residual outcome.

A `World` is a small random target, drafter and confidence function. `served` follows all ways in which
several requests can go through several engine steps under a policy (the product's own `plan`), and returns
the law of each request's output; `promised` is the target's own. Losslessness is their equality.

A policy that looks back is followed with all it may have seen: states are told apart by its memory, and
where it is told what was accepted (`settle`), by that as well.

One step of one request, from Leviathan et al.: drafts x_1..x_γ ~ p_d; x_k is accepted with probability
min(1, p_t / p_d); after the first rejection the token is drawn from max(0, p_t - p_d), normalised; when all
of the ℓ verified drafts are accepted the next token is drawn from p_t. Drafts behind ℓ are forgotten.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specsched import schedule

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
Settled = dict[tuple[Tokens, int], float]  # tokens emitted, drafts accepted of those verified
IDLE_GAIN = 1.25  # how many times as fast as a step that drafts for all, and verifies nothing, one without is
UNREAD = 0.5  # what stands for the confidences of drafts that were not made
END = 0  # the token that ends a request, where the world has one


@dataclass
class World:
    """Every distribution is drawn at random from (seed, context), so a context always meets the same one."""

    seed: int
    vocabulary: int = 2
    block: int = 2
    ends: bool = False  # token END finishes a request
    zeros: bool = False  # some tokens have probability 0, some confidences are 0 or 1
    sees_token: bool = (
        False  # a confidence looks at the token it judges: the hypothesis of losslessness fails
    )
    memo: dict = field(default_factory=dict)

    def _random(self, *key: object) -> random.Random:
        return random.Random(f"{self.seed}/{key}")

    def _distribution(self, *key: object) -> list[float]:
        rng = self._random(*key)
        weights = [rng.random() for _ in range(self.vocabulary)]
        if self.zeros and rng.random() < 0.4:
            weights[rng.randrange(self.vocabulary)] = 0.0
        return [w / sum(weights) for w in weights]

    def target(self, request: int, context: Tokens) -> list[float]:
        return self._distribution("target", request, context)

    def drafter(self, request: int, context: Tokens) -> list[float]:
        return self._distribution("drafter", request, context)

    def confidence(self, request: int, context: Tokens, token: int) -> float:
        rng = self._random("confidence", request, context, token if self.sees_token else None)
        if self.zeros and rng.random() < 0.4:
            return rng.choice([0.0, 0.5, 0.5, 1.0])
        return rng.random()


def _residual(target: Sequence[float], drafter: Sequence[float]) -> list[float]:
    rest = [max(0.0, t - d) for t, d in zip(target, drafter, strict=True)]
    return [x / sum(rest) for x in rest]


@dataclass
class Branch:
    """All drafts of one request that show the policy the same confidences (and acceptances, if it looks)."""

    confidence: tuple[float, ...]
    accepted: int | None
    laws: list[Settled]  # by ℓ: what is emitted then; each sums to the probability of the branch


def branches(world: World, request: int, output: Tokens, left: int, look: bool) -> list[Branch]:
    """One step of one request after `output`, cut at `left` tokens and behind END."""
    key = (request, output, left, look)
    if key not in world.memo:
        world.memo[key] = list(_branches(world, request, output, left, look))
    return world.memo[key]


def _branches(world: World, request: int, output: Tokens, left: int, look: bool) -> Iterable[Branch]:
    found: dict[tuple, Branch] = {}
    for drafts in itertools.product(range(world.vocabulary), repeat=world.block):
        contexts = [output + drafts[:k] for k in range(world.block + 1)]
        target = [world.target(request, c) for c in contexts]
        drafter = [world.drafter(request, c) for c in contexts]
        confidence = tuple(world.confidence(request, contexts[k], x) for k, x in enumerate(drafts))
        reached = 1.0  # probability of the drafts, and of accepting those before k
        for k, x in enumerate(drafts):
            reached *= drafter[k][x]
        for accepted in range(world.block + 1):
            if reached == 0.0:
                break
            keep = 0.0
            if accepted < world.block:
                x = drafts[accepted]
                keep = min(1.0, target[accepted][x] / drafter[accepted][x])
            here = reached * (1.0 - keep)
            reached *= keep
            if here == 0.0:
                continue
            look_key = accepted if look else None
            branch = found.setdefault(
                (confidence, look_key),
                Branch(confidence, look_key, [defaultdict(float) for _ in range(world.block + 1)]),
            )
            for length, law in enumerate(branch.laws):
                stem = min(length, accepted)
                following = target[stem] if length <= accepted else _residual(target[stem], drafter[stem])
                for y, p in enumerate(following):
                    law[_cut((*drafts[:stem], y), left, world.ends), stem] += here * p
    return found.values()


def _cut(tokens: Tokens, left: int, ends: bool) -> Tokens:
    tokens = tokens[:left]
    return tokens[: tokens.index(END) + 1] if ends and END in tokens else tokens


def promised(world: World, request: int, length: int) -> Law:
    """The target's own law of the first `length` tokens."""
    law: Law = {(): 1.0}
    for _ in range(length):
        longer: Law = defaultdict(float)
        for output, p in law.items():
            if world.ends and END in output:
                longer[output] += p
                continue
            for y, q in enumerate(world.target(request, output)):
                longer[(*output, y)] += p * q
        law = longer
    return law


def _memory(policy: schedule.Policy) -> object:
    """What a policy carries from step to step, as a dictionary key."""
    past = getattr(policy, "_past", ())
    steps = tuple((s.ids.tobytes(), s.work.survival[: s.ids.size * s.shape[1]].tobytes()) for s in past)
    if isinstance(policy, schedule.Bypass):
        return steps, policy._memory.tobytes(), policy._counters.tobytes()
    if isinstance(policy, schedule.History):
        habits = tuple((i, habit.tobytes()) for i, habit in sorted(policy._habits.items()))
        return habits, policy._common.tobytes()
    return steps


def served(
    policy: schedule.Policy,
    world: World,
    sps: np.ndarray,
    length: int,
    arrivals: Sequence[int] = (0,),
    joint: bool = False,
) -> list[Law]:
    """The law of each request's first `length` tokens; request i arrives at step arrivals[i].

    With `joint`, one law of all outputs together, its keys the outputs one after the other.
    Requests leave when they are done. Rows change places every other step: ids say who is who.
    """
    laws: list[Law] = [defaultdict(float) for _ in arrivals]
    together: Law = defaultdict(float)
    look = isinstance(policy, schedule.Hindsight)
    look_back = isinstance(policy, schedule.Lagged | schedule.History)
    learns = type(policy).settle is not schedule.Policy.settle
    # A state: outputs so far of the active requests, outputs of the finished (if joint), the policy's memory.
    states = {((), (), _memory(policy)): (1.0, policy)}
    step = 0
    while states:
        following: dict[tuple, tuple[float, schedule.Policy]] = {}
        for (active, done, _), (probability, before) in states.items():
            present = [*active, *((i, ()) for i, t in enumerate(arrivals) if t == step)]
            present = present[::-1] if step % 2 else present
            if not present and step > max(arrivals):
                together[sum((output for _, output in sorted(done)), ())] += probability
                continue
            before, drafted = _drafting(before, world.block, sps, len(present)) if present else (before, [])
            options = [
                branches(world, i, output, length - len(output), look)
                if yes
                else [_undrafted(world, i, output)]
                for (i, output), yes in zip(present, drafted, strict=True)
            ]
            for chosen in itertools.product(*options):
                after = copy.deepcopy(before) if look_back else before
                after.pace([len(output) / (1.0 + step - arrivals[i]) for i, output in present])
                plan = _plan(after, chosen, drafted, sps, [i for i, _ in present]) if present else []
                outcomes = [branch.laws[n].items() for branch, n in zip(chosen, plan, strict=True)]
                told: dict[
                    tuple[int, ...], schedule.Policy
                ] = {}  # the policy by what it is told was accepted
                for emitted in itertools.product(*outcomes):
                    p = probability
                    still, finished = [], list(done)
                    kept = tuple(n for (_, n), _ in emitted) if learns else ()
                    if kept not in told:
                        told[kept] = copy.deepcopy(after) if learns else after
                        if kept:
                            told[kept].settle(kept)
                    for (i, output), ((tokens, _), q) in zip(present, emitted, strict=True):
                        p *= q
                        now = output + tokens
                        over = len(now) == length or (world.ends and now[-1] == END)
                        (finished if over else still).append((i, now))
                    if p == 0.0:
                        continue
                    for i, now in finished[len(done) :]:
                        laws[i][now] += p
                    key = (tuple(sorted(still)), tuple(finished) if joint else (), _memory(told[kept]))
                    following[key] = (following.get(key, (0.0,))[0] + p, told[kept])
        states = following
        step += 1
    return [together] if joint else laws


def _drafting(
    policy: schedule.Policy, block: int, sps: np.ndarray, requests: int
) -> tuple[schedule.Policy, list[bool]]:
    """The policy once it has said for whom the step drafts, which it must know beforehand."""
    policy = copy.deepcopy(policy) if isinstance(policy, schedule.Lagged) else policy
    idle = float(sps[requests]) * IDLE_GAIN
    return policy, policy.drafting(requests, block, sps, idle).tolist()


def _undrafted(world: World, request: int, output: Tokens) -> Branch:
    """Nothing is drafted: whatever is planned, the target's own next token."""
    law = {((y,), 0): p for y, p in enumerate(world.target(request, output))}
    return Branch((UNREAD,) * world.block, None, [law] + [{}] * world.block)


def _plan(
    policy: schedule.Policy,
    chosen: Sequence[Branch],
    drafted: Sequence[bool],
    sps: np.ndarray,
    ids: list[int],
) -> list[int]:
    rows = [branch.confidence for branch in chosen]
    accepted = [branch.accepted for branch in chosen]
    known = None if None in accepted else accepted
    plan = policy.plan(rows, sps, ids=np.array(ids, np.int64), accepted=known).tolist()
    assert all(yes or n == 0 for yes, n in zip(drafted, plan, strict=True)), "verifies what was not drafted"
    return plan


def deviation(
    policy: schedule.Policy, world: World, sps: np.ndarray, length: int, arrivals: Sequence[int] = (0,)
) -> float:
    """The greatest difference between what is served and what is promised: all outputs, all requests."""
    worst = 0.0
    for i, law in enumerate(served(policy, world, sps, length, arrivals)):
        wanted = promised(world, i, length)
        assert set(law) <= set(wanted)
        worst = max(worst, *(abs(p - law.get(output, 0.0)) for output, p in wanted.items()))
    return worst
