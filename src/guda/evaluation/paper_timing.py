"""The cost table: preprocessing, per query, total for Q queries, and how LOGO compares (paper, Computational Cost)."""

from __future__ import annotations

from collections.abc import Sequence

from guda.evaluation.ceiling import CEILING
from guda.evaluation.paper_table import Cell, Column, Number, PaperTable, Row, count, number, seconds
from guda.evaluation.paper_tables import tables_of, there
from guda.evaluation.tables import human_time
from guda.evaluation.timing import Timing, alike, crossing, published_timings


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
