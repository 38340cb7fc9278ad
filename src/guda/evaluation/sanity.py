"""Sanity: pictures whose group is known, scored like any others. How often is the right group first, and how often were
the claims right?

A held-out real picture is neither made by the model nor a training image, so no training image is its cause. But a
method that cannot recognise its group will not recognise the group that shaped a generated picture. Intervals are
binomial (Clopper and Pearson), over other pictures like these, GIVEN THESE MODELS: all pictures meet the same models,
so nothing is claimed about other trainings.

Claims are those that the method makes of such pictures. Where its answers are calibrated against retraining, the claim
is the answer set, and a probability of being first, which counts the noise of scoring alone, is not made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.evaluation.intervals import clopper_pearson
from guda.scoring.reading import LABELS, Verdict
from guda.scoring.scores import Scores
from guda.table import Cell, Column, Number, Table, number, percent

SURE = 0.95  # probability of being first from which on it counts as a claim


class Right(Config):
    """Of `n` pictures, so many had the right group first."""

    n: int
    right: int
    lo: float | None = Field(default=None, description="binomial 95 % interval, given these models; null: no pictures")
    hi: float | None = None

    @classmethod
    def of(cls, right: np.ndarray) -> Right:
        k, n = int(right.sum()), len(right)
        lo, hi = clopper_pearson(k, n) if n else (None, None)
        return cls(n=n, right=k, lo=lo, hi=hi)

    @property
    def share(self) -> float | None:
        return self.right / self.n if self.n else None


class MethodSanity(Config):
    first: Right = Field(description="pictures whose right group is ranked first")
    chance: float = Field(description="the share that guessing has right")
    mean_rank: float = Field(description="mean rank of the right group, of several the best")
    chance_rank: float = Field(description="the mean rank by guessing")
    groups: int = Field(description="groups that are ranked")
    verdicts: dict[str, int] = Field(description="pictures by their kind of verdict")
    stands_out: Right = Field(description="pictures whose verdict is stands-out: was that group the right one?")
    sure: Right | None = Field(
        default=None,
        description="pictures whose first group has a probability of being first above 0.95; null: it is not claimed",
    )
    in_set: Right | None = Field(
        default=None, description="calibrated answer sets: is the right group in the set? null: not calibrated"
    )
    set_size: float | None = Field(default=None, description="mean number of groups in these sets")


class Sanity(Config):
    """scores/<set>/.../sanity.json"""

    queries: str
    estimand: str
    pictures: dict[str, int] = Field(description="pictures of each group")
    methods: dict[str, MethodSanity]
    known: dict[str, tuple[str, ...]] = Field(
        default={}, description="by picture, the ranked groups it is in; none in files of before 2026-11"
    )


def measure(scores: Scores, groups: Mapping[str, Sequence[str]], verdicts: Mapping[str, Verdict]) -> MethodSanity:
    """`groups`: of every picture id its right groups, at least one of those ranked; any of them will do."""
    right = np.array([[g in groups[q] for g in scores.groups] for q in scores.queries])
    if not right.any(axis=1).all():
        q = scores.queries[int(np.flatnonzero(~right.any(axis=1))[0])]
        raise ValueError(f"none of the groups of {q!r} is ranked")
    rank = np.where(right, scores.rank, right.shape[1] + 1).min(axis=1)
    hit, many = rank == 1, right.sum(axis=1)
    kinds = np.array([verdicts[q].kind for q in scores.queries])
    found = Counter(kinds.tolist())
    sure, in_set, size = None, None, None
    if scores.answer is not None:
        sets = scores.answer[kinds != "foreign"] > 0  # nothing is claimed of a foreign picture
        in_set = Right.of((sets & right[kinds != "foreign"]).any(axis=1))
        size = float(sets.sum(axis=1).mean()) if len(sets) else None
    elif scores.p_first is not None and np.isfinite(scores.p_first).any():
        first = np.take_along_axis(scores.p_first, scores.rank.argmin(axis=1)[:, None], axis=1)[:, 0]
        sure = Right.of(hit[(first > SURE) & (kinds != "foreign")])
    return MethodSanity(
        first=Right.of(hit), chance=float((many / right.shape[1]).mean()), mean_rank=float(rank.mean()),
        chance_rank=float(((right.shape[1] + 1) / (many + 1)).mean()), groups=right.shape[1],
        verdicts={kind: found[kind] for kind in LABELS if found[kind]},
        stands_out=Right.of(hit[kinds == "stands-out"]), sure=sure, in_set=in_set, set_size=size,
    )  # fmt: skip


def table(found: Sanity) -> Table:
    columns = (
        "method", Column("right first", interval=True), "chance", "mean rank", "chance",
        Column("stands out", interval=True), Column("first > 95 %", interval=True), Column("in its set", interval=True),
        "groups in a set",
    )  # fmt: skip
    rows = [
        (
            name, _share(m.first), Number(m.chance, percent(m.chance)), number(m.mean_rank, 1),
            number(m.chance_rank, 1), _share(m.stands_out), None if m.sure is None else _share(m.sure),
            None if m.in_set is None else _share(m.in_set), None if m.set_size is None else number(m.set_size, 1),
        )
        for name, m in found.methods.items()
    ]  # fmt: skip
    n = sum(found.pictures.values())
    note = (
        "Right first: the picture's own group is ranked first. Stands out, first > 95 %: the same for pictures where a "
        "group stands out, or has a probability of being first above 95 %. In its set: pictures whose calibrated "
        "answer set contains their own group. Brackets: binomial 95 % intervals over pictures, given these models. "
        "These pictures are real and were not trained on: no training image caused them, but a method "
        f"should still recognise their group. Estimand: {found.estimand}."
    )
    return Table.of(f"{n} held-out pictures of known groups ({found.queries})", columns, rows, note, "sanity")


def _share(found: Right) -> Cell:
    if found.share is None or found.lo is None or found.hi is None:
        return "no picture"
    text = f"{found.right} of {found.n}: {found.share:.2f} [{found.lo:.2f}, {found.hi:.2f}]"
    return Number(found.share, text, found.lo, found.hi)


def verdict_lines(found: Sanity) -> list[str]:
    """How often each kind of verdict occurred, a line per method."""
    return [
        f"{name}: " + ", ".join(f"{n} {LABELS[kind].lower()}" for kind, n in m.verdicts.items())  # type: ignore[index]
        for name, m in found.methods.items()
    ]
