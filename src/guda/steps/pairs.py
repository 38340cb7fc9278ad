"""Leave-two-out: a few pairs of groups, retrained and unlearned together, against the sum of their singles.

Do scores add up? A pair of groups left out together against the sum of its singles, picture by picture.

    excess_q = score_q({a, b}) - score_q(a) - score_q(b),   nats; 0 = additive

Positive: the two groups stand in for each other, so that either alone is missed less than both. Negative: what the two
take away overlaps. All four models (full, without a, without b, without both) saw the same (t, eps), so the excess is
taken draw by draw and its noise is that of the difference. Means over queries, their ratio and the correlation over
queries have paired bootstrap intervals, conditional on the trained models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from guda.config import Config
from guda.errors import GudaError
from guda.evaluation.intervals import Figure, bootstrap_mean, percentile_interval, resampled_means
from guda.evaluation.tables import GIVEN, figure, seed_count
from guda.files import write_json, write_text
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, Reader, has_counterfactuals, run_oracle
from guda.methods.regroup import Pair, in_order, joined, pair_name, pairs_of, takes_pairs
from guda.methods.terms import load_queries
from guda.run.data import load_data, scored_groups
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.estimate import difference
from guda.steps.fit import Engine, ready
from guda.steps.score import prepared, scored_methods, up_to_date
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


def parse_pairs(run: Run, texts: Sequence[str]) -> list[Pair]:
    """`a,b` each; a comma may be part of a name."""
    names = set(load_data(run).groups.names)
    found: list[Pair] = []
    for text in texts:
        cuts = [(text[:i].strip(), text[i + 1 :].strip()) for i, c in enumerate(text) if c == ","]
        if not cuts:
            raise GudaError("pair-invalid", f"--pair {text!r}: write two groups with a comma between them")
        found.append(next((cut for cut in cuts if set(cut) <= names), cuts[0]))
    return checked_pairs(run, found)


def checked_pairs(run: Run, asked: Sequence[Sequence[str]]) -> list[Pair]:
    """Each in the data's order and once: files are named so. Only groups that are scored have singles to compare
    with."""
    groups, scored = load_data(run).groups, scored_groups(run)
    found = [in_order(groups, pair) for pair in asked]
    for pair in found:
        joined(groups, pair).check_rest()
        if missing := [g for g in pair if g not in scored]:
            raise GudaError(
                "group-not-scored",
                f"pair {','.join(pair)}: {missing[0]!r} is not among the recipe's scoring.groups; add it there",
            )
    return list(dict.fromkeys(found))


def pairs(run: Run, name: str, asked: Sequence[Pair], methods: Sequence[str] | None, engine: Engine) -> PairsFile:
    """Fit, score and compare the pairs, in either order; RUN/pairs.json and pairs.md hold those asked for in this call.

    `methods`: beside LOGO, which comes first where the recipe can train; default: the scored operators."""
    if not asked:
        raise GudaError("pair-not-given", "give at least one pair of groups, e.g. --pair cat,dog")
    asked = checked_pairs(run, asked)
    queries = load_queries(run, name)
    oracle = run_oracle(run) if run.recipe.training is not None else None
    if methods is None:
        methods = [m for m in scored_methods(run, name) if takes_pairs(get_method(run, m))]
    chosen = [m for m in map(partial(get_method, run), dict.fromkeys(methods)) if not m.oracle]
    doubles = [pairs_of(m, asked) for m in [*([] if oracle is None else [oracle]), *chosen]]
    singles = [m for m in [*([] if oracle is None else [oracle]), *chosen] if has_counterfactuals(m)]
    if not doubles:
        raise GudaError(
            "methods-none", f"nothing in {run.root} takes groups out of a model; give --method and fit it first"
        )
    for single in singles:
        if not up_to_date(run, queries, single):
            m = single.method_id
            raise GudaError(
                "scores-missing",
                f"no {m} scores of {name!r} for single groups; run: guda fit {run.root} --method {m}, then "
                f"guda score {run.root} --queries {name} --method {m}",
            )

    def work() -> None:
        engine(run, ready(run, [task for d in doubles for task in d.fit()]), "fit pairs")
        planned: set[str] = set()
        tasks: list[Task] = []
        for double in doubles:
            tasks += double.score(queries, planned)
        engine(run, tasks, f"score {name} by pairs")

    prepared(run, singles, engine, work)
    rows = []
    config, grid = run.recipe.evaluation, bool(run_plan(run).grid)
    options = {"grid": grid, "n": config.resamples, "seed": config.seed}
    of_logo: dict[Pair, Additivity] = {}
    for single, double in zip(singles, doubles, strict=True):
        read = single.reader(queries, estimand="elbo")
        ones, twos = single.contributions(single.sets(), read), double.contributions(double.sets(), read)
        for i, pair in enumerate(asked):
            a, b = (single.groups.index(g) for g in pair)
            found = additivity(twos[:, :, i], ones[:, :, a], ones[:, :, b], **options)  # type: ignore[arg-type]
            excesses: list[np.ndarray] = []
            logo = of_logo.get(pair)
            if single.oracle:
                of_logo[pair] = found
                excesses = _by_seed(single, double, pair, read)
            rows.append(pair_row(single.method_id, pair, found, logo, excesses, config.resamples, config.seed))
    rows.sort(key=lambda r: list(asked).index((r.a, r.b)))  # the methods of a pair together, LOGO first
    result = PairsFile(
        queries=name, n_queries=queries.n, seeds=[] if oracle is None else list(oracle.seed_sets()),
        estimand=run_plan(run).estimand, rows=tuple(rows),
    )  # fmt: skip
    write_json(run.path("pairs.json"), result.model_dump(mode="json"))
    write_text(run.path("pairs.md"), pairs_table(result).markdown())
    return result


def _by_seed(single: ElboMethod, double: ElboMethod, pair: Pair, read: Reader) -> list[np.ndarray]:
    """The excess of every retraining by itself, [Q] each."""
    found = []
    of_pairs = double.seed_sets()
    for seed, (full, without) in single.seed_sets().items():
        both = of_pairs[seed][1][pair_name(pair)]
        kl = [read(m).kl for m in (both, without[pair[0]], without[pair[1]], full)]
        found.append((kl[0] - kl[1] - kl[2] + kl[3]).mean(axis=0).sum(axis=-1))
    return found
