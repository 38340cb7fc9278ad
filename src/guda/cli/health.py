"""`guda health` for people: the leakage matrix and the drift of one method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from guda.report.numbers import signed

if TYPE_CHECKING:
    from guda.methods.health import DriftFigure, Health

COLUMNS = 16  # groups whose columns a terminal takes; with more, only the largest leak is shown
NAME = 12


def tables(found: Health) -> Iterator[Any]:
    """Things for rich to print."""
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    from guda.report.numbers import decimals

    matrix = np.array(found.matrix)
    digits = decimals(matrix)
    small = len(found.groups) <= COLUMNS
    yield Text(f"{found.method}: nats; {found.sign}", "bold")
    yield Text(f"rows: the group taken out; columns: whose training images ({sum(found.images)}); {found.estimand}")
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("without", no_wrap=True, max_width=NAME)
    for title in [*(found.groups if small else []), *([] if small else ["itself", "largest leak"]), "drift [95 %]"]:
        table.add_column(Text(title), justify="right", no_wrap=True, max_width=max(NAME, 28))
    for k, name in enumerate(found.groups):
        if small:
            cells = [Text(signed(v, digits), "bold" if j == k else "") for j, v in enumerate(matrix[k])]
        else:
            others = np.where(np.arange(len(matrix)) == k, 0.0, np.abs(matrix[k]))
            j = int(others.argmax())
            cells = [
                Text(signed(matrix[k, k], digits), "bold"),
                Text(f"{found.groups[j]} {signed(matrix[k, j], digits)}"),
            ]
        table.add_row(Text(name), *cells, Text(drift_text(found.drift[k], digits)))
    yield table
    yield Text("diagonal: forgetting; off it: leakage; drift: mean over the images of all other groups", "dim")
    yield Text(found.note, "dim")


def drift_text(figure: DriftFigure, digits: int) -> str:
    from guda.report.numbers import interval

    return f"{signed(figure.mean, digits)} {interval(figure.lo, figure.hi, digits)}"
