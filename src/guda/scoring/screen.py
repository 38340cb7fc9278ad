"""Screening: which groups are worth a race, where there are too many to race them all.

    posterior:10   a cheap method scores every group of every picture, and its first ten start the race. The cost of a
                   picture is that of the screen and of ten counterfactuals, whatever the number of groups
    tree:2         groups of groups: the groups at the top race first, the parts of the first two race next, and so on
                   down to the leaves (methods/descent.py). The cost grows with the depth of the tree

The race settles the order among those that start. What a screen misses is lost: its recall is measured
(benchmarks/many_groups.py), not assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from guda.errors import GudaError
from guda.scoring.race import StopRule
from guda.scoring.scores import Scores

TREE = "tree"


@dataclass(frozen=True)
class Screen:
    method: str  # or TREE
    keep: int  # groups of each picture that go on, or whose parts do

    @classmethod
    def parse(cls, text: str) -> Screen:
        """`posterior:10`, `tree:2`"""
        match = re.fullmatch(r"([a-z][a-z0-9-]*):(\d{1,6})", text.strip())
        if not match or int(match[2]) < (1 if match[1] == TREE else 2):
            raise GudaError(
                "screen-invalid",
                f"screen {text!r}: write METHOD:KEEP, e.g. posterior:10, where two groups at least must race; "
                "or tree:KEEP, e.g. tree:2",
            )
        return cls(match[1], int(match[2]))

    @property
    def name(self) -> str:
        return f"{self.method}:{self.keep}"

    def check(self, rule: StopRule) -> None:
        if self.method != TREE and rule.top >= self.keep:
            raise GudaError(
                "stop-already-settled",
                f"stop rule {rule.name}: of the {self.keep} groups that --screen {self.name} keeps, top{rule.top} is "
                "settled from the start; keep more",
            )


@dataclass(frozen=True)
class Screened:
    """Who starts a race, and what is said of those that do not."""

    start: np.ndarray  # bool [Q, G]
    score: np.ndarray  # [Q, G] nats, of groups that do not start
    estimand: str

    @classmethod
    def by(cls, screen: Screen, scores: Scores) -> Screened:
        """The first by a cheap method."""
        told = (
            f"; of each picture the first {screen.keep} groups by {screen.method} were raced, "
            "the others have that method's score and no interval"
        )
        return cls(np.asarray(scores.rank <= screen.keep), scores.score, told)


def caught(screen: Scores, settled: Scores, keep: int) -> np.ndarray:
    """bool [Q]: the pictures whose first group by `settled` is among the first `keep` of `screen`."""
    if screen.queries != settled.queries or screen.groups != settled.groups:
        raise GudaError(
            "screen-other-queries", f"{screen.method} and {settled.method} were scored on other pictures or groups"
        )
    first = settled.rank.argmin(axis=1)
    return np.asarray(screen.rank[np.arange(len(first)), first] <= keep)
