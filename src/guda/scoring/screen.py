"""Screens: which groups are worth a race, where there are too many to race them all.

    posterior:10                          the first ten groups by one cheap method start
    posterior+dtrak+similarity-pixel:10   the first ten by several, fused by their ranks
    tree:2                                of a tree of groups: the parts of the two first, level by level

Cheap methods err differently, so that a group which one of them misses may be among the first of another. Their scores
have different units, but ranks can be added up: each group gets the sum of 1 / (60 + rank) over the methods (reciprocal
rank fusion, Cormack et al. 2009).

A group that the screen misses cannot win, so a screen comes with its recall (`guda evaluate --screen`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from guda.errors import GudaError
from guda.scoring.race import StopRule
from guda.scoring.scores import Scores

TREE = "tree"

SCREENER = "posterior"  # its path divergence needs no network either

FUSION = 60  # how little the very first places count more than the next


@dataclass(frozen=True)
class Screen:
    methods: tuple[str, ...]  # or TREE alone
    keep: int  # groups of each picture that start, or whose parts do

    @classmethod
    def parse(cls, text: str) -> Screen:
        """`posterior:10`, `posterior+dtrak:10`, `tree:2`; a number alone is of `posterior`."""
        text = text if ":" in text else f"{SCREENER}:{text.strip()}"
        match = re.fullmatch(r"([a-z][a-z0-9-]*(?:\+[a-z][a-z0-9-]*)*):(\d{1,6})", text.strip())
        methods = tuple(match[1].split("+")) if match else ()
        tree = methods == (TREE,)
        if not match or int(match[2]) < (1 if tree else 2) or (TREE in methods and not tree):
            raise GudaError(
                "screen-invalid",
                f"screen {text!r}: write METHOD:KEEP, e.g. posterior:10 or posterior+dtrak:10, where two groups at "
                "least must race; or tree:KEEP, e.g. tree:2",
            )
        if len(set(methods)) < len(methods):
            raise GudaError("screen-invalid", f"screen {text!r}: name every method once")
        return cls(methods, int(match[2]))

    @property
    def tree(self) -> bool:
        return self.methods == (TREE,)

    @property
    def name(self) -> str:
        return f"{'+'.join(self.methods)}:{self.keep}"

    def check(self, rule: StopRule) -> None:
        if not self.tree and rule.top >= self.keep:
            raise GudaError(
                "stop-already-settled",
                f"stop rule {rule.name}: of the {self.keep} groups that --screen {self.name} keeps, top{rule.top} is "
                "settled from the start; keep more",
            )


def fused_ranks(tables: Mapping[str, Scores]) -> np.ndarray:
    """int [Q, G], 1 = first, by reciprocal ranks; of one method its own ranks."""
    ranks = [table.rank for table in tables.values()]
    if len(ranks) == 1:
        return np.asarray(ranks[0])
    first = next(iter(tables.values()))
    for table in tables.values():
        _check_same(table, first)
    fused = np.sum([1 / (FUSION + rank) for rank in ranks], axis=0)
    return np.asarray((-fused).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 1)


def _check_same(one: Scores, other: Scores) -> None:
    if one.queries != other.queries or one.groups != other.groups:
        raise GudaError(
            "screen-other-queries", f"{one.method} and {other.method} were scored on other pictures or groups"
        )


@dataclass(frozen=True)
class Screened:
    """Who starts a race, and what is said of those that do not."""

    start: np.ndarray  # bool [Q, G]
    score: np.ndarray  # [Q, G] nats, of groups that do not start
    estimand: str

    @classmethod
    def by(cls, screen: Screen, tables: Mapping[str, Scores]) -> Screened:
        """The first by cheap methods, of which the first has scores in nats."""
        whose = "that method" if len(screen.methods) == 1 else screen.methods[0]
        estimand = (
            f"; of each picture the first {screen.keep} groups by {' + '.join(screen.methods)} were raced, "
            f"the others have {whose}'s score and no interval"
        )
        return cls(np.asarray(fused_ranks(tables) <= screen.keep), tables[screen.methods[0]].score, estimand)


def caught(screen: Mapping[str, Scores], settled: Scores, keep: int) -> np.ndarray:
    """bool [Q]: the pictures whose first group by `settled` is among the first `keep` of the screen's methods."""
    for table in screen.values():
        _check_same(table, settled)
    first = settled.rank.argmin(axis=1)
    return np.asarray(fused_ranks(screen)[np.arange(len(first)), first] <= keep)


def kept_known(screen: Mapping[str, Scores], known: Mapping[str, Sequence[str]], keep: int) -> np.ndarray:
    """bool [Q]: the pictures of which a right group, by `known`, is among the first `keep` of the screen's methods."""
    first = next(iter(screen.values()))
    right = np.array([[group in known[query] for group in first.groups] for query in first.queries])
    return np.asarray((right & (fused_ranks(screen) <= keep)).any(axis=1))
