"""`guda health` for people: the leakage matrix and the drift of one method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from guda.scoring.numbers import decimals, interval, plain, signed

if TYPE_CHECKING:
    from guda.methods.health import Health


NAME = 16  # characters of a group's name


def tables(found: Health, width: int) -> Iterator[Any]:
    """Things for rich to print: the whole matrix where it fits, else each row's largest leak."""
    from rich.table import Table
    from rich.text import Text

    matrix = np.array(found.matrix)
    names = [name if len(name) <= NAME else name[: NAME - 1] + "…" for name in found.groups]
    beside = np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)  # the leakage
    digits = min(decimals(beside), 2)
    cells = [[signed(v, digits) for v in row] for row in matrix]
    drift = [f"{signed(d.mean, digits)} {interval(d.lo, d.hi, digits)}" for d in found.drift]
    errors = [f"{signed(d.mean, digits)} ± {plain(d.stderr, digits)}" for d in found.drift]
    columns = [max(len(names[j]), *(len(row[j]) for row in cells)) for j in range(len(names))]
    whole = sum(c + 2 for c in columns) + max(len("without"), *map(len, names)) + max(map(len, errors)) + 4 <= width
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("without", no_wrap=True)
    for title in ["drift", *names] if whole else ["drift [95 %]", "itself", "largest leak"]:
        table.add_column(Text(title), justify="right", no_wrap=True)
    for k, name in enumerate(names):
        if whole:
            shown = [Text(text, "bold" if j == k else "") for j, text in enumerate(cells[k])]
        else:
            j = int(np.abs(beside[k]).argmax())
            shown = [Text(cells[k][k], "bold"), Text(f"{names[j]} {cells[k][j]}")]
        table.add_row(Text(name), Text(errors[k] if whole else drift[k]), *shown)
    yield Text(f"{found.method}: nats; positive = images explained worse without the group", "bold")
    yield Text(f"{found.estimand}; on {sum(found.images)} {found.note}", "dim")
    yield table
    if whole:
        yield Text("rows: the group taken out; columns: whose images; diagonal: forgetting; off it: leakage", "dim")
    yield Text("drift: mean over the images of all other groups" + (", ± standard error" if whole else ""), "dim")
