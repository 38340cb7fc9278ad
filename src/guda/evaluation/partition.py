"""The effect of a noisy partition: the same experiment with clean and with noisy groups, method by method.

Paper: "Robustness to Noisy Group Partitions".

    change = n - c (noisy - clean),   lo = change - sqrt((n - n_lo)^2 + (c_hi - c)^2),
                                      hi = change + sqrt((n_hi - n)^2 + (c - c_lo)^2)

The two experiments share nothing: models, oracle and (with exposure matching) the pictures differ. So nothing is
paired, and the interval of a change is made of the two bootstrap intervals by adding the squares of their arms. LOGO's
row is the ceiling, and how far the noisy oracle still agrees with the clean one is measured where the pictures are the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Literal

from pydantic import Field

from guda.config import Config
from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING
from guda.evaluation.metrics import LABELS, SIX
from guda.evaluation.results import DatasetEntry, Figure
from guda.evaluation.tables import GIVEN, NOT_SEPARATED, ceiling_name, figure, figures, labelled
from guda.table import Table, paragraphs


class PartitionRow(Config):
    """One method, or LOGO itself; by metric name."""

    method: str
    clean: dict[str, Figure]
    noisy: dict[str, Figure]
    change: dict[str, Figure] = Field(description="noisy - clean, unpaired")

    @property
    def separated(self) -> tuple[str, ...]:
        """Those of the six metrics whose change differs from 0 beyond its error."""
        return tuple(m for m in SIX if m in self.change and self.change[m].separated)


class PartitionFile(Config):
    """RUN/partition.json of the noisy run."""

    format: Literal["guda-partition/1"] = "guda-partition/1"
    fraction: float
    seed: int
    moved_per_group: int
    clean: DatasetEntry
    noisy: DatasetEntry
    rows: tuple[PartitionRow, ...]
    oracle: dict[str, Figure] | None = Field(
        description="the noisy oracle (mean of its seeds) against the clean one; null where the pictures differ"
    )
    note: str


def independent_difference(a: Figure, b: Figure) -> Figure:
    """a - b of two figures that share no data."""
    below = sqrt(max(a.mean - a.lo, 0.0) ** 2 + max(b.hi - b.mean, 0.0) ** 2)
    above = sqrt(max(a.hi - a.mean, 0.0) ** 2 + max(b.mean - b.lo, 0.0) ** 2)
    change = a.mean - b.mean
    return Figure(mean=change, lo=change - below, hi=change + above)


def partition_table(clean: DatasetEntry, noisy: DatasetEntry) -> tuple[PartitionRow, ...]:
    """The ceiling, then every method that both experiments have, in the clean one's order."""
    if clean.n_groups != noisy.n_groups:
        raise GudaError(
            "partition-groups-differ",
            f"the clean partition has {clean.n_groups} groups and the noisy one {noisy.n_groups}",
        )
    if clean.estimand != noisy.estimand:
        raise GudaError(
            "partition-estimand-differs",
            f"clean figures are of {clean.estimand!r}, noisy ones of {noisy.estimand!r}; evaluate both alike",
        )
    if len(clean.seeds) != len(noisy.seeds):
        raise GudaError(
            "partition-seeds-differ",
            f"the clean oracle has {len(clean.seeds)} LOGO seeds and the noisy one {len(noisy.seeds)}; "
            "compared figures need the same number",
        )
    pairs = [(CEILING, clean.ceiling or {}, noisy.ceiling or {})]
    pairs += [
        (name, method.metrics, noisy.methods[name].metrics)
        for name, method in clean.methods.items()
        if name != CEILING and name in noisy.methods
    ]
    return tuple(
        PartitionRow(
            method=name, clean=before, noisy=after,
            change={m: independent_difference(after[m], before[m]) for m in before if m in after},
        )
        for name, before, after in pairs
    )  # fmt: skip


def _name(row: PartitionRow) -> str:
    return ceiling_name(row.noisy) if row.method == CEILING else row.method


def partition_markdown(file: PartitionFile) -> str:
    """(a) the figures under the noisy partition, (b) what changed; the paper's two panels."""
    header = ("method", *(LABELS[m] for m in SIX))
    noisy = [(_name(r), *figures(r.noisy)) for r in file.rows]
    changes = []
    for r in file.rows:
        separated = ", ".join(LABELS[m] for m in r.separated) or (NOT_SEPARATED if r.change else None)
        changes.append((_name(r), *(figure(r.change.get(m), "+.2f") for m in SIX), separated))
    return paragraphs(
        f"**Noisy partition: {file.moved_per_group} images of every group ({file.fraction:.0%}, seed {file.seed}) "
        "under other groups' names; 95 % intervals**",
        f"(a) Agreement with LOGO retrained on the noisy partition ({file.noisy.n_queries:,} queries)",
        Table.of("", header, noisy).markdown_lines(),
        f"(b) Change against the clean partition ({file.clean.n_queries:,} queries)",
        Table.of("", (*header, "separated from 0"), changes).markdown_lines(),
        _oracle_sentence(file),
        file.note,
    )


def _oracle_sentence(file: PartitionFile) -> str:
    text = [
        f"{name} {r.one_seed:.2f} for one seed, {r.mean_of_seeds:.2f} for their mean"
        for name, r in (("clean", file.clean.reliability), ("noisy", file.noisy.reliability))
        if r is not None
    ]
    first = f"Reliability of the oracle: {'; '.join(text)}. " if text else ""
    if file.oracle is None:
        return (
            first + "The two experiments drew other pictures, so their oracles cannot be compared picture by picture."
        )
    agreement = labelled({m: file.oracle[m] for m in SIX})
    return f"{first}The noisy oracle against the clean one, on the same pictures: {agreement}."


def partition_note(rows: Sequence[PartitionRow]) -> str:
    changed = [_name(r) for r in rows if "top1" in r.separated]
    what = f"Top-1 of {', '.join(changed)} changed" if changed else "no Top-1 changed by more than its interval"
    return f"Changes are noisy - clean, unpaired: other models, another oracle. At 95 %, {what}. {GIVEN}"
