"""Do scores add up? A pair of groups left out together against the sum of its singles, picture by picture.

    excess_q = score_q({a, b}) - score_q(a) - score_q(b),   nats; 0 = additive

Positive: the two groups stand in for each other, so that either alone is missed less than both. Negative: what the two
take away overlaps. All four models (full, without a, without b, without both) saw the same (t, eps), so the excess is
taken draw by draw and its noise is that of the difference. Means over queries, their ratio and the correlation over
queries have paired bootstrap intervals, conditional on the trained models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from guda.config import Config
from guda.evaluation.intervals import Figure, bootstrap_mean, percentile_interval, resampled_means
from guda.evaluation.tables import GIVEN, figure, seed_count
from guda.scoring.estimate import difference
from guda.table import Cell, Number, Table

Array = NDArray[np.float64]

ADDITIVE = "not separated from additive"

SIGN = "joint - sum > 0: each group stands in for the other; < 0: what they take away overlaps"


@dataclass(frozen=True)
class Additivity:
    """Of one method and one pair."""

    excess: Array  # nats [Q]
    joint: Figure
    total: Figure  # the sum of the singles
    difference: Figure
    ratio: Figure | None  # mean joint / mean sum; None where the sum may be 0
    correlation: Figure | None  # of joint and sum over queries; None where one of them is constant
    off: int | None  # queries whose own excess is told from 0; None without an error model


def additivity(joint: Array, one: Array, two: Array, *, grid: bool = False, n: int = 2000, seed: int = 0) -> Additivity:
    """From paired contributions [R, Q, S] of the pair and of its singles."""
    d = joint - one - two
    own = difference(d, grid=grid)
    x, y = joint.mean(axis=0).sum(axis=-1), (one + two).mean(axis=0).sum(axis=-1)
    total = bootstrap_mean(y, n, seed)
    ratio = None
    if total.separated:
        means = resampled_means(np.stack([x, y])[:, None], n, seed)
        ratio = percentile_interval(x.mean() / y.mean(), means[:, 0] / means[:, 1])
    return Additivity(
        excess=own.score, joint=bootstrap_mean(x, n, seed), total=total, difference=bootstrap_mean(x - y, n, seed),
        ratio=ratio, correlation=pearson(x, y, n, seed),
        off=None if own.lo is None or own.hi is None else int(((own.lo > 0) | (own.hi < 0)).sum()),
    )  # fmt: skip


def pearson(x: Array, y: Array, n: int = 2000, seed: int = 0) -> Figure | None:
    """Correlation over queries with its bootstrap interval; None where one of them is constant."""
    a, b = x - x.mean(), y - y.mean()
    if not a.any() or not b.any():
        return None
    moments = resampled_means(np.stack([a, b, a * a, b * b, a * b])[:, None], n, seed)
    ma, mb, aa, bb, ab = moments.T
    spread = np.sqrt(np.maximum(aa - ma**2, 0) * np.maximum(bb - mb**2, 0))
    whole = np.divide(ab - ma * mb, spread, out=np.zeros_like(spread), where=spread > 0)
    r = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    return percentile_interval(r, np.clip(whole, -1.0, 1.0))


def repeatability(excesses: Sequence[Array]) -> float | None:
    """Mean correlation of the excess between two retrainings of the pair and its singles; None with one seed."""
    if len(excesses) < 2 or any(np.ptp(e) == 0 for e in excesses):
        return None
    return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in combinations(excesses, 2)]))


class PairRow(Config):
    method: str
    a: str
    b: str
    joint: Figure = Field(description="mean score of the two groups left out together, nats")
    total: Figure = Field(description="mean sum of the two single scores, nats")
    difference: Figure = Field(description="joint - sum, nats")
    ratio: Figure | None = Field(description="mean joint / mean sum; null where the sum may be 0")
    correlation: Figure | None = Field(description="of joint and sum over queries")
    off: int | None = Field(
        description="queries whose own excess is beyond the noise of scoring at 95 %, given the models"
    )
    by_seed: list[FiniteFloat] | None = Field(None, description="LOGO: mean joint - sum of every seed, nats")
    repeat: FiniteFloat | None = Field(None, description="LOGO: correlation of the excess between two seeds")
    against_logo: Figure | None = Field(None, description="correlation over queries of this excess with LOGO's")


class PairsFile(Config):
    """RUN/pairs.json."""

    format: Literal["guda-pairs/1"] = "guda-pairs/1"
    queries: str
    n_queries: int
    seeds: list[int] = Field(description="of the LOGO oracle; empty where nothing was retrained")
    estimand: str
    unit: Literal["nats"] = "nats"
    sign: str = SIGN
    rows: tuple[PairRow, ...]


def pair_row(method: str, pair: tuple[str, str], own: Additivity, logo: Additivity | None,
             excesses: Sequence[Array] = (), n: int = 2000, seed: int = 0) -> PairRow:  # fmt: skip
    """`logo`: the oracle's excess, for a row of another method; `excesses`: the oracle's own, by seed."""
    return PairRow(
        method=method, a=pair[0], b=pair[1], joint=own.joint, total=own.total, difference=own.difference,
        ratio=own.ratio, correlation=own.correlation, off=own.off, repeat=repeatability(excesses),
        by_seed=[float(e.mean()) for e in excesses] or None,
        against_logo=None if logo is None else pearson(own.excess, logo.excess, n, seed),
    )  # fmt: skip


HEADER = ("pair, method", "joint", "sum of singles", "joint - sum", "joint / sum", "r(joint, sum)",
          "queries beyond scoring noise", "joint - sum by LOGO seed", "r(excess, LOGO's)")  # fmt: skip


def pairs_table(file: PairsFile) -> Table:
    def row(r: PairRow) -> tuple[Cell, ...]:
        joint, total, difference = (figure(f, "+.3g") for f in (r.joint, r.total, r.difference))
        if not r.difference.separated and isinstance(difference, Number):
            difference = f"{difference.text}, {ADDITIVE}"
        return (
            f"{r.a} + {r.b}, {r.method}", joint, total, difference, figure(r.ratio), figure(r.correlation),
            None if r.off is None else f"{r.off} of {file.n_queries}",
            ", ".join(f"{x:+.3g}" for x in r.by_seed) if r.by_seed else None,
            figure(r.against_logo) if r.repeat is None else f"{r.repeat:.2f} (one seed with another)",
        )  # fmt: skip

    title = (
        f"Two groups left out together against the sum of singles: {file.estimand} ({file.unit}), "
        f"{file.n_queries:,} queries{f', {seed_count(len(file.seeds))}' if file.seeds else ''}, 95 % intervals"
    )
    return Table.of(title, HEADER, map(row, file.rows), f"{file.sign}. {GIVEN}")
