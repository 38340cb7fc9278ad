"""What the answers cost: network evaluations and worker time, per method and per picture (evaluation/timing.py)."""

from __future__ import annotations

from dataclasses import dataclass

from guda.errors import GudaError
from guda.evaluation.timing import Timing
from guda.report.cards import MethodView
from guda.run.run import Run
from guda.steps.timing import measure
from guda.table import human_count, human_time

STAGES = {"train": "training the full model", "fit": "fitting counterfactuals and baselines, and retraining",
          "sample": "drawing the pictures", "pilot": "the pilot of the scoring plan", "score": "scoring",
          "likelihood": "exact likelihoods", "prompts": "writing prompts"}  # fmt: skip


@dataclass(frozen=True)
class CostLine:
    method: str
    timing: Timing | None
    n: int  # pictures

    def cells(self) -> tuple[str, ...]:
        """Fit of all groups: evaluations, time; one picture: evaluations, time; all pictures and the fit: time."""
        t = self.timing
        if t is None:
            return ("not recorded",) * 5
        total = t.total(self.n)
        return (
            human_count(t.fit_evals), human_time(t.fit_seconds), human_count(t.query_evals),
            _brief(t.query_seconds), human_time(total),
        )  # fmt: skip


def _brief(seconds: float | None) -> str:
    """One picture may take less than the tables' smallest unit."""
    return f"{1000 * seconds:.2g} ms" if seconds is not None and seconds < 0.1 else human_time(seconds)


HEADER = ("fit, all groups: evals", "time", "one picture: evals", "time", "fit and all pictures: time")


def cost_lines(run: Run, queries: str, views: list[MethodView], variant: str | None = None) -> list[CostLine]:
    """In the page's order. A race's own evaluations are known, its time is not booked apart."""
    return [CostLine(v.id, _timing(run, queries, v, variant), len(v.scores.queries)) for v in views]


def _timing(run: Run, queries: str, view: MethodView, variant: str | None) -> Timing | None:
    from guda.methods.base import get_method
    from guda.steps import evals_per_picture, upper_levels

    try:
        found = measure(run, get_method(run, view.id), queries)
        if variant is not None:
            levels = [*upper_levels(run, queries, view.id, variant), view.scores]
            evals = sum(evals_per_picture(run, scores) for scores in levels)
            spent = {"query_evals": evals, "query_seconds": None, "query_stderr": None}
            found = found.model_copy(update=spent)
        return found
    except GudaError:  # scores that were brought along, without the models that made them
        return None


def stage_lines(run: Run) -> list[tuple[str, str]]:
    """(stage, worker time) of the whole run, all methods and query sets together."""
    found = []
    for stage, name in STAGES.items():
        folders = sorted({p.parent for p in run.path("timings", stage).rglob("[!.]*.json")})
        seconds = [run.seconds(str(f.relative_to(run.path("timings")))) or 0.0 for f in folders]
        if seconds:
            found.append((name, human_time(sum(seconds))))
    return found
