"""What random groups of images (placebos) score on a set of pictures: the line that a group's score should be above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from guda.scoring.scores import Scores

QUANTILE = 0.95


@dataclass(frozen=True, eq=False)
class Null:
    """What placebos score on a set of pictures, all of them together."""

    scores: Scores
    size: int  # images of a placebo

    @property
    def n(self) -> int:
        return len(self.scores.groups)

    def quantile(self, q: float = QUANTILE) -> float:
        """The score that a share `q` of all (picture, placebo) scores is not above."""
        return float(np.quantile(self.scores.score, q))

    def clears(self, scores: Scores) -> np.ndarray:
        """bool [Q]: whether the first group's score is above 95 % of the placebo scores of the set.

        One line for all pictures. It is a line for one group: the first of G placebos would pass it for up to
        1 - 0.95^G of the pictures."""
        return np.asarray(scores.first > self.quantile())

    def to_json(self, scores: Scores) -> dict[str, Any]:
        return {
            "placebos": self.n, "images": self.size, "median": self.quantile(0.5), "q95": self.quantile(),
            "first_above": int(self.clears(scores).sum()), "of": len(scores.queries),
        }  # fmt: skip

    def sentence(self, unit: str) -> str:
        return (
            f"{self.n} placebo groups of {self.size:,} random images: half of their scores are below "
            f"{self.quantile(0.5):.3g} {unit}, 95 % below {self.quantile():.3g}"
        )
