"""Races in a run: each round is a list of independent tasks (see scoring/race_rounds.py).

Descent of a tree of groups: race the movements first, then the artists of the best ones.

The groups of the top level race; of every picture the first `keep` are opened, their parts race at the next level, and
so on to the groups that are asked about. Each level is a race like any other, among counterfactuals of its own: a
movement's is the model with all its artists unlearned together, not a sum over them, because groups that could stand in
for one another add up to more than their single scores (steps/pairs.py). That is also why a descent can miss:
an artist without near relatives may be first although the movement is not.

A stop rule holds at each level by itself, and a budget is divided evenly among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from guda.data.groups import Groups
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest
from guda.methods.base import Method
from guda.methods.elbo import ElboMethod, Set, has_counterfactuals
from guda.methods.reference import average_pictures
from guda.methods.regroup import Subset
from guda.methods.terms import ModelRef, load_queries, portions, run_scorer
from guda.run.data import load_data
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.run.task import Task, tick
from guda.scoring import race_rounds
from guda.scoring.race import RaceResult, StopRule
from guda.scoring.race_rounds import Round, wanted_models
from guda.scoring.scorer import Scorer, shard_names
from guda.scoring.scores import Scores
from guda.scoring.screen import Screened

Work = Callable[[list[Task], str], object]  # carries out the tasks of a round, under a title


def run_race(
    method: ElboMethod, queries: Queries, rule: StopRule, work: Work, screened: Screened | None = None
) -> Scores:
    """Run (or replay) a race to its end."""
    for scores, _ in iter_rounds(method, queries, rule, work, screened):  # noqa: B007  the last is kept, not all
        pass
    return scores


def iter_rounds(
    method: ElboMethod, queries: Queries, rule: StopRule, work: Work, screened: Screened | None = None
) -> Iterator[tuple[Scores, RaceResult]]:
    """What is known after each round; the last is the answer."""
    check_race(method)
    sets, excess = method.sets(), method.run.recipe.scoring.excess
    if excess:  # by the recipe's rounds, whatever the race's
        work(method.average_tasks(set()), "score the average picture")
    name = _race_key(method, rule, sets, screened)
    scorer = run_scorer(method.run, name)

    def evaluate(round_: Round) -> None:
        work(_tasks(method, queries, rule, round_, scorer, name), f"race {queries.name}, round {round_[0] + 1}")

    yield from race_rounds.iter_rounds(
        scorer, queries, sets, rule, evaluate, screened, method.shares,
        method.excess(queries, sets) if excess else None,
        method=method.method_id, unit=method.unit,
    )  # fmt: skip


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


def _race_key(method: ElboMethod, rule: StopRule, sets: list[Set], screened: Screened | None) -> str:
    """Of one rule and these models: even the full model's parts hold only the queries that this race still wanted,
    and what they still want depends on how the sets are weighed, and on who started."""
    models = [m.key for full, groups in sets for m in (full, *groups.values())]
    weighing = [] if len(sets) == 1 else [method.config.model_dump(mode="json")]
    begun = [] if screened is None else [np.packbits(screened.start).tobytes().hex()]
    scoring = method.run.recipe.scoring
    if scoring.estimand == "path" or scoring.excess:
        begun += [scoring.estimand, "excess" if scoring.excess else "plain"]
    if scoring.excess:  # another average decides otherwise
        begun += [average_pictures(method.run).digest, str(scoring.rounds)]
    places = [rule.top] if rule.confidence is None and rule.top > 1 else []  # which the rule's name tells otherwise
    return digest([rule.name, *models, *weighing, *begun, *places])


def _tasks(
    method: ElboMethod, queries: Queries, rule: StopRule, round_: Round, scorer: Scorer[ModelRef], race: str
) -> list[Task]:
    run, (number, wanted), size = method.run, round_, scorer.shard
    tasks = []
    for i, shard in enumerate(shard_names(queries, size)):
        here = wanted_models(scorer, method.sets(), wanted[i * size : (i + 1) * size])
        pieces = portions(here)
        for piece, these in enumerate(pieces):
            which = f"{i}" if len(pieces) == 1 else f"{i}.{piece}"
            tasks.append(
                Task(
                    name=f"race {queries.name}/{which} round {number} by {method.method_id} {rule.name}",
                    stage=f"score/{queries.name}/{method.method_id}-race",
                    fn="guda.methods.race:race_shard",
                    args={"queries": queries.name, "shard": i, "round": number, "race": race,
                          "models": [[*m.as_json(), here[m].tolist()] for m in these]},
                    makes=tuple(scorer.part_name(shard, m, number) for m in these),
                    needs=tuple(sorted({p for m in these for p in m.needs(run)})),
                    cost=float(_networks(scorer, here, these) * scorer.plan.evals_per_round),
                )
            )  # fmt: skip
    return tasks


def _networks(scorer: Scorer[ModelRef], wanted: dict[ModelRef, np.ndarray], models: list[ModelRef]) -> int:
    """Network evaluations of one draw of every picture that wants them."""
    if not scorer.path:
        return sum(len(wanted[m]) for m in models)
    own = {m: wanted[m] for m in models if m.family is None}
    references = {m.reference for m in own}
    return sum(map(len, own.values())) + sum(
        len(np.unique(np.concatenate([at for m, at in own.items() if m.reference == r]))) for r in references
    )


def race_shard(run: Run, queries: str, shard: int, round: int, race: str, models: list[Any]) -> None:
    part = load_queries(run, queries).shards(run.recipe.scoring.shard)[shard]
    wanted = {ModelRef(*ref): np.array(positions) for *ref, positions in models}
    run_scorer(run, race).evaluate_round(part, wanted, round, tick)


def tree_levels(method: ElboMethod) -> list[tuple[int, ...]]:
    """Group numbers level by level, ending with the scored groups; refused if there is nothing to descend."""
    groups = load_data(method.run).groups
    levels = groups.levels([groups.index(name) for name in method.groups])
    if len(levels) == 1:
        raise GudaError(
            "screen-tree-missing",
            "--screen tree: the groups that are asked about have none above them; make the run with a tree of groups "
            "(--group-by level:1/level:2), or screen by a method (posterior:10)",
        )
    return levels


def at_level(method: ElboMethod, level: tuple[int, ...]) -> ElboMethod:
    """The same method for the groups of one level."""
    names = load_data(method.run).groups.names
    return method.on(Subset(names=tuple(names[k] for k in level)))


def check_descent(method: ElboMethod, rule: StopRule, keep: int) -> None:
    """Before anything is raced: every level must be fitted, and a budget must last to the last of them."""
    levels = tree_levels(method)
    for level in levels:
        found = at_level(method, level)
        found.check()  # an operator that knows leaves only
        if not found.fitted():
            raise GudaError(
                "tree-not-fitted",
                f"{method.method_id} is not fitted for all of the tree's groups ({', '.join(found.groups[:3])}, ...); "
                f"run: guda fit {method.run.root} --method {method.method_id}",
            )
    shared, each = method.networks()
    most = max(shared + each * n for n in _most(load_data(method.run).groups, levels, keep))
    least = most * run_plan(method.run).evals_per_round * len(levels)
    if rule.budget is not None and rule.budget < least:
        raise GudaError(
            "stop-budget-small",
            f"stop rule {rule.name}: the budget is shared by {len(levels)} levels of the tree, and one round of "
            f"the largest may cost {least // len(levels):,} evaluations; give at least budget={least}, "
            "or open fewer groups",
        )


def _most(groups: Groups, levels: list[tuple[int, ...]], keep: int) -> list[int]:
    """How many groups may race at each level: all of the first, then the parts of those with the most."""
    found = [len(levels[0])]
    for level, following in pairwise(levels):
        parts = Counter(_above(groups, level, following))
        found.append(sum(sorted(parts.values(), reverse=True)[:keep]))
    return found


def _above(groups: Groups, level: tuple[int, ...], following: tuple[int, ...]) -> list[int]:
    """Of every group of the level after `level`: the place in `level` of the one it is a part of, or is."""
    place = {k: i for i, k in enumerate(level)}
    return [next(place[k] for k in reversed((*groups.above(j), j)) if k in place) for j in following]


def descend(
    method: ElboMethod, queries: Queries, rule: StopRule, keep: int, work: Callable[[list[Task], str], object]
) -> list[Scores]:
    """The scores of every level, from the top; the last are the method's own groups'. `work` as of a race."""
    groups, levels = load_data(method.run).groups, tree_levels(method)
    budget = None if rule.budget is None else rule.budget // len(levels)
    found: list[Scores] = []
    start: Screened | None = None
    for depth, level in enumerate(levels):
        last = depth == len(levels) - 1
        here = replace(rule, top=rule.top if last else keep, budget=budget)
        scores = run_race(at_level(method, level), queries, here, work, start or _all(queries, level))
        found.append(scores)
        if not last:
            begun = np.ones(scores.score.shape, bool) if start is None else start.start
            start = below(groups, level, levels[depth + 1], scores, begun, keep)
    return found


def _all(queries: Queries, level: tuple[int, ...]) -> Screened:
    shape = (queries.n, len(level))
    return Screened(np.ones(shape, bool), np.zeros(shape), "; the top of a tree of groups")


def below(
    groups: Groups, level: tuple[int, ...], following: tuple[int, ...], scores: Scores, begun: np.ndarray, keep: int
) -> Screened:
    """Who starts at the level after `level`: the parts of the first `keep` of those that `begun` bool [Q, G] at it."""
    above = _above(groups, level, following)
    opened = begun & (scores.rank <= keep)
    told = (
        f"; down a tree of groups: the parts of each picture's first {keep} groups of the level above were raced, "
        "the others have the score of the group above them and no interval"
    )
    return Screened(opened[:, above], scores.score[:, above], told)
