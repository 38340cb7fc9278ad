"""Screening: which groups are worth a race, where there are too many to race them all.

A cheap method scores every group of every picture, its first `keep` groups start the race, and the race settles the
order among them. The cost per picture is that of the screen and of `keep` counterfactuals, whatever the number of
groups. What the screen misses is lost: its recall is measured (benchmarks/scale.py), not assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from guda.errors import GudaError
from guda.scoring.scores import Scores


@dataclass(frozen=True)
class Screen:
    method: str
    keep: int  # groups of each picture that go on

    @classmethod
    def parse(cls, text: str) -> Screen:
        """`posterior:10`"""
        match = re.fullmatch(r"([a-z][a-z0-9-]*):(\d+)", text.strip())
        if not match or int(match[2]) < 2:
            raise GudaError(f"screen {text!r}: write METHOD:KEEP, e.g. posterior:10; at least two groups must race")
        return cls(match[1], int(match[2]))

    @property
    def name(self) -> str:
        return f"{self.method}:{self.keep}"


@dataclass(frozen=True)
class Screened:
    """A screen and what it found."""

    screen: Screen
    scores: Scores

    @property
    def start(self) -> np.ndarray:
        """bool [Q, G]: who starts."""
        return np.asarray(self.scores.rank <= self.screen.keep)

    @property
    def estimand(self) -> str:
        return (
            f"; of each picture the first {self.screen.keep} groups by {self.screen.method} were raced, "
            f"the others have that method's score and no interval"
        )


def recall(screen: Scores, settled: Scores, keep: int) -> float:
    """Share of the pictures whose first group by `settled` is among the first `keep` of `screen`."""
    if screen.queries != settled.queries or screen.groups != settled.groups:
        raise GudaError(f"{screen.method} and {settled.method} were scored on other pictures or groups")
    first = settled.rank.argmin(axis=1)
    return float((screen.rank[np.arange(len(first)), first] <= keep).mean())
