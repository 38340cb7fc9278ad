"""What methods of a run cost, from the times that their tasks recorded (evaluation/timing.py)."""

from __future__ import annotations

from collections.abc import Iterable

from guda.evaluation.timing import Timing, rate
from guda.methods.base import Method, get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import load_queries, terms_folder
from guda.run.data import scored_groups
from guda.run.run import Run


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
