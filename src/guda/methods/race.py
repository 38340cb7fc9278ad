"""Races in a run: rounds of independent tasks, decided by what the rounds before have published.

A raced round packs only the queries that still want a model, so its terms live in a folder of their own, named after
the stop rule. Starting again replays the decisions from the parts on disk and computes what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError, Mismatch
from guda.files import digest
from guda.methods.base import Method
from guda.methods.elbo import ElboMethod, Set, has_counterfactuals
from guda.methods.terms import (
    ModelRef,
    band_weights,
    evaluate_round,
    load_queries,
    part_path,
    portions,
    read_part,
    shard_names,
    terms_folder,
)
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.estimate import LEVEL
from guda.scoring.race import Race, RaceResult, Screened, StopRule
from guda.scoring.scores import Scores
from guda.scoring.terms import kl

MAX_ROUNDS = 64


def last_look(
    method: ElboMethod,
    queries: Queries,
    rule: StopRule,
    work: Callable[[list[Task], str], object],
    screened: Screened | None = None,
) -> Scores:
    """Run (or replay) a race to its end; `work(tasks, title)` carries out a round."""
    for look in looks(method, queries, rule, work, screened):  # noqa: B007  the last is kept, not all of them
        pass
    return look[0]


def looks(
    method: ElboMethod,
    queries: Queries,
    rule: StopRule,
    work: Callable[[list[Task], str], object],
    screened: Screened | None = None,
) -> Iterator[tuple[Scores, RaceResult]]:
    """What is known after each round; the last is the answer. Intervals hold at every look, so a person may watch."""
    check_race(method)
    sets = method.sets()
    plan = run_plan(method.run)
    if plan.grid:
        raise GudaError("race-grid-unsupported", "the paper's fixed grid cannot be raced; use scoring.estimand: elbo")
    start = None if screened is None else screened.start
    state = Race(queries.n, len(method.groups), plan.evals_per_round, rule, MAX_ROUNDS, method.networks(), start)
    folder = _folder(method, rule, sets, screened)
    while (wanted := state.wanted()).any():
        number = len(state.rounds)
        work(_tasks(method, queries, rule, wanted, number, sets, folder), f"race {queries.name}, round {number + 1}")
        state.publish(_contributions(method, queries, wanted, number, sets, folder))
        found = state.result()
        yield _scores(method, queries, rule, found, screened), found


def check_race(method: Method) -> ElboMethod:
    """The method, refused where it cannot be raced at all."""
    if not has_counterfactuals(method):
        raise GudaError(
            "race-method-unsupported",
            f"{method.method_id} needs no evaluations and cannot be raced; leave it out with --method",
        )
    if not method.ranks_groups:
        raise GudaError(
            "race-method-unsupported",
            f"{method.method_id} ranks no groups, so there is no race; leave it out with --method",
        )
    if method.oracle:
        raise GudaError(
            "race-method-oracle",
            f"{method.method_id} is an oracle, scored in full: leave it out with --method, or leave --stop",
        )
    return method


def _folder(method: ElboMethod, rule: StopRule, sets: list[Set], screened: Screened | None) -> str:
    """Of one rule and these models: even the full model's parts hold only the queries that this race still wanted,
    and what they still want depends on how the sets are weighed, and on who started."""
    models = [m.key for full, groups in sets for m in (full, *groups.values())]
    weighing = [] if len(sets) == 1 else [method.config.model_dump(mode="json")]
    begun = [] if screened is None else [np.packbits(screened.start).tobytes().hex()]
    places = [rule.top] if rule.confidence is None and rule.top > 1 else []  # which the rule's name tells otherwise
    return terms_folder(method.run, digest([rule.name, *models, *weighing, *begun, *places]))


def _models(sets: list[Set], wanted: np.ndarray) -> dict[ModelRef, np.ndarray]:
    """Model -> positions of the queries that want it; `wanted` [q, G]."""
    found: dict[ModelRef, np.ndarray] = {}
    for full, groups in sets:
        found[full] = np.flatnonzero(wanted.any(axis=1))
        found |= {ref: np.flatnonzero(wanted[:, k]) for k, ref in enumerate(groups.values())}
    return {ref: positions for ref, positions in found.items() if len(positions)}


def _tasks(
    method: ElboMethod, queries: Queries, rule: StopRule, wanted: np.ndarray, number: int, sets: list[Set], folder: str
) -> list[Task]:
    run = method.run
    size, plan = run.recipe.scoring.shard, run_plan(run)
    tasks = []
    for i, shard in enumerate(shard_names(queries, size)):
        here = _models(sets, wanted[i * size : (i + 1) * size])
        pieces = portions(here)
        for piece, these in enumerate(pieces):
            which = f"{i}" if len(pieces) == 1 else f"{i}.{piece}"
            tasks.append(
                Task(
                    name=f"race {queries.name}/{which} round {number} by {method.method_id} {rule.name}",
                    stage=f"score/{queries.name}/{method.method_id}-race",
                    fn="guda.methods.race:race_shard",
                    args={"queries": queries.name, "shard": i, "round": number, "folder": folder,
                          "models": [[*m.as_json(), here[m].tolist()] for m in these]},
                    makes=tuple(part_path(folder, shard, m, number) for m in these),
                    needs=tuple(sorted({p for m in these for p in m.needs(run)})),
                    cost=float(sum(len(here[m]) for m in these) * plan.evals_per_round),
                )
            )  # fmt: skip
    return tasks


def race_shard(run: Run, queries: str, shard: int, round: int, folder: str, models: list[Any]) -> None:
    part = load_queries(run, queries).shards(run.recipe.scoring.shard)[shard]
    wanted = {ModelRef(*ref): np.array(positions) for *ref, positions in models}
    evaluate_round(run, part, wanted, folder, round)


def _contributions(
    method: ElboMethod, queries: Queries, wanted: np.ndarray, number: int, sets: list[Set], folder: str
) -> np.ndarray:
    """Paired nats [Q, G, S] of one round, NaN where nothing was evaluated."""
    run = method.run
    size, plan = run.recipe.scoring.shard, run_plan(run)
    weights = band_weights(run, None)
    out = np.full((*wanted.shape, plan.n_strata), np.nan)
    for i, shard in enumerate(shard_names(queries, size)):
        here = _models(sets, wanted[i * size : (i + 1) * size])
        if not here:
            continue
        rows = min(size, queries.n - i * size)

        def read(
            ref: ModelRef, i: int = i, shard: str = shard, rows: int = rows, here: dict[ModelRef, np.ndarray] = here
        ) -> tuple[np.ndarray, np.ndarray]:
            """(t, nats) [rows, S], NaN in the rows that did not want the model."""
            t, nats = np.zeros((rows, plan.n_strata), np.int64), np.full((rows, plan.n_strata), np.nan)
            if ref in here:
                path = part_path(folder, shard, ref, number)
                t[here[ref]], errors, found = read_part(run, path, ref)
                wants = [queries.ids[i * size + p] for p in here[ref]]
                if list(found) != wants:
                    raise Mismatch(
                        "race-file-stale",
                        f"{run.path(path)}: pictures",
                        list(found),
                        wants,
                        "delete it and score again",
                    )
                nats[here[ref]] = kl(plan, weights, t[here[ref]], errors)
            return t, nats

        shares = method.shares(read(sets[0][0])[0], len(sets))
        fulls = [read(full)[1] for full, _ in sets]  # once, not once for every group
        nats = [
            sum(w * (read(groups[g])[1] - own) for w, own, (_, groups) in zip(shares, fulls, sets, strict=True))
            for g in method.groups
        ]
        out[i * size : i * size + rows] = np.stack(nats, axis=1)
    return out


def _scores(
    method: ElboMethod, queries: Queries, rule: StopRule, found: RaceResult, screened: Screened | None
) -> Scores:
    plan = run_plan(method.run)
    score = found.score if screened is None else np.where(found.rounds > 0, found.score, screened.score)
    # a group that left early was beaten when it left: it ranks below those that stayed longer
    order = np.lexsort((-score, -found.rounds), axis=1)
    ranks = np.argsort(order, axis=1, kind="stable") + 1
    unknown = ~np.isfinite(found.lo)
    # a settled race has said who the first are; with less confidence than ranks are told with elsewhere, it has not
    told = found.settled & ((found.rounds > 0).sum(axis=1) > rule.top)  # fewer than there are places: nothing was
    leads, settled = ranks <= rule.top, told[:, None] & ((rule.confidence or 0.0) >= LEVEL)
    # of a group that did not race nothing is claimed, and what is claimed of the others is among those that did
    settled = settled & (found.rounds > 0)
    raced = (found.rounds > 0).sum(axis=1, keepdims=True)
    rank_lo = np.where(settled, np.where(leads, 1, rule.top + 1), np.nan)
    rank_hi = np.where(settled, np.where(leads, rule.top, raced), np.nan)
    return replace(
        Scores(
            method=method.method_id, unit=method.unit, queries=queries.ids, groups=method.groups,
            estimand=f"{plan.estimand}; raced to {rule.name}, intervals hold at every look"
            + ("" if screened is None else screened.estimand),
            score=score, n_evals=sum(method.networks()) * found.rounds * plan.evals_per_round,
        ),
        stderr=np.where(unknown, np.nan, found.stderr), lo=np.where(unknown, np.nan, found.lo),
        hi=np.where(unknown, np.nan, found.hi), ranks=ranks, rank_lo=rank_lo, rank_hi=rank_hi,
    )  # fmt: skip
