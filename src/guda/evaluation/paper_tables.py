"""The paper's tables from what was measured here, with the published rows beside them in sections of their own.

Every table of figures opens with the ceiling (one LOGO retraining) and ends with random rankings; ours have 95 %
intervals, the published ones have none. Published rows are of other data unless `same_data` says otherwise, and their
section says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from guda.evaluation.ceiling import CEILING
from guda.evaluation.metrics import LABELS, SIX
from guda.evaluation.partition import PartitionFile, PartitionRow
from guda.evaluation.published import CORRELATIONS, TIMES, Duration, PublishedTable, published
from guda.evaluation.results import Cost, DatasetEntry, Figure
from guda.evaluation.sweep import SweepFile
from guda.evaluation.tables import GIVEN, ceiling_name, figure, figures, footer, random_figures, seed_count
from guda.evaluation.timing import Timing, alike, crossing, one_retraining, published_timings
from guda.table import Cell, Column, Number, Row, Table, count, human_time, number, seconds

NAMES = {"pearson": "Pearson"} | LABELS

COST = (
    Column("preprocessing", unit="s"), Column("query", unit="s"), Column("total", unit="s"),
    Column("fit evals / group"), Column("evals / query"),
)  # fmt: skip

SWEPT = (
    Column("Top-1 / ceiling", interval=True), Column("fit evals / group"), Column("LOGO / fit evals"),
    Column("fit time", unit="s"),
)  # fmt: skip


def _columns(first: str, metrics: Iterable[str], more: Sequence[Column] = ()) -> tuple[Column, ...]:
    return (Column(first), *(Column(NAMES[m], interval=True) for m in metrics), *more)


def _sentence(*parts: str | None) -> str:
    return " ".join(p.strip() for p in parts if p and p.strip())


# ---- rows ---------------------------------------------------------------------------------------------------------
def _here(name: str, entry: DatasetEntry) -> str:
    groups = f"{entry.n_groups} groups, " if entry.n_groups else ""
    return f"measured here: {name}, {groups}{entry.n_queries:,} queries, {seed_count(len(entry.seeds))}, 95 % intervals"


def _there(table: PublishedTable, same_data: bool) -> str:
    other = "same data, other models" if same_data else "another data set"
    size = f"{table.data.groups} groups, {table.data.queries:,} queries"
    return f"{table.where} ({other}: {size}; no intervals published)"


def _ours(
    entry: DatasetEntry, metrics: Sequence[str], timings: Sequence[Timing] = ()
) -> Iterator[tuple[str, Cost, tuple[Cell, ...]]]:
    """(name, cost, metric cells): the ceiling, every method, random rankings."""
    # the oracle may have several seeds; a comparison of costs has one
    yield ceiling_name(entry.ceiling), one_retraining(entry, timings), figures(entry.ceiling, metrics)
    for name, method in entry.methods.items():
        if name != CEILING:
            yield name, method, figures(method.metrics, metrics)
    yield "random ranking", Cost(), random_figures(entry, metrics)


def _paper_name(name: str) -> str:
    """ "Ours" is theirs here; numbers as we write them."""
    try:
        return f"{float(name):g}"
    except ValueError:
        return name.replace(" (Ours)", "")


def _theirs(table: PublishedTable, section: str, more: int = 0, times: bool = False, signed: bool = False) -> list[Row]:
    """Published metrics, three digits, then the times if asked for; `more` empty cells follow."""
    rows = []
    for row in table.rows.values():
        cells = [number(row.metrics.get(m), 3, signed) for m in table.metrics]
        if times:
            cells += [_duration(row.times[t]) if row.times else None for t in TIMES]
        rows.append(Row((_paper_name(row.name), *cells, *(None,) * more), section, row.main))
    return rows


def _duration(time: Duration) -> Cell:
    """A bound is text: it is not a number to compute with."""
    return f"< {time.text[1:]} h" if time.bound else Number(time.seconds, f"{time.text} h")


# ---- main results and anchors -------------------------------------------------------------------------------------
def main_table(
    name: str,
    entry: DatasetEntry,
    timings: Sequence[Timing] = (),
    beside: str | None = "main.cifar10",
    same_data: bool = False,
) -> Table:
    """Every method's six figures and its cost. `timings`: cost lines, which charge shared work (timing.py); without
    them the entry's recorded times stand. The metrics are those of the published table `beside`."""
    table = None if beside is None else published().table(beside)
    metrics = SIX if table is None else table.metrics
    lines, n = {t.method: t for t in timings}, entry.n_queries
    rows = []
    for label, cost, cells in _ours(entry, metrics, timings):
        fit, query = cost.fit_seconds, cost.score_seconds
        if (line := lines.get(label)) is not None:
            fit, query = line.fit_seconds, None if line.query_seconds is None else n * line.query_seconds
        times = (fit, query, None if fit is None or query is None else fit + query)
        costs = (*map(seconds, times), count(cost.fit_evals), count(cost.score_evals))
        rows.append(Row((label, *cells, *costs), _here(name, entry)))
    if table is not None:
        rows += _theirs(table, _there(table, same_data), more=2, times=True)
    estimand = f"{entry.estimand or 'estimand not recorded'}; {entry.unit}, {entry.sign}"
    note = _sentence(footer(entry), "Times here are sums over workers; LOGO's are of one seed.")
    title = f"{name}: agreement with LOGO ({estimand}) and cost"
    return Table(title, _columns("method", metrics, COST), tuple(rows), note, "main")


def anchors_table(name: str, entry: DatasetEntry, same_data: bool = False, timings: Sequence[Timing] = ()) -> Table:
    """Anchor strategies among the entry's methods; published: UnlearnCanvas."""
    kept = {m: e for m, e in entry.methods.items() if m == CEILING or m.startswith("anchors-")}
    table = main_table(name, entry.model_copy(update={"methods": kept}), timings, "anchors", same_data)
    return replace(table, title=table.title.replace(" and cost", ": anchor strategies"), key="anchors")


# ---- two estimands ------------------------------------------------------------------------------------------------
BOTH = ("top1", "ndcg3", "spearman")


def estimands_table(name: str, entry: DatasetEntry, other: DatasetEntry) -> Table:
    """The same comparison under the paper's estimand and under path divergence, each against its own oracle."""

    def cells(one: Mapping[str, Figure] | None, two: Mapping[str, Figure] | None) -> list[Cell]:
        return [figure((of or {}).get(m)) for m in BOTH for of in (one, two)]

    rows: list[tuple[Cell, ...]] = [(ceiling_name(other.ceiling), *cells(entry.ceiling, other.ceiling))]
    for method, found in other.methods.items():
        if method != CEILING:
            rows.append((method, *cells(entry.methods[method].metrics, found.metrics)))
    rows.append(("random ranking", *(c for m in BOTH for of in (entry, other) for c in random_figures(of, [m]))))
    columns = [Column(f"{NAMES[m]}, {kind}", interval=True) for m in BOTH for kind in ("ELBO", "path")]
    note = _sentence(
        f"ELBO: {entry.estimand or 'estimand not recorded'}. Path: {other.estimand}. Each is compared with its own "
        "oracle, so read each column against its own ceiling. Only methods with counterfactual models have both.",
        footer(other.model_copy(update={"floor": None, "pairs": None})),
    )
    title = f"{name}: agreement with LOGO under the paper's estimand and under path divergence"
    return Table.of(title, [Column("method"), *columns], rows, note, "path-excess")


# ---- sweeps -------------------------------------------------------------------------------------------------------
def sweep_tables(name: str, sweep: SweepFile, same_data: bool = False) -> list[Table]:
    """One table per axis: epochs, lambda, K, lr, DAS's ridge and aggregation, TRAK's ridge, or anything else swept."""
    return [_sweep_table(name, sweep, axis, same_data) for axis in dict.fromkeys(row.axis for row in sweep.rows)]


def _sweep_table(name: str, sweep: SweepFile, axis: str, same_data: bool) -> Table:
    table = published().tables.get(f"{sweep.method}.{axis}")  # the same axis: steps do not stand beside epochs
    metrics = table.metrics if table else SIX
    oracle, here = sweep.oracle, _here(name, sweep.oracle)
    logo = one_retraining(oracle)
    spent: tuple[Cell, ...] = (None, count(logo.fit_evals), None, seconds(logo.fit_seconds))
    rows = [Row((ceiling_name(oracle.ceiling), *figures(oracle.ceiling, metrics), *spent), here)]
    for row in (r for r in sweep.rows if r.axis == axis):
        cells = figures(row.metrics, metrics)
        if row.failed:
            cells = (f"failed: {row.failed}", *(None for _ in metrics[1:]))
        spent = (
            figure((row.ratio_to_ceiling or {}).get("top1")), count(row.fit_evals),
            number(row.evals_ratio_vs_logo, 1), seconds(row.fit_seconds),
        )  # fmt: skip
        rows.append(Row((row.label + (" (recipe)" if row.own else ""), *cells, *spent), here, row.own))
    rows.append(Row(("random ranking", *random_figures(oracle, metrics), *(None for _ in SWEPT)), here))
    what = axis
    if table:
        kept = ", ".join(f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}" for k, v in table.fixed.items())
        section = _there(table, same_data) + (f", {table.axis} at {kept}" if kept else "")
        rows += _theirs(table, section, len(SWEPT))
        what = f"{table.title[0].lower()}{table.title[1:]} ({axis})"
    note = _sentence(sweep.about, footer(oracle), sweep.note, table.note if table else None)
    key = sweep.name if sweep.name.endswith(axis) else f"{sweep.name}-{axis}"
    return Table(f"{name}: {sweep.method}, {what}", _columns(axis, metrics, SWEPT), tuple(rows), note, key)


# ---- the likelihood oracle ----------------------------------------------------------------------------------------
def correlation_table(
    name: str, values: Mapping[str, Figure], n_queries: int, n_groups: int, note: str = "", same_data: bool = False
) -> Table:
    """How delta ELBO tracks delta log p: pearson, spearman, top1, ndcg3_linear."""
    table = published().table("likelihood.correlation")
    here = f"measured here: {name}, {n_groups} groups, {n_queries:,} queries"
    rows = [Row(("delta ELBO and delta log p, LOGO", *figures(values, CORRELATIONS)), here)]
    rows += _theirs(table, _there(table, same_data))
    title = f"{name}: how delta ELBO tracks delta log p (nats, positive = the group mattered)"
    columns = _columns("scores", CORRELATIONS)
    return Table(title, columns, tuple(rows), _sentence(note, table.note), "elbo-likelihood")


def oracles_table(name: str, elbo: DatasetEntry, likelihood: DatasetEntry, same_data: bool = False) -> Table:
    """Every method compared with both oracles, the ELBO's and the likelihood's."""
    rows = []
    kinds = ("(a) ELBO oracle, ", "(b) likelihood oracle, ")
    for what, entry in zip(kinds, (elbo, likelihood), strict=True):
        rows += [Row((label, *cells), what + _here(name, entry)) for label, _, cells in _ours(entry, SIX)]
    for what, key in zip(kinds, ("oracle.elbo", "oracle.likelihood"), strict=True):
        table = published().table(key)
        rows += _theirs(table, what + _there(table, same_data))
    note = _sentence("ELBO oracle:", footer(elbo), "Likelihood oracle:", footer(likelihood))
    title = f"{name}: methods under the ELBO and the likelihood oracle"
    return Table(title, _columns("method", SIX), tuple(rows), note, "oracles")


# ---- noisy partition ----------------------------------------------------------------------------------------------
def noisy_table(name: str, file: PartitionFile, same_data: bool = False) -> Table:
    """Figures under a noisy partition and the change from the clean one."""
    share = f"{100 * file.fraction:g} % of every group moved"
    rows = [Row((n, *cells), f"(a) {share}, {_here(name, file.noisy)}") for n, _, cells in _ours(file.noisy, SIX)]
    rows += [Row(_changes(r), f"(b) noisy less clean, measured here: {name}") for r in file.rows]
    for what, key in (("(a) ", "noisy.figures"), ("(b) noisy less clean, ", "noisy.change")):
        table = published().table(key)
        rows += _theirs(table, what + _there(table, same_data), signed=key == "noisy.change")
    note = _sentence(footer(file.noisy), f"n.s.: not separated from no change at 95 %. {GIVEN}")
    return Table(f"{name}: a noisy partition", _columns("method", SIX), tuple(rows), note, "noisy")


def _changes(row: PartitionRow) -> tuple[Cell, ...]:
    """Marked where the interval covers 0."""
    cells: list[Cell] = [ceiling_name(row.noisy) if row.method == CEILING else row.method]
    for metric in SIX:
        cell = figure(row.change.get(metric), "+.2f")
        if isinstance(cell, Number) and metric not in row.separated:
            cell = replace(cell, text=f"{cell.text} n.s.")
        cells.append(cell)
    return tuple(cells)


# ---- the cost table: preprocessing, per query, total for Q queries, and how LOGO compares (paper, Computational Cost)
TIMED = (
    Column("method"), Column("preprocessing", unit="s"), Column("per query", interval=True, unit="s"),
    Column("Q queries", unit="s"), Column("total", unit="s"), Column("LOGO / total"), Column("meets LOGO at Q"),
    Column("fit evals"), Column("evals / query"),
)  # fmt: skip


def timing_table(
    name: str, timings: Sequence[Timing], beside: str = "main.cifar10", same_data: bool = False,
    machine: str = "this machine",
) -> Table:  # fmt: skip
    """T_total = T_fit + Q t_query at each section's own Q, how many times LOGO's, and where LOGO becomes cheaper."""
    n, table = timings[0].n_queries if timings else 1, published().table(beside)
    q = table.data.queries
    rows = _timing_rows(timings, f"measured here: {name}, {machine}, Q = {n:,}", n)
    rows += _timing_rows(published_timings(table), f"{_there(table, same_data)}, Q = {q:,}", q)
    note = (
        "T_total = T_fit + Q t_query. Worker seconds, without training the full model; LOGO is one retraining per "
        "group. Where a method meets LOGO both cost the same. Published: t_query is the scoring time over the queries, "
        "and of a time that is a bound nothing is computed but a bound."
    )
    return Table(f"{name}: what attribution costs", TIMED, tuple(rows), note, "timing")


def _timing_rows(timings: Sequence[Timing], section: str, n: int) -> list[Row]:
    logo = next((t for t in timings if t.method == CEILING or t.method.startswith("LOGO")), None)
    own = None if logo is None else logo.total(n)
    rows = []
    for t in timings:
        if t.under is not None:
            rows.append(Row(_bounded(t, t.under, own, n), section))
            continue
        total = t.total(n)
        cells = (
            t.method.replace(" (Ours)", ""), seconds(t.fit_seconds), _per_query(t),
            seconds(None if t.query_seconds is None else n * t.query_seconds), seconds(total),
            number(own / total, 1) if own is not None and total else None,
            _meets(t, logo), count(t.fit_evals), count(t.query_evals),
        )  # fmt: skip
        rows.append(Row(cells, section))
    return rows


def _bounded(t: Timing, bound: float, logo: float | None, n: int) -> tuple[Cell, ...]:
    """Text: a bound is not a number to compute with."""
    under = f"< {human_time(bound)}"
    more = None if logo is None or not bound else f"> {logo / bound:.0f}"
    return (t.method, under, f"< {bound / n:.2g} s", under, under, more, None, None, None)


def _meets(t: Timing, logo: Timing | None) -> Cell:
    """Where the line meets LOGO's, or why it does not."""
    if logo is None or t is logo:
        return None
    meets = crossing(t, logo)
    return alike(t, logo) if meets is None else count(meets)


def _per_query(t: Timing) -> Cell:
    if t.query_seconds is None:
        return None
    text = f"{t.query_seconds:.3g} s"
    if t.query_stderr is None:
        return Number(t.query_seconds, text)
    half = 1.96 * t.query_stderr
    return Number(t.query_seconds, f"{text} ± {half:.1g}", max(0.0, t.query_seconds - half), t.query_seconds + half)
