"""What a report is about, read once: the pictures, every method's scores of them, the oracle and what was measured.

The page, the table (CSV) and the file for machines (JSON) are made from the same content, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.errors import GudaError, Mismatch
from guda.evaluation.intervals import Share, by_kind, by_probability
from guda.evaluation.results import DatasetEntry
from guda.files import digest_file
from guda.methods.terms import load_queries
from guda.report import trust
from guda.report.cards import MethodView
from guda.run.data import load_data, scored_data
from guda.run.models import model_digest
from guda.run.run import Run
from guda.scoring.null import Null
from guda.scoring.scores import Scores
from guda.scoring.verdict import LABELS


@dataclass(frozen=True, eq=False)
class Content:
    run: Run
    name: str  # of the query set
    variant: str | None  # the stop rule, where scores are raced
    data: ImageData  # the groups that were asked about
    queries: Queries
    views: list[MethodView]
    main: int  # whose answers are shown first
    nulls: dict[str, Null | None]
    entry: DatasetEntry | None

    @classmethod
    def read(cls, run: Run, name: str, variant: str | None = None) -> Content:
        from guda.steps import placebo_null

        data, queries = scored_data(run), load_queries(run, name)
        found = read_scores(run, data, queries, name, variant)
        # placebos are scored by the recipe's rounds, and a race estimates the same scores
        nulls = {s.method: placebo_null(run, name, s.method) for s in found}
        views = [MethodView(s, data.groups.sizes, _about(s.method), nulls[s.method]) for s in found]
        entry = None if variant else trust.read_evaluation(run, name, queries.n, len(data.groups))
        return cls(run, name, variant, data, queries, views, main_method(run, found), nulls, entry)

    @property
    def view(self) -> MethodView:
        return self.views[self.main]

    @cached_property
    def oracle(self) -> MethodView | None:
        """Retraining, where it was scored; beside raced scores stands the oracle by the recipe's rounds."""
        against = self.run.recipe.evaluation.against
        found = next((v for v in self.views if v.id == against), None)
        if found is None and self.variant is not None:
            from guda.steps import scored_methods

            if against in scored_methods(self.run, self.name):
                scores = read_scores(self.run, self.data, self.queries, self.name, None, only=against)[0]
                found = MethodView(scores, self.data.groups.sizes, _about(against))
        return found

    @cached_property
    def oracle_first(self) -> list[int] | None:
        return None if self.oracle is None else [int(g) for g in self.oracle.order[:, 0]]

    def agrees(self, view: MethodView) -> np.ndarray:
        """bool [Q]: whether retraining has the same first group."""
        assert self.oracle is not None
        return np.asarray(view.order[:, 0] == self.oracle.order[:, 0])

    def calibration(self, view: MethodView) -> tuple[list[Share], list[Share]] | None:
        """(by probability of being first, by verdict); None without an oracle, or for the oracle itself."""
        if self.oracle is None or view.id == self.oracle.id:
            return None
        agree, p = self.agrees(view), view.first_probability()
        order: list[str] = [*LABELS]
        kinds = by_kind([v.kind for v in view.verdicts], agree)
        return ([] if p is None else by_probability(p, agree)), sorted(kinds, key=lambda s: order.index(s.claim))

    def digests(self) -> dict[str, str]:
        """SHA-256 of what went in: weights, data, pictures and the files of scores."""
        from guda.steps import scores_path

        files = [scores_path(self.run, self.name, v.id, self.variant) for v in self.views]
        return {
            "Model weights": _model_digest(self.run), "Training data": load_data(self.run).digest,
            "Pictures": self.queries.digest,
            **{str(f.relative_to(self.run.root)): digest_file(f) for f in files},
        }  # fmt: skip


def read_scores(
    run: Run, data: ImageData, queries: Queries, name: str, variant: str | None = None, only: str | None = None
) -> list[Scores]:
    """Every method's scores of the set, refused where they are of other pictures or groups."""
    from guda.steps import scored_methods, scores_path

    methods = scored_methods(run, name, variant) if only is None else [only]
    stop, _, screen = (variant or "").partition("+")
    fix = f"run: guda score {run.root} --queries {name}" + (f" --stop {stop}" if stop else "")
    fix += f" --screen {screen.replace('=', ':')}" if screen else ""
    if not methods:
        raise GudaError(
            "scores-missing", f"no scores of {name!r} {f'by {variant} ' if variant else ''}in {run.root}; {fix}"
        )
    found = [Scores.read(scores_path(run, name, m, variant)) for m in methods]
    for scores in found:
        if scores.queries != queries.ids:
            raise Mismatch(
                "scores-other-queries",
                f"{scores.method}: scores are of other queries than {name!r}",
                len(scores.queries),
                queries.n,
                fix,
            )
        if scores.groups != data.groups.names:
            raise Mismatch(
                "scores-other-groups",
                f"{scores.method}: scores are of other groups",
                scores.groups,
                data.groups.names,
                fix,
            )
    return found


def main_method(run: Run, found: list[Scores]) -> int:
    """Which method's answers the page shows first: an ELBO method that is not the oracle, by recipe order."""
    oracle = run.recipe.evaluation.against
    for fits in (lambda s: s.reading.models and s.method != oracle, lambda s: s.method != oracle):
        for i, scores in enumerate(found):
            if fits(scores):
                return i
    return 0


def _model_digest(run: Run) -> str:
    try:
        return model_digest(run, "base")
    except GudaError:
        return "not recorded"


def _about(method: str) -> str:
    from guda.methods.base import METHODS

    found: Any = METHODS.get(method)
    return found.summary if found else ""
