"""`guda calibrate`: how far below the first a group may be and still be retraining's first, measured on pictures of
their own. What is fitted and scored already is not made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guda.config import QueriesConfig
from guda.errors import GudaError
from guda.methods.base import METHODS, Method, get_method
from guda.methods.elbo import run_oracle
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.run.samples import collect_samples, sample_tasks
from guda.run.task import Task
from guda.scoring.estimate import LEVEL
from guda.steps.calibration import Calibration, make_calibration, source_of, write_calibration
from guda.steps.fit import Engine, base_tasks, check_fitted, fitted_methods
from guda.steps.queries import refuse_shared, tuning_queries
from guda.steps.score import prepared, publish, scores_path, up_to_date

SEED = 1000  # beyond that of the reported pictures: neither these nor those that settings are tuned on (0 or 1)


def calibration_queries(run: Run, n: int) -> QueriesConfig:
    return tuning_queries(run, run.recipe.queries.seed + SEED, n)


def calibrate(
    run: Run, engine: Engine, methods: Sequence[str] | None = None, n: int = 100, level: float = LEVEL
) -> dict[str, tuple[Calibration, Path]]:
    """By method id, default: all fitted ones that rank groups."""
    oracle = run_oracle(run)
    check_fitted(run, [oracle.method_id])
    names = list(methods or [m for m in fitted_methods(run) if not METHODS[m].oracle and METHODS[m].ranks_groups])
    for name in names:
        if METHODS.find(name).oracle or not METHODS[name].ranks_groups:
            raise GudaError(
                "calibration-method-unsupported",
                f"{name} has no answers of its own to compare with retraining; give another --method",
            )
    if not names:
        raise GudaError("method-not-fitted", f"nothing but {oracle.method_id} is fitted in {run.root}; run: guda fit")
    check_fitted(run, names)
    config = calibration_queries(run, n)
    engine(run, base_tasks(run) + sample_tasks(run, config), "sample calibration pictures")
    queries = load_queries(run, collect_samples(run, config))
    refuse_shared(run, queries.name)
    chosen = [get_method(run, name) for name in names]

    def work() -> None:
        tasks: list[Task] = []
        planned: set[str] = set()
        for found in [oracle, *chosen]:
            tasks += found.score(queries, planned)
        engine(run, tasks, f"score {queries.name}")

    # a pilot, where the run has none yet, comes from what the recipe names, as it would without a calibration
    recipe = [get_method(run, m) for m in run.recipe.methods if not METHODS.find(m).oracle]
    prepared(run, [*(m for m in recipe if m.counterfactuals and m.fitted()), *chosen, oracle], engine, work)
    truth = oracle.all_scores(queries)
    seeds = list(oracle.seed_sets())
    retrained = [truth[f"{oracle.method_id}-s{s}"] for s in seeds]

    def one(found: Method) -> tuple[Calibration, Path]:
        scores = found.scores(queries)
        columns = [oracle.groups.index(g) for g in scores.groups]
        about = {
            "queries": queries.name, "pictures": queries.digest, "oracle": oracle.method_id, "seeds": seeds,
            "source": source_of(run, found, oracle),
        }  # fmt: skip
        made = make_calibration(
            scores, np.stack([r.score[:, columns] for r in retrained]), retrained[0].unit, level, about
        )
        return made, write_calibration(run, made)

    made = {found.method_id: one(found) for found in chosen}
    for found in chosen:
        _publish_again(run, found)
    return made


def _publish_again(run: Run, found: Method) -> None:
    """Tables that are there already get their answer sets: the order of commands does not matter."""
    for name in run.query_sets():
        if scores_path(run, name, found.method_id).is_file():
            queries = load_queries(run, name)
            if up_to_date(run, queries, found):
                publish(run, queries, found)
