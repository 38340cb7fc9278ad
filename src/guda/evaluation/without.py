"""What an opt-out would cost: the file, and its tables. How it is predicted: steps/without.py, docs/coalitions.md."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.evaluation.intervals import Figure
from guda.table import Cell, Column, Number, Table, decimals, measured


class Loss(Figure):
    """By how many nats the ELBO would fall; positive: it would be explained worse."""

    name: str = Field(description="a picture, or a remaining group")


class Check(Config):
    """Predicted against measured values of trained subset models, which the prediction has not seen."""

    subsets: int
    r2: Figure = Field(description="1 - squared error over variance, over pictures and subsets; may be negative")
    spearman: Figure = Field(description="over subsets, mean over pictures")


class WithoutFile(Config):
    """RUN/without/<set>/<engine>-<groups>.json."""

    format: Literal["guda-without/1"] = "guda-without/1"
    engine: Literal["posterior", "subsets", "unlearned"]
    method: str | None = None
    groups: list[str] = Field(description="that would leave")
    queries: str
    estimand: str
    unit: Literal["nats"] = "nats"
    images: int = Field(description="training images that would leave")
    of: int = Field(description="training images in all")
    note: str
    overall: Figure = Field(description="mean over the pictures")
    pictures: list[Loss] = Field(description="largest loss first")
    remaining: list[Loss] = Field(description="mean over some training images of every remaining group")
    check: Check | None = Field(None, description="null: no subset models are trained and evaluated here")


def without_tables(found: WithoutFile, top: int) -> list[Table]:
    """Overall and the pictures that lose most; remaining groups."""
    digits = decimals(np.array([p.mean for p in found.pictures] or [0.0]))

    def cell(value: Figure) -> Cell:
        return Number(value.mean, " ".join(measured(value.mean, value.lo, value.hi, digits)), value.lo, value.hi)

    by = found.engine if found.method is None else f"{found.engine} ({found.method})"
    column = Column("loss, nats", interval=True)
    rows = [(f"all {len(found.pictures)} pictures, mean", cell(found.overall))]
    rows += [(p.name, cell(p)) for p in found.pictures[:top]]
    who = ", ".join(found.groups)
    title = (
        f"Without {who} ({found.images:,} of {found.of:,} training images), by {by}: how much less likely the pictures "
        f"of {found.queries} would be"
    )
    checked = ""
    if found.check is not None:
        c = found.check
        checked = (
            f" Against {c.subsets} trained subset models: R2 {c.r2.mean:.2f} [{c.r2.lo:.2f}, {c.r2.hi:.2f}], Spearman "
            f"{c.spearman.mean:.2f} [{c.spearman.lo:.2f}, {c.spearman.hi:.2f}]."
        )
    tables = [Table.of(title, (Column("pictures that would lose most"), column), rows, found.note + checked)]
    if found.remaining:
        listed = sorted(found.remaining, key=lambda r: -r.mean)
        title = "Remaining groups: mean loss of some of their training images"
        tables.append(Table.of(title, (Column("group"), column), [(r.name, cell(r)) for r in listed]))
    return tables


def pictures_table(found: WithoutFile) -> Table:
    """Every picture and remaining group, for CSV."""
    cells = [
        (kind, loss.name, Number(loss.mean, f"{loss.mean:+.4g}", loss.lo, loss.hi))
        for kind, losses in (("picture", found.pictures), ("group", found.remaining))
        for loss in losses
    ]
    return Table.of("Losses", (Column("what"), Column("name"), Column("loss", interval=True, unit="nats")), cells)
