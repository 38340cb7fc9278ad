"""Which methods are told apart at all: every pair, the ceiling among them, with difference, interval and p.

A pair counts as separated in a metric when its paired bootstrap interval leaves out 0 AND its permutation p, Holm-
corrected over the table of that metric, is at most 0.05. Otherwise the words are "not separated". LOGO is the ceiling,
one retraining. With several LOGO seeds d_q is the mean over the golds (ceiling.py), and the permutation is over queries
given the models; the interval is over seeds too from three on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from guda.evaluation.ceiling import CEILING, Agreement, Comparison
from guda.evaluation.intervals import FLIPS, holm, percentile_interval, sign_flip_test
from guda.evaluation.metrics import LABELS, METRICS
from guda.evaluation.results import ALPHA, DatasetEntry, PairEntry, PairFigure
from guda.evaluation.tables import NOT_SEPARATED
from guda.table import Cell, Table

if TYPE_CHECKING:
    from rich.console import Group

TESTED = ("top1", "mrr", "spearman")

ENOUGH = 40  # sign vectors per pair: the smallest p, 1 / (flips + 1), is at most 1/40 after Holm's correction

CORRECTION = (
    "p: two-sided sign-flip permutation of per-query differences, Holm-corrected over the table of each metric; "
    f"{NOT_SEPARATED}: the 95 % interval covers 0 or p > {ALPHA:g}."
)


def separation(
    found: Comparison, metrics: Sequence[str] = TESTED, flips: int = FLIPS, seed: int = 0
) -> list[PairEntry]:
    """Every pair of methods, the ceiling among them, whatever the reference is: who reads a table compares any two
    rows of it."""
    everyone: dict[str, Agreement] = ({CEILING: found.ceiling} if found.ceiling else {}) | found.methods
    pairs = list(combinations(everyone, 2))
    if not pairs or found.samples is None:
        return []
    flips = max(flips, ENOUGH * len(pairs) - 1)
    values = [{name: a.per_seed[metric].mean(axis=0) for name, a in everyone.items()} for metric in metrics]
    differences = np.stack([np.stack([v[a] - v[b] for a, b in pairs]) for v in values])
    tested = sign_flip_test(differences, flips, seed)  # all metrics at once: they share the sign vectors
    columns = {}
    for metric, d, p in zip(metrics, differences, tested, strict=True):
        m = list(METRICS).index(metric)
        figures = []
        for row, (a, b), plain, adjusted in zip(d, pairs, p, holm(p), strict=True):
            i = percentile_interval(row.mean(), found.samples[a][:, m] - found.samples[b][:, m])
            figures.append(PairFigure(mean=i.mean, lo=i.lo, hi=i.hi, p=float(plain), p_holm=float(adjusted)))
        columns[metric] = figures
    return [
        PairEntry(a=a, b=b, metrics={metric: columns[metric][i] for metric in metrics})
        for i, (a, b) in enumerate(pairs)
    ]


def pair_text(figure: PairFigure | None) -> Cell:
    if figure is None:
        return None
    p = "p < 0.001" if figure.p_holm < 0.001 else f"p {figure.p_holm:.3f}"
    verdict = "" if figure.separated else f", {NOT_SEPARATED}"
    return f"{figure.mean:+.3f} [{figure.lo:+.3f}, {figure.hi:+.3f}] {p}{verdict}"


def pairs_table(name: str, entry: DatasetEntry) -> Table:
    """One row per pair, one column per tested metric."""
    pairs = entry.pairs or []
    shown = [m for m in METRICS if any(m in pair.metrics for pair in pairs)]
    names = {m: "LOGO (ceiling)" if m == CEILING else m for p in pairs for m in (p.a, p.b)}
    rows = [(f"{names[p.a]} - {names[p.b]}", *(pair_text(p.metrics.get(m)) for m in shown)) for p in pairs]
    which = "every pair of methods" if 2 * len(pairs) == len(names) * (len(names) - 1) else "pairs of methods"
    title = f"{name}: {which}, paired over {entry.n_queries:,} queries, {len(pairs)} comparisons"
    return Table.of(title, ("a - b", *(LABELS[m] for m in shown)), rows, CORRECTION)


def pairs_terminal(name: str, entry: DatasetEntry) -> Group:
    """Two lines a cell, so that three metrics fit."""
    parts = (" - ", "\n- "), (" p", "\np")
    return pairs_table(name, entry).rewrite(lambda i, text: text.replace(*parts[i > 0], 1)).rich()
