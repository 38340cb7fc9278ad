"""What it will cost, before it is spent: network evaluations, time, disk, for fitting and for scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from guda.engine.processes import default_workers
from guda.files import read_json
from guda.methods.base import get_method
from guda.methods.elbo import has_counterfactuals
from guda.run.models import architecture, asked_groups
from guda.run.plan import FILE as PILOT
from guda.run.plan import needs_pilot
from guda.run.run import Run
from guda.run.settings import run_settings
from guda.run.task import Task, pending
from guda.scoring.plan import make_plan, prior_density
from guda.scoring.scores import Scores
from guda.scoring.settings import seconds_per_block
from guda.steps.fit import base_tasks
from guda.steps.score import scored_methods, scores_path

BYTES_PER_TERM = 12  # measured: a compressed parquet row, headers included

FACTORS = (0.25, 0.5, 1, 2, 4, 8)  # alternatives, as multiples of the recipe's rounds


@dataclass(frozen=True)
class Budget:
    """One row: what is left to do of it."""

    what: str
    evals: float | None  # evaluation units: forward of one image = 1, forward and backward = 3; None: not known
    seconds: float | None  # on this machine, all workers busy; None: not known
    disk: int | None  # bytes; None: not known


def plan(run: Run, methods: Sequence[str], n_queries: int, workers: int | None = None) -> dict[str, Any]:
    """Rows of `Budget`, and alternatives: evaluations per query against the expected width of an interval."""
    model = architecture(run)
    settings = run_settings(run)
    per_eval = seconds_per_block(model.clone(), settings) / settings.block
    workers = workers or default_workers()
    size = sum(p.numel() * p.element_size() for p in model.module.state_dict().values())

    def cost(tasks: list[Task]) -> tuple[float, float]:
        left = pending(run, tasks)
        evals = sum(t.cost for t in left)
        return evals, evals * per_eval / max(1, min(workers, len(left)))

    rows = [Budget("train the full model", *cost(base_tasks(run)), disk=size if pending(run, base_tasks(run)) else 0)]
    scoring = run.recipe.scoring
    timesteps = make_plan(model.schedule, scoring, prior_density(model.schedule))
    per_query: dict[str, float] = {}
    # a hybrid shares its halves' work, and gradients are the full model's: each counts in the row that names it first
    made = {t.makes for t in base_tasks(run)}
    scored: set[str] = set()
    for name in methods:
        method = get_method(run, name)
        tasks = [t for t in method.fit() if t.makes not in made]
        made |= {t.makes for t in tasks}
        rows.append(Budget(f"fit {name}", *cost(tasks), disk=method.disk(pending(run, tasks), model)))
        if has_counterfactuals(method):
            shared, each = method.networks()
            networks = shared + each * len(method.groups)
            per_query[name] = networks * timesteps.evals_per_round * scoring.rounds
            new = not scored.issuperset(method.parts())
            scored |= set(method.parts())
            evals = per_query[name] * n_queries * new
            disk = new * len(method.models()) * n_queries * timesteps.n_strata * scoring.rounds * BYTES_PER_TERM
            rows.append(Budget(f"score {n_queries} queries by {name}", evals, evals * per_eval / workers, disk))
        elif per_picture := method.score_evals():
            evals = per_picture * n_queries
            rows.append(Budget(f"score {n_queries} queries by {name}", evals, evals * per_eval / workers, disk=0))
    return {
        "run": str(run.root),
        "seconds_per_evaluation": per_eval,
        "settings": settings.key,
        "workers": workers,
        "groups": len(asked_groups(run)),
        "parameters": model.n_parameters(),
        "rows": [asdict(r) for r in rows],
        "alternatives": _alternatives(run, per_query, per_eval),
        "note": _note(run),
    }


def _alternatives(run: Run, per_query: dict[str, float], per_eval: float) -> list[dict[str, Any]]:
    """For each method: rounds, evaluations and seconds per query, expected half-width of a 95 % interval in nats."""
    rounds = run.recipe.scoring.rounds
    table = []
    for name, evals in per_query.items():
        stderr = _expected_stderr(run, name)
        for factor in FACTORS:
            wanted = rounds * factor
            if wanted < 1 or wanted != int(wanted):
                continue
            width = None if stderr is None else 1.96 * stderr / np.sqrt(factor)
            table.append({"method": name, "rounds": int(wanted), "evals_per_query": evals * factor,
                          "seconds_per_query": evals * factor * per_eval, "half_width": width})  # fmt: skip
    return table


def _expected_stderr(run: Run, method: str) -> float | None:
    """Median standard error: as measured on a scored set, else a bound from the pilot, else unknown."""
    for name in run.query_sets():
        if method in scored_methods(run, name):
            found = Scores.read(scores_path(run, name, method))
            if found.stderr is not None and np.isfinite(found.stderr).any():
                return float(np.nanmedian(found.stderr))
    if run.has(PILOT):
        # a draw of stratum s varies by at most its root mean square: (M/S)^2 each for S strata of equal mass M/S
        pilot = read_json(run.path(PILOT))
        every = np.arange(1, len(pilot["density"]) + 1)
        mass = float(np.exp(np.interp(every, pilot["t"], np.log(np.maximum(pilot["size"], 1e-12)))).sum())
        return mass / float(np.sqrt(run.recipe.scoring.strata * run.recipe.scoring.rounds))
    return None


def _note(run: Run) -> str:
    if any(scored_methods(run, s) for s in run.query_sets()):
        return "Expected widths from the standard errors of a scored set of this run."
    if needs_pilot(run) or not run.has(PILOT):
        return "Expected widths are unknown until the first scoring has made its pilot."
    return "Expected widths are upper bounds from the pilot; nothing is scored yet."
