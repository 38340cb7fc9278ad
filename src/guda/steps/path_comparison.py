"""The comparison with the oracle under another estimand, beside the run's own: path divergence, in excess of the
average picture.

Tasks read the recipe from the run folder, so its scoring section is changed while they run and restored afterwards. The
scores and their evaluation go to folders of their own; the run's evaluation.json stays.
"""

from __future__ import annotations

from pathlib import Path

from guda.evaluation.results import DatasetEntry
from guda.methods.base import get_method
from guda.run.run import Run
from guda.steps.evaluate import evaluate
from guda.steps.fit import Engine
from guda.steps.score import score
from guda.steps.settings import override

OTHER = {"estimand": "path", "excess": True, "drift": "keep"}

FOLDER = "path-excess"


def path_methods(run: Run) -> list[str]:
    """Those of the recipe that have counterfactuals; for others there is only one kind of score."""
    found = [get_method(run, m) for m in run.recipe.methods]
    return [m.method_id for m in found if m.counterfactuals and m.ranks_groups]


def evaluate_by_path(run: Run, name: str, engine: Engine) -> DatasetEntry:
    """Score one query set under the other estimand, by the same methods, and compare with the oracle's own."""
    other = override(run, scoring=OTHER)
    score(other, name, path_methods(other), engine)
    return evaluate(other, name, own=False)


def path_evaluation(run: Run, name: str) -> Path:
    """Where its evaluation is."""
    return run.path("scores", name, FOLDER, "evaluation.json")
