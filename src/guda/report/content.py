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
from guda.evaluation.intervals import Share, bin_of, by_kind, by_probability
from guda.evaluation.results import DatasetEntry
from guda.files import digest_file
from guda.methods.terms import load_queries
from guda.report import trust
from guda.report.cards import MethodView
from guda.run.data import load_data, scored_data
from guda.run.models import model_digest
from guda.run.run import Run
from guda.scoring.reading import LABELS
from guda.scoring.reference import Null
from guda.scoring.scores import Scores


@dataclass(frozen=True, eq=False)
class Content:
    run: Run
    name: str  # of the query set
    variant: str | None  # the stop rule, where scores are raced
    data: ImageData  # the groups that are scored
    queries: Queries
    views: list[MethodView]
    main: int  # whose answers are shown first
    nulls: dict[str, Null | None]
    entry: DatasetEntry | None

    @classmethod
    def read(cls, run: Run, name: str, variant: str | None = None) -> Content:
        from guda.steps import placebo_null

        data, queries = scored_data(run), load_queries(run, name)
        scores = read_scores(run, data, queries, name, variant)
        # placebos are scored by the recipe's rounds, and a race estimates the same scores
        nulls = {s.method: placebo_null(run, name, s.method) for s in scores}
        views = [MethodView(s, data.groups.sizes, _about(s.method), nulls[s.method]) for s in scores]
        entry = None if variant else trust.read_evaluation(run, name, queries.n, len(data.groups))
        return cls(run, name, variant, data, queries, views, main_method(run, scores, entry), nulls, entry)

    @property
    def view(self) -> MethodView:
        return self.views[self.main]

    @cached_property
    def oracle(self) -> MethodView | None:
        """Retraining, where it was scored; beside raced scores stands the oracle by the recipe's rounds."""
        against = self.run.recipe.evaluation.against
        view = next((v for v in self.views if v.id == against), None)
        if view is None and self.variant is not None:
            from guda.steps import scored_methods

            if against in scored_methods(self.run, self.name):
                scores = read_scores(self.run, self.data, self.queries, self.name, None, only=against)[0]
                view = MethodView(scores, self.data.groups.sizes, _about(against))
        return view

    @cached_property
    def oracle_first(self) -> list[int] | None:
        return None if self.oracle is None else [int(g) for g in self.oracle.order[:, 0]]

    def agrees(self, view: MethodView) -> np.ndarray:
        """bool [Q]: whether retraining has the same first group."""
        assert self.oracle is not None
        return np.asarray(view.order[:, 0] == self.oracle.order[:, 0])

    @cached_property
    def seed_firsts(self) -> np.ndarray:
        """int [S, Q]: the first group by each retraining alone; S = 0 where their scores are not kept."""
        from guda.methods.base import get_method
        from guda.steps import scores_path

        firsts = []
        if self.oracle is not None:
            oracle = get_method(self.run, self.oracle.id)
            for seed in oracle.independent_seeds():
                path = scores_path(self.run, self.name, f"{oracle.method_id}-s{seed}")
                if path.is_file() and (scores := Scores.read(path)).queries == self.queries.ids:
                    firsts.append(np.argsort(scores.rank, axis=1, kind="stable")[:, 0])
        return np.array(firsts, np.int64).reshape(-1, self.queries.n)

    def calibration(self, view: MethodView) -> tuple[list[Share], list[Share]] | None:
        """(by probability of being first, by verdict); None without an oracle, or for the oracle itself."""
        if self.oracle is None or view.id == self.oracle.id:
            return None
        named = np.array([v.kind != "foreign" for v in view.verdicts])  # no group is named for the others
        agree, p = self.agrees(view)[named], view.first_probability()
        alone = np.asarray(view.order[:, 0] == self.seed_firsts)[:, named]
        order: list[str] = [*LABELS]
        kinds = by_kind([v.kind for v in view.verdicts if v.kind != "foreign"], agree, alone)
        bins = [] if p is None else by_probability(p[named], agree, alone=alone)
        return bins, sorted(kinds, key=lambda s: order.index(s.claim))

    def claims(self, view: MethodView) -> tuple[list[str], list[int]] | None:
        """(sentences, which of them stands beside each picture's claim, -1: none): how often claims of that strength
        were right; None where nothing was retrained, or of retraining itself."""
        if (calibration := self.calibration(view)) is None:
            return None
        bins, kinds = calibration
        p = view.first_probability()
        place = {s.claim: i for i, s in enumerate([*bins, *kinds])}
        strengths = [
            (None if p is None or np.isnan(p[q]) else bin_of(float(p[q]))) or v.kind
            for q, v in enumerate(view.verdicts)
        ]
        named = [v.kind in ("stands-out", "close", "unmeasured") for v in view.verdicts]
        return (
            [trust.claim_sentence(s) for s in (*bins, *kinds)],
            [place[s] if is_named else -1 for s, is_named in zip(strengths, named, strict=True)],
        )

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
    scores = [Scores.read(scores_path(run, name, m, variant)) for m in methods]
    for s in scores:
        if s.queries != queries.ids:
            raise Mismatch(
                "scores-other-queries",
                f"{s.method}: scores are of other queries than {name!r}",
                len(s.queries),
                queries.n,
                fix,
            )
        if s.groups != data.groups.names:
            raise Mismatch(
                "scores-other-groups",
                f"{s.method}: scores are of other groups",
                s.groups,
                data.groups.names,
                fix,
            )
    return scores


def main_method(run: Run, scores: list[Scores], entry: DatasetEntry | None = None) -> int:
    """Which method's answers are shown first: among those with counterfactual models, the one that agreed best with
    retraining; where that was not measured, the recipe's first. Never the oracle, where there is another."""
    oracle = run.recipe.evaluation.against
    if entry is not None:
        ids = [s.method for s in scores]
        if best := trust.best_measured(entry, [s.method for s in scores if s.reading.models and s.method != oracle]):
            return ids.index(best)
    for fits in (lambda s: s.reading.models and s.method != oracle, lambda s: s.method != oracle):
        for i, of_method in enumerate(scores):
            if fits(of_method):
                return i
    return 0


def _model_digest(run: Run) -> str:
    try:
        return model_digest(run, "base")
    except GudaError:
        return "not recorded"


def _about(method: str) -> str:
    from guda.methods.base import METHODS

    cls: Any = METHODS.get(method)
    return cls.summary if cls else ""
