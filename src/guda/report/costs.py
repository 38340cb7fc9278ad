"""What the answers cost: network evaluations and worker time, per method and per picture (evaluation/timing.py),
from the times that the run's tasks recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from guda.errors import GudaError
from guda.evaluation.timing import Timing, rate
from guda.methods.base import Method, get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import load_queries, terms_folder
from guda.report.cards import MethodView
from guda.run.data import scored_groups
from guda.run.run import Run
from guda.table import human_count, human_time


def measure(run: Run, method: Method, queries: str) -> Timing:
    """A fitted and scored method's cost, from what its tasks recorded."""
    n, groups = load_queries(run, queries).n, len(scored_groups(run))
    fit = [task for stage in method.fit_stages() for task in run.timings(stage)]
    stages = method.score_stages(queries, terms_folder(run).removeprefix("terms/"))
    scored = [task for stage in dict.fromkeys(stages) for task in run.timings(stage)]
    seeds, evals = 1, method.score_evals()
    fitted: float = groups
    if has_counterfactuals(method):
        fitted = sum(method.passes(g) for g in method.nodes())  # of a tree, those above too
        if method.seed_sets():
            seeds = len(method.seed_sets())
            shared, each = method.networks()
            evals *= (1 + groups) / (shared + each * groups)
    query: float | None = None
    stderr: float | None = None
    counted = [(s, e) for s, e in scored if e is not None]
    if method.counterfactuals and counted and len(counted) == len(scored):
        slope, error = rate(counted)
        query, stderr = slope * evals, None if error is None else error * evals
    elif scored:
        query = sum(s for s, _ in scored) / n / seeds
    return Timing(
        method=method.method_id, n_groups=groups, n_queries=n,
        fit_seconds=sum(s for s, _ in fit) / seeds if fit else None,
        query_seconds=query, query_stderr=stderr, fit_evals=method.fit_evals() * fitted, query_evals=evals,
    )  # fmt: skip


def timings(run: Run, queries: str, methods: Iterable[str]) -> list[Timing]:
    """By method id, in the given order."""
    return [measure(run, get_method(run, name), queries) for name in methods]


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
    from guda.steps import evals_per_picture, upper_levels

    try:
        timing = measure(run, get_method(run, view.id), queries)
        if variant is not None:
            levels = [*upper_levels(run, queries, view.id, variant), view.scores]
            evals = sum(evals_per_picture(run, scores) for scores in levels)
            spent = {"query_evals": evals, "query_seconds": None, "query_stderr": None}
            timing = timing.model_copy(update=spent)
        return timing
    except GudaError:  # scores that were brought along, without the models that made them
        return None


def stage_lines(run: Run) -> list[tuple[str, str]]:
    """(stage, worker time) of the whole run, all methods and query sets together."""
    lines = []
    for stage, name in STAGES.items():
        folders = sorted({p.parent for p in run.path("timings", stage).rglob("[!.]*.json")})
        seconds = [run.seconds(str(f.relative_to(run.path("timings")))) or 0.0 for f in folders]
        if seconds:
            lines.append((name, human_time(sum(seconds))))
    return lines
