"""Racing: spend evaluations where the ranking is unsettled.

All groups start; every round draws once per stratum for the groups still in the race, all with the same draws. After a
round a group leaves when the first places are settled without it. Rules:

    top1@0.95   stop when one group is above every other with 95 % confidence
    top3@0.9    stop when the three first are above all the rest with 90 % confidence
    budget=500  never more than 500 network evaluations per query: half of the groups leave after each round

Confidence under repeated looks: look r = 2, 3, ... spends alpha/(r (r-1)) of alpha = 1 - confidence (these sum to
alpha), and within a look Bonferroni over the K (N - K) comparisons of the first K with the rest, with Student-t
intervals whose degrees of freedom are Welch and Satterthwaite's. By the union bound, all statements of all looks hold
together with the stated confidence as far as each interval does. A group that left keeps the interval of the look at
which it left.

Decisions are a pure function of the terms published so far: the same after a kill, and on any engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from scipy import stats

from guda.errors import GudaError
from guda.scoring.estimate import effective_df
from guda.scoring.reference import Excess


@dataclass(frozen=True)
class StopRule:
    top: int = 1
    confidence: float | None = None  # None: no claim, the budget alone decides
    budget: int | None = None  # network evaluations per query, base model included

    @classmethod
    def parse(cls, text: str) -> StopRule:
        """`top1@0.95`, `top3@0.9`, `budget=500`, or both: `top1@0.95,budget=500`."""
        top, confidence, budget = 1, None, None
        parts = text.split(",")
        if len({part.strip()[:3] for part in parts}) != len(parts):
            raise GudaError(
                "stop-rule-duplicate",
                f"stop rule {text!r}: the same kind of rule twice; give one topK@CONFIDENCE and one budget=N",
            )
        for part in parts:
            if match := re.fullmatch(r"top(\d{1,4})@(0?\.\d{1,6})", part.strip()):
                top, confidence = int(match[1]), float(match[2])
            elif match := re.fullmatch(r"budget=(\d{1,12})", part.strip()):
                budget = int(match[1])
            else:
                raise GudaError(
                    "stop-rule-invalid",
                    f"stop rule {part!r}: write topK@CONFIDENCE (top1@0.95), budget=N, or both with a comma",
                )
        if top < 1 or (confidence is not None and not 0.5 <= confidence < 1):
            raise GudaError(
                "stop-confidence-invalid",
                f"stop rule {text!r}: needs a place of at least 1 and a confidence of 0.5 to 0.999",
            )
        if budget is not None and budget < 1:
            raise GudaError(
                "stop-budget-small",
                f"stop rule {text!r}: a budget of no evaluations answers nothing; give at least one round",
            )
        return cls(top, confidence, budget)

    @property
    def name(self) -> str:
        parts = [f"top{self.top}@{self.confidence:g}"] if self.confidence is not None else []
        return ",".join(parts + ([f"budget={self.budget}"] if self.budget is not None else []))


def look_alpha(alpha: float, look: int) -> float:
    """What the look after `look` rounds may spend; looks begin at 2 (one round has no error) and sum to alpha."""
    return alpha / (look * (look - 1)) if look >= 2 else 0.0


def anytime_reach(alpha: float, look: int, df: np.ndarray | float, comparisons: int) -> np.ndarray:
    """Half-width, in standard errors, of intervals that hold at every look."""
    spend = look_alpha(alpha, look)
    return np.full(np.shape(df), np.inf) if spend == 0 else np.asarray(stats.t.ppf(1 - spend / 2 / comparisons, df))


def survivors(contributions: np.ndarray, active: np.ndarray, rule: StopRule) -> np.ndarray:
    """Which groups of one query go on: bool [G].

    `contributions` [R, G, S]: nats of the R rounds so far; rows of groups that left hold NaN after they left.
    `active` [G]: the groups evaluated in the last round. All False: the query is settled.
    """
    rounds, groups, _ = contributions.shape
    started = int(np.isfinite(contributions[0, :, 0]).sum())  # fewer than all where a screen chose them
    now = np.flatnonzero(active)
    d = contributions[:, now]  # every active group has all rounds
    score = d.mean(axis=0).sum(axis=-1)
    order = now[np.argsort(-score, kind="stable")]
    keep = np.zeros(groups, bool)
    if started <= rule.top and rounds >= 2:
        return keep  # there is nothing to settle
    if rule.confidence is None:
        return _halve(order, groups, rule.top)
    if rounds < 2:
        return active.copy()
    # leader set L = current first `top`; everything clearly below all of L leaves, and when all have left, stop
    leaders = order[: rule.top]
    others = order[rule.top :]
    position = {int(g): i for i, g in enumerate(now)}
    challengers = []
    for k in others:
        gaps = d[:, [position[int(g)] for g in leaders]] - d[:, [position[int(k)]]]
        gap = gaps.mean(axis=0).sum(axis=-1)
        variances = gaps.var(axis=0, ddof=1) / rounds
        reach = anytime_reach(
            1 - rule.confidence, rounds, effective_df(variances, rounds), rule.top * (started - rule.top)
        )
        if not bool((gap > reach * np.sqrt(variances.sum(axis=-1))).all()):
            challengers.append(int(k))
    if challengers:
        keep[leaders] = True
        keep[challengers] = True
    return keep


def _halve(order: np.ndarray, groups: int, top: int) -> np.ndarray:
    """The better half, but never fewer than can still change places at `top`."""
    keep = np.zeros(groups, bool)
    keep[order[: max(top + 1, -(-len(order) // 2))]] = True
    return keep


class Race:
    """The state of a race over some queries: what the next round should evaluate, given the rounds so far."""

    def __init__(
        self, n_queries: int, n_groups: int, evals_per_round: int, rule: StopRule, max_rounds: int,
        networks: tuple[int, int] = (1, 1), start: np.ndarray | None = None, less: Excess | None = None,
    ) -> None:  # fmt: skip
        """`networks` (shared, each): a draw of n groups costs shared + each n network evaluations. `start` [Q, G]: the
        groups that begin, default all; where they are no more than the rule's places, two rounds tell their scores.
        `less`: what the average picture scores, which every score is compared with."""
        self.networks, self.evals_per_round = networks, evals_per_round
        begin = n_groups if start is None else int(start.sum(axis=1).max())
        if rule.top >= begin and start is None:
            raise GudaError(
                "stop-already-settled",
                f"stop rule {rule.name}: with {begin} groups, top{rule.top} is settled from the start",
            )
        if rule.budget is not None and rule.budget < (least := int(self._cost(begin))):
            raise GudaError(
                "stop-budget-small",
                f"stop rule {rule.name}: one round of {begin} groups and the full model costs {least} evaluations; "
                "give at least that, or fewer strata",
            )
        self.rule, self.max_rounds, self.less = rule, max_rounds, less
        self.rounds: list[np.ndarray] = []  # nats [Q, G, S] per round, NaN where nothing was evaluated
        self.evals = np.zeros(n_queries, np.int64)  # per query, the full model included
        self.active = np.ones((n_queries, n_groups), bool) if start is None else start.copy()
        self.settled = np.zeros(n_queries, bool)  # by confidence, not by running out of budget

    def _cost(self, groups: np.ndarray | int) -> np.ndarray:
        """Network evaluations of one round with this many groups."""
        shared, each = self.networks
        return np.asarray((shared + each * np.asarray(groups)) * self.evals_per_round)

    def wanted(self) -> np.ndarray:
        """bool [Q, G]: what the next round evaluates; all False when the race is over."""
        if len(self.rounds) >= self.max_rounds:
            return np.zeros_like(self.active)
        return self.active.copy()

    def publish(self, contributions: np.ndarray) -> None:
        """The paired contributions [Q, G, S] of the round that was wanted."""
        ran = self.active.any(axis=1)
        self.evals += np.where(ran, self._cost(self.active.sum(axis=1)), 0)
        self.rounds.append(np.where(self.active[:, :, None], contributions, np.nan))
        done = np.stack(self.rounds)
        for q in np.flatnonzero(ran):
            keep = survivors(self._ranked(done[:, q], int(q)), self.active[q], self.rule)
            if not keep.any():
                self.settled[q] = True
            elif self.rule.budget is not None and self.evals[q] + self._cost(keep.sum()) > self.rule.budget:
                keep[:] = False
            self.active[q] = keep

    def _ranked(self, d: np.ndarray, q: int) -> np.ndarray:
        """Contributions [R, G, S] of a picture, by which its groups are compared with each other."""
        if self.less is None or self.less.own is None or not self.less.log:
            return self._compared(d, q)
        return self.less.ratios(d, self.less.own[q])

    def _compared(self, d: np.ndarray, q: int | slice) -> np.ndarray:
        """Contributions [R, ..., G, S] of a picture, or of all, against the average picture's."""
        if self.less is None or self.less.own is None:
            return d
        seen = np.isfinite(d[..., 0]).sum(axis=0)
        mean = np.nansum(d, axis=0) / np.where(seen, seen, np.nan)[..., None]
        return self.less.linear(d, mean.sum(axis=-1), self.less.own[q])

    def result(self, level: float = 0.95) -> RaceResult:
        """Scores with intervals that hold at every look; infinite where a group was seen for one round only, and no
        score (NaN) where it did not start."""
        d = self._compared(np.stack(self.rounds), slice(None))
        seen = np.isfinite(d[..., 0]).sum(axis=0)  # [Q, G] rounds
        mean = np.nansum(d, axis=0) / np.where(seen, seen, np.nan)[..., None]
        score = mean.sum(axis=-1)
        squares = np.nansum((d - mean) ** 2, axis=0)
        stderr, width = np.full(score.shape, np.inf), np.full(score.shape, np.inf)
        for look in range(2, len(d) + 1):
            here = seen == look
            variances = squares[here] / (look * (look - 1))
            stderr[here] = np.sqrt(variances.sum(axis=-1))
            width[here] = anytime_reach(1 - level, look, effective_df(variances, look), 1) * stderr[here]
        # groups that stayed longest come first: one that left was beaten when it left
        return RaceResult(score, stderr, score - width, score + width, seen, self.evals.copy(), self.settled.copy())


@dataclass(frozen=True)
class RaceResult:
    score: np.ndarray  # [Q, G] nats
    stderr: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    rounds: np.ndarray  # [Q, G]: how long each group was in the race
    evals: np.ndarray  # [Q], the full model included
    settled: np.ndarray  # [Q]

    def winner(self) -> np.ndarray:
        """[Q]: the best score among the groups that were in the race to the end."""
        last = self.rounds == self.rounds.max(axis=1, keepdims=True)
        return np.where(last, self.score, -np.inf).argmax(axis=1)
