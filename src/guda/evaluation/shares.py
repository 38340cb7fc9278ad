"""Shares of groups in pictures: the file and its tables. How they are computed: scoring/shapley.py, docs/coalitions.md.

Shares of one picture add up to v(all) - v(nothing) of that picture; those of the collection are means over its
pictures and add up to the mean. A row may be several groups pooled, because they cannot be told from noise one by one.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, FiniteFloat, NonNegativeFloat

from guda.config import Config
from guda.evaluation.intervals import Figure
from guda.table import Cell, Column, Number, Table, decimals, measured

VALUES = {
    "elbo": "ELBO of the picture by the model of a coalition",
    "path": "minus the path divergence of the full model from the model of a coalition",
}


class ShareRow(Figure):
    """Mean, 95 % interval and standard error, nats. Negative: the images make the picture less likely."""

    name: str
    groups: list[str] = Field(description="one, or several that are pooled")
    stderr: NonNegativeFloat
    part: FiniteFloat | None = Field(description="of v(all) - v(nothing); null where that may be zero")


class PictureShares(Config):
    picture: str
    total: Figure = Field(description="v(all) - v(nothing), nats")
    rows: list[ShareRow]


class SharesFile(Config):
    """RUN/shares/<set>/<engine>-<value>.json."""

    format: Literal["guda-shares/1"] = "guda-shares/1"
    engine: Literal["posterior", "subsets", "unlearned"]
    method: str | None = Field(None, description="operator of the engine `unlearned`")
    value: Literal["elbo", "path"]
    unit: Literal["nats"] = "nats"
    estimand: str
    queries: str
    nothing: str = Field(description="what v(nothing) is")
    parcels: dict[str, int] = Field(description="parcels of images in each group, which are the players")
    coalitions: int = Field(description="coalitions that were valued; of sampled orders, pairs of orders at most")
    sampled: bool
    pooling: str = Field(description="why some groups are pooled, or that none are")
    note: str
    total: Figure = Field(description="mean over the pictures of v(all) - v(nothing)")
    rows: list[ShareRow] = Field(description="the collection: means over its pictures")
    pictures: list[PictureShares]

    def picture(self, name: str) -> PictureShares | None:
        return next((p for p in self.pictures if p.picture == name), None)


def shares_table(found: SharesFile, picture: str | None = None) -> Table:
    """Of the collection, or of one picture; largest share first."""
    one = None if picture is None else found.picture(picture)
    rows, total = (found.rows, found.total) if one is None else (one.rows, one.total)
    digits = decimals(np.array([r.mean for r in rows]))

    def cell(value: Figure) -> Cell:
        return Number(value.mean, " ".join(measured(value.mean, value.lo, value.hi, digits)), value.lo, value.hi)

    def part(row: ShareRow) -> Cell:
        return None if row.part is None else Number(row.part, f"{100 * row.part:.1f} %")

    listed = sorted(rows, key=lambda r: -r.mean)
    cells = [(r.name, cell(r), part(r)) for r in listed]
    cells.append(("together: v(all) - v(nothing)", cell(total), None))
    whose = f"{len(found.pictures)} pictures of {found.queries}, mean per picture" if one is None else one.picture
    by = found.engine if found.method is None else f"{found.engine} ({found.method})"
    title = f"Shares of {whose}, by {by}: Shapley values of the {VALUES[found.value]}"
    columns = (Column("group"), Column("share, nats", interval=True), Column("of the whole"))
    note = f"Nothing: {found.nothing}. {found.pooling} {found.note}"
    return Table.of(title, columns, cells, note)


def pictures_table(found: SharesFile) -> Table:
    """Every picture and row, for CSV."""
    cells: list[tuple[Cell, ...]] = []
    for picture in found.pictures:
        for r in picture.rows:
            text = f"{r.mean:+.4g}"
            cells.append(
                (picture.picture, r.name, Number(r.mean, text, r.lo, r.hi), Number(r.stderr, f"{r.stderr:.3g}"),
                 Number(picture.total.mean, f"{picture.total.mean:.4g}"))
            )  # fmt: skip
    columns = (Column("picture"), Column("group"), Column("share", interval=True, unit="nats"),
               Column("stderr", unit="nats"), Column("total", unit="nats"))  # fmt: skip
    return Table.of("Shares", columns, cells)
