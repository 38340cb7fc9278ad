"""Maps of a run: where in a picture the score of a group comes from (see scoring/maps.py).

Kept like the terms, by the same draws: RUN/maps/<plan>/<picture>/<model>/c000.safetensors, a part per model and round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.base import Method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.terms import ModelRef, load_queries, run_scorer
from guda.run.run import Run
from guda.run.task import Task, tick
from guda.scoring.maps import Cells, PictureMap


def mapped_method(method: Method) -> ElboMethod:
    """Refuse a method whose scores are no sum over the picture."""
    if not has_counterfactuals(method):
        raise GudaError(
            "map-method-unsupported",
            f"{method.method_id} has no model without the group, so its scores have no place in the picture; choose "
            "another --method, e.g. retrack or posterior",
        )
    return method


def map_tasks(
    method: ElboMethod, queries: Queries, picture: str, groups: Sequence[str], estimand: str | None = None
) -> list[Task]:
    """What evaluates the models of these groups on one picture; `estimand` other than the recipe's."""
    run, cells = method.run, Cells(run_scorer(method.run, estimand=estimand), queries.subset([picture]))
    used = dict.fromkeys(m for full, others in method.sets() for m in (full, *(others[g] for g in groups)))
    models, rounds = cells.scorer.evaluated(used), run.recipe.scoring.rounds
    draws = cells.scorer.plan.evals_per_round * rounds
    shape, said = queries.shape[1] * queries.shape[2], "" if estimand is None else f", {estimand}"
    return [
        Task(
            name=f"map {queries.name}/{picture} by {len(models)} models for {method.method_id}{said}",
            stage=f"maps/{queries.name}/{method.method_id}", fn="guda.methods.maps:evaluate_cells",
            args={"queries": queries.name, "picture": picture, "models": [m.as_json() for m in models]}
            | ({} if estimand is None else {"estimand": estimand}),
            makes=tuple(cells.name(m, r) for m in models for r in range(rounds)),
            needs=tuple(sorted({path for m in models for path in m.needs(run)})),
            cost=float(cells.scorer.networks(models) * draws),
            bytes=len(models) * rounds * cells.scorer.plan.n_strata * shape * 8,
        )
    ]  # fmt: skip


def evaluate_cells(run: Run, queries: str, picture: str, models: list[list[Any]], estimand: str | None = None) -> None:
    cells = Cells(run_scorer(run, estimand=estimand), load_queries(run, queries).subset([picture]))
    cells.evaluate([ModelRef(*m) for m in models], run.recipe.scoring.rounds, tick)


def picture_map(
    method: ElboMethod, queries: Queries, picture: str, group: str, estimand: str | None = None
) -> PictureMap:
    """From finished parts."""
    cells = Cells(run_scorer(method.run, estimand=estimand), queries.subset([picture]))
    t, d = cells.contributions(method.sets(), group, method.run.recipe.scoring.rounds, method.shares)
    return PictureMap(picture, group, t, d, not cells.scorer.path, bool(cells.scorer.plan.grid))
