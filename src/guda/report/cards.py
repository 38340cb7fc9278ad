"""What the page shows of one method's scores: a card per picture, a row per group, and the same as data for switching.

Everything is computed twice over: for whole groups, and per 1,000 images of a group (score / size * 1000), because a
large group has more to explain a picture with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from guda.language import tr
from guda.scoring.bars import Row, Scale, make_row
from guda.scoring.reading import LOG_UNIT, Kind, Verdict, axis_label, direction_text, verdict
from guda.scoring.reference import Null
from guda.scoring.scores import GroupScore, Scores
from guda.table import decimals, interval, measured, probability, signed

PER = 1000  # images

ODDS, LEAST = (
    3,
    0.005,
)  # groups of a picture whose probability of being first is shown beside its verdict, if it is more

ANSWERS = 6  # groups of an answer set that a card names; the others are counted


@dataclass(frozen=True)
class GroupLine:
    name: str
    size: int
    share: float
    mean: str
    per: str | None
    first: int
    first_share: float
    clear: int
    exemplars: tuple[str, ...]


class MethodView:
    """One method's scores, ready to be drawn."""

    def __init__(self, scores: Scores, sizes: Sequence[int], about: str, null: Null | None = None) -> None:
        self.null = None if null is None else null.quantile()  # what 95 % of placebo scores are below
        # a picture of another set has the placebos of this one
        self.scores = scores if self.null is None else replace(scores, floor=self.null)
        self.sizes, self.about = np.asarray(sizes, np.float64), about
        self.id, self.unit, self.estimand = scores.method, scores.unit, scores.estimand
        self.reading = scores.reading
        measured_intervals = scores.lo is not None and scores.hi is not None and bool(np.isfinite(scores.lo).any())
        self.lo, self.hi = (
            (scores.lo, scores.hi) if measured_intervals else (None, None)
        )  # NaN: a race saw the group only once
        self.digits = decimals(scores.score)
        self.above = None if null is None else self._above(null)

    def _above(self, null: Null) -> np.ndarray:
        """[Q]: 0 if the first score is not above 95 % of placebo scores, 2 if its whole interval is, 1 in between."""
        first = self.order[:, :1]
        lo = self.scores.score if self.lo is None else np.where(np.isnan(self.lo), self.scores.score, self.lo)
        whole = np.take_along_axis(lo, first, 1)[:, 0] > null.quantile()
        return null.clears(self.scores).astype(int) + (null.clears(self.scores) & whole)

    @property
    def axis(self) -> str:
        return axis_label(self.unit, self.scores.sign)

    @property
    def per_image(self) -> bool:
        """Whether a score per image has a meaning: only that of a difference of ELBOs has."""
        return self.reading.adds_up

    def direction(self, q: int) -> str:
        """Of a path divergence: whether the picture is explained worse or better without its first group, if known."""
        g = int(self.order[q, 0])
        return direction_text(tr("group {group}", group=self.scores.groups[g]), self.scores.cell(q, g).direction)

    def _scaled(self, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        lo, hi = (None if a is None else a * factor for a in (self.lo, self.hi))
        return self.scores.score * factor, lo, hi

    @cached_property
    def per_score(self) -> np.ndarray:
        """Score per 1,000 images of the group, [Q, G]."""
        return np.asarray(self.scores.score * (PER / self.sizes))

    @cached_property
    def per_order(self) -> np.ndarray:
        """Groups of every picture by their score per image, best first; those that did not race come last."""
        return np.lexsort((-self.per_score, ~self.scores.own), axis=1)

    @cached_property
    def per_digits(self) -> int:
        return decimals(self.per_score)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        return [picture.verdict() for picture in self.scores]

    @cached_property
    def per_verdicts(self) -> list[Verdict]:
        """By intervals alone: ranks are of whole groups, and placebos have one size."""
        score, lo, hi = self._scaled(PER / self.sizes)
        unit, order = f"{self.unit} {tr('per {n} images', n=f'{PER:,}')}", self.per_order

        def finite(array: np.ndarray | None, q: int, g: int) -> float | None:
            return None if array is None or np.isnan(array[q, g]) else float(array[q, g])

        return [
            verdict(
                [
                    GroupScore(
                        self.scores.groups[g], float(score[q, g]), finite(lo, q, g), finite(hi, q, g), rank, unit
                    )
                    for rank, g in enumerate(order[q], 1)
                ],
                self.per_digits,
                origin=self.scores[q].origin,
                validation=self.scores.compared,
            )
            for q in range(len(score))
        ]

    @cached_property
    def order(self) -> np.ndarray:
        """Groups of every picture, best first; ties by group order."""
        return np.argsort(self.scores.rank, axis=1, kind="stable")

    def first_probability(self) -> np.ndarray | None:
        """[Q]: of each picture's first group; None where the method has none."""
        p = self.scores.p_first
        return None if p is None or np.isnan(p).all() else np.take_along_axis(p, self.order[:, :1], 1)[:, 0]

    @property
    def odds_label(self) -> str:
        """The label of a picture's most probable groups. A calibrated set says what retraining would; else the
        probability is over trainings, whose spread must be known: by the noise of scoring alone nearly every picture
        would be sure, and retraining disagrees with such claims."""
        if self.scores.answer is not None:
            return tr("retraining puts one of these groups first (95 % of pictures)")
        return tr("probability of being first, over trainings")

    @property
    def tells_odds(self) -> bool:
        found = self.scores
        return found.answer is None and found.p_first is not None and found.stderr_training is not None

    def odds(self, q: int) -> list[tuple[int, float | None]]:
        """(group, probability of being first) of those that may well be, most probable first; of a calibrated answer
        set its groups, best first, without probabilities."""
        if self.scores.answer is not None:
            return [(int(g), None) for g in self.order[q] if self.scores.answer[q, g]]
        if not self.tells_odds:
            return []
        p = np.asarray(self.scores.p_first)[q]
        return [(int(g), float(p[g])) for g in np.argsort(-p, kind="stable") if p[g] >= LEAST]

    def named_odds(self, q: int) -> list[tuple[str, str]]:
        """The same in words: (group, probability)."""
        most = ODDS if self.scores.answer is None else ANSWERS
        return [(self.scores.groups[g], "" if p is None else probability(p)) for g, p in self.odds(q)[:most]]

    def unnamed(self, q: int) -> int:
        """Groups of the answer set that are counted, not named."""
        return 0 if self.scores.answer is None else max(0, len(self.odds(q)) - ANSWERS)

    def counts(self) -> dict[Kind, int]:
        """Pictures per verdict; the three that intervals alone decide are counted even where there are none."""
        pictures = Counter(v.kind for v in self.verdicts)
        kinds: tuple[Kind, ...] = ("unmeasured",) if self.lo is None else ("stands-out", "close", "nothing")
        others: tuple[Kind, ...] = ("foreign", "copy", "unmeasured")
        kinds += tuple(kind for kind in others if pictures[kind] and kind not in kinds)
        return {kind: pictures[kind] for kind in kinds}

    def above_zero(self) -> float | None:
        """Share of all scores whose interval is above zero."""
        return None if self.lo is None else float((self.lo > 0).mean())

    def mean_first(self) -> str:
        """Mean score of the first group."""
        return signed(float(self.scores.first.mean()), self.digits)

    def width(self, factor: float | np.ndarray = 1.0, digits: int | None = None) -> int:
        """Characters that a printed score with its interval needs."""
        digits = self.digits if digits is None else digits
        score, lo, hi = self._scaled(np.asarray(factor))
        if lo is None or hi is None:
            return max(len(signed(float(v), digits)) for v in (score.min(), score.max()))
        texts = zip(score.ravel(), lo.ravel(), hi.ravel(), strict=True)
        return max(len(" ".join(measured(s, a, b, digits))) for s, a, b in texts)

    def scale(self, q: int) -> Scale:
        """Of one picture: bars are compared within it."""
        line = None if self.null is None else np.array(self.null)
        return Scale.of(*(None if a is None else a[q] for a in (self.scores.score, self.lo, self.hi)), line)

    def rows(self, q: int) -> list[Row]:
        scale = self.scale(q)
        return [self._row(q, int(g), scale) for g in self.order[q]]

    def _row(self, q: int, g: int, scale: Scale) -> Row:
        more = ""
        if self.per_image:
            per = signed(float(self.per_score[q, g]), self.per_digits)
            unit, size = tr("per {n} images", n=f"{PER:,}"), tr("group of {n}", n=f"{int(self.sizes[g]):,}")
            more = f"; {per} {unit} ({size})"
        cell = self.scores.cell(q, g)
        if cell.p_first is not None and self.tells_odds:  # a calibrated set says it instead
            more += "; " + tr("first with probability {p}", p=probability(cell.p_first))
        if cell.predicted_lo is not None and cell.predicted_hi is not None:
            between = interval(cell.predicted_lo, cell.predicted_hi, self.digits)
            more += "; " + tr("another training would score {between} (95 %)", between=between)
        return make_row(g, cell, scale, self.digits, more)

    def group_lines(self, exemplars: Sequence[tuple[str, ...]]) -> list[GroupLine]:
        named = [v.kind != "foreign" for v in self.verdicts]  # a foreign picture names no group
        first = Counter(int(g) for g in self.order[named, 0])
        clear = Counter(int(g) for g, v in zip(self.order[:, 0], self.verdicts, strict=True) if v.kind == "stands-out")
        n = max(1, sum(named))
        lines = []
        for g, name in enumerate(self.scores.groups):
            own = self.scores.own[:, g]  # a score that a screen lent says nothing of this group

            def mean(values: np.ndarray, digits: int, own: np.ndarray = own, g: int = g) -> str:
                return signed(float(values[own, g].mean()), digits) if own.any() else tr("did not race")

            per = mean(self.per_score, self.per_digits) if self.per_image else None
            lines.append(
                GroupLine(
                    name, int(self.sizes[g]), float(self.sizes[g] / self.sizes.sum()),
                    mean(self.scores.score, self.digits), per, first[g], first[g] / n, clear[g],
                    exemplars[g],
                )
            )  # fmt: skip
        return lines

    def to_json(self) -> dict[str, Any]:
        """For switching in the browser; digits enough to print the same as here."""

        def table(values: np.ndarray | None) -> list[list[float | None]] | None:
            """Enough to print, and to divide by a group's size."""
            if values is None:
                return None
            return [[None if np.isnan(v) else float(f"{v:.9g}") for v in row] for row in values]

        def in_words(verdicts: list[Verdict]) -> list[list[str]]:
            return [[v.kind, v.headline, v.detail, v.note] for v in verdicts]

        score = table(self.scores.score)
        return {
            "id": self.id, "unit": self.unit, "axis": self.axis, "times": self.unit == LOG_UNIT,
            "about": self.about, "estimand": self.estimand,
            # races keep an order of their own: a group that left early may have a larger score by chance
            "order": None if (np.argsort(-np.array(score), axis=1, kind="stable") == self.order).all()
            else self.order.tolist(),
            "perOrder": None if self.scores.own.all() else self.per_order.tolist(),
            "score": score, "lo": table(self.lo), "hi": table(self.hi),
            "directions": None if self.scores.elbo is None else
            [self.direction(q) for q in range(len(self.scores.queries))],
            "null": self.null, "above": None if self.above is None else self.above.tolist(),
            "odds": None if self.scores.answer is None and not self.tells_odds else
            [[[g, None if p is None else float(f"{p:.3g}")] for g, p in self.odds(q)]
             for q in range(len(self.scores.queries))],
            "oddsLabel": self.odds_label, "answers": ANSWERS if self.scores.answer is not None else 0,
            "digits": self.digits, "width": self.width(), "verdicts": in_words(self.verdicts),
            "perDigits": self.per_digits, "perWidth": self.width(PER / self.sizes, self.per_digits),
            "perVerdicts": in_words(self.per_verdicts) if self.per_image else None,
        }  # fmt: skip
