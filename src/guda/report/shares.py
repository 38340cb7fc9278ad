"""Shares as a figure, and as a section of the report."""

from __future__ import annotations

from pathlib import Path

from guda.evaluation.results import DatasetEntry
from guda.evaluation.shares import SharesFile, shares_table
from guda.evaluation.tables import lds_table
from guda.evaluation.without import without_tables
from guda.report.figures import INK, OKABE_ITO, drawing
from guda.run.run import Run
from guda.steps.shares import read_shares
from guda.steps.without import read_without
from guda.table import Table

MOST_LOST = 5  # pictures of an opt-out that are listed


def draw_shares(found: SharesFile, path: Path, most: int = 30) -> Path:
    """Bars of the collection's shares with intervals, largest first; negative ones to the left."""
    rows = sorted(found.rows, key=lambda r: -r.mean)[:most]
    place, means = list(range(len(rows))), [r.mean for r in rows]
    with drawing(path, 6.0, 0.9 + 0.28 * len(rows)) as figure:
        axes = figure.add_subplot()
        axes.barh(place, means, color=[OKABE_ITO[0] if m >= 0 else OKABE_ITO[1] for m in means], height=0.7)
        errors = [[r.mean - r.lo for r in rows], [r.hi - r.mean for r in rows]]
        axes.errorbar(means, place, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
        axes.set_yticks(place, [r.name if len(r.name) <= 32 else r.name[:31] + "…" for r in rows])
        axes.invert_yaxis()
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel(f"share, nats per picture ({found.value}, by {found.engine}), 95 % intervals")
        axes.set_title(f"{len(found.pictures)} pictures of {found.queries}")
    return path


def coalition_tables(run: Run, name: str, entry: DatasetEntry | None) -> list[Table]:
    """What the report shows of several groups together: shares, opt-outs, and the LDS of every method."""
    tables = [shares_table(found) for found in read_shares(run, name)]
    for found in read_without(run, name):
        tables += without_tables(found, MOST_LOST)
    lds = None if entry is None else lds_table(name, entry)
    return tables + ([] if lds is None else [lds])
