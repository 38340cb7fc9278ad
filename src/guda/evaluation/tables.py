"""The comparison of methods with LOGO as a table: the ceiling, the methods, random rankings; and its cells, sentences
and names, which the other tables of figures share.

`separation` lists every pair of methods, the ceiling among them, with difference, interval and p. A pair counts as
separated in a metric when its paired bootstrap interval leaves out 0 AND its permutation p, Holm-corrected over every
pair and metric that the table shows, is at most 0.05. Otherwise the words are "not separated". LOGO is the ceiling, one
retraining. With several LOGO seeds d_q is the mean over the golds (ceiling.py), and the permutation is over queries
given the models; the interval is over seeds too from three on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from guda.evaluation.attributable import FEWEST_PLACEBOS, MOST, TARGET
from guda.evaluation.ceiling import CEILING
from guda.evaluation.metrics import LABELS, SIX, random_baseline
from guda.evaluation.results import Cost, DatasetEntry, Figure, GroupAverage
from guda.scoring.reading import LOG_UNIT
from guda.table import Cell, Column, Number, Table, count, decimals, human_time, number, rich_group

if TYPE_CHECKING:
    from rich.console import Group
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from guda.evaluation.ceiling import Agreement, Comparison
from guda.evaluation.intervals import FLIPS, holm, percentile_interval, sign_flip_test
from guda.evaluation.metrics import METRICS
from guda.evaluation.results import ALPHA, NULL, PairEntry, PairFigure

if TYPE_CHECKING:
    from rich.console import Group


NOT_SEPARATED = "not separated"

GIVEN = "Intervals are given these trained models; the noise of retraining is not in the interval."

CEILING_NAME = "LOGO, one retraining (ceiling)"

NO_CEILING = "LOGO (no ceiling: one seed)"

HALF_CEILING = "datamodel, half of the pairs (ceiling)"

LDS = "lds."  # begins figures: linear datamodeling scores by method (evaluation/lds.py)

LDS_CEILING = "lds_ceiling"

COST_COLUMNS = ("fit evals/group", "fit time", "score evals/query", "score time")


def figure(value: Figure | None, form: str = ".2f") -> Cell:
    """A mean with its 95 % interval; `form` is the format of each number."""
    if value is None:
        return None
    text = f"{value.mean:{form}} [{value.lo:{form}}, {value.hi:{form}}]"
    return Number(value.mean, text, value.lo, value.hi)


def figures(values: Mapping[str, Figure] | None, metrics: Iterable[str] = SIX) -> tuple[Cell, ...]:
    return tuple(figure((values or {}).get(m)) for m in metrics)


def random_figures(entry: DatasetEntry, metrics: Iterable[str] = SIX) -> tuple[Cell, ...]:
    """What random rankings are expected to have."""
    expected = entry.random or (random_baseline(entry.n_groups) if entry.n_groups else {})
    return tuple(number(expected.get(m)) for m in metrics)


def ceiling_name(figures: Mapping[str, Figure] | None) -> str:
    """Of LOGO's row: one retraining has no other to be compared with, so it has a cost and no ceiling."""
    return CEILING_NAME if figures else NO_CEILING


def seed_count(n: int) -> str:
    return f"{n} LOGO seed{'' if n == 1 else 's'}"


def comparison(name: str, entry: DatasetEntry) -> Table:
    """Figures and costs of one evaluation. LOGO's own row is the ceiling, so it is not listed a second time."""

    def row(label: str, metrics: Mapping[str, Figure] | None, cost: Cost) -> tuple[Cell, ...]:
        fit, score = human_time(cost.fit_seconds), human_time(cost.score_seconds)
        return (label, *figures(metrics), count(cost.fit_evals), fit, count(cost.score_evals), score)

    ceiling = HALF_CEILING if entry.oracle else ceiling_name(entry.ceiling)
    rows = [row(ceiling, entry.ceiling, entry.methods.get(CEILING, Cost()))]
    rows += [row(label, m.metrics, m) for label, m in entry.methods.items() if label != CEILING]
    rows.append(("random ranking", *random_figures(entry), *(None for _ in COST_COLUMNS)))
    header = ("method", *(LABELS[metric] for metric in SIX), *COST_COLUMNS)
    return Table.of(title(name, entry), header, rows, footer(entry))


def title(name: str, entry: DatasetEntry) -> str:
    estimand = entry.estimand or "estimand not recorded"
    groups = f", {entry.n_groups} groups" if entry.n_groups else ""
    trained = "" if entry.oracle else f"{seed_count(len(entry.seeds))}, "
    return (
        f"{name}: agreement with {entry.oracle or 'LOGO'}, {estimand} ({entry.unit}; {entry.sign}){groups}, "
        f"{entry.n_queries:,} queries, {trained}95 % intervals"
    )


def lds_table(name: str, entry: DatasetEntry) -> Table | None:
    """Linear datamodeling scores of every method, if the run has subset models."""
    if LDS_CEILING not in entry.figures:
        return None

    def cell(key: str) -> Cell:
        values = [entry.figures[key + end] for end in ("", ".lo", ".hi")]
        return figure(Figure(mean=values[0], lo=values[1], hi=values[2]))

    named = [k for k in entry.figures if k.startswith(LDS) and not k.endswith((".lo", ".hi"))]
    rows = [("split-half of the subset models (ceiling)", cell(LDS_CEILING))]
    rows += sorted(((k.removeprefix(LDS), cell(k)) for k in named), key=lambda row: -entry.figures[LDS + row[0]])
    subsets = int(entry.figures["lds_subsets"])
    note = (
        f"Spearman over {subsets} subsets S of (sum of a picture's scores over the groups in S, what the model of S "
        "gives the picture), mean over pictures; intervals over pictures and subsets. datamodel is fitted without the "
        "subsets that it predicts; the ceiling is fitted to one half of the pairs and predicts the other."
    )
    return Table.of(f"{name}: linear datamodeling score (LDS)", ("method", "LDS"), rows, note)


def told_apart(entry: DatasetEntry, metric: str = "top1") -> str:
    """What is not separated from the best method and from the ceiling.

    Says nothing of a pair that was not tested; the full list of pairs is a table of its own."""
    tested = {frozenset((p.a, p.b)): p.metrics[metric].separated for p in entry.pairs or () if metric in p.metrics}
    means = {m: e.metrics[metric].mean for m, e in entry.methods.items() if m != CEILING and metric in e.metrics}
    if not tested or not means:
        return ""
    best = max(means, key=lambda m: means[m])
    told = [
        _alike(name, [m for m in means if m != one], {m: tested.get(frozenset((one, m))) for m in means})
        for one, name in ((best, f"the best, {best}"), (CEILING, "the ceiling"))
    ]
    sentences = "; ".join(t for t in told if t)
    shown = len({m for p in entry.pairs or () for m in p.metrics})
    pairs = f"{len(tested)} pair{'' if len(tested) == 1 else 's'}"
    rule = f"paired over queries, Holm-corrected over {pairs} in {shown} metric{'' if shown == 1 else 's'}"
    return f"{LABELS[metric]} ({rule}): {sentences}." if sentences else ""


def _alike(name: str, others: Sequence[str], separated: Mapping[str, bool | None]) -> str:
    """Who among the others that were tested against `name` is not separated from it."""
    asked = [m for m in others if separated[m] is not None]
    if not asked:
        return ""
    alike = [m for m in asked if not separated[m]]
    text = f"{NOT_SEPARATED} from {name}: {', '.join(alike) or 'none'}"
    left = len(others) - len(asked)
    return text + (f" ({left} other{'' if left == 1 else 's'} not tested)" if left else "")


def footer(entry: DatasetEntry) -> str:
    """The entry's note, how reliable the oracle is, its noise and which methods are not told apart."""
    parts = [entry.note] if entry.note else []
    if entry.reliability:
        r = entry.reliability
        parts.append(
            f"Reliability of the oracle: {r.one_seed:.2f} for one {'half' if entry.oracle else 'seed'}, "
            f"{r.mean_of_seeds:.2f} for the mean of {len(entry.seeds)} (Spearman-Brown)."
        )
    if NULL in entry.figures:
        mean, lo, hi = (entry.figures[NULL + end] for end in ("", ".lo", ".hi"))
        parts.append(
            f"A table that knows only the first group of another retraining and the groups' means has Spearman "
            f"{mean:.2f} [{lo:.2f}, {hi:.2f}]: only what is above it says something about the other groups."
        )
    if entry.floor:
        f, shown = entry.floor, ("top1", "ndcg3", "spearman")
        told = labelled({m: f.metrics[m] for m in shown if m in f.metrics})
        halves = f"{f.half} round{'' if f.half == 1 else 's'} of noise against {f.rounds - f.half} other"
        parts.append(
            f"Query-noise floor ({entry.oracle or 'LOGO'} against itself, same models, {halves}): {told}; "
            f"reliability {f.mean_of_rounds:.2f} for all {f.rounds} rounds."
        )
    return " ".join(p for p in (*parts, told_apart(entry)) if p)


def labelled(values: Mapping[str, Figure]) -> str:
    """Figures in a sentence."""
    return ", ".join(f"{LABELS[m]} {f.mean:.2f} [{f.lo:.2f}, {f.hi:.2f}]" for m, f in values.items())


WIDE, MIDDLE = 210, 125  # columns that one-line cells need; that two-line cells need


def terminal(name: str, entry: DatasetEntry, width: int = WIDE) -> Group:
    """For a terminal of `width` columns. Where that is narrow, intervals go below their means and costs into a table of
    their own; where it is very narrow, intervals lose their leading zeros."""
    table = comparison(name, entry)
    if width >= WIDE:
        return table.rich()

    def narrow(column: int, text: str) -> str:
        if width < MIDDLE:
            text = _compact(text) if column else text.replace(", one retraining", "")
        return text.replace(" [", "\n[")

    table, n = table.rewrite(narrow), 1 + len(SIX)
    costs = table.select([0, *range(n, len(table.columns))])
    costs = replace(costs, rows=costs.rows[:-1])  # random rankings cost nothing
    return rich_group(table.title, [table.select(range(n)).grid(), costs.grid()], table.note)


def _compact(cell: str) -> str:
    """[0.72, -0.80] -> [.72,-.80]"""
    return re.sub(r"(\[|, )(-?)0\.", lambda m: f"{m[1].strip()}{m[2]}.", cell)


AVERAGE_NOTE = (
    "A group's average is a constant of its counterfactual models, the same for every picture: how much they differ "
    "from the full model anywhere. Excess scores leave it out."
)


def averages_table(name: str, entry: DatasetEntry) -> Table | None:
    """Groups by methods: what the average picture scores, which excess scores leave out."""
    if not entry.averages:
        return None

    def cells(of: Mapping[str, GroupAverage]) -> list[Cell]:
        digits = decimals(np.array([a.mean for a in of.values()]))
        return [Number(a.mean, f"{a.mean:.{digits}f} ± {a.stderr:.{digits}f}", a.lo, a.hi) for a in of.values()]

    groups = list(next(iter(entry.averages.values())))
    columns = [Column("group"), *(Column(m, interval=True, unit="nats") for m in entry.averages)]
    rows = list(zip(groups, *(cells(of) for of in entry.averages.values()), strict=True))
    title = f"{name}: what the average picture scores, by group (nats ± standard error)"
    note = AVERAGE_NOTE + (" It is the geometric mean over pictures." if entry.unit == LOG_UNIT else "")
    return Table.of(title, columns, rows, note, "averages")


ATTRIBUTABLE_NOTE = (
    "Reliability: the share of a group's differences between pictures that repeats in another training (constants of "
    "groups and pictures taken off), with its 95 % interval over pictures, given these trainings. attributable: "
    f"the scores at hand reach {TARGET:g}. pool with others: there is a signal, but it takes the trainings in the last "
    "column; until then report the group together with others. below noise: not distinguishable from noise (Holm over "
    f"groups), or more than {MOST} trainings. Where a group is not attributable, fall back to its share of the "
    "training data."
)


def attributable_tables(name: str, entry: DatasetEntry) -> list[Table]:
    """Of every method with several trainings or placebos: what each group's scores are worth."""
    tables = []
    for method, found in (entry.attributable or {}).items():
        made_of = [f"{found.trainings} training{'' if found.trainings == 1 else 's'}"]
        made_of += [f"{found.placebos} placebos"] if found.placebos else []
        rows: list[tuple[Cell, ...]] = [
            (g.group, g.answer, figure(g.one), number(g.mean_of_seeds),
             None if g.one is None else str(g.retrainings) if g.retrainings else "none would do")
            for g in found.groups
        ]  # fmt: skip
        columns = [
            Column("group"), Column("answer", align="left"), Column("reliability, one training", interval=True),
            Column(f"of the mean of {found.trainings}"), Column(f"trainings for {TARGET:g}"),
        ]  # fmt: skip
        title = f"{name}: can a group be attributed at all? By {method}, {' and '.join(made_of)}"
        note = ATTRIBUTABLE_NOTE
        if found.count("unknown"):
            note = (
                f"Not known: that takes two LOGO seeds, or {FEWEST_PLACEBOS} placebos of a method (--placebos), and "
                "more than a handful of pictures."
            )
        tables.append(Table.of(title, columns, rows, note, f"attributable-{method}"))
    return tables


TESTED = ("top1", "mrr", "spearman")

ENOUGH = 40  # sign vectors per test: the smallest p, 1 / (flips + 1), is at most 1/40 after Holm's correction

CORRECTION = (
    "p: two-sided sign-flip permutation of per-query differences, Holm-corrected over all pairs and metrics shown; "
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
    flips = max(flips, ENOUGH * len(pairs) * len(metrics) - 1)
    values = [{name: a.per_seed[metric].mean(axis=0) for name, a in everyone.items()} for metric in metrics]
    differences = np.stack([np.stack([v[a] - v[b] for a, b in pairs]) for v in values])
    tested = sign_flip_test(differences, flips, seed)  # all metrics at once: they share the sign vectors
    corrected = holm(tested.ravel()).reshape(tested.shape)  # who reads the table reads all of its columns
    columns = {}
    for metric, d, p, p_holm in zip(metrics, differences, tested, corrected, strict=True):
        m = list(METRICS).index(metric)
        figures = []
        for row, (a, b), plain, adjusted in zip(d, pairs, p, p_holm, strict=True):
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
