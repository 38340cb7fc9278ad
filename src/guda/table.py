"""A table as plain data, and how it is drawn: plain text, rich, Markdown, CSV, LaTeX (booktabs).

    Table.of("Costs", ("method", "time"), [("shift", seconds(307)), ("logo", None)], note="Worker seconds.").markdown()

Text, Markdown and LaTeX are for reading: "0.72 [0.69, 0.75]". CSV is for computing: the bare number in its own unit,
and two more columns, lo and hi, for columns with intervals. A table does not depend on when or where it was drawn: the
same inputs give the same bytes.

Scores are signed, with a real minus sign, and have as many decimals as two significant digits of their error has:
`measured` decides for everything that prints one (in the browser: page.js). Without an error three digits are shown.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from guda.files import write_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable
import math

import numpy as np

MISSING = "–"


# ---- cells --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Number:
    value: float
    text: str  # as it is read
    lo: float | None = None
    hi: float | None = None


Cell = Number | str | None  # None: not measured


def number(value: float | None, digits: int = 2, signed: bool = False) -> Cell:
    return None if value is None else Number(value, f"{value:{'+' if signed else ''}.{digits}f}")


def count(value: float | None) -> Cell:
    return None if value is None else Number(value, human_count(value))


def seconds(value: float | None) -> Cell:
    return None if value is None else Number(value, "0 s" if value == 0 else human_time(value))


def size(value: float | None) -> Cell:
    return None if value is None else Number(value, human_bytes(value))


def human_count(value: float | None) -> str:
    """950, 12.8 k, 1.54 M: three significant digits."""
    if value is None:
        return MISSING
    for unit in ("", " k", " M", " G"):
        if float(f"{value:.3g}") < 1000 or unit == " G":
            break
        value /= 1000
    return f"{float(f'{value:.3g}'):g}{unit}"


def human_time(value: float | None) -> str:
    """Seconds as 0.42 s, 12.3 s, 5:07 min, 1:07 h."""
    if value is None:
        return MISSING
    if value < 0.1:
        return "< 0.1 s"
    if float(f"{value:.3g}") < 60:
        return f"{float(f'{value:.3g}'):g} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    minutes = round(value / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h"


def human_bytes(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"


# ---- the table ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Column:
    label: str
    interval: bool = False  # CSV has its ends in columns of their own
    unit: str = ""  # of the number in CSV, where the text has another
    align: Literal["left", "right"] | None = None  # None: the first column left, the others right


@dataclass(frozen=True)
class Row:
    cells: tuple[Cell, ...]
    section: str = ""
    marked: bool = False  # shown in bold


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""  # below the table
    key: str = ""  # names its files and its LaTeX label

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row.cells)} cells under {len(self.columns)} columns")

    @classmethod
    def of(
        cls, title: str, columns: Iterable[Column | str], rows: Iterable[Row | Sequence[Cell]], note: str = "",
        key: str = "",
    ) -> Table:  # fmt: skip
        """Plain labels and plain tuples of cells will do."""
        return cls(
            title, tuple(Column(c) if isinstance(c, str) else c for c in columns),
            tuple(r if isinstance(r, Row) else Row(tuple(r)) for r in rows), note, key,
        )  # fmt: skip

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(c.label for c in self.columns)

    def texts(self) -> list[tuple[str, ...]]:
        """The cells of every row as they are read."""
        return [tuple(map(_text, row.cells)) for row in self.rows]

    def sections(self) -> list[tuple[str, list[Row]]]:
        """Rows under their section's name, in the order of the first of each."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.section, []).append(row)
        return list(found.items())

    def select(self, columns: Iterable[int]) -> Table:
        """Some of the columns, in the given order."""
        chosen = tuple(columns)
        rows = (replace(r, cells=tuple(r.cells[i] for i in chosen)) for r in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in chosen), rows=tuple(rows))

    def rewrite(self, change: Callable[[int, str], str]) -> Table:
        """Every cell as text, changed by `change(column, text)`; for narrow terminals."""
        rows = (replace(r, cells=tuple(change(i, _text(c)) for i, c in enumerate(r.cells))) for r in self.rows)
        return replace(self, rows=tuple(rows))

    # ---- drawn ----------------------------------------------------------------------------------------------------
    def plain(self, indent: str = "  ") -> str:
        """Aligned lines for a terminal, without title and note."""
        lines = [self.header, *self.texts()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        right = self._right()
        return "\n".join(
            (indent + "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)))
            .rstrip()
            for line in lines
        )  # fmt: skip

    def grid(self) -> RichTable:
        """A rich table, without title and note."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        # Text, not str: rich would read "[0.72, 0.80]" or a bracket in a name as markup.
        grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column, right in zip(self.columns, self._right(), strict=True):
            grid.add_column(Text(column.label), justify="right" if right else "left", overflow="fold")
        for row, cells in zip(self.rows, self.texts(), strict=True):
            grid.add_row(*map(Text, cells), style="bold" if row.marked else None)
        return grid

    def rich(self) -> Group:
        """For a rich console: title, table, note."""
        return rich_group(self.title, [self.grid()], self.note)

    def markdown(self) -> str:
        """Title, table and note; those that are empty are left out."""
        return paragraphs(self.title and f"**{self.title}**", self.markdown_lines(), self.note)

    def markdown_lines(self) -> str:
        """The table alone."""

        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        lines = [line(self.header), line("---:" if right else "---" for right in self._right())]
        for section, rows in self.sections():
            if section:
                lines.append(line([f"*{section}*", *("" for _ in self.columns[1:])]))
            for row in rows:
                first, *rest = map(_text, row.cells)
                lines.append(line([f"**{first}**" if row.marked else first, *rest]))
        return "\n".join(lines)

    def csv(self) -> str:
        """A header of one line; `section` first; missing numbers are empty."""
        header = ["section"]
        for column in self.columns:
            name = f"{column.label} ({column.unit})" if column.unit else column.label
            header += [name, f"{name} lo", f"{name} hi"] if column.interval else [name]
        lines: list[list[object]] = [[*header]]
        for row in self.rows:
            cells: list[object] = [row.section]
            for column, cell in zip(self.columns, row.cells, strict=True):
                if isinstance(cell, Number):
                    values = [cell.value, cell.lo, cell.hi] if column.interval else [cell.value]
                    cells += [None if x is None else f"{x:.6g}" for x in values]
                else:
                    cells += [cell, None, None] if column.interval else [cell]
            lines.append(cells)
        return csv_text(lines)

    def latex(self) -> str:
        """A table environment; the preamble needs booktabs, and graphicx for wide ones, which are shrunk."""
        n = len(self.columns)

        def text(cell: Cell) -> str:
            escaped = escape(_text(cell))
            return re.sub(r"(?<![\w$])-(?=\d)", "$-$", escaped) if isinstance(cell, Number) else escaped

        body: list[str] = []
        for section, rows in self.sections():
            if body:
                body.append(r"\midrule")
            if section:
                body.append(rf"\multicolumn{{{n}}}{{@{{}}l@{{}}}}{{\textit{{{escape(section)}}}}} \\")
            for row in rows:
                first, *rest = map(text, row.cells)
                body.append(" & ".join([rf"\textbf{{{first}}}" if row.marked else first, *rest]) + r" \\")
        kind, wide = ("table*", True) if n > 5 else ("table", False)
        needs = "booktabs,graphicx" if wide else "booktabs"
        align = "".join("r" if right else "l" for right in self._right())
        lines = [
            f"% \\usepackage{{{needs}}}", rf"\begin{{{kind}}}[t]", r"\centering", rf"\caption{{{escape(self.title)}}}",
            rf"\label{{tab:{self.key}}}", r"\small", *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
            rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}", r"\toprule",
            " & ".join(rf"\textbf{{{escape(label)}}}" for label in self.header) + r" \\", r"\midrule", *body,
            r"\bottomrule", r"\end{tabular}" + ("}" if wide else ""),
        ]  # fmt: skip
        if self.note:
            lines += ["", r"\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {escape(self.note)}}}"]
        return "\n".join([*lines, rf"\end{{{kind}}}"]) + "\n"

    def _right(self) -> list[bool]:
        """Which columns are aligned to the right."""
        return [i > 0 if c.align is None else c.align == "right" for i, c in enumerate(self.columns)]


# a sign is fine before what is only a number: -1.5, +12.3 ± 1.4, -1e-05
FORMULA = re.compile(r"[=@\t\r\n＝＠＋－]|[+-](?!(?:[\d.,±% \[\]]*|[\d.]+e[+-]?\d+|inf)\Z)")


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV. A spreadsheet runs a text that begins like a formula, and names of groups, pictures and prompts come
    from strangers: such a text gets an apostrophe before it, which spreadsheets do not show. Numbers stay numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([f"'{x}" if isinstance(x, str) and FORMULA.match(x) else x for x in row])
    return out.getvalue()


def csv_cell(text: str) -> str:
    """A text as it was before `csv_text`; one that really begins with an apostrophe and a formula loses the former."""
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text


def _text(cell: Cell) -> str:
    return MISSING if cell is None else cell if isinstance(cell, str) else cell.text


def paragraphs(*parts: str) -> str:
    """Parts of a Markdown file with empty lines between them; empty parts are left out."""
    return "\n\n".join(p for p in parts if p) + "\n"


def rich_group(title: str, parts: Sequence[RichTable], note: str) -> Group:
    """Tables under a bold title, with a note below them."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    return Group(Text(title, style="bold"), *parts, Padding(Text(note), (0, 0, 1, 0)))


ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "–": "--", "—": "---",
    "−": "$-$", "×": r"$\times$", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$", "λ": r"$\lambda$", "Δ": r"$\Delta$",
    "τ": r"$\tau$", "η": r"$\eta$", "θ": r"$\theta$", '"': "''",
}  # fmt: skip


def escape(text: str) -> str:
    """Plain text as LaTeX text."""
    escaped = "".join(ESCAPES.get(c, c) for c in text.replace("<=", "≤").replace(">=", "≥"))
    # after \\ an opening bracket would be a length and a star a command
    return "{}" + escaped if escaped[:1] in ("[", "*") else escaped


def write_tables(folder: Path, tables: Sequence[Table]) -> list[Path]:
    """<key>.md, .csv and .tex of every table, and tables.md with all of them."""
    keys = [table.key for table in tables]
    if len(set(keys)) < len(keys):
        raise ValueError(f"two tables have one key: {keys}")
    texts = {
        f"{t.key}.{ending}": draw() for t in tables
        for ending, draw in (("md", t.markdown), ("csv", t.csv), ("tex", t.latex))
    }  # fmt: skip
    texts["tables.md"] = "\n".join(t.markdown() for t in tables)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


MINUS = "\N{MINUS SIGN}"


def decimals(values: np.ndarray) -> int:
    """Three significant digits for the largest value: 60 -> 1, 5 -> 2, 0.9 -> 3, 500 -> 0."""
    largest = float(np.abs(values).max(initial=0.0))
    return 1 if largest == 0 else min(max(2 - math.floor(math.log10(largest)), 0), 6)


def plain(value: float, digits: int) -> str:
    text = f"{abs(value):,.{digits}f}"
    return MINUS + text if value < 0 and float(text.replace(",", "")) else text


def signed(value: float, digits: int) -> str:
    """+12.3, −4.0, and 0.0 for what rounds to it."""
    text = plain(value, digits)
    return text if text[0] == MINUS or not float(text.replace(",", "")) else f"+{text}"


def error_decimals(error: float) -> int | None:
    """Decimals of two significant digits of an error: 1.4 -> 1, 0.0034 -> 4, 12 -> 0; of none or zero: None."""
    if not 0 < error < math.inf:
        return None
    return max(1 - int(f"{error:.1e}".partition("e")[2]), 0)


def nonzero(value: float, digits: int) -> str:
    """`plain`, with as many decimals as its first digit needs: 0 is printed only for 0."""
    text = plain(value, digits)
    if value == 0 or float(text.replace(",", "").replace(MINUS, "-")):
        return text
    return plain(value, -int(f"{value:.0e}".partition("e")[2]))


def measured(score: float, lo: float | None, hi: float | None, digits: int) -> tuple[str, str]:
    """("+12.3", "[10.9, 13.7]"): a score and its interval with the decimals that half the interval's width has a right
    to. Without one: (the score with `digits` decimals, "")."""
    if lo is None or hi is None or lo != lo or hi != hi:
        return signed(score, digits), ""
    known = error_decimals((hi - lo) / 2)
    digits = digits if known is None else known
    text = signed(score, digits)
    if (lo > 0 or hi < 0) and not text.strip("0.,"):  # clear of zero, so it does not read as zero
        text = ("+" if score > 0 else "") + nonzero(score, digits)
    return text, f"[{nonzero(lo, digits)}, {nonzero(hi, digits)}]"


def interval(lo: float | None, hi: float | None, digits: int) -> str:
    """[10.1, 14.5], or nothing where the method has no error model or has not seen enough."""
    return measured(0.0, lo, hi, digits)[1]


def plus_minus(value: float, error: float, digits: int) -> str:
    """+12.3 ± 1.4: the error with two significant digits, the value with as many decimals."""
    known = error_decimals(error)
    digits = digits if known is None else known
    return f"{signed(value, digits)} ± {plain(error, digits)}"


def percent(value: float) -> str:
    """14 %; neither 0 % nor 100 % unless it is exactly that."""
    if 0 < value < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= value < 1 else f"{100 * value:.0f} %"


def probability(value: float) -> str:
    """61 %, on one line; an estimate is never quite 0 or 100 %."""
    text = "<1" if value < 0.005 else ">99" if value >= 0.995 else f"{100 * value:.0f}"
    return f"{text}\N{NO-BREAK SPACE}%"
