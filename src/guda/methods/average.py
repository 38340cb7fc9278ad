"""The average picture of a run's model: the recipe's own samples, scored like any query (see scoring/excess.py)."""

from __future__ import annotations

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.run.samples import average_name
from guda.scoring.excess import Excess, average, positions


def average_pictures(run: Run) -> Queries:
    """The run's own samples; they are drawn before anything is scored by them."""
    name = average_name(run)
    if not run.has(f"queries/{name}/index.json"):
        raise GudaError("average-missing", f"excess scores need samples of the model; run: guda sample {run.root}")
    return load_queries(run, name)


def make_excess(run: Run, queries: Queries, contributions: np.ndarray, pictures: Queries) -> Excess:
    """From the paired contributions [R, N, G, S] of the average's `pictures`."""
    log = run.recipe.scoring.estimand == "path"
    return average(contributions.mean(axis=0).sum(axis=-1), log, positions(queries, pictures))
