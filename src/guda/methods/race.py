"""Races in a run: each round is a list of independent tasks (see scoring/race_rounds.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest
from guda.methods.average import average_pictures
from guda.methods.base import Method
from guda.methods.elbo import ElboMethod, Set, has_counterfactuals
from guda.methods.terms import ModelRef, load_queries, portions, run_scorer
from guda.run import progress
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring import race_rounds
from guda.scoring.race import RaceResult, Screened, StopRule
from guda.scoring.race_rounds import Round, wanted_models
from guda.scoring.scorer import Scorer, shard_names
from guda.scoring.scores import Scores

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
    run_scorer(run, race).evaluate_round(part, wanted, round, progress.tick)
