"""Shares as a figure, and as a section of the report."""

from __future__ import annotations

from pathlib import Path

from guda.evaluation.shares import VALUES, SharesFile
from guda.report.figures import INK, OKABE_ITO, drawing


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


def about(found: SharesFile) -> str:
    """One sentence for the report."""
    return (
        f"Shapley values of the {VALUES[found.value]}, by {found.engine}. They add up to {found.total.mean:.3g} nats "
        f"per picture, what the model gains over nothing; nothing is {found.nothing}."
    )
