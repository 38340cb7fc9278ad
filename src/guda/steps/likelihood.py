"""The likelihood oracle: delta log p beside delta ELBO, how well the two agree, every method under both.

How closely delta ELBO follows delta log p, and every method under both oracles.

Paper: "Validity of the ELBO Proxy: Comparison with a Likelihood Oracle".

Over all cells (query, group):  pearson, spearman (average ranks).   Within a query, the gold being delta log p:
top1, ndcg3_linear (the form of the paper's 0.939).   Intervals: bootstrap over queries, a query's groups together;
Spearman's ranks are taken anew in every resample.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from guda.config import Config
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING, Reliability, compare, query_noise_floor, reliability
from guda.evaluation.intervals import Figure, bootstrap_mean, percentile_interval, query_counts
from guda.evaluation.metrics import LABELS, checked, ndcg3_linear, top1
from guda.evaluation.results import Cost, DatasetEntry, dataset_entry, read_file
from guda.evaluation.tables import comparison, figures, separation
from guda.files import digest, write_json, write_text
from guda.methods.base import Method, get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals, run_oracle
from guda.methods.likelihood import (
    asked_queries,
    check_likelihood,
    estimand,
    likelihood_evals,
    likelihood_folder,
    likelihood_scores,
    method_tasks,
    seed_values,
    solved,
)
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.reference import SUBTRACTED
from guda.scoring.scores import Scores
from guda.steps.evaluate import method_cost, stage_seconds
from guda.steps.fit import Engine, check_fitted
from guda.steps.score import scored_methods, up_to_date
from guda.steps.settings import checked as checked_settings
from guda.steps.settings import keep
from guda.table import Table

Array = NDArray[np.float64]

COLUMNS = {"pearson": "Pearson", "spearman": "Spearman", "top1": LABELS["top1"], "ndcg3_linear": LABELS["ndcg3_linear"]}

ORACLES = {"elbo": "Oracle: LOGO by delta ELBO", "likelihood": "Oracle: LOGO by delta log p"}

CHUNK = 2_000_000  # cells of resamples held at once


class LikelihoodFile(Config):
    """RUN/scores/<set>/likelihood/evaluation.json."""

    format: Literal["guda-likelihood/1"] = "guda-likelihood/1"
    queries: str = Field(description="name of the query set")
    n_queries: int = Field(description="the first so many of it by id")
    settings: dict[str, Any] = Field(description="the recipe's section `likelihood`")
    estimand: str
    correlations: dict[str, dict[str, Figure]] = Field(description="method -> delta ELBO against delta log p")
    oracles: dict[str, DatasetEntry] = Field(
        default_factory=dict,
        description="every method against LOGO by delta ELBO and by delta log p; none without LOGO",
    )
    reliability: dict[str, Reliability] = Field(
        default_factory=dict, description="method -> of delta log p over probe seeds, the models being the same"
    )
    note: str


def reliability_sentence(file: LikelihoodFile) -> str:
    """How much of a correlation the noise of the probes may have taken away; nothing with one probe seed."""
    found = [
        f"{m} {r.one_seed:.2f} for one, {r.mean_of_seeds:.2f} for the mean of {file.settings['seeds']}"
        for m, r in file.reliability.items()
    ]
    if not found:
        one = file.settings.get("seeds") == 1  # else a file from before it was measured
        return "One probe seed: how far its noise lowers the figures is not known." if one else ""
    return f"Reliability of delta log p over probe seeds, same models (Spearman-Brown): {'; '.join(found)}."


def weighted_pearson(x: Array, y: Array, w: Array) -> Array:
    """Correlations [n] of cells x, y [n or 1, cells] that count w [n, cells] times each; 0 where nothing varies."""
    total = w.sum(axis=1, keepdims=True)
    a, b = (v - (w * v).sum(axis=1, keepdims=True) / total for v in (x, y))
    both = (w * a * a).sum(axis=1) * (w * b * b).sum(axis=1)
    flat = both <= 1e-24 * np.maximum(1.0, (x * x).max() * (y * y).max())
    return np.where(flat, 0.0, (w * a * b).sum(axis=1) / np.sqrt(np.where(flat, 1.0, both)))


def weighted_ranks(values: Array, w: Array) -> Array:
    """Average ranks [n, cells] of values [cells] that occur w [n, cells] times each: tied ones share theirs."""
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=len(distinct)))])
    below = np.concatenate([np.zeros((len(w), 1)), np.cumsum(w[:, order], axis=1)], axis=1)[:, ends]
    middle = (below[:, :-1] + below[:, 1:] + 1) / 2
    return middle[:, place]


def correlate(elbo: ArrayLike, likelihood: ArrayLike, n: int = 2000, seed: int = 0) -> dict[str, Figure]:
    """Delta ELBO against delta log p, both [Q, N] of the same queries and groups."""
    s, g = checked(elbo, likelihood)
    queries, groups = s.shape
    if queries < 2:
        raise GudaError("queries-too-few", "an interval needs at least 2 queries; ask about more with -n")
    x, y = s.reshape(-1), g.reshape(-1)

    def both(w: Array) -> Array:
        return np.stack(
            [
                weighted_pearson(x[None], y[None], w),
                weighted_pearson(weighted_ranks(x, w), weighted_ranks(y, w), w),
            ]
        )

    samples = []
    for counts in query_counts(queries, n, seed):
        rows = max(1, CHUNK // x.size)
        samples += [both(np.repeat(counts[i : i + rows], groups, axis=1)) for i in range(0, len(counts), rows)]
    drawn = np.concatenate(samples, axis=1)
    here = both(np.ones((1, x.size)))[:, 0]
    found = {name: percentile_interval(here[i], drawn[i]) for i, name in enumerate(("pearson", "spearman"))}
    for name, metric in (("top1", top1), ("ndcg3_linear", ndcg3_linear)):
        found[name] = bootstrap_mean(metric(s, g), n, seed)
    return found


def correlation_table(file: LikelihoodFile) -> Table:
    title = (
        f"Delta ELBO against delta log p: {file.n_queries:,} queries of {file.queries}, 95 % intervals over queries "
        f"({file.estimand})"
    )
    rows = [(name, *figures(values, COLUMNS)) for name, values in file.correlations.items()]
    note = f"{file.note} {reliability_sentence(file)}".strip()
    return Table.of(title, ("counterfactuals", *COLUMNS.values()), rows, note)


def likelihood_markdown(file: LikelihoodFile) -> str:
    tables = [correlation_table(file), *(comparison(ORACLES[name], entry) for name, entry in file.oracles.items())]
    return "\n".join(t.markdown() for t in tables)


def read_likelihood(path: Path) -> LikelihoodFile:
    return read_file(path, LikelihoodFile, "likelihood-file-invalid", "guda-likelihood/1 file")


VARIANT = "likelihood"  # sub-folder of scores

BY_LOG_P = "-logp"  # a method's row by delta log p instead of delta ELBO


def likelihood(
    run: Run, name: str, engine: Engine, methods: Sequence[str] | None = None, **changes: Any
) -> LikelihoodFile:
    """Delta log p of each method (default: of all that are scored and have it), written to
    scores/<set>/likelihood/<method>.parquet, and compared with delta ELBO on the same queries: evaluation.json and .md
    there. `changes`: settings of the recipe's section `likelihood`, written into it (`override` is for one call)."""
    scoring = run.recipe.scoring
    if scoring.estimand == "path" or scoring.excess:
        raise GudaError(
            "likelihood-estimand-unsupported",
            "log p is compared with ELBO differences; score with these: guda set "
            f"{run.root} scoring.estimand=elbo scoring.excess=false, then guda score {run.root}",
        )
    given = {k: v for k, v in changes.items() if v is not None}
    if checked_settings(run, {"likelihood": given}).recipe.likelihood.solver == "adaptive":
        from guda.diffusion.likelihood import need_torchdiffeq

        need_torchdiffeq()
    queries = load_queries(run, name)
    chosen = _chosen(run, queries, methods)
    if given:
        keep(run, {"likelihood": given})
    some = asked_queries(run, queries)
    tasks: list[Task] = []
    planned: set[str] = set()
    for found in chosen:
        tasks += method_tasks(found, some, planned)
    engine(run, tasks, f"log p of {some.n} queries of {name}")
    return evaluate_likelihood(run, name)


def _chosen(run: Run, queries: Queries, methods: Sequence[str] | None) -> list[ElboMethod]:
    """Refuses what has no log p, no models, or no delta ELBO to compare with."""
    name = queries.name
    if methods is None:
        scored = [get_method(run, m) for m in scored_methods(run, name)]
        methods = [m.method_id for m in scored if m.has_log_p and up_to_date(run, queries, m)]
        if not methods:
            raise GudaError(
                "scores-missing", f"no model is scored on {name!r} yet; run: guda score {run.root} --queries {name}"
            )
    found = [check_likelihood(get_method(run, m)) for m in methods]
    check_fitted(run, methods)
    for method in found:
        if not up_to_date(run, queries, method):
            m = method.method_id
            raise GudaError(
                "scores-missing",
                f"{m} has no delta ELBO of {name!r} to compare with; run: guda score {run.root} --queries {name} "
                f"--method {m}",
            )
    return found


def likelihood_path(run: Run, queries: str, file: str) -> Path:
    own = run.stored_recipe.likelihood
    other = "" if run.recipe.likelihood == own else f"-{digest(run.recipe.likelihood.model_dump(mode='json'), 8)}"
    return run.path("scores", queries, *([run.set_apart] if run.set_apart else []), f"{VARIANT}{other}", file)


def evaluate_likelihood(run: Run, name: str) -> LikelihoodFile:
    """From what is finished, by the present settings: every method with log p, and all others under both oracles."""
    queries, config = load_queries(run, name), run.recipe.evaluation
    some = asked_queries(run, queries)
    methods = [m for m in (get_method(run, m) for m in scored_methods(run, name)) if up_to_date(run, queries, m)]
    elbo: dict[str, Scores] = {}
    log_p: dict[str, Scores] = {}
    for found in methods:
        if not has_counterfactuals(found):
            elbo[found.method_id] = found.scores(queries)
            continue
        elbo |= found.all_scores(queries)
        if solved(found, some):
            log_p |= likelihood_scores(found, some)
    for path in likelihood_path(run, name, "").glob("*.parquet"):
        if path.stem not in log_p:
            run.remove(path)  # of other settings
    for key, scores in log_p.items():
        scores.write(likelihood_path(run, name, f"{key}.parquet"))
    values = {m: s.score[: some.n] for m, s in elbo.items()}  # queries are in id order
    names = [m.method_id for m in methods if m.method_id in log_p]
    by_seed = {}  # [probe seeds, Q, G]: one alone says nothing of its noise
    if run.recipe.likelihood.seeds > 1:
        by_seed = {m.method_id: seed_values(m, some) for m in methods if m.method_id in names}  # type: ignore[arg-type]
    file = LikelihoodFile(
        queries=name, n_queries=some.n, settings=run.recipe.likelihood.model_dump(mode="json"), estimand=estimand(run),
        correlations={m: correlate(values[m], log_p[m].score, config.resamples, config.seed) for m in names},
        oracles=_oracles(
            run, queries, some.n, methods, values, {m: s.score for m, s in log_p.items()}, elbo, by_seed.get(CEILING)
        ),
        reliability={m: reliability(v) for m, v in by_seed.items()},
        note=_note(elbo, names),
    )  # fmt: skip
    write_json(likelihood_path(run, name, "evaluation.json"), file.model_dump(mode="json"))
    write_text(likelihood_path(run, name, "evaluation.md"), likelihood_markdown(file))
    return file


def _note(elbo: dict[str, Scores], names: list[str]) -> str:
    note = "Pearson and Spearman over all (query, group) cells; Top-1 and NDCG@3 within a query, gold: delta log p."
    less = [m for m in names if elbo[m].estimand.endswith(SUBTRACTED)]
    return note + (f" Delta ELBO of {', '.join(less)} is less its drift, delta log p is not." if less else "")


def _oracles(
    run: Run, queries: Queries, n: int, methods: list[Method], elbo: dict[str, np.ndarray],
    log_p: dict[str, np.ndarray], scores: dict[str, Scores], by_seed: np.ndarray | None,
) -> dict[str, DatasetEntry]:  # fmt: skip
    """Both comparisons on the first n queries, where LOGO has both kinds of scores. Methods keep their scores; those
    with log p have a second row by it. Of delta log p every probe seed is a round of noise (`by_seed`)."""
    config = run.recipe.evaluation
    if CEILING not in log_p or config.against != CEILING:
        return {}
    oracle = run_oracle(run)
    seeds = list(oracle.config.seeds)
    others = [m for m in methods if m.method_id != CEILING]
    rows = {m.method_id: elbo[m.method_id] for m in others}
    rows |= {m + BY_LOG_P: log_p[m] for m in list(rows) if m in log_p}
    golds = {"elbo": (elbo, scores[CEILING].estimand), "likelihood": (log_p, estimand(run))}
    costs = {m.method_id: method_cost(run, queries.name, m) for m in others}
    costs |= {m.method_id + BY_LOG_P: _log_p_cost(run, queries.name, m) for m in others if m.method_id in log_p}  # type: ignore[arg-type]
    own = {"elbo": method_cost(run, queries.name, oracle), "likelihood": _log_p_cost(run, queries.name, oracle)}
    reference = config.reference if config.reference in rows else None
    rounds = {"elbo": None, "likelihood": by_seed}
    if run.recipe.scoring.rounds > 1:
        rounds["elbo"] = oracle.round_values(queries)[:, :n]
    found = {}
    for kind, (values, what) in golds.items():
        gold = np.stack([values[f"logo-s{s}"] for s in seeds])
        compared = compare(gold, rows, reference=reference, n=config.resamples, seed=config.seed)
        noise = rounds[kind]
        found[kind] = dataset_entry(
            compared, seeds, what, costs | {CEILING: own[kind]}, pairs=separation(compared, seed=config.seed),
            floor=None if noise is None else query_noise_floor(noise, config.resamples, config.seed),
        )  # fmt: skip
    return found


def _log_p_cost(run: Run, queries: str, found: ElboMethod) -> Cost:
    stage = f"likelihood/{queries}/{found.method_id}/{likelihood_folder(run).removeprefix('likelihood/')}"
    scoring = {"score_evals": likelihood_evals(found), "score_seconds": stage_seconds(run, [stage])}
    return method_cost(run, queries, found).model_copy(update=scoring)
