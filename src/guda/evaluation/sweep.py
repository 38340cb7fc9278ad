"""Many settings of one method side by side: the schema of a trial and of a sweep's table, and how the table is drawn.

A trial is measured as a method is (results.py) and says what it was made with and how much cheaper it is than LOGO,
evals_ratio_vs_logo = fit evaluations of LOGO / of the trial. One whose weights or scores are not finite is a row that
says so, not the end of the sweep.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from guda.config import Config
from guda.evaluation.ceiling import CEILING
from guda.evaluation.metrics import LABELS, SIX
from guda.evaluation.results import Cost, DatasetEntry, Figure, MethodEntry, read_file
from guda.evaluation.tables import ceiling_name, figure, figures, footer, random_figures, title
from guda.table import Cell, Row, Table, count, human_time, paragraphs

REPORTED = (
    "This sweep is reported, not selected on: a setting picked from it has seen these queries; "
    "`guda tune` chooses on queries of their own."
)

HEADER = ("setting", *(LABELS[m] for m in SIX), "Top-1 / ceiling", "fit evals/group", "LOGO / fit evals", "fit time")


class Trial(MethodEntry):
    """One setting of a method against the oracle; `metrics` are empty where it failed."""

    settings: dict[str, Any] = Field(description="all settings of the method, defaults included")
    evals_ratio_vs_logo: FiniteFloat | None = Field(default=None, description="LOGO's fit_evals / this one's")
    failed: str | None = Field(default=None, description="why there are no figures")


class SweepRow(Trial):
    axis: str = Field(description="the setting that is swept, or `epochs`")
    label: str = Field(description="its value, as shown")
    own: bool = Field(description="this is the recipe's own setting, to which `difference` is taken")


class SweepFile(Config):
    """RUN/ablations/<name>.json."""

    format: Literal["guda-ablation/1"] = "guda-ablation/1"
    name: str
    about: str = ""
    method: str
    base: dict[str, Any] = Field(description="settings that are not swept")
    queries: str = Field(description="name of the query set")
    groups: tuple[str, ...]
    oracle: DatasetEntry = Field(description="the ceiling, LOGO's cost, random rankings; `methods` is LOGO alone")
    rows: tuple[SweepRow, ...]
    note: str = REPORTED


def read_sweep(path: Path) -> SweepFile:
    return read_file(path, SweepFile, "ablation-table-invalid", "table of an ablation")


def sweep_table(sweep: SweepFile) -> Table:
    """The ceiling, every setting, random rankings. The recipe's own row is marked."""

    def row(
        name: str, metrics: dict[str, Figure] | None, ratio: Figure | None, cost: Cost, cheaper: Cell
    ) -> list[Cell]:
        return [name, *figures(metrics), figure(ratio), count(cost.fit_evals), cheaper, human_time(cost.fit_seconds)]

    oracle = sweep.oracle
    rows = [
        Row(tuple(row(ceiling_name(oracle.ceiling), oracle.ceiling, None, oracle.methods.get(CEILING, Cost()), None)))
    ]
    for r in sweep.rows:
        name = f"{r.axis} = {r.label}" + (" (recipe)" if r.own else "")
        ratio, cheaper = (r.ratio_to_ceiling or {}).get("top1"), r.evals_ratio_vs_logo
        cells = row(name, r.metrics, ratio, r, None if cheaper is None else f"{cheaper:.3g}x")
        if r.failed:
            cells = [name, f"failed: {r.failed}", *(None for _ in HEADER[2:])]
        rows.append(Row(tuple(cells), marked=r.own))
    rows.append(Row(("random ranking", *random_figures(oracle), *(None for _ in HEADER[1 + len(SIX) :]))))
    head = title(f"{sweep.name}: {sweep.method} on {sweep.queries}", oracle)
    return Table.of(head, HEADER, rows, f"{footer(oracle)} {sweep.note}".strip())


def markdown(sweep: SweepFile) -> str:
    table = sweep_table(sweep)
    return paragraphs(f"**{table.title}**", sweep.about, table.markdown_lines(), table.note)


def text(sweep: SweepFile) -> str:
    """For a terminal: three of the metrics and the cost; the Markdown has everything."""
    shown = (HEADER[0], "Top-1", "MRR", "Spearman", "Top-1 / ceiling", *HEADER[-3:])
    table = sweep_table(sweep).select(HEADER.index(c) for c in shown)
    return f"{table.title}\n{table.plain()}"
