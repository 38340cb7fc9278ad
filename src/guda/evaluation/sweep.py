"""Many settings of one method side by side: the schema of a trial and of a sweep's table, and how the table is drawn.

A trial is measured as a method is (results.py) and says what it was made with and how much cheaper it is than LOGO,
evals_ratio_vs_logo = fit evaluations of LOGO / of the trial. One whose weights or scores are not finite is a row that
says so, not the end of the sweep.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, FiniteFloat, ValidationError

from guda.config import Config
from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING
from guda.evaluation.metrics import LABELS, SIX
from guda.evaluation.results import Cost, DatasetEntry, Figure, MethodEntry
from guda.evaluation.tables import MISSING, ceiling_name, figure_text, footer, human_count, human_time, title
from guda.files import read_json

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
    try:
        return SweepFile.model_validate(read_json(path))
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise GudaError(
            "ablation-table-invalid", f"{path} is no table of an ablation ({where}: {first['msg']}); run it again"
        ) from None


def _cells(name: str, metrics: dict[str, Figure], ratio: Figure | None, cost: Cost, cheaper: float | None) -> list[str]:
    return [
        name, *(figure_text(metrics.get(m)) for m in SIX), figure_text(ratio), human_count(cost.fit_evals),
        MISSING if cheaper is None else f"{cheaper:.3g}x", human_time(cost.fit_seconds),
    ]  # fmt: skip


def row_name(row: SweepRow) -> str:
    return f"{row.axis} = {row.label}" + (" (recipe)" if row.own else "")


def rows(sweep: SweepFile) -> Iterator[list[str]]:
    """Cells under HEADER: the ceiling, every setting, random rankings."""
    logo = sweep.oracle.methods.get(CEILING, Cost())
    yield _cells(ceiling_name(sweep.oracle.ceiling), sweep.oracle.ceiling or {}, None, logo, None)
    for row in sweep.rows:
        if row.failed:
            yield [row_name(row), f"failed: {row.failed}", *(MISSING for _ in HEADER[2:])]
        else:
            ratio = (row.ratio_to_ceiling or {}).get("top1")
            yield _cells(row_name(row), row.metrics, ratio, row, row.evals_ratio_vs_logo)
    expected = sweep.oracle.random or {}
    cells = [f"{expected[m]:.2f}" if m in expected else MISSING for m in SIX]
    yield ["random ranking", *cells, *(MISSING for _ in HEADER[1 + len(SIX) :])]


def markdown(sweep: SweepFile) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    # the recipe's own row is bold, so that it is found at a glance
    own = {row_name(row) for row in sweep.rows if row.own}
    marked = ([f"**{c}**" if i == 0 and c in own else c for i, c in enumerate(row)] for row in rows(sweep))
    rule = ["---", *("---:" for _ in HEADER[1:])]
    head = title(f"{sweep.name}: {sweep.method} on {sweep.queries}", sweep.oracle)
    text = [f"**{head}**", "", *([sweep.about, ""] if sweep.about else []), line(list(HEADER)), line(rule)]
    return "\n".join([*text, *map(line, marked), "", f"{footer(sweep.oracle)} {sweep.note}".strip()]) + "\n"


def text(sweep: SweepFile) -> str:
    """For a terminal: three of the metrics and the cost; the Markdown has everything."""
    shown = [HEADER.index(c) for c in (HEADER[0], "Top-1", "MRR", "Spearman", "Top-1 / ceiling", *HEADER[-3:])]
    cells = [[row[i] for i in shown] for row in [list(HEADER), *rows(sweep)]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(shown))]
    lines = ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([title(f"{sweep.name}: {sweep.method} on {sweep.queries}", sweep.oracle), *lines])
