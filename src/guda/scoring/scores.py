"""Scores: the result. For every query and group: nats (or the method's own unit), error, interval and rank.

What a score says is in its unit and sign (scoring/reading.py). Methods without an error model have nulls for stderr, lo
and hi. Path divergences have no sign of their own; where it is known, `elbo` gives it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from guda.errors import GudaError, NotFinite, suggestion
from guda.files import read_table, write_table
from guda.scoring.origin import UNKNOWN, Origin, origin_columns, read_origins
from guda.scoring.reading import PATH_SIGN, RACED, SIGN, Reading, Verdict, direction, reading, value, verdict
from guda.table import decimals

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


TRAINING_COLUMNS = ("stderr_training", "predicted_lo", "predicted_hi", "answer")

__all__ = ["PATH_SIGN", "SIGN", "GroupScore", "QueryScores", "Scores"]


RACED_TO = "; raced to "  # in the estimand of scores that a race came to, before its stop rule


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
    sign: str = SIGN
    elbo: float | None = None  # of a path divergence: the ELBO difference by the same draws, nats
    elbo_stderr: float | None = None
    stderr_training: float | None = None  # spread of the score over trainings, where it is known
    predicted_lo: float | None = None  # what a fresh retraining would score, 95 %
    predicted_hi: float | None = None
    answer: bool | None = None  # whether it is in the calibrated answer set of the picture

    @property
    def direction(self) -> str | None:
        """Of a path divergence, how the picture is explained without the group: worse, better, or None if unsure."""
        return direction(self.elbo, self.elbo_stderr)

    @property
    def clear(self) -> bool:
        """Whether the interval is clear of zero."""
        return self.lo is not None and self.hi is not None and (self.lo > 0 or self.hi < 0)

    def __str__(self) -> str:
        score = value(self.score, self.lo, self.hi, decimals(np.array(self.score)), self.unit)
        return f"{self.rank}. {self.group}: {score}"


@dataclass(frozen=True)
class QueryScores:
    """One picture's groups, best first."""

    query: str
    ranked: tuple[GroupScore, ...]
    digits: int = 1  # decimals of scores that have no interval, which would tell
    origin: Origin = UNKNOWN  # whether the model makes such pictures, and whether it is a copy
    validation: str = ""  # how answers like this one were compared with retraining; empty: they were not
    floor: float = 0.0  # what 95 % of placebo scores are below; 0: no placebos were scored

    def top(self, n: int = 1) -> tuple[GroupScore, ...]:
        return self.ranked[:n]

    def verdict(self) -> Verdict:
        """Whether one group stands out, in words."""
        return verdict(self.ranked, self.digits, self.floor, self.origin, self.validation)

    def to_json(self) -> dict[str, Any]:
        """The answer and every group, best first, as plain JSON; what is not known is left out. A foreign picture
        has no attribution, and no groups."""
        verdict = self.verdict()
        cells = [{f.name: getattr(g, f.name) for f in fields(g) if f.name not in ("unit", "sign")} for g in self.ranked]
        groups = [{name: v for name, v in cell.items() if v is not None} for cell in cells if verdict.kind != "foreign"]
        return {"verdict": verdict.kind, "text": verdict.text, "groups": groups}

    def __str__(self) -> str:
        verdict = self.verdict()
        groups = () if verdict.kind == "foreign" else self.ranked
        return "\n".join([f"{self.query}: {verdict.text}", *(f"  {g}" for g in groups)])


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """Scores of pictures by one method: a sequence of pictures, each with its groups, best first.

        scores = guda.attribute(model, bank, queries)      # <Scores by retrack: 64 pictures x 10 groups, nats; ...>
        scores["img_0007"].top(3)                          # GroupScore: group, score, lo, hi, rank, p_first
        print(scores["img_0007"].verdict().text)           # "group monet stands out (+12.3 [10.1, 14.5] nats; ...)"
        for picture in scores[:5]:                         # slices are Scores too
            print(picture)
        scores.to_pandas(); scores.plot(); scores          # the table; bars; the same bars in a notebook

    The arrays are [pictures, groups], in the order of `queries` and `groups`.
    """

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
    elbo: np.ndarray | None = None  # [Q, G] nats, of path divergences: ELBO differences by the same draws, if known
    elbo_stderr: np.ndarray | None = None
    stderr_training: np.ndarray | None = None  # [Q, G]: spread over trainings (scoring/training_noise.py)
    predicted_lo: np.ndarray | None = None  # [Q, G]: what a fresh retraining would score, 95 %
    predicted_hi: np.ndarray | None = None
    answer: np.ndarray | None = None  # [Q, G] 1 or 0: the calibrated answer set of the picture
    origins: tuple[Origin, ...] | None = None  # of each picture: foreign, a copy, or neither; None: not checked
    validation: str = ""  # how answers by this method were compared with retraining; empty: they were not
    floor: float = 0.0  # scores must be above it to stand out: what 95 % of placebo scores are below; 0: no placebos

    def __post_init__(self) -> None:
        if self.score.shape != (len(self.queries), len(self.groups)):
            raise ValueError(f"scores are {self.score.shape}, not {(len(self.queries), len(self.groups))}")
        if not np.isfinite(self.score).all():
            q, g = np.argwhere(~np.isfinite(self.score))[0]
            raise NotFinite(
                "score-not-finite",
                f"{self.method}: the score of {self.groups[g]!r} for {self.queries[q]!r} is not a number",
            )

    @property
    def compared(self) -> str:
        """How answers were compared with retraining, or that a race came to them, which never were; empty: not at
        all."""
        return RACED if RACED_TO in self.estimand else self.validation

    @cached_property
    def rank(self) -> np.ndarray:
        """1 = the group that mattered most; ties by group order."""
        if self.ranks is not None:
            return self.ranks
        order = np.argsort(-self.score, axis=1, kind="stable")
        return np.argsort(order, axis=1, kind="stable") + 1

    @property
    def reading(self) -> Reading:
        """What its scores say, in words."""
        return reading(self.unit, self.sign)

    @property
    def first(self) -> np.ndarray:
        """[Q]: the score of each picture's first group, which need not be the largest where not all raced."""
        return np.asarray(np.take_along_axis(self.score, self.rank.argmin(axis=1)[:, None], axis=1)[:, 0])

    @property
    def own(self) -> np.ndarray:
        """bool [Q, G]: scores of the group itself; not those that a screen lent to groups that did not race."""
        evals = np.broadcast_to(self.n_evals, self.score.shape)
        if evals.max() > 0:
            return np.asarray(evals > 0)
        # methods that need no evaluations lend nothing, unless they raced: then only those that did have an interval
        return np.ones(self.score.shape, bool) if self.lo is None else np.isfinite(self.lo)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {query: q for q, query in enumerate(self.queries)}

    def __len__(self) -> int:
        return len(self.queries)

    def __iter__(self) -> Iterator[QueryScores]:
        return (self[q] for q in range(len(self)))

    def __contains__(self, query: object) -> bool:
        return query in self._place

    @overload
    def __getitem__(self, at: str | int) -> QueryScores: ...

    @overload
    def __getitem__(self, at: slice) -> Scores: ...

    def __getitem__(self, at: str | int | slice) -> QueryScores | Scores:
        """A picture by its id or position; of a slice, the Scores of those pictures."""
        if isinstance(at, slice):
            return self._slice(at)
        if isinstance(at, str) and at not in self._place:
            raise GudaError(
                "query-unknown",
                f"no query {at!r} among the {len(self.queries)} scored{suggestion(at, self.queries)}",
            )
        q = self._place[at] if isinstance(at, str) else range(len(self))[at]
        ranked = sorted((self.cell(q, g) for g in range(len(self.groups))), key=lambda i: i.rank)
        origin = UNKNOWN if self.origins is None else self.origins[q]
        return QueryScores(self.queries[q], tuple(ranked), self._digits, origin, self.compared, self.floor)

    @cached_property
    def _digits(self) -> int:
        return decimals(self.score)

    def _slice(self, at: slice) -> Scores:
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen: dict[str, Any] = {
            name: a[at] for name, a in arrays.items() if isinstance(a, np.ndarray) and a.ndim == 2
        }
        if self.origins is not None:
            chosen["origins"] = self.origins[at]
        return replace(self, **chosen, queries=self.queries[at])

    def cell(self, q: int, g: int) -> GroupScore:
        """One group of one picture, both by position."""

        def at(array: np.ndarray | None) -> float | None:
            return None if array is None or np.isnan(array[q, g]) else float(array[q, g])

        def whole(array: np.ndarray | None) -> int | None:
            number = at(array)
            return None if number is None else int(number)

        return GroupScore(
            self.groups[g], float(self.score[q, g]), at(self.lo), at(self.hi), int(self.rank[q, g]), self.unit,
            whole(self.rank_lo), whole(self.rank_hi), at(self.p_first), self.sign, at(self.elbo),
            at(self.elbo_stderr), at(self.stderr_training), at(self.predicted_lo), at(self.predicted_hi),
            None if (inside := whole(self.answer)) is None else bool(inside),
        )  # fmt: skip

    def top(self, n: int = 1) -> dict[str, tuple[GroupScore, ...]]:
        """The first `n` groups of every picture, by the picture's id."""
        return {picture.query: picture.top(n) for picture in self}

    def verdict(self) -> dict[str, Verdict]:
        """For every picture id, whether one group stands out."""
        return {picture.query: picture.verdict() for picture in self}

    def __repr__(self) -> str:
        size = f"{len(self)} pictures x {len(self.groups)} groups"
        return f"<Scores by {self.method}: {size}, {self.unit}; {self.estimand}>"

    def plot(self, n: int = 6) -> Any:
        """Bars with intervals of the first `n` pictures, as a matplotlib figure."""
        from guda.scoring.bars import plot

        return plot(self, n)

    def _repr_html_(self) -> str:
        from guda.scoring.bars import to_html

        return to_html(self) if len(self) else repr(self)

    def evals_per_query(self, shared: int = 1, each: int = 1) -> np.ndarray:
        """Network evaluations [Q] where `each` of shared + each of a score's are its own: by default half of them, its
        counterfactual's; the other half are those of the full model."""
        evals = np.broadcast_to(self.n_evals, self.score.shape) / max(shared + each, 1)  # 0: rules without a network
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
        if self.sign == PATH_SIGN:  # others have their sign
            columns |= {"elbo": column(self.elbo), "elbo_stderr": column(self.elbo_stderr)}
        # what was not asked has no column
        columns |= {name: column(a) for name in TRAINING_COLUMNS if (a := getattr(self, name)) is not None}
        if self.origins is not None:
            columns |= origin_columns(self.origins, n_groups)
        about = {"estimand": self.estimand, "sign": self.sign, "level": "0.95"}
        if self.validation:
            about["validation"] = self.validation
        if self.floor:
            about["floor"] = repr(self.floor)
        return pa.table(columns).replace_schema_metadata(about)

    def to_pandas(self) -> pd.DataFrame:
        """One row per query and group: query, group, score, unit, stderr, lo, hi, rank, n_evals, method; of path scores
        elbo too."""
        return self.to_table().to_pandas()

    def to_xarray(self) -> Any:
        """An xarray.Dataset over (query, group): score, stderr, lo, hi, rank, ...; unit and estimand as attributes."""
        try:
            xr = import_module("xarray")  # optional
        except ImportError:
            raise GudaError("package-missing", "to_xarray needs xarray; run: pip install xarray") from None
        names = (
            "score",
            "stderr",
            "lo",
            "hi",
            "rank",
            "rank_lo",
            "rank_hi",
            "p_first",
            "elbo",
            "elbo_stderr",
            *TRAINING_COLUMNS,
            "n_evals",
        )
        arrays = {name: getattr(self, name) for name in names}
        columns = {name: np.broadcast_to(a, self.score.shape) for name, a in arrays.items() if a is not None}
        about = {"method": self.method, "unit": self.unit, "sign": self.sign, "estimand": self.estimand}
        coordinates = {"query": list(self.queries), "group": list(self.groups)}
        return xr.Dataset({k: (("query", "group"), v) for k, v in columns.items()}, coordinates, about)

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
        about = table.schema.metadata or {}
        return cls(
            columns["method"][0], columns["unit"][0], about.get(b"estimand", b"").decode(),
            queries, groups, score, np.array(columns["n_evals"]).reshape(shape), array("stderr"), array("lo"),
            array("hi"), array("rank_lo"), array("rank_hi"), array("p_first"), ranks.astype(np.int64),
            about.get(b"sign", SIGN.encode()).decode(), array("elbo"), array("elbo_stderr"),
            **{name: array(name) for name in TRAINING_COLUMNS}, origins=read_origins(columns, len(groups)),
            validation=about.get(b"validation", b"").decode(), floor=float(about.get(b"floor", b"0")),
        )  # fmt: skip
