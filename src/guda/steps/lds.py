"""Linear datamodeling scores of the methods of an evaluation, where the run has subset models (evaluation/lds.py)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from guda.data.queries import Queries
from guda.evaluation.lds import cross_fitted, lds, sums
from guda.methods.base import get_method
from guda.methods.datamodel import DatamodelMethod, SubsetValues, read_values
from guda.methods.subsets import find_subsets
from guda.run.run import Run
from guda.run.task import pending
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores

FEWEST = 8  # subset models; of fewer a rank correlation says nothing


def evaluated_subsets(
    run: Run, queries: Queries, estimand: str | None = None, bands: Bands | None = None
) -> SubsetValues | None:
    """What the run's subset models give these pictures; None where they are not trained or not evaluated."""
    if run.recipe.training is None:
        return None
    subsets = find_subsets(run)
    if not subsets.fitted() or pending(run, subsets.score(queries, set())):
        return None
    return read_values(subsets, queries, bands, estimand)


def lds_figures(
    run: Run, queries: Queries, scores: Mapping[str, Scores], bands: Bands | None = None
) -> dict[str, float]:  # fmt: skip
    """lds.<method> and lds_ceiling with .lo and .hi; nothing where there are no subset models."""
    values = evaluated_subsets(run, queries, bands=bands)
    if values is None or len(values.inside) < FEWEST:
        return {}
    model = get_method(run, "datamodel")
    assert isinstance(model, DatamodelMethod)
    v, ridge = values.values, model.config.ridge
    predicted: dict[str, np.ndarray] = {
        f"lds.{name}": sums(table.score, values.inside)
        for name, table in scores.items()
        if name != "datamodel" and table.groups == model.groups
    }
    predicted["lds.datamodel"] = cross_fitted(values.inside, v, ridge)
    predicted["lds_ceiling"] = cross_fitted(values.inside, v, ridge, folds=2)
    figures = {"lds_subsets": float(len(values.inside))}
    for name, sums_of in predicted.items():
        found = lds(sums_of, v)
        figures |= {name: found.mean, f"{name}.lo": found.lo, f"{name}.hi": found.hi}
    return figures
