"""`guda shares`: Shapley values of groups for pictures and for a collection, by one of three engines.

posterior   the posterior rule values any coalition; no training (methods/coalitions.py)
subsets     regression on models trained on halves of the groups (methods/subsets.py)
unlearned   the same regression on models from which the other half was unlearned

RUN/shares/<set>/<engine>-<value>.json, .csv, .svg
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError, choices
from guda.evaluation.intervals import Figure
from guda.evaluation.results import read_entry, read_file
from guda.evaluation.shares import PictureShares, ShareRow, SharesFile, pictures_table
from guda.files import write_json, write_text
from guda.methods.base import Method, get_method
from guda.methods.coalitions import (
    GAUSSIAN,
    NOTHING,
    START,
    Ask,
    Value,
    coalition_tasks,
    make_parcels,
    posterior,
    read_coalitions,
    refuse_density,
)
from guda.methods.datamodel import SubsetValues, read_values
from guda.methods.elbo import ElboMethod
from guda.methods.regroup import Unions, unions_of
from guda.methods.subsets import find_subsets
from guda.methods.terms import ModelRef, load_queries, run_scorer, score_tasks
from guda.run.data import scored_groups
from guda.run.run import Run
from guda.scoring.estimate import LEVEL, difference, t_quantile
from guda.scoring.scorer import Reader
from guda.scoring.shapley import count_coalitions, kernel_regression
from guda.steps.fit import Engine, base_tasks, check_scorable, ready
from guda.steps.score import prepared, scores_folder

EngineName = Literal["posterior", "subsets", "unlearned"]

ENGINES: tuple[EngineName, ...] = ("posterior", "subsets", "unlearned")


@dataclass(frozen=True)
class ShareOptions:
    engine: EngineName = "posterior"
    value: Value | None = None  # None: the recipe's estimand
    method: str | None = None  # operator of `unlearned`
    parcel: int | None = None  # images; None: a group is one parcel
    tolerance: float = 0.02
    orders: int = 256
    pool: bool = True


def chosen_value(run: Run, value: str | None) -> Value:
    if value not in (None, "elbo", "path"):
        raise GudaError("coalition-value-unknown", f"--value {value}: a coalition is valued by elbo or path")
    path = run.recipe.scoring.estimand == "path" if value is None else value == "path"
    return "path" if path else "elbo"


def check_engine(run: Run, engine: str, method: str | None) -> Method:
    """The method that must be fitted for it; refused where it cannot be."""
    if engine not in ENGINES:
        raise GudaError("coalition-engine-unknown", f"unknown engine {engine!r}; known: {choices(ENGINES)}")
    if method is not None and engine != "unlearned":
        raise GudaError("coalition-method-unused", f"--method is the operator of the engine unlearned, not of {engine}")
    if run.recipe.scoring.rounds < 2:
        raise GudaError("coalition-rounds-too-few", "intervals need two rounds of draws or more; give --rounds 2")
    if engine == "unlearned":
        return operator_of(run, method)
    found = get_method(run, engine)
    found.check()
    if engine == "posterior":
        refuse_density(run)
    check_scorable(run, [engine])
    return found


def operator_of(run: Run, method: str | None) -> Method:
    """The operator that unlearns unions; default: the first of the recipe that can."""
    names = [method] if method is not None else list(run.recipe.methods)
    able = [m for name in names if (m := get_method(run, name)).unlearns and m.regroupable]
    if not able:
        raise GudaError(
            "union-method-unsupported",
            f"{method or 'no method of the recipe'} does not unlearn several groups together; give --method retrack",
        )
    Unions.check(able[0])
    return able[0]


def players(run: Run) -> tuple[str, ...]:
    """The groups whose shares are asked for."""
    return scored_groups(run)


def half_values(
    run: Run, queries: Queries, engine: EngineName, method: str | None, value: Value, work: Engine
) -> SubsetValues:  # fmt: skip
    """What the models of all halves of the design give the pictures, trained or unlearned; what is missing is made."""
    subsets = find_subsets(run)
    if engine == "subsets":
        work(run, score_tasks(run, queries, subsets.models(), subsets.method_id, value), f"score {queries.name}")
        return read_values(subsets, queries, estimand=value)
    found = unlearned_halves(run, method)
    work(run, ready(run, [*base_tasks(run), *found.fit()]), f"unlearn {len(found.groups)} halves")
    [(_, refs)] = found.sets()
    models = [refs[g] for g in found.groups]
    work(run, score_tasks(run, queries, models, found.method_id, value), f"score {queries.name}")
    scorer = run_scorer(run, estimand=value)
    read = Reader(scorer, queries, run.recipe.scoring.rounds)
    terms = [read(m, scorer.kind) for m in models]
    return SubsetValues(subsets.design(), -np.stack([t.kl for t in terms]), terms[0].t)


def unlearned_halves(run: Run, method: str | None) -> ElboMethod:
    """The operator with the complements of the design's halves for groups."""
    subsets, groups = find_subsets(run), np.array(players(run))
    sets = [tuple(str(g) for g in groups[~row]) for row in subsets.design()]
    return unions_of(operator_of(run, method), sets)


def nothing_tasks(run: Run, value: Value) -> tuple[list[ModelRef], Ask | None]:
    """What v(nothing) of trained coalitions takes: the pretrained start, or the posterior's pooled density."""
    if run.recipe.model.start is not None:
        if value == "path":
            raise GudaError(
                "coalition-nothing-unsupported", "nothing is the pretrained start here, which has no path; --value elbo"
            )
        return [ModelRef("base"), ModelRef("start")], None
    refuse_density(run)
    check_scorable(run, ["posterior"])
    groups = players(run)
    none = ((0,) * len(groups),)
    return [], Ask(groups, value, (1,) * len(groups), none, alone=True)


def total_draws(run: Run, queries: Queries, value: Value, work: Engine) -> tuple[np.ndarray, str]:
    """(v(all) - v(nothing) draw by draw [R, Q, S], what nothing is)."""
    models, ask = nothing_tasks(run, value)
    if ask is None:
        work(run, score_tasks(run, queries, models, "subsets", "elbo"), f"score {queries.name}")
        read = Reader(run_scorer(run, estimand="elbo"), queries, run.recipe.scoring.rounds)
        return read(models[1]).kl - read(models[0]).kl, START
    work(run, coalition_tasks(run, queries, ask), "value nothing")
    return -read_coalitions(run, queries, ask)["values"][0], GAUSSIAN


# ---- pooling --------------------------------------------------------------------------------------------------------
def verdicts(run: Run, name: str) -> tuple[str, dict[str, str]] | None:
    """(method, answer by group): which groups an evaluation found to be told from noise; None: nobody has asked."""
    file = scores_folder(run, name) / "evaluation.json"
    if not file.is_file():
        return None
    entry = read_entry(file)
    for method, found in (entry.attributable or {}).items():
        answers = {g.group: str(g.answer) for g in found.groups}
        if "unknown" not in answers.values():
            return method, answers
    return None


def pools(run: Run, name: str, groups: Sequence[str], pool: bool) -> tuple[list[list[int]], str]:
    """(rows of groups by position, why)."""
    alone = [[k] for k in range(len(groups))]
    if not pool:
        return alone, "No groups are pooled, as asked."
    found = verdicts(run, name)
    if found is None:
        return alone, "No groups are pooled: it is not known which are below noise (guda evaluate shows it)."
    method, answers = found
    weak = [k for k, g in enumerate(groups) if answers.get(g, "attributable") != "attributable"]
    if len(weak) < 2:
        told = "none" if not weak else groups[weak[0]]
        return alone, f"No groups are pooled; below noise or to be pooled by {method}: {told}."
    rows = [[k] for k in range(len(groups)) if k not in weak]
    return [*rows, weak], f"Groups that {method} cannot tell from noise one by one are pooled."


# ---- the command ----------------------------------------------------------------------------------------------------
def shares(run: Run, name: str, options: ShareOptions, work: Engine) -> SharesFile:
    """Computed, and written to RUN/shares/<set>/."""
    queries, value = load_queries(run, name), chosen_value(run, options.value)
    needed = check_engine(run, options.engine, options.method)
    if options.parcel is not None and options.engine != "posterior":
        raise GudaError("parcels-unsupported", "trained and unlearned coalitions are of whole groups; leave --parcel")
    groups = players(run)
    rows, why = pools(run, name, groups, options.pool)
    if options.engine != "posterior":
        nothing_tasks(run, value)  # refused before anything is computed

    def compute() -> SharesFile:
        if options.engine == "posterior":
            return _by_posterior(run, queries, value, options, rows, why, work)
        return _by_halves(run, queries, value, options, rows, why, work)

    found = prepared(run, [posterior(run) if options.engine == "posterior" else needed], work, compute)
    write_shares(run, found)
    return found


def shares_file(run: Run, found: SharesFile) -> Path:
    return run.path("shares", found.queries, f"{found.engine}-{found.value}.json")


def read_shares(run: Run, name: str) -> list[SharesFile]:
    """All that were computed of a query set."""
    files = sorted(run.path("shares", name).glob("*.json"))
    return [read_file(p, SharesFile, "shares-file-invalid", "file of shares") for p in files]


def write_shares(run: Run, found: SharesFile) -> None:
    path = shares_file(run, found)
    write_text(path.with_suffix(".csv"), pictures_table(found).csv())
    write_json(path, found.model_dump(mode="json"))


def _by_posterior(
    run: Run, queries: Queries, value: Value, options: ShareOptions, rows: list[list[int]], why: str, work: Engine
) -> SharesFile:  # fmt: skip
    groups = players(run)
    parcels = make_parcels(run, groups, options.parcel)
    ask = Ask(groups, value, parcels, tolerance=options.tolerance, orders=options.orders)
    work(run, coalition_tasks(run, queries, ask), f"shares of {queries.name}")
    found = read_coalitions(run, queries, ask)
    d = _rows(found["shares"], rows)  # [R, Q, K, S]
    drawn = np.stack([np.sqrt(found["variance"][:, one]).sum(axis=1) for one in rows], axis=1)  # [Q, K]
    own = difference(d)
    score, stderr, reach = own.score, _known(own.stderr), _known(own.hi) - own.score
    every = float(t_quantile(0.5 + LEVEL / 2, float(options.orders)))
    table = _Rows(score, np.hypot(stderr, drawn), np.hypot(reach, every * drawn))
    n = queries.n
    # draws of two pictures are independent; all pictures share the orders
    collection = _Rows(
        score.mean(axis=0)[None], np.hypot(np.sqrt((stderr**2).sum(axis=0)) / n, drawn.mean(axis=0))[None],
        np.hypot(np.sqrt((reach**2).sum(axis=0)) / n, every * drawn.mean(axis=0))[None],
    )  # fmt: skip
    count = int(found["orders"].max()) if ask.sampled else count_coalitions(parcels)
    how = (
        f"Means over at most {count} pairs of random orders of arrival"
        if ask.sampled
        else f"All {count:,} coalitions were valued"
    )
    note = (
        f"{how}, without training. Intervals are over the noise of scoring"
        f"{' and the orders' if ask.sampled else ''}; they do not say how well the density describes the data."
    )
    return _file(run, queries, "posterior", None, value, NOTHING, parcels, count, ask.sampled, why, note,
                 -found["nothing"], rows, table, collection)  # fmt: skip


def _by_halves(
    run: Run, queries: Queries, value: Value, options: ShareOptions, rows: list[list[int]], why: str, work: Engine
) -> SharesFile:  # fmt: skip
    values = half_values(run, queries, options.engine, options.method, value, work)
    total, nothing = total_draws(run, queries, value, work)
    whole = total.mean(axis=0).sum(axis=-1)  # [Q]
    v = values.values
    first, apart = values.inside[0::2], v[0::2] - v[1::2]
    found = kernel_regression(first, apart, whole)
    draws = np.einsum("qgp,prqs->rqgs", found.weights, values.draws[0::2] - values.draws[1::2])
    own = difference(_rows(draws, rows))
    scoring = np.stack([_known(own.stderr), _known(own.hi) - own.score])  # [2, Q, K]
    table = _halved(found.shares, found.covariance, rows, scoring, found.df)
    mean = kernel_regression(first, apart.mean(axis=1, keepdims=True), whole.mean(keepdims=True))
    together = np.sqrt((scoring**2).sum(axis=1, keepdims=True)) / queries.n
    collection = _halved(found.shares.mean(axis=0)[None], mean.covariance, rows, together, mean.df)
    made = "trained" if options.engine == "subsets" else "unlearned"
    note = (
        f"Regression on {values.pairs} pairs of {made} halves with Shapley's weights; intervals contain what another "
        f"draw of halves {'and their training ' if made == 'trained' else ''}would change, and the noise of scoring, "
        "but not another training of the full model."
    )
    method = None if options.engine == "subsets" else operator_of(run, options.method).id
    return _file(run, queries, options.engine, method, value, nothing, (1,) * len(players(run)), len(v), True, why,
                 note, total, rows, table, collection)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Rows:
    score: np.ndarray  # [Q, K]
    stderr: np.ndarray
    reach: np.ndarray  # half-width of the interval


def _halved(
    shares: np.ndarray, covariance: np.ndarray, rows: list[list[int]], scoring: np.ndarray, df: np.ndarray
) -> _Rows:  # fmt: skip
    """`scoring`: standard errors and half-widths [2, Q, K] of the draws; `df` [Q]."""
    which = np.zeros((len(rows), shares.shape[1]))
    for i, one in enumerate(rows):
        which[i, one] = 1.0
    variance = np.einsum("kg,qgh,kh->qk", which, covariance, which)
    error = np.sqrt(np.maximum(variance, 0.0))
    reach = np.asarray(t_quantile(0.5 + LEVEL / 2, df))[:, None] * error
    return _Rows(shares @ which.T, np.hypot(error, scoring[0]), np.hypot(reach, scoring[1]))


def _rows(d: np.ndarray, rows: list[list[int]]) -> np.ndarray:
    """[R, Q, G, S] -> [R, Q, K, S], pooled groups added up."""
    return np.stack([d[:, :, one].sum(axis=2) for one in rows], axis=2)


def _known(array: np.ndarray | None) -> np.ndarray:
    assert array is not None  # two rounds or more
    return array


def _file(
    run: Run, queries: Queries, engine: EngineName, method: str | None, value: Value, nothing: str,
    parcels: tuple[int, ...], count: int, sampled: bool, why: str, note: str, total: np.ndarray,
    rows: list[list[int]], table: _Rows, collection: _Rows,
) -> SharesFile:  # fmt: skip
    groups = players(run)
    names = [groups[one[0]] if len(one) == 1 else f"pooled: {', '.join(groups[k] for k in one)}" for one in rows]
    whole = difference(total)
    lo, hi = _known(whole.lo), _known(whole.hi)

    def listed(found: _Rows, q: int, of: Figure) -> list[ShareRow]:
        return [
            ShareRow(
                name=names[k], groups=[groups[g] for g in one], mean=float(found.score[q, k]),
                stderr=float(found.stderr[q, k]), lo=float(found.score[q, k] - found.reach[q, k]),
                hi=float(found.score[q, k] + found.reach[q, k]),
                part=float(found.score[q, k] / of.mean) if of.lo > 0 else None,
            )
            for k, one in enumerate(rows)
        ]  # fmt: skip

    pictures = []
    for q, name in enumerate(queries.ids):
        of = Figure(mean=float(whole.score[q]), lo=float(lo[q]), hi=float(hi[q]))
        pictures.append(PictureShares(picture=name, total=of, rows=listed(table, q, of)))
    reach = float(np.sqrt(((hi - whole.score) ** 2).sum()) / queries.n)
    mean = float(whole.score.mean())
    every = Figure(mean=mean, lo=mean - reach, hi=mean + reach)
    scorer = run_scorer(run, estimand=value)
    return SharesFile(
        engine=engine, method=method, value=value, estimand=scorer.estimand, queries=queries.name, nothing=nothing,
        parcels=dict(zip(groups, parcels, strict=True)), coalitions=count, sampled=sampled, pooling=why, note=note,
        total=every, rows=listed(collection, 0, every), pictures=pictures,
    )  # fmt: skip
