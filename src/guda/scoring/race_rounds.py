"""A race over a part store: each round of evaluations is chosen from the terms of the previous rounds.

A raced round packs only the queries that still want a model, so the terms of a race go to a folder of their own.
Starting again replays the decisions from the parts that are there and computes what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError, Mismatch
from guda.scoring.combine import equal_shares, networks
from guda.scoring.estimate import LEVEL
from guda.scoring.race import Race, RaceResult, StopRule
from guda.scoring.reference import Excess
from guda.scoring.scorer import M, Scorer, Set, Shares, shard_name
from guda.scoring.scores import RACED_TO, Scores
from guda.scoring.screen import Screened
from guda.scoring.terms import kl

MAX_ROUNDS = 64

Round = tuple[int, np.ndarray]  # its number, and bool [Q, G]: what it evaluates


def iter_rounds(
    scorer: Scorer[M],
    queries: Queries,
    sets: Sequence[Set[M]],
    rule: StopRule,
    evaluate: Callable[[Round], object],
    screened: Screened | None = None,
    shares: Shares = equal_shares,
    less: Excess | None = None,
    **names: Any,
) -> Iterator[tuple[Scores, RaceResult]]:
    """What is known after each round; the last is the answer. Intervals hold at every look, so a person may watch.

    `evaluate` makes the parts of one round; `names`: method and unit of the scores."""
    plan, groups = scorer.plan, tuple(sets[0][1])
    if plan.grid:
        raise GudaError("race-grid-unsupported", "the paper's fixed grid cannot be raced; use scoring.estimand: elbo")
    start = None if screened is None else screened.start
    cost = networks(scorer, sets)
    state = Race(queries.n, len(groups), plan.evals_per_round, rule, MAX_ROUNDS, cost, start, less)
    if less is not None and less.unit is not None:
        names["unit"] = less.unit
    while (wanted := state.wanted()).any():
        round_ = (len(state.rounds), wanted)
        evaluate(round_)
        state.publish(_contributions(scorer, queries, sets, round_, shares))
        result = state.result()
        yield (
            _scores(result, scorer, rule, screened, less, sum(cost), queries=queries.ids, groups=groups, **names),
            result,
        )


def evaluate_here(scorer: Scorer[M], queries: Queries, sets: Sequence[Set[M]], round_: Round) -> None:
    """The parts of one round, shard after shard, in this process."""
    for start, shard in zip(range(0, queries.n, scorer.shard), queries.shards(scorer.shard), strict=True):
        wanted = wanted_models(scorer, sets, round_[1][start : start + scorer.shard])
        scorer.evaluate_round(shard, wanted, round_[0])


def wanted_models(scorer: Scorer[M], sets: Sequence[Set[M]], wanted: np.ndarray) -> dict[M, np.ndarray]:
    """Model -> positions of the queries that want it; `wanted` bool [q, G]."""
    positions: dict[M, np.ndarray] = {}
    for full, groups in sets:
        positions[full] = np.flatnonzero(wanted.any(axis=1))
        positions |= {model: np.flatnonzero(wanted[:, k]) for k, model in enumerate(groups.values())}
    return {model: positions[model] for model in scorer.evaluated(positions) if len(positions[model])}


def _contributions(
    scorer: Scorer[M], queries: Queries, sets: Sequence[Set[M]], round_: Round, shares: Shares
) -> np.ndarray:
    """Paired nats [Q, G, S] of one round, NaN where nothing was evaluated."""
    number, wanted = round_
    out = np.full((*wanted.shape, scorer.plan.n_strata), np.nan)
    for start, shard in zip(range(0, queries.n, scorer.shard), queries.shards(scorer.shard), strict=True):
        here = wanted_models(scorer, sets, wanted[start : start + scorer.shard])
        if not here:
            continue
        terms = {model: _read(scorer, shard, model, number, positions) for model, positions in here.items()}
        nothing = np.zeros((shard.n, scorer.plan.n_strata), np.int64), np.full((shard.n, scorer.plan.n_strata), np.nan)
        t = np.max([read[0] for read in terms.values()], axis=0)  # of models that a query did not want it is 0
        counted = shares(t, len(sets))

        before = {full: 0.0 if scorer.path else terms.get(full, nothing)[1] for full, _ in sets}
        nats = [
            sum(
                w * (terms.get(others[g], nothing)[1] - before[full])
                for w, (full, others) in zip(counted, sets, strict=True)
            )
            for g in sets[0][1]
        ]
        out[start : start + shard.n] = np.stack(nats, axis=1)
    return out


def _read(
    scorer: Scorer[M], shard: Queries, model: M, number: int, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(t, nats) [q, S], NaN in the rows that did not want the model."""
    strata = scorer.plan.n_strata
    t, nats = np.zeros((shard.n, strata), np.int64), np.full((shard.n, strata), np.nan)
    drawn, errors, ids = scorer.read_part(shard_name(shard), model, number)
    if ids != (wants := [shard.ids[p] for p in positions]):
        where = scorer.part_name(shard_name(shard), model, number)
        raise Mismatch("race-file-stale", f"{where}: pictures", ids, wants, "delete it and score again")
    t[positions], nats[positions] = drawn, kl(scorer.plan, scorer.weights(), drawn, errors)
    return t, nats


def _scores(
    result: RaceResult, scorer: Scorer[M], rule: StopRule, screened: Screened | None, less: Excess | None,
    networks: int, **names: Any,
) -> Scores:  # fmt: skip
    score = result.score if screened is None else np.where(result.rounds > 0, result.score, screened.score)
    # a group that left early was beaten when it left: it ranks below those that stayed longer
    order = np.lexsort((-score, -result.rounds), axis=1)
    ranks = np.argsort(order, axis=1, kind="stable") + 1
    unknown = ~np.isfinite(result.lo)
    # a settled race has said who the first are; with less confidence than ranks are told with elsewhere, it has not
    decided = result.settled & ((result.rounds > 0).sum(axis=1) > rule.top)  # fewer than there are places: nothing was
    leads, settled = ranks <= rule.top, decided[:, None] & ((rule.confidence or 0.0) >= LEVEL)
    # of a group that did not race nothing is claimed, and what is claimed of the others is among those that did
    settled = settled & (result.rounds > 0)
    raced = (result.rounds > 0).sum(axis=1, keepdims=True)
    bars = {"score": result.score, "stderr": result.stderr, "lo": result.lo, "hi": result.hi}
    bars = bars if less is None else less.widen(bars)
    return Scores(
        estimand=f"{scorer.estimand}{RACED_TO}{rule.name}, intervals hold at every look"
        + ("" if less is None else less.suffix) + ("" if screened is None else screened.estimand),
        score=score, n_evals=networks * result.rounds * scorer.plan.evals_per_round, ranks=ranks,
        sign=(less.sign if less else None) or scorer.sign,
        stderr=np.where(unknown, np.nan, bars["stderr"]), lo=np.where(unknown, np.nan, bars["lo"]),
        hi=np.where(unknown, np.nan, bars["hi"]),
        rank_lo=np.where(settled, np.where(leads, 1, rule.top + 1), np.nan),
        rank_hi=np.where(settled, np.where(leads, rule.top, raced), np.nan), **names,
    )  # fmt: skip
