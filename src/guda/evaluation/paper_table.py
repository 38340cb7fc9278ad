"""One table of a paper: cells that know their number, drawn as Markdown, CSV and LaTeX (booktabs).

Markdown and LaTeX are for reading: "0.72 [0.69, 0.75]". CSV is for computing: the bare number in its own unit, and for
columns with intervals two more, lo and hi. Sections keep what was measured here apart from what was published on other
data. Nothing in a table depends on when or where it was drawn: the same inputs give the same bytes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guda.evaluation.results import Figure
from guda.evaluation.tables import MISSING, human_count, human_time
from guda.files import write_text


@dataclass(frozen=True)
class Number:
    value: float
    text: str  # as it is read
    lo: float | None = None
    hi: float | None = None


Cell = Number | str | None


@dataclass(frozen=True)
class Column:
    label: str
    interval: bool = False  # CSV has its ends in columns of their own
    unit: str = ""  # of the number in CSV, where the text has another


@dataclass(frozen=True)
class Row:
    cells: tuple[Cell, ...]
    section: str = ""
    marked: bool = False  # the recipe's or the paper's own setting


@dataclass(frozen=True)
class PaperTable:
    key: str  # names its files and its LaTeX label
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"{self.key}: a row of {len(row.cells)} cells under {len(self.columns)} columns")

    def sections(self) -> list[tuple[str, list[Row]]]:
        """Rows under their section's name, in the order of the first of each."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.section, []).append(row)
        return list(found.items())


# ---- cells --------------------------------------------------------------------------------------------------------
def figure(value: Figure | None, signed: bool = False) -> Cell:
    """A measured figure with its interval, two digits."""
    if value is None:
        return None
    sign = "+" if signed else ""
    text = f"{value.mean:{sign}.2f} [{value.lo:{sign}.2f}, {value.hi:{sign}.2f}]"
    return Number(value.mean, text, value.lo, value.hi)


def number(value: float | None, digits: int = 2, signed: bool = False) -> Cell:
    return None if value is None else Number(value, f"{value:{'+' if signed else ''}.{digits}f}")


def count(value: float | None) -> Cell:
    return None if value is None else Number(value, human_count(value))


def seconds(value: float | None) -> Cell:
    return None if value is None else Number(value, "0 s" if value == 0 else human_time(value))


def _text(cell: Cell) -> str:
    return MISSING if cell is None else cell if isinstance(cell, str) else cell.text


# ---- Markdown -----------------------------------------------------------------------------------------------------
def markdown(table: PaperTable) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"**{table.title}**", "", line(c.label for c in table.columns)]
    lines.append(line(["---", *("---:" for _ in table.columns[1:])]))
    for section, rows in table.sections():
        if section:
            lines.append(line([f"*{section}*", *("" for _ in table.columns[1:])]))
        for row in rows:
            first, *rest = map(_text, row.cells)
            lines.append(line([f"**{first}**" if row.marked else first, *rest]))
    return "\n".join([*lines, *(["", table.note] if table.note else [])]) + "\n"


# ---- CSV ----------------------------------------------------------------------------------------------------------
def to_csv(table: PaperTable) -> str:
    """A header of one line; `section` first; missing numbers are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = ["section"]
    for column in table.columns:
        name = f"{column.label} ({column.unit})" if column.unit else column.label
        header += [name, f"{name} lo", f"{name} hi"] if column.interval else [name]
    writer.writerow(header)
    for row in table.rows:
        cells = [row.section]
        for column, cell in zip(table.columns, row.cells, strict=True):
            if isinstance(cell, Number):
                found = [cell.value, cell.lo, cell.hi] if column.interval else [cell.value]
                cells += ["" if x is None else f"{x:.6g}" for x in found]
            else:
                cells += [cell or "", "", ""] if column.interval else [cell or ""]
        writer.writerow(cells)
    return out.getvalue()


# ---- LaTeX --------------------------------------------------------------------------------------------------------
ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "–": "--", "—": "---",
    "−": "$-$", "×": r"$\times$", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$", "λ": r"$\lambda$", "Δ": r"$\Delta$",
    "τ": r"$\tau$", "η": r"$\eta$", "θ": r"$\theta$", '"': "''",
}  # fmt: skip


def escape(text: str) -> str:
    """Plain text as LaTeX text."""
    found = "".join(ESCAPES.get(c, c) for c in text.replace("<=", "≤").replace(">=", "≥"))
    # after \\ an opening bracket would be a length and a star a command
    return "{}" + found if found[:1] in ("[", "*") else found


def latex(table: PaperTable) -> str:
    """A table environment; the preamble needs \\usepackage{booktabs}, and graphicx for wide ones, which are shrunk."""
    n = len(table.columns)

    def cell(value: Cell) -> str:
        found = escape(_text(value))
        return re.sub(r"(?<![\w$])-(?=\d)", "$-$", found) if isinstance(value, Number) else found

    body: list[str] = []
    for section, rows in table.sections():
        if body:
            body.append(r"\midrule")
        if section:
            body.append(rf"\multicolumn{{{n}}}{{@{{}}l@{{}}}}{{\textit{{{escape(section)}}}}} \\")
        for row in rows:
            first, *rest = map(cell, row.cells)
            body.append(" & ".join([rf"\textbf{{{first}}}" if row.marked else first, *rest]) + r" \\")
    kind, wide = ("table*", True) if n > 5 else ("table", False)
    needs = "booktabs,graphicx" if wide else "booktabs"
    lines = [
        f"% \\usepackage{{{needs}}}", rf"\begin{{{kind}}}[t]", r"\centering", rf"\caption{{{escape(table.title)}}}",
        rf"\label{{tab:{table.key}}}", r"\small", *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{@{{}}l{'r' * (n - 1)}@{{}}}}", r"\toprule",
        " & ".join(rf"\textbf{{{escape(c.label)}}}" for c in table.columns) + r" \\", r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}" + ("}" if wide else ""),
    ]  # fmt: skip
    if table.note:
        lines += ["", r"\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {escape(table.note)}}}"]
    return "\n".join([*lines, rf"\end{{{kind}}}"]) + "\n"


# ---- files --------------------------------------------------------------------------------------------------------
def write_tables(folder: Path, tables: Sequence[PaperTable]) -> list[Path]:
    """<key>.md, .csv and .tex of every table, and tables.md with all of them."""
    keys = [table.key for table in tables]
    if len(set(keys)) < len(keys):
        raise ValueError(f"two tables have one key: {keys}")
    written = []
    for table in tables:
        for ending, draw in (("md", markdown), ("csv", to_csv), ("tex", latex)):
            written.append(folder / f"{table.key}.{ending}")
            write_text(written[-1], draw(table))
    written.append(folder / "tables.md")
    write_text(written[-1], "\n".join(map(markdown, tables)))
    return written
