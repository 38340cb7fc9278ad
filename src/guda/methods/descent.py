"""Descent of a tree of groups: race the movements first, then the artists of the best ones.

The groups of the top level race; of every picture the first `keep` are opened, their parts race at the next level, and
so on to the groups that are asked about. Each level is a race like any other, among counterfactuals of its own: a
movement's is the model with all its artists unlearned together, not a sum over them, because groups that could stand in
for one another add up to more than their single scores (evaluation/additivity.py). That is also why a descent can miss:
an artist without near relatives may be first although the movement is not.

A stop rule holds at each level by itself, and a budget is divided evenly among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from guda.data.groups import Groups
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.elbo import ElboMethod
from guda.methods.race import run_race
from guda.methods.regroup import Subset
from guda.run.data import load_data
from guda.run.plan import run_plan
from guda.run.task import Task
from guda.scoring.race import Screened, StopRule
from guda.scoring.scores import Scores


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
