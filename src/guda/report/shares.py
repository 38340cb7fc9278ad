"""Shares and opt-outs as figures, and as a section of the report."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from guda.evaluation.results import DatasetEntry
from guda.evaluation.shares import SharesFile, shares_table
from guda.evaluation.tables import lds_table
from guda.evaluation.without import WithoutFile, without_tables
from guda.methods.with_without import WithWithout
from guda.report.figures import INK, OKABE_ITO, drawing
from guda.report.pictures import grid
from guda.run.run import Run
from guda.steps.shares import read_shares
from guda.steps.without import read_without, without_file
from guda.table import Table

MOST_LOST = 5  # pictures of an opt-out that are listed


def draw_shares(shares: SharesFile, path: Path, most: int = 30) -> Path:
    """Bars of the collection's shares with intervals, largest first; negative ones to the left."""
    rows = sorted(shares.rows, key=lambda r: -r.mean)[:most]
    place, means = list(range(len(rows))), [r.mean for r in rows]
    with drawing(path, 6.0, 0.9 + 0.28 * len(rows)) as figure:
        axes = figure.add_subplot()
        axes.barh(place, means, color=[OKABE_ITO[0] if m >= 0 else OKABE_ITO[1] for m in means], height=0.7)
        errors = [[r.mean - r.lo for r in rows], [r.hi - r.mean for r in rows]]
        axes.errorbar(means, place, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
        axes.set_yticks(place, [r.name if len(r.name) <= 32 else r.name[:31] + "…" for r in rows])
        axes.invert_yaxis()
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel(f"share, nats per picture ({shares.value}, by {shares.engine}), 95 % intervals")
        axes.set_title(f"{len(shares.pictures)} pictures of {shares.queries}")
    return path


def draw_opt_out(without: WithoutFile, drawn: Sequence[tuple[str, WithWithout]], path: Path) -> Path:
    """Each picture, what the full model makes of its noise, and what the model without the groups makes of it."""
    pictures = [one for _, one in drawn]
    rows = [np.stack([getattr(one, kind) for one in pictures]) for kind in ("picture", "full", "without")]
    loss = {p.name: p.mean for p in without.pictures}
    who = ", ".join(without.groups)
    return grid(
        rows, path, ["picture", "full model", "without these groups"],
        [f"{name}: -{loss[name]:.3g}" if loss[name] > 0 else name for name, _ in drawn],
        f"Without {who}, by {pictures[0].by}: the same noise in every column, inverted from the picture\n"
        "Above each: its id and the change of its ELBO in nats",
    )  # fmt: skip


@dataclass(frozen=True)
class Section:
    table: Table
    picture: str | None = None  # data URI of a drawing that belongs to it


def coalition_sections(run: Run, name: str, entry: DatasetEntry | None) -> list[Section]:
    """What the report shows of several groups together: shares, opt-outs, and the LDS of every method."""
    sections = [Section(shares_table(file)) for file in read_shares(run, name)]
    for file in read_without(run, name):
        first, *others = without_tables(file, MOST_LOST)
        sections += [Section(first, _picture(without_file(run, file).with_suffix(".png"))), *map(Section, others)]
    lds = None if entry is None else lds_table(name, entry)
    return sections + ([] if lds is None else [Section(lds)])


def _picture(path: Path) -> str | None:
    if not path.is_file():
        return None
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
