"""The paper's tables from what was measured here, with the published rows beside them in sections of their own.

Every table of figures opens with the ceiling (one LOGO retraining) and ends with random rankings; ours have 95 %
intervals, the published have none. What stands beside is of other data unless `same_data` says otherwise, and its
section says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from guda.evaluation.ceiling import CEILING
from guda.evaluation.metrics import LABELS, SIX, random_baseline
from guda.evaluation.paper_table import Cell, Column, Number, PaperTable, Row, count, figure, number, seconds
from guda.evaluation.published import CORRELATIONS, TIMES, Duration, PublishedTable, published
from guda.evaluation.results import Cost, DatasetEntry, Figure
from guda.evaluation.sweep import SweepFile
from guda.evaluation.tables import GIVEN, ceiling_name, footer, human_time
from guda.evaluation.timing import Timing, alike, crossing, one_retraining, published_timings

NAMES = {"pearson": "Pearson"} | LABELS

COST = (
    Column("preprocessing", unit="s"), Column("query", unit="s"), Column("total", unit="s"),
    Column("fit evals / group"), Column("evals / query"),
)  # fmt: skip

SWEPT = (
    Column("Top-1 / ceiling", interval=True), Column("fit evals / group"), Column("LOGO / fit evals"),
    Column("fit time", unit="s"),
)  # fmt: skip


def _metric_columns(metrics: Iterable[str]) -> tuple[Column, ...]:
    return tuple(Column(NAMES[m], interval=True) for m in metrics)


def _here(name: str, entry: DatasetEntry) -> str:
    groups = f"{entry.n_groups} groups, " if entry.n_groups else ""
    seeds = f"{len(entry.seeds)} LOGO seed{'' if len(entry.seeds) == 1 else 's'}"
    return f"measured here: {name}, {groups}{entry.n_queries:,} queries, {seeds}, 95 % intervals"


def there(table: PublishedTable, same_data: bool, what: str = "") -> str:
    other = "same data, other models" if same_data else "another data set"
    size = f"{table.data.groups} groups, {table.data.queries:,} queries"
    return f"{what}{table.where} ({other}: {size}; no intervals published)"


def _sentence(*parts: str | None) -> str:
    return " ".join(p.strip() for p in parts if p and p.strip())


def tables_of(keys: Sequence[str]) -> list[PublishedTable]:
    return [published().table(key) for key in keys]


# ---- rows ---------------------------------------------------------------------------------------------------------
def _ours(
    entry: DatasetEntry, metrics: Sequence[str], timings: Sequence[Timing] = ()
) -> list[tuple[str, Cost, tuple[Cell, ...]]]:
    """(name, cost, metric cells): the ceiling, every method, random rankings."""
    found: list[tuple[str, Cost, tuple[Cell, ...]]] = []
    # the oracle may have several seeds; a comparison of costs has one
    cost = one_retraining(entry, timings)
    found.append((ceiling_name(entry.ceiling), cost, tuple(figure((entry.ceiling or {}).get(m)) for m in metrics)))
    for name, method in entry.methods.items():
        if name != CEILING:
            found.append((name, method, tuple(figure(method.metrics.get(m)) for m in metrics)))
    found.append(("random ranking", Cost(), _random(entry, metrics)))
    return found


def _random(entry: DatasetEntry, metrics: Sequence[str]) -> tuple[Cell, ...]:
    expected = entry.random or (random_baseline(entry.n_groups) if entry.n_groups else {})
    return tuple(number(expected.get(m)) for m in metrics)


def _paper_name(name: str) -> str:
    """ "Ours" is theirs here; numbers as we write them."""
    try:
        return f"{float(name):g}"
    except ValueError:
        return name.replace(" (Ours)", "")


def _theirs(table: PublishedTable, section: str, after: int, signed: bool = False) -> list[Row]:
    """Published metrics, three digits; `after` empty cells follow."""
    rows = []
    for row in table.rows.values():
        cells = (number(row.metrics.get(m), 3, signed) for m in table.metrics)
        rows.append(Row((_paper_name(row.name), *cells, *(None,) * after), section, row.main))
    return rows


# ---- main results and anchors -------------------------------------------------------------------------------------
def main_table(
    name: str,
    entry: DatasetEntry,
    timings: Sequence[Timing] = (),
    beside: Sequence[str] = ("main.cifar10",),
    same_data: bool = False,
    key: str = "main",
) -> PaperTable:
    """Every method's six figures and its cost. `timings`: cost lines, which charge shared work (timing.py); without
    them the entry's recorded times stand. The metrics are those of the first published table `beside`."""
    tables = tables_of(beside)
    metrics = tables[0].metrics if tables else SIX
    lines, n = {t.method: t for t in timings}, entry.n_queries
    rows = []
    for label, cost, cells in _ours(entry, metrics, timings):
        line = lines.get(label)
        fit, query = cost.fit_seconds, cost.score_seconds
        if line is not None:
            fit, query = line.fit_seconds, None if line.query_seconds is None else n * line.query_seconds
        times = (fit, query, None if fit is None or query is None else fit + query)
        costs = (*map(seconds, times), count(cost.fit_evals), count(cost.score_evals))
        rows.append(Row((label, *cells, *costs), _here(name, entry)))
    for table in tables:
        for row in table.rows.values():
            cells = tuple(number(row.metrics.get(m), 3) for m in table.metrics)
            times_ = tuple(_duration(row.times[t]) if row.times else None for t in TIMES)
            rows.append(Row((_paper_name(row.name), *cells, *times_, None, None), there(table, same_data), row.main))
    return PaperTable(
        key, f"{name}: agreement with LOGO ({_estimand(entry)}) and cost",
        (Column("method"), *_metric_columns(metrics), *COST), tuple(rows),
        _sentence(footer(entry), "Times here are sums over workers; LOGO's are of one seed."),
    )  # fmt: skip


def _duration(time: Duration) -> Cell:
    """A bound is text: it is no number to compute with."""
    return f"< {time.text[1:]} h" if time.bound else Number(time.seconds, f"{time.text} h")


def _estimand(entry: DatasetEntry) -> str:
    return f"{entry.estimand or 'estimand not recorded'}; {entry.unit}, {entry.sign}"


def anchors_table(
    name: str, entry: DatasetEntry, same_data: bool = False, timings: Sequence[Timing] = ()
) -> PaperTable:
    """Anchor strategies among the entry's methods; published: UnlearnCanvas."""
    kept = {m: e for m, e in entry.methods.items() if m == CEILING or m.startswith("anchors-")}
    table = main_table(
        name, entry.model_copy(update={"methods": kept}), timings, ("anchors",), same_data, key="anchors"
    )
    return PaperTable(table.key, table.title.replace(" and cost", ": anchor strategies"), table.columns, table.rows,
                      table.note)  # fmt: skip


# ---- sweeps -------------------------------------------------------------------------------------------------------
def sweep_tables(name: str, sweep: SweepFile, same_data: bool = False) -> list[PaperTable]:
    """One table per axis: epochs, lambda, K, lr, DAS's ridge and aggregation, TRAK's ridge, or anything else swept."""
    found = []
    for axis in dict.fromkeys(row.axis for row in sweep.rows):
        table = published().tables.get(f"{sweep.method}.{axis}")  # the same axis: steps do not stand beside epochs
        metrics = table.metrics if table else SIX
        here = _here(name, sweep.oracle)
        logo = sweep.oracle.methods.get(CEILING, Cost())
        own: tuple[Cell, ...] = tuple(figure((sweep.oracle.ceiling or {}).get(m)) for m in metrics)
        spent = (None, count(logo.fit_evals), None, seconds(one_retraining(sweep.oracle).fit_seconds))
        rows = [Row((ceiling_name(sweep.oracle.ceiling), *own, *spent), here)]
        for row in (r for r in sweep.rows if r.axis == axis):
            after = (
                figure((row.ratio_to_ceiling or {}).get("top1")), count(row.fit_evals),
                number(row.evals_ratio_vs_logo, 1), seconds(row.fit_seconds),
            )  # fmt: skip
            cells: tuple[Cell, ...] = tuple(figure(row.metrics.get(m)) for m in metrics)
            if row.failed:
                cells = (f"failed: {row.failed}", *(None for _ in metrics[1:]))
            rows.append(Row((row.label + (" (recipe)" if row.own else ""), *cells, *after), here, row.own))
        rows.append(Row(("random ranking", *_random(sweep.oracle, metrics), *(None for _ in SWEPT)), here))
        if table:
            kept = ", ".join(f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}" for k, v in table.fixed.items())
            section = f"{there(table, same_data)}, {table.axis} at {kept}" if kept else there(table, same_data)
            rows += _theirs(table, section, len(SWEPT))
        what = f"{table.title[0].lower()}{table.title[1:]} ({axis})" if table else axis
        found.append(
            PaperTable(
                sweep.name if sweep.name.endswith(axis) else f"{sweep.name}-{axis}",
                f"{name}: {sweep.method}, {what}",
                (Column(axis), *_metric_columns(metrics), *SWEPT), tuple(rows),
                _sentence(sweep.about, footer(sweep.oracle), sweep.note, table.note if table else None),
            )
        )  # fmt: skip
    return found


# ---- the likelihood oracle ----------------------------------------------------------------------------------------
def correlation_table(
    name: str,
    values: Mapping[str, Figure | float],
    n_queries: int,
    n_groups: int,
    note: str = "",
    same_data: bool = False,
) -> PaperTable:
    """How delta ELBO tracks delta log p: pearson, spearman, top1, ndcg3_linear, with intervals where given."""
    table = published().table("likelihood.correlation")
    cells = tuple(_plain(values.get(m)) for m in CORRELATIONS)
    here = f"measured here: {name}, {n_groups} groups, {n_queries:,} queries"
    row = Row(("delta ELBO and delta log p, LOGO", *cells), here)
    rows = [row, *_theirs(table, there(table, same_data), 0)]
    title = f"{name}: how delta ELBO tracks delta log p (nats, positive = the group mattered)"
    columns = (Column("scores"), *_metric_columns(CORRELATIONS))
    return PaperTable("elbo-likelihood", title, columns, tuple(rows), _sentence(note, table.note))


def _plain(value: Figure | float | None, signed: bool = False) -> Cell:
    return figure(value, signed) if isinstance(value, Figure) else number(value, 3, signed)


def oracles_table(name: str, elbo: DatasetEntry, likelihood: DatasetEntry, same_data: bool = False) -> PaperTable:
    """Every method held against both oracles, the ELBO's and the likelihood's."""
    rows = []
    for (
        what,
        entry,
    ) in (("(a) ELBO oracle, ", elbo), ("(b) likelihood oracle, ", likelihood)):
        rows += [Row((label, *cells), what + _here(name, entry)) for label, _, cells in _ours(entry, SIX)]
    for what, key in (("(a) ELBO oracle, ", "oracle.elbo"), ("(b) likelihood oracle, ", "oracle.likelihood")):
        table = published().table(key)
        rows += _theirs(table, there(table, same_data, what), 0)
    note = _sentence("ELBO oracle:", footer(elbo), "Likelihood oracle:", footer(likelihood))
    columns = (Column("method"), *_metric_columns(SIX))
    return PaperTable(
        "oracles", f"{name}: methods under the ELBO and the likelihood oracle", columns, tuple(rows), note
    )


def _change(value: Figure) -> Cell:
    """A change with its interval, marked where that covers 0."""
    text = f"{value.mean:+.2f} [{value.lo:+.2f}, {value.hi:+.2f}]"
    return Number(value.mean, text + (" n.s." if value.lo <= 0 <= value.hi else ""), value.lo, value.hi)


# ---- noisy partition ----------------------------------------------------------------------------------------------
def noisy_table(
    name: str,
    clean: DatasetEntry,
    noisy: DatasetEntry,
    changes: Mapping[str, Mapping[str, Figure]] | None = None,
    fraction: float = 0.05,
    same_data: bool = False,
) -> PaperTable:
    """Figures under a noisy partition and the change from the clean one. `changes`: method -> metric -> noisy less
    clean with its interval; without it the difference of the means, without one."""
    share = f"{100 * fraction:g} % of every group moved"
    rows = [Row((n, *cells), f"(a) {share}, {_here(name, noisy)}") for n, _, cells in _ours(noisy, SIX)]
    section = f"(b) noisy less clean, measured here: {name}"
    pairs = [(ceiling_name(noisy.ceiling), CEILING, clean.ceiling or {}, noisy.ceiling or {})]
    pairs += [(m, m, clean.methods[m].metrics, e.metrics) for m, e in noisy.methods.items()
              if m != CEILING and m in clean.methods]  # fmt: skip
    for label, method, before, after in pairs:
        cells: list[Cell] = []
        for m in SIX:
            given = ((changes or {}).get(method) or {}).get(m)
            one, two = before.get(m), after.get(m)
            plain = None if one is None or two is None else two.mean - one.mean
            cells.append(_change(given) if given else number(plain, 2, signed=True))
        rows.append(Row((label, *cells), section))
    for what, key in (("(a) ", "noisy.figures"), ("(b) noisy less clean, ", "noisy.change")):
        table = published().table(key)
        rows += _theirs(table, there(table, same_data, what), 0, signed=key == "noisy.change")
    unpaired = (
        f"n.s.: not separated from no change at 95 %. {GIVEN}"
        if changes
        else "Changes here are differences of means; their intervals were not measured."
    )
    return PaperTable(
        "noisy", f"{name}: a noisy partition", (Column("method"), *_metric_columns(SIX)), tuple(rows),
        _sentence(footer(noisy), unpaired),
    )  # fmt: skip


# ---- The cost table: preprocessing, per query, total for Q queries, and how LOGO compares (paper, Computational Cost).
def timing_table(
    name: str,
    timings: Sequence[Timing],
    beside: Sequence[str] = ("main.cifar10",),
    same_data: bool = False,
    machine: str = "this machine",
) -> PaperTable:
    """T_total = T_fit + Q t_query at each section's own Q, how many times LOGO's, and where LOGO becomes cheaper."""
    columns = (
        Column("method"), Column("preprocessing", unit="s"), Column("per query", interval=True, unit="s"),
        Column("Q queries", unit="s"), Column("total", unit="s"), Column("LOGO / total"), Column("meets LOGO at Q"),
        Column("fit evals"), Column("evals / query"),
    )  # fmt: skip

    def lines(found: Sequence[Timing], section: str, n: int) -> list[Row]:
        logo = next((t for t in found if t.method == CEILING or t.method.startswith("LOGO")), None)
        rows = []
        for t in found:
            if t.under is not None:
                rows.append(Row(_bounded(t, logo, n), section))
                continue
            total, own = t.total(n), None if logo is None else logo.total(n)
            rows.append(
                Row(
                    (t.method.replace(" (Ours)", ""), seconds(t.fit_seconds), _per_query(t),
                     seconds(None if t.query_seconds is None else n * t.query_seconds), seconds(total),
                     number(own / total, 1) if own is not None and total else None,
                     _meets(t, logo), count(t.fit_evals), count(t.query_evals)),
                    section,
                )
            )  # fmt: skip
        return rows

    n = timings[0].n_queries if timings else 1
    rows = lines(timings, f"measured here: {name}, {machine}, Q = {n:,}", n)
    for table in tables_of(beside):
        where = f"{there(table, same_data)}, Q = {table.data.queries:,}"
        rows += lines(published_timings(table), where, table.data.queries)
    note = (
        "T_total = T_fit + Q t_query. Worker seconds, without training the full model; LOGO is one retraining per "
        "group. Where a method meets LOGO both cost the same. Published: t_query is the scoring time over the queries, "
        "and of a time that is a bound nothing is computed but a bound."
    )
    return PaperTable("timing", f"{name}: what attribution costs", columns, tuple(rows), note)


def _bounded(t: Timing, logo: Timing | None, n: int) -> tuple[Cell, ...]:
    """Text: a bound is no number to compute with."""
    under, own = f"< {human_time(t.under)}", None if logo is None else logo.total(n)
    more = None if own is None or not t.under else f"> {own / t.under:.0f}"
    return (t.method, under, f"< {(t.under or 0.0) / n:.2g} s", under, under, more, None, None, None)


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
