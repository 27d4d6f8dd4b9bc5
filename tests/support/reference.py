"""The scheduler once more, naive, in plain Python: from DSpark section 5 and Algorithm 1, not from kernels.

Lists of floats in, lists of ints out. Everything is written as its definition reads: survivals are running
products, the admission order is one sort, Θ is summed from scratch in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def survivals(confidence: Rows) -> list[list[float]]:
    """a[r][k] = c[r][0] * ... * c[r][k], multiplied from the left."""
    result = []
    for row in confidence:
        products, product = [], 1.0
        for c in row:
            product = product * c
            products.append(product)
        result.append(products)
    return result


def admission_order(survival: Rows) -> list[tuple[int, int]]:
    """(request, position) of all candidates: survival falling, then position rising, then request rising."""
    candidates = [(r, k) for r, row in enumerate(survival) for k, a in enumerate(row) if a > 0]
    return sorted(candidates, key=lambda rk: (-survival[rk[0]][rk[1]], rk[1], rk[0]))


def throughputs(survival: Rows, sps: Sequence[float]) -> list[float]:
    """Θ(0), Θ(1), ...: expected emitted tokens times steps per second after k admissions."""
    requests = len(survival)
    expected = float(requests)
    result = [expected * sps[requests]]
    for k, (r, position) in enumerate(admission_order(survival), start=1):
        expected = expected + survival[r][position]
        result.append(expected * sps[requests + k])
    return result


def first(survival: Rows, budget: int) -> list[int]:
    """Lengths when the first `budget` candidates are admitted."""
    lengths = [0] * len(survival)
    for r, position in admission_order(survival)[:budget]:
        assert position == lengths[r], "a position was admitted before its own prefix"
        lengths[r] += 1
    return lengths


def early_stop(confidence: Rows, sps: Sequence[float]) -> list[int]:
    """Algorithm 1."""
    survival = survivals(confidence)
    theta = throughputs(survival, sps)
    admitted = 0
    while admitted + 1 < len(theta) and theta[admitted + 1] > theta[admitted]:
        admitted += 1
    return first(survival, admitted)


def budget_of_survivals(survival: Rows, sps: Sequence[float], minimum_gain: float = 0.0) -> int:
    """Section 5.2: the first argmax; with a minimum gain, everything unless that gains enough."""
    theta = throughputs(survival, sps)
    best = theta.index(max(theta))
    everything = len(theta) - 1
    if minimum_gain > 0 and theta[best] <= (1 + minimum_gain) * theta[everything]:
        return everything
    return best


def best_budget(confidence: Rows, sps: Sequence[float], minimum_gain: float = 0.0) -> int:
    return budget_of_survivals(survivals(confidence), sps, minimum_gain)


def top_k(confidence: Rows, k: int) -> list[int]:
    return first(survivals(confidence), k)


def threshold(confidence: Rows, theta: float) -> list[int]:
    lengths = []
    for row in survivals(confidence):
        length = 0
        while length < len(row) and row[length] >= theta:
            length += 1
        lengths.append(length)
    return lengths


def global_plan(confidence: Rows, sps: Sequence[float], minimum_gain: float = 0.0) -> list[int]:
    return top_k(confidence, best_budget(confidence, sps, minimum_gain))


def hindsight(accepted: Sequence[int], block: int, sps: Sequence[float]) -> list[int]:
    """Global with certainty in place of confidence."""
    return global_plan([[1.0 if k < n else 0.0 for k in range(block)] for n in accepted], sps)


def lagged(
    history: Sequence[tuple[Sequence[int], Rows]],
    sps: Sequence[float],
    lag: int,
    minimum_gain: float = 0.0,
) -> list[int]:
    """Section 7: history = (ids, confidence) of every step so far, the present one last."""
    ids, confidence = history[-1]
    block = len(confidence[0])
    if len(history) <= lag:
        priced = [k for k in range(len(ids) * block + 1) if sps[len(ids) + k] > 0.0]
        if priced[-1:] == [len(ids) * block]:
            return [block] * len(ids)
        return top_k(confidence, priced[-1] if priced else 0)
    past_ids, past_confidence = history[-1 - lag]
    past = dict(zip(past_ids, survivals(past_confidence), strict=True))
    brought = [past.get(i, [1.0] * block) for i in ids]
    return top_k(confidence, budget_of_survivals(brought, sps, minimum_gain))


class Bypass:
    """`lagged:n` that may stop drafting: what its pool expects against a step that drafts nothing.

    A row is one request of one step that drafted for it. The pool is 64 bins of survivals, each a count and a
    sum, beside the rows, the survivals of the drafts verified and how many of them were accepted; older rows
    fade so that no more than `window` count, an eighth of it while stopped. Rows are known `lag` decisions
    later.
    """

    BINS = 64
    PRIOR = 16.0  # drafts as good as expected, before any were seen

    def __init__(
        self,
        lag: int,
        window: int = 4096,
        least: int = 128,
        gain: float = 0.01,
        share: float = 0.008,
        rows: int = 16,
    ) -> None:
        self.lag, self.window, self.least = lag, float(window), float(least)
        self.gain, self.share, self.rows = gain, share, rows
        self.counts, self.sums = [0.0] * self.BINS, [0.0] * self.BINS
        self.seen = self.expected = self.accepted = 0.0
        self.steps: list[list[tuple[list[float], int, int]]] = []  # (survivals, verified, accepted) a row
        self.stopped = False
        self.idle = self.probed = 0
        self.history: list[tuple[Sequence[int], Rows]] = []  # of the steps that drafted for all

    def drafting(self, requests: int, block: int, sps: Sequence[float], idle_sps: float) -> list[bool]:
        """For which requests the coming step drafts."""
        if len(self.steps) >= self.lag:
            self._learn(self.steps[-self.lag])
        if self.seen >= self.least:
            there, here = self._outlook(requests, block, sps), requests * idle_sps
            self.stopped = there <= (1.0 + self.gain) * here if self.stopped else here > there
            if not self.stopped:
                self.idle = 0
        if not self.stopped or self.seen < self.least:
            return [True] * requests
        self.idle += 1
        number = min(self.rows, requests)
        longest = max(k for k in range(number * block + 1) if k == 0 or sps[requests + k] > 0.0)
        # What a probe takes more than a plain step, in plain steps, is saved up first.
        there = sps[requests + longest]
        if there == 0.0 or self.idle * self.share < idle_sps / there - 1.0:
            return [False] * requests
        self.idle = 0
        few = [(self.probed + i) % requests for i in range(number)]
        self.probed += len(few)
        return [r in few for r in range(requests)]

    def plan(
        self, ids: Sequence[int], confidence: Rows, sps: Sequence[float], drafted: Sequence[bool], gain: float
    ) -> list[int]:
        """Lengths: of a step that drafts for all those of `lagged`; of a probe whole blocks, while priced."""
        if all(drafted):
            self.history.append((ids, confidence))
            return lagged(self.history, sps, self.lag, gain)
        block = len(confidence[0])
        most = sum(drafted) * block
        while most > 0 and not sps[len(ids) + most] > 0.0:
            most -= 1
        return top_k([c if d else [0.0] * block for c, d in zip(confidence, drafted, strict=True)], most)

    def settle(
        self, confidence: Rows, drafted: Sequence[bool], lengths: Sequence[int], accepted: Sequence[int]
    ) -> None:
        rows = zip(survivals(confidence), drafted, lengths, accepted, strict=True)
        self.steps.append([(a, n, min(n, kept)) for a, yes, n, kept in rows if yes])

    def _learn(self, step: list[tuple[list[float], int, int]]) -> None:
        if not step:
            return
        counts, sums = [0.0] * self.BINS, [0.0] * self.BINS
        expected = accepted = 0.0
        for row, verified, kept in step:
            for a in row:
                if a > 0.0:
                    b = min(int(a * self.BINS), self.BINS - 1)
                    counts[b], sums[b] = counts[b] + 1.0, sums[b] + a
            for a in row[:verified]:
                expected += a
            accepted += kept
        old, window = 1.0, self.window / 8 if self.stopped else self.window
        if self.seen + len(step) > window:
            old = max(window - len(step), 0.0) / self.seen if self.seen > 0.0 else 0.0
        self.counts = [x * old + y for x, y in zip(self.counts, counts, strict=True)]
        self.sums = [x * old + y for x, y in zip(self.sums, sums, strict=True)]
        self.seen = self.seen * old + len(step)
        self.expected = self.expected * old + expected
        self.accepted = self.accepted * old + accepted

    def _outlook(self, requests: int, block: int, sps: Sequence[float]) -> float:
        """Greatest Θ when the drafts of R mean rows are admitted from the best bin down."""
        trust = (self.accepted + self.PRIOR) / (self.expected + self.PRIOR)
        bins = [
            (n * (requests / self.seen), trust * (total / n))
            for n, total in zip(self.counts[::-1], self.sums[::-1], strict=True)
            if n > 0.0
        ]
        expected = float(requests)
        best = expected * sps[requests]
        for k in range(1, requests * block + 1):
            need = 1.0
            while need > 0.0:
                while bins and bins[0][0] <= 0.0:
                    bins.pop(0)
                if not bins:
                    return best
                left, each = bins[0]
                used = min(need, left)
                expected += used * each
                need -= used
                bins[0] = (left - used, each)
            best = max(best, expected * sps[requests + k])
        return best


def weights(speeds: Sequence[float], promised: float, margin: float, least: float) -> list[float]:
    """1 for who is behind the promise, `least` for who is ahead by `margin` or more, a line in between."""
    result = []
    for speed in speeds:
        ahead = speed / promised - 1.0
        need = 1.0 if ahead <= 0.0 else min(max(1.0 - ahead / margin, 0.0), 1.0)
        result.append(least + (1.0 - least) * need)
    return result


def paced(
    history: Sequence[tuple[Sequence[int], Rows]], sps: Sequence[float], lag: int, weight: Sequence[float]
) -> list[int]:
    """`lagged` with a weight a request: a token of it is worth so much, the anchor's own too."""
    ids, confidence = history[-1]
    block, requests = len(confidence[0]), len(ids)
    worth = [[a * w for a in row] for row, w in zip(survivals(confidence), weight, strict=True)]
    if len(history) <= lag:
        priced = [k for k in range(requests * block + 1) if sps[requests + k] > 0.0]
        most = priced[-1] if priced else 0
        return [block] * requests if most == requests * block else first(worth, most)
    past_ids, past_confidence = history[-1 - lag]
    past = dict(zip(past_ids, survivals(past_confidence), strict=True))
    brought = [[a * w for a in past.get(i, [1.0] * block)] for i, w in zip(ids, weight, strict=True)]
    expected = 0.0
    for w in weight:
        expected += w
    values = [expected * sps[requests]]
    for k, (r, position) in enumerate(admission_order(brought), start=1):
        expected += brought[r][position]
        values.append(expected * sps[requests + k])
    return first(worth, values.index(max(values)))


class History:
    """The best budget of survivals that each request's own acceptances let expect.

    A position is tried when it is verified and all before it were accepted. Tries and hits of a request count
    `kept` of it a step later, those of all together 1 - (1 - kept) / 8. A request's rate is its hits over its
    tries, with 4 tries more at the rate of all; that of all has one more try, which went well.
    """

    def __init__(self, steps: int, block: int) -> None:
        self.kept, self.block = 1.0 - 1.0 / steps, block
        self.own: dict[int, list[tuple[float, float]]] = {}  # (tries, hits) by position
        self.all = [(0.0, 0.0)] * block

    def plan(self, ids: Sequence[int], sps: Sequence[float], gain: float = 0.0) -> list[int]:
        common = [(hits + 1.0) / (tries + 1.0) for tries, hits in self.all]
        survival = []
        for i in ids:
            own = self.own.setdefault(i, [(0.0, 0.0)] * self.block)
            rates = [(h + 4.0 * q) / (t + 4.0) for (t, h), q in zip(own, common, strict=True)]
            survival += survivals([rates])
        return first(survival, budget_of_survivals(survival, sps, gain))

    def settle(self, ids: Sequence[int], lengths: Sequence[int], accepted: Sequence[int]) -> None:
        slower = 1.0 - (1.0 - self.kept) / 8.0
        self.all = [(t * slower, h * slower) for t, h in self.all]
        for i, length, n in zip(ids, lengths, accepted, strict=True):
            new = [(1.0, float(k < n)) if k < length and k <= n else (0.0, 0.0) for k in range(self.block)]
            faded = [(t * self.kept, h * self.kept) for t, h in self.own[i]]
            self.own[i] = [(t + a, h + b) for (t, h), (a, b) in zip(faded, new, strict=True)]
            self.all = [(t + a, h + b) for (t, h), (a, b) in zip(self.all, new, strict=True)]
