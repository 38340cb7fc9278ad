"""How closely delta ELBO follows delta log p, and every method under both oracles.

Paper: "Validity of the ELBO Proxy: Comparison with a Likelihood Oracle".

Over all cells (query, group):  pearson, spearman (average ranks).   Within a query, the gold being delta log p:
top1, ndcg3_linear (the form of the paper's 0.939).   Intervals: bootstrap over queries, a query's groups together;
Spearman's ranks are taken anew in every resample.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from guda.config import Config
from guda.errors import GudaError
from guda.evaluation.ceiling import Reliability
from guda.evaluation.intervals import Figure, bootstrap_mean, percentile_interval, query_counts
from guda.evaluation.metrics import LABELS, checked, ndcg3_linear, top1
from guda.evaluation.results import DatasetEntry, read_file
from guda.evaluation.tables import comparison, figures
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
