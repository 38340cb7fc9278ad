"""Scores: the result. For every query and group: nats (or the method's own unit), error, interval and rank.

Sign: positive = the group mattered (the model explains the picture worse without it). Methods without an error model
have nulls for stderr, lo and hi.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from guda.data.groups import suggestion
from guda.errors import GudaError
from guda.runs.store import read_table, write_table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SIGN = "positive = the group mattered"


@dataclass(frozen=True)
class GroupScore:
    group: str
    score: float
    lo: float | None
    hi: float | None
    rank: int
    unit: str

    def __str__(self) -> str:
        interval = "" if self.lo is None else f" [{self.lo:+.2f}, {self.hi:+.2f}]"
        return f"{self.rank}. {self.group}: {self.score:+.2f}{interval} {self.unit}"


@dataclass(frozen=True)
class QueryScores:
    """One picture's groups, best first."""

    query: str
    ranked: tuple[GroupScore, ...]

    def top(self, n: int) -> tuple[GroupScore, ...]:
        return self.ranked[:n]

    def __str__(self) -> str:
        return "\n".join([self.query, *(f"  {g}" for g in self.ranked)])


@dataclass(frozen=True, eq=False)
class Scores:
    method: str
    unit: str
    estimand: str  # what is estimated, with t_max: named in every output
    queries: tuple[str, ...]
    groups: tuple[str, ...]
    score: np.ndarray  # float64 [Q, G]
    n_evals: int  # network evaluations behind each (query, group) score
    stderr: np.ndarray | None = None
    lo: np.ndarray | None = None
    hi: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.score.shape != (len(self.queries), len(self.groups)):
            raise ValueError(f"scores are {self.score.shape}, not {(len(self.queries), len(self.groups))}")
        if not np.isfinite(self.score).all():
            q, g = np.argwhere(~np.isfinite(self.score))[0]
            raise GudaError(f"{self.method}: the score of {self.groups[g]!r} for {self.queries[q]!r} is not a number")

    @property
    def rank(self) -> np.ndarray:
        """1 = the group that mattered most; ties by group order."""
        order = np.argsort(-self.score, axis=1, kind="stable")
        return np.argsort(order, axis=1, kind="stable") + 1

    def __getitem__(self, query: str) -> QueryScores:
        if query not in self.queries:
            raise GudaError(f"no query {query!r} among the {len(self.queries)} scored{suggestion(query, self.queries)}")
        q = self.queries.index(query)
        rank = self.rank[q]

        def value(array: np.ndarray | None, g: int) -> float | None:
            return None if array is None else float(array[q, g])

        items = [
            GroupScore(name, float(self.score[q, g]), value(self.lo, g), value(self.hi, g), int(rank[g]), self.unit)
            for g, name in enumerate(self.groups)
        ]
        return QueryScores(query, tuple(sorted(items, key=lambda i: i.rank)))

    def to_table(self) -> pa.Table:
        import pyarrow as pa

        n_queries, n_groups = self.score.shape
        n = n_queries * n_groups

        def column(array: np.ndarray | None) -> pa.Array:
            return pa.nulls(n, pa.float64()) if array is None else pa.array(array.reshape(-1), pa.float64())

        columns = {
            "query": pa.array(np.repeat(self.queries, n_groups)),
            "group": pa.array(np.tile(self.groups, n_queries)),
            "score": column(self.score),
            "unit": pa.array([self.unit] * n),
            "stderr": column(self.stderr),
            "lo": column(self.lo),
            "hi": column(self.hi),
            "rank": pa.array(self.rank.reshape(-1), pa.int32()),
            "n_evals": pa.array([self.n_evals] * n, pa.int64()),
            "method": pa.array([self.method] * n),
        }
        return pa.table(columns).replace_schema_metadata({"estimand": self.estimand, "sign": SIGN, "level": "0.95"})

    def to_pandas(self) -> pd.DataFrame:
        """One row per query and group: query, group, score, unit, stderr, lo, hi, rank, n_evals, method."""
        return self.to_table().to_pandas()

    def write(self, path: Path) -> None:
        write_table(path, self.to_table())

    @classmethod
    def read(cls, path: Path) -> Scores:
        table = read_table(path)
        columns = table.to_pydict()
        for name in ("query", "group", "score", "unit", "stderr", "lo", "hi", "n_evals", "method"):
            if not columns.get(name):
                raise GudaError(f"{path} is not a table of scores: it has no {name!r}")
        queries = tuple(dict.fromkeys(columns["query"]))
        groups = tuple(dict.fromkeys(columns["group"]))
        shape = (len(queries), len(groups))

        def array(name: str) -> np.ndarray | None:
            values = columns[name]
            return None if values[0] is None else np.asarray(values, np.float64).reshape(shape)

        score = array("score")
        assert score is not None
        return cls(
            columns["method"][0], columns["unit"][0], (table.schema.metadata or {}).get(b"estimand", b"").decode(),
            queries, groups, score, int(columns["n_evals"][0]), array("stderr"), array("lo"), array("hi"),
        )  # fmt: skip


def mean_of(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Mean over retrainings at the level of draws, so that the error of the mean comes out paired too."""
    return np.mean(np.stack(parts), axis=0)
