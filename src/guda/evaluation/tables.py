"""A comparison as a table, for the terminal and for Markdown: the ceiling, the methods, random rankings.

`rows` decides what the cells say; `terminal` and `markdown` only draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from guda.evaluation.ceiling import CEILING
from guda.evaluation.metrics import LABELS, SIX, random_baseline
from guda.evaluation.results import Cost, DatasetEntry, Figure

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


MISSING = "–"

NOT_SEPARATED = "not separated"

GIVEN = "Intervals are given these trained models; the noise of retraining is not in the interval."

CEILING_NAME = "LOGO, one retraining (ceiling)"

NO_CEILING = "LOGO (no ceiling: one seed)"

COST_COLUMNS = ("fit evals/group", "fit time", "score evals/query", "score time")

HEADER = ("method", *(LABELS[metric] for metric in SIX), *COST_COLUMNS)


def human_count(value: float | None) -> str:
    """950, 12.8 k, 1.54 M: three significant digits."""
    if value is None:
        return MISSING
    for unit in ("", " k", " M", " G"):
        if float(f"{value:.3g}") < 1000 or unit == " G":
            break
        value /= 1000
    return f"{float(f'{value:.3g}'):g}{unit}"


def human_time(seconds: float | None) -> str:
    """0.42 s, 12.3 s, 5:07 min, 1:07 h."""
    if seconds is None:
        return MISSING
    if seconds < 0.1:
        return "< 0.1 s"
    if float(f"{seconds:.3g}") < 60:
        return f"{float(f'{seconds:.3g}'):g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h"


def figure_text(figure: Figure | None) -> str:
    return MISSING if figure is None else f"{figure.mean:.2f} [{figure.lo:.2f}, {figure.hi:.2f}]"


def ceiling_name(figures: Mapping[str, Figure] | None) -> str:
    """Of LOGO's row: one retraining has no other to be held against, so it has a cost and no ceiling."""
    return CEILING_NAME if figures else NO_CEILING


def _row(name: str, metrics: Mapping[str, Figure], cost: Cost) -> tuple[str, ...]:
    return (
        name,
        *(figure_text(metrics.get(metric)) for metric in SIX),
        human_count(cost.fit_evals),
        human_time(cost.fit_seconds),
        human_count(cost.score_evals),
        human_time(cost.score_seconds),
    )


def rows(entry: DatasetEntry) -> list[tuple[str, ...]]:
    """Cells under HEADER. LOGO's own row is the ceiling, so it is not listed a second time."""
    result = [_row(ceiling_name(entry.ceiling), entry.ceiling or {}, entry.methods.get(CEILING, Cost()))]
    result += [_row(name, m.metrics, m) for name, m in entry.methods.items() if name != CEILING]
    expected = entry.random or (random_baseline(entry.n_groups) if entry.n_groups else {})
    cells = (f"{expected[metric]:.2f}" if metric in expected else MISSING for metric in SIX)
    result.append(("random ranking", *cells, *(MISSING for _ in COST_COLUMNS)))
    return result


def title(name: str, entry: DatasetEntry) -> str:
    estimand = entry.estimand or "estimand not recorded"
    groups = f", {entry.n_groups} groups" if entry.n_groups else ""
    seeds = len(entry.seeds)
    return (
        f"{name}: agreement with LOGO, {estimand} ({entry.unit}; {entry.sign}){groups}, "
        f"{entry.n_queries:,} queries, {seeds} LOGO seed{'' if seeds == 1 else 's'}, 95 % intervals"
    )


def told_apart(entry: DatasetEntry, metric: str = "top1") -> str:
    """What is not separated from the best method and from the ceiling (separation.py says by what rule).

    Says nothing of a pair that was not tested; the full list of pairs is a table of its own."""
    tested = {frozenset((p.a, p.b)): p.metrics[metric].separated for p in entry.pairs or () if metric in p.metrics}
    means = {m: e.metrics[metric].mean for m, e in entry.methods.items() if m != CEILING and metric in e.metrics}
    if not tested or not means:
        return ""
    best = max(means, key=lambda m: means[m])
    told = [
        _alike(name, [m for m in means if m != one], {m: tested.get(frozenset((one, m))) for m in means})
        for one, name in ((best, f"the best, {best}"), (CEILING, "the ceiling"))
    ]
    sentences = "; ".join(t for t in told if t)
    rule = f"paired over queries, Holm-corrected over {len(tested)} pair{'' if len(tested) == 1 else 's'}"
    return f"{LABELS[metric]} ({rule}): {sentences}." if sentences else ""


def _alike(name: str, others: Sequence[str], separated: Mapping[str, bool | None]) -> str:
    """Who among the others that were tested against `name` is not separated from it."""
    asked = [m for m in others if separated[m] is not None]
    if not asked:
        return ""
    alike = [m for m in asked if not separated[m]]
    text = f"{NOT_SEPARATED} from {name}: {', '.join(alike) or 'none'}"
    left = len(others) - len(asked)
    return text + (f" ({left} other{'' if left == 1 else 's'} not tested)" if left else "")


def footer(entry: DatasetEntry) -> str:
    """The entry's note, how reliable the oracle is, its noise and which methods are not told apart."""
    parts = [entry.note] if entry.note else []
    if entry.reliability:
        r = entry.reliability
        parts.append(
            f"Reliability of the oracle: {r.one_seed:.2f} for one seed, {r.mean_of_seeds:.2f} for the mean "
            f"of {len(entry.seeds)} (Spearman-Brown)."
        )
    if entry.floor:
        f, shown = entry.floor, ("top1", "ndcg3", "spearman")
        figures = ", ".join(f"{LABELS[m]} {figure_text(f.metrics[m])}" for m in shown if m in f.metrics)
        halves = f"{f.half} round{'' if f.half == 1 else 's'} of noise against {f.rounds - f.half} other"
        parts.append(
            f"Query-noise floor (LOGO against itself, same models, {halves}): {figures}; "
            f"reliability {f.mean_of_rounds:.2f} for all {f.rounds} rounds."
        )
    if told := told_apart(entry):
        parts.append(told)
    return " ".join(parts)


WIDE, MIDDLE = 210, 125  # columns that one-line cells need; that two-line cells need


def terminal(name: str, entry: DatasetEntry, width: int = WIDE) -> Group:
    """For a terminal of `width` columns. Where that is narrow, intervals go below their means and costs into a table of
    their own; where it is very narrow, intervals lose their leading zeros."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    cells = rows(entry)
    if width < WIDE:
        cells = [tuple(cell.replace(" [", "\n[") for cell in row) for row in cells]
    if width < MIDDLE:
        cells = [(row[0].replace(", one retraining", ""), *(_compact(c) for c in row[1:])) for row in cells]
    n = 1 + len(SIX)
    parts = [rich_table(HEADER, cells)] if width >= WIDE else [
        rich_table(HEADER[:n], [row[:n] for row in cells]),
        rich_table((HEADER[0], *HEADER[n:]), [(row[0], *row[n:]) for row in cells[:-1]]),
    ]  # fmt: skip
    return Group(Text(title(name, entry), style="bold"), *parts, Padding(Text(footer(entry)), (0, 0, 1, 0)))


def _compact(cell: str) -> str:
    return (
        cell.replace("[0.", "[.").replace(", 0.", ",.").replace(", -0.", ",-.").replace("[-0.", "[-.")
        if "[" in cell
        else cell
    )


def rich_table(header: tuple[str, ...], cells: list[tuple[str, ...]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # Text, not str: rich would read "[0.72, 0.80]" or a bracket in a name as markup.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for i, column in enumerate(header):
        table.add_column(Text(column), justify="left" if i == 0 else "right", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def markdown_table(header: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Lines of a Markdown table: names on the left, figures on the right."""

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    rule = ("---", *("---:" for _ in header[1:]))
    return "\n".join([line(header), line(rule), *map(line, cells)])


def markdown(name: str, entry: DatasetEntry) -> str:
    text = [f"**{title(name, entry)}**", "", markdown_table(HEADER, rows(entry))]
    if footer(entry):
        text += ["", footer(entry)]
    return "\n".join(text) + "\n"
