"""Scores: the result. For every query and group: nats (or the method's own unit), error, interval and rank.

Sign: positive = the group mattered (the model explains the picture worse without it). Methods without an error model
have nulls for stderr, lo and hi.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from guda.errors import GudaError, NotFinite, suggestion
from guda.files import read_table, write_table

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
    rank_lo: int | None = None  # best and worst rank that the error allows
    rank_hi: int | None = None
    p_first: float | None = None  # probability of being first, given the error

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
    n_evals: np.ndarray | int  # network evaluations behind each (query, group) score
    stderr: np.ndarray | None = None  # this and the following: None, or NaN in cells without an error model
    lo: np.ndarray | None = None
    hi: np.ndarray | None = None
    rank_lo: np.ndarray | None = None  # best and worst rank that the error allows
    rank_hi: np.ndarray | None = None
    p_first: np.ndarray | None = None  # probability of being first, given the error
    ranks: np.ndarray | None = None  # where the ranking is not simply by score (races)
    sign: str = SIGN  # what a positive score says

    def __post_init__(self) -> None:
        if self.score.shape != (len(self.queries), len(self.groups)):
            raise ValueError(f"scores are {self.score.shape}, not {(len(self.queries), len(self.groups))}")
        if not np.isfinite(self.score).all():
            q, g = np.argwhere(~np.isfinite(self.score))[0]
            raise NotFinite(
                "score-not-finite",
                f"{self.method}: the score of {self.groups[g]!r} for {self.queries[q]!r} is not a number",
            )

    @cached_property
    def rank(self) -> np.ndarray:
        """1 = the group that mattered most; ties by group order."""
        if self.ranks is not None:
            return self.ranks
        order = np.argsort(-self.score, axis=1, kind="stable")
        return np.argsort(order, axis=1, kind="stable") + 1

    @property
    def first(self) -> np.ndarray:
        """[Q]: the score of each picture's first group, which need not be the largest where not all raced."""
        return np.asarray(np.take_along_axis(self.score, self.rank.argmin(axis=1)[:, None], axis=1)[:, 0])

    @property
    def own(self) -> np.ndarray:
        """bool [Q, G]: scores of the group itself; not those that a screen lent to groups that did not race."""
        evals = np.broadcast_to(self.n_evals, self.score.shape)
        return np.asarray((evals > 0) | (evals.max() == 0))  # methods that need no evaluations lend nothing

    @cached_property
    def _place(self) -> dict[str, int]:
        return {query: q for q, query in enumerate(self.queries)}

    def __getitem__(self, query: str) -> QueryScores:
        if query not in self._place:
            raise GudaError(
                "query-unknown",
                f"no query {query!r} among the {len(self.queries)} scored{suggestion(query, self.queries)}",
            )
        q = self._place[query]
        rank = self.rank[q]

        def value(array: np.ndarray | None, g: int) -> float | None:
            return None if array is None or np.isnan(array[q, g]) else float(array[q, g])

        def whole(array: np.ndarray | None, g: int) -> int | None:
            found = value(array, g)
            return None if found is None else int(found)

        items = [
            GroupScore(
                name, float(self.score[q, g]), value(self.lo, g), value(self.hi, g), int(rank[g]), self.unit,
                whole(self.rank_lo, g), whole(self.rank_hi, g), value(self.p_first, g),
            )
            for g, name in enumerate(self.groups)
        ]  # fmt: skip
        return QueryScores(query, tuple(sorted(items, key=lambda i: i.rank)))

    def evals_per_query(self, shared: int = 1, each: int = 1) -> np.ndarray:
        """Network evaluations [Q] where `each` of shared + each of a score's are its own: by default half of them, its
        counterfactual's; the other half are those of the full model."""
        evals = np.broadcast_to(self.n_evals, self.score.shape) / (shared + each)
        return each * evals.sum(axis=1) + shared * evals.max(axis=1)

    def to_table(self) -> pa.Table:
        import pyarrow as pa

        n_queries, n_groups = self.score.shape
        n = n_queries * n_groups

        def column(array: np.ndarray | None) -> pa.Array:
            return (
                pa.nulls(n, pa.float64())
                if array is None
                else pa.array(array.reshape(-1), pa.float64(), from_pandas=True)
            )

        columns = {
            "query": pa.array(np.repeat(self.queries, n_groups)),
            "group": pa.array(np.tile(self.groups, n_queries)),
            "score": column(self.score),
            "unit": pa.array([self.unit] * n),
            "stderr": column(self.stderr),
            "lo": column(self.lo),
            "hi": column(self.hi),
            "rank": pa.array(self.rank.reshape(-1), pa.int32()),
            "rank_lo": column(self.rank_lo).cast(pa.int32()),
            "rank_hi": column(self.rank_hi).cast(pa.int32()),
            "p_first": column(self.p_first),
            "n_evals": pa.array(np.broadcast_to(self.n_evals, self.score.shape).reshape(-1), pa.int64()),
            "method": pa.array([self.method] * n),
        }
        return pa.table(columns).replace_schema_metadata(
            {"estimand": self.estimand, "sign": self.sign, "level": "0.95"}
        )

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
                raise GudaError("scores-file-invalid", f"{path} is not a table of scores: it has no {name!r}")
        queries = tuple(dict.fromkeys(columns["query"]))
        groups = tuple(dict.fromkeys(columns["group"]))
        shape = (len(queries), len(groups))

        def array(name: str) -> np.ndarray | None:
            values = columns.get(name) or [None]
            if all(v is None for v in values):
                return None
            return np.array([np.nan if v is None else v for v in values], np.float64).reshape(shape)

        score, ranks = array("score"), array("rank")
        assert score is not None
        assert ranks is not None
        return cls(
            columns["method"][0], columns["unit"][0], (table.schema.metadata or {}).get(b"estimand", b"").decode(),
            queries, groups, score, np.array(columns["n_evals"]).reshape(shape), array("stderr"), array("lo"),
            array("hi"), array("rank_lo"), array("rank_hi"), array("p_first"), ranks.astype(np.int64),
            (table.schema.metadata or {}).get(b"sign", SIGN.encode()).decode(),
        )  # fmt: skip
