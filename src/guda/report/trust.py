"""How far to trust the answer: agreement with retraining (the oracle), in words and as marks of a small figure.

How far to trust the counterfactuals: the leakage matrix as a heat map, drift with intervals, the placebo null.

Colour says the sign (blue: explained worse, as it should be on the diagonal; orange: better) and, with the square root
of the size, how much: leakage is far smaller than forgetting and would otherwise be white beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import ValidationError

from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING
from guda.evaluation.intervals import Share
from guda.evaluation.results import DatasetEntry, Figure, read_entry
from guda.files import read_json
from guda.language import tr
from guda.methods.base import get_method
from guda.methods.health import DriftFigure, Health, read_health
from guda.report.cards import MethodView, Scale
from guda.run.run import Run
from guda.scoring.reference import QUANTILE, Null
from guda.table import decimals, measured, percent, plus_minus, probability, signed

METRIC = "top1"

FEW = 20  # pictures from which no claim can be confirmed


# What the table's columns say, for a reader who has not met them.
GLOSSARY = (
    ("Top-1", "share of pictures for which the method and the oracle rank the same group first"),
    ("MRR", "1 / (rank the method gives to the oracle's first group), averaged"),
    ("NDCG@3", "how well the first three groups match the oracle's order, early ranks counting most"),
    ("Top-3", "share of the oracle's first three groups that are among the method's first three"),
    ("RBO", "overlap of the two rankings from the top down (rank-biased overlap, p = 0.9)"),
    ("Spearman", "correlation of the two whole rankings; 0 is chance, 1 is the same order"),
    ("evals", "network evaluations, the unit of cost: forward of one image = 1, forward and backward = 3"),
)


@dataclass(frozen=True)
class Mark:
    """One method's Top-1 in the figure; all numbers are shares of 1."""

    name: str
    figure: Figure

    @property
    def text(self) -> str:
        return share(self.figure)


def share(figure: Figure) -> str:
    return f"{percent(figure.mean)} [{100 * figure.lo:.0f}, {100 * figure.hi:.0f}]"


def read_evaluation(run: Run, queries: str, n_queries: int, n_groups: int) -> DatasetEntry | None:
    """The stored evaluation of this query set; None if there is none."""
    from guda.steps import scores_folder

    path = scores_folder(run, queries) / "evaluation.json"
    if not path.is_file():
        return None
    try:
        entry = DatasetEntry.model_validate(read_json(path))
    except ValidationError as e:
        raise GudaError(
            "evaluation-damaged", f"{path} is damaged ({e.errors()[0]['msg']}); run: guda evaluate {run.root}"
        ) from None
    if entry.n_queries != n_queries or entry.n_groups not in (None, n_groups):
        raise GudaError(
            "evaluation-stale",
            f"{path} is of {entry.n_queries} queries and {entry.n_groups} groups, the run has {n_queries} and "
            f"{n_groups}; run: guda evaluate {run.root}",
        )
    return entry


def best_measured(entry: DatasetEntry, methods: Sequence[str]) -> str | None:
    """Of these methods the one that agreed best with retraining, ties by their order; None if none was measured."""
    measured_methods = [
        m for m in methods if m != CEILING and m in entry.methods and METRIC in entry.methods[m].metrics
    ]
    return max(measured_methods, key=lambda m: entry.methods[m].metrics[METRIC].mean, default=None)


def run_best(run: Run, methods: Sequence[str]) -> str | None:
    """The same by the run's own evaluation; None where there is none that can be read."""
    from guda.steps import choose_queries, scores_folder

    try:
        path = scores_folder(run, choose_queries(run)) / "evaluation.json"
        return best_measured(read_entry(path), methods) if path.is_file() else None
    except GudaError:  # several sets and none is the recipe's, or a damaged file: the report says which
        return None


def marks(entry: DatasetEntry) -> list[Mark]:
    return [Mark(m, e.metrics[METRIC]) for m, e in entry.methods.items() if m != CEILING and METRIC in e.metrics]


def ceiling(entry: DatasetEntry) -> Figure | None:
    return (entry.ceiling or {}).get(METRIC)


def chance(entry: DatasetEntry) -> float | None:
    return (entry.random or {}).get(METRIC)


def sentences(entry: DatasetEntry, method: str) -> list[str]:
    """The figure in words, for the method whose answers the page shows."""
    method_entry = entry.methods.get(method)
    texts = []
    if method_entry is not None and method != CEILING and METRIC in method_entry.metrics:
        texts.append(tr(
            "{method} ranks the same group first as real retraining for {share} of the {n} pictures.", method=method,
            share=share(method_entry.metrics[METRIC]), n=f"{entry.n_queries:,}",
        ))  # fmt: skip
        if (own := answered(entry, method)) is not None:
            texts[-1] += " " + tr("Of those that get an answer ({n}) for {share}.",
                                 n=f"{entry.figures['answered']:,.0f}", share=share(own))  # fmt: skip
    top = ceiling(entry)
    if top is not None:
        texts.append(tr(
            "Retraining is itself noisy: a second retraining agrees with the others for {share}. That is the ceiling; "
            "no method can be expected to agree much better than that.", share=share(top),
        ))  # fmt: skip
    else:
        texts.append(tr("No ceiling was measured: that needs at least two retrainings with different seeds."))
    guess = chance(entry)
    if guess is not None:
        texts.append(tr("Guessing would be right for {share}.", share=percent(guess)))
    return texts


def answered(entry: DatasetEntry, method: str) -> Figure | None:
    """Top-1 without foreign pictures, for which no group is named; None where there were none."""
    f, name = entry.figures, f"top1_answered.{method}"
    return Figure(mean=f[name], lo=f[f"{name}.lo"], hi=f[f"{name}.hi"]) if name in f else None


def agreed(share: Share) -> str:
    """91 % [86, 95]"""
    return f"{percent(share.mean)} [{100 * share.lo:.0f}, {100 * share.hi:.0f}]"


def claim_sentence(share: Share) -> str:
    """Beside a claim on a card."""
    if share.n == 1:
        return tr("claims of this strength: retraining agreed for {share} of 1 picture, given these models",
                  share=agreed(share))  # fmt: skip
    return tr("claims of this strength: retraining agreed for {share} of {n} pictures, given these models",
              share=agreed(share), n=f"{share.n:,}")  # fmt: skip


def headline(entry: DatasetEntry | None, method: str, oracle: bool) -> str:
    """Why the page leads with this method."""
    method_entry = None if entry is None else entry.methods.get(method)
    if method_entry is not None and METRIC in method_entry.metrics:
        best, top = share(method_entry.metrics[METRIC]), None if entry is None else ceiling(entry)
        text = tr("{method} is shown first because it agreed best with retraining, for {share} of pictures.",
                  method=method, share=best)  # fmt: skip
        if top is None:
            return text
        return text + " " + tr("One retraining agrees with the others for {share}.", share=share(top))
    if oracle:
        return tr("{method} is shown first; guda evaluate measures how far it agrees with retraining.", method=method)
    return tr("{method} is the recipe's first method; it was not validated against retraining.", method=method)


def calibration_sentence(method: str, shares: list[Share]) -> str:
    """How often retraining confirmed the method's most confident claims."""
    sure = shares[-1]
    assert sure.said is not None
    held = (
        "less than it claimed: the probability covers the noise of scoring only, not the error of the method."
        if sure.hi < sure.said
        else f"not contradicted{', but there are too few pictures to be certain' if sure.n < FEW else ''}."
    )
    return (
        f"When {method} gave its first group a probability of {sure.claim.replace('-', ' to ')} (on average "
        f"{probability(sure.said)}), retraining agreed for {agreed(sure)} of {sure.n:,} "
        f"picture{'' if sure.n == 1 else 's'}: {held}"
    )


NUMBERED = 16  # with more groups, numbers do not fit into the cells; they are in the tooltips

STRONGEST = 0.5  # opacity of a cell: text on it stays readable, on light and dark ground

DOTS = 300  # marks of a row in the figure of the null


@dataclass(frozen=True)
class Cell:
    kind: str  # CSS classes: pos | neg, and own on the diagonal
    strength: float
    text: str
    title: str


@dataclass(frozen=True)
class Line:
    """One counterfactual: its row of the matrix, and its drift as text and as percent of a track."""

    name: str
    cells: tuple[Cell, ...]
    drift: str
    style: str
    verdict: str


class HealthView:
    """One method's health, ready to be drawn; `scale` is shared, so that methods can be compared by eye."""

    def __init__(self, health: Health, scale: Scale) -> None:
        self.health, self.scale = health, scale
        self.matrix = np.array(health.matrix)
        self.beside = np.where(np.eye(len(self.matrix), dtype=bool), 0.0, self.matrix)
        self.digits = decimals(self.beside)
        self.numbered = len(self.matrix) <= NUMBERED

    @property
    def id(self) -> str:
        return self.health.method

    def lines(self) -> list[Line]:
        largest, verdicts = float(np.abs(self.matrix).max()) or 1.0, self.health.verdicts
        return [
            Line(name, tuple(self._cell(k, j, largest) for j in range(len(self.matrix))), self._drift(drift),
                 self._style(drift), verdicts[name])
            for k, (name, drift) in enumerate(zip(self.health.groups, self.health.drift, strict=True))
        ]  # fmt: skip

    def _cell(self, k: int, j: int, largest: float) -> Cell:
        value, error = float(self.matrix[k, j]), self.health.stderr[k][j]
        text = signed(value, self.digits)
        shown = text if error is None else f"{plus_minus(value, error, self.digits)} (standard error)"
        title = f"without {self.health.groups[k]}, images of {self.health.groups[j]}: {shown} nats"
        kind = ("neg" if value < 0 else "pos") + (" own" if k == j else "")
        strength = round(STRONGEST * math.sqrt(abs(value) / largest), 3)
        return Cell(kind, strength, text if self.numbered else "", title)

    def _drift(self, figure: DriftFigure) -> str:
        return " ".join(measured(figure.mean, figure.lo, figure.hi, self.digits))

    def _style(self, figure: DriftFigure) -> str:
        zero, mean, lo, hi = (self.scale.at(v) for v in (0.0, figure.mean, figure.lo, figure.hi))
        return f"--zero:{zero:g}%;--m:{mean:g}%;--l:{lo:g}%;--h:{hi - lo:.4g}%"

    def bands(self) -> list[tuple[str, list[str]]]:
        """(timesteps, drift of every group) from low to high noise."""
        return [(f"{b.low} ≤ t < {b.high}", [self._drift(d) for d in b.drift]) for b in self.health.bands]

    @cached_property
    def mean_drift(self) -> float:
        return float(np.mean([d.mean for d in self.health.drift]))

    def sentences(self, oracle: HealthView | None, subtracted: bool, kind: str = "elbo") -> list[str]:
        """The matrix in words; `kind` of the page's scores (scoring/reading.py)."""
        groups, drift = self.health.groups, [d.mean for d in self.health.drift]
        k, j = np.unravel_index(int(np.abs(self.beside).argmax()), self.beside.shape)
        own = float(np.diagonal(self.matrix).mean())
        texts = [
            f"Forgetting: {signed(own, self.digits)} nats on average on images of the removed group"
            f"{self._against(oracle, 'own')}.",
            f"Drift: {signed(self.mean_drift, self.digits)} nats on average on images of the other groups, from "
            f"{signed(min(drift), self.digits)} to {signed(max(drift), self.digits)} depending on the removed group"
            f"{self._against(oracle, 'drift')}.",
            f"Largest leak: {signed(float(self.beside[k, j]), self.digits)} nats on images of {groups[j]} when "
            f"{groups[k]} is removed.",
        ]
        texts.append(f"{unsound}." if (unsound := self.health.unsound()) else "All counterfactuals are sound.")
        if oracle is not self and kind.endswith("excess"):
            texts.append("The scores on this page are compared with the average picture, so most of the drift cancels.")
        elif oracle is not self:
            texts.append(
                "The drift has been subtracted from the scores on this page."
                if subtracted
                else "The drift is part of every score on this page; it says nothing about the group."
            )
        return texts

    def _against(self, oracle: HealthView | None, what: str) -> str:
        if oracle is None or oracle is self:
            return ""
        value = float(np.diagonal(oracle.matrix).mean()) if what == "own" else oracle.mean_drift
        return f" (real retraining: {signed(value, self.digits)})"


def read_views(run: Run, views: Sequence[MethodView], main: int) -> list[HealthView]:
    """Of every scored method that was checked; the page's main method first."""
    order = [views[main], *(v for i, v in enumerate(views) if i != main)]
    healths = [h for v in order if v.reading.models and (h := read_health(run, get_method(run, v.id))) is not None]
    if not healths:
        return []
    ends = np.array([[d.lo, d.hi] for h in healths for d in h.drift])
    return [HealthView(h, Scale.of(ends)) for h in healths]


class NullView:
    """The placebo scores beside the first groups' scores."""

    def __init__(self, view: MethodView, null: Null) -> None:
        self.view, self.null = view, null
        self.first = view.scores.first
        self.above = null.clears(view.scores)
        self.scale = Scale.of(null.scores.score, self.first)

    def sentences(self) -> list[str]:
        n, above, digits = len(self.above), int(self.above.sum()), self.view.digits
        half, line = (signed(self.null.quantile(q), digits) for q in (0.5, QUANTILE))
        chance = 1 - QUANTILE ** len(self.view.scores.groups)
        rest = f"; for the other {n - above:,} it does not stand out from placebo groups" if above < n else ""
        return [
            f"{self.null.n} placebo groups of {self.null.size:,} training images each, drawn at random from all "
            f"groups, were unlearned by {self.view.id} like any group. Their images have nothing in common, so their "
            "scores show what removing that many images does by itself.",
            f"Half of their scores on these pictures are below {half} {self.view.unit}, 95 % below {line}.",
            f"The first group’s score is above that line for {above:,} of {n:,} pictures{rest}.",
            f"The line is for one group: of {len(self.view.scores.groups)} groups without meaning, the first would "
            f"pass it for up to {percent(chance)} of the pictures. Placebos have the size of the median group; larger "
            "groups score higher because of their size alone.",
        ]

    def rows(self) -> list[tuple[str, str, list[float]]]:
        """(CSS class, label, places of its marks in percent) for the figure; thinned, keeping the ends."""
        return [
            ("placebo", f"{self.null.scores.score.size:,} placebo scores", self._marks(self.null.scores.score.ravel())),
            ("first", f"{len(self.first):,} scores of first groups", self._marks(self.first)),
        ]

    def _marks(self, values: np.ndarray) -> list[float]:
        ordered = np.sort(values)
        chosen = np.unique(np.linspace(0, len(ordered) - 1, min(DOTS, len(ordered))).round().astype(int))
        return [self.scale.at(float(v)) for v in ordered[chosen]]

    def line(self) -> float:
        return self.scale.at(self.null.quantile())
