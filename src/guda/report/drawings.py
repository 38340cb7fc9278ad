"""The same noise through the full model and through the model without a group, on the page (report/same_noise.py).

Every picture is a symbol (report/thumbnails.py), paid once per model and noise, however many cards show it. A method
that combines others (hybrid) has no model of its own that draws: the pictures of its first part that does stand for
it, and say so. Text-to-image: a column is a prompt of one group, and a card shows its first group's own prompt first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from guda.errors import GudaError
from guda.methods.base import get_method
from guda.report.same_noise import SameNoise, columns, models, read, same_noise_tasks
from guda.report.thumbnails import SMALLEST, Symbols, side_for
from guda.run.data import scored_groups
from guda.run.run import Run
from guda.run.task import Task, pending

SHOWN = 4  # noises on a card

PROMPTS = 12  # text-to-image: columns drawn at most, one per group

BUDGET = 4_000_000  # bytes of base64 for all drawings together; methods beyond it are left out

LARGEST = 64  # pixels


@dataclass(frozen=True)
class Drawn:
    """Symbols of one method's pictures: `full` of the full model, `without` of each group's counterfactual."""

    by: str  # the method whose models draw
    full: tuple[str, ...]
    without: tuple[tuple[str, ...], ...]  # in order of the groups


@dataclass(frozen=True)
class Drawings:
    columns: tuple[str, ...]  # what each column is: a noise, or a prompt
    own: bool  # text-to-image: column i is a prompt of group i
    methods: dict[str, Drawn]
    missing: tuple[str, ...]  # methods without pictures

    def chosen(self, group: int) -> list[int]:
        """Columns for a card whose first group this is: its own prompt first."""
        if not self.own or group >= len(self.columns):
            return list(range(min(SHOWN, len(self.columns))))
        return [group, *(c for c in range(len(self.columns)) if c != group)][:SHOWN]

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": self.columns, "own": self.own, "shown": SHOWN,
            "methods": {m: {"by": d.by, "full": d.full, "without": d.without} for m, d in self.methods.items()},
        }  # fmt: skip


def config(run: Run) -> SameNoise:
    """Four noises; a text-to-image model is asked for every group, as far as that stays few."""
    return SameNoise(n=SHOWN if run.recipe.prompts is None else max(SHOWN, min(PROMPTS, len(scored_groups(run)))))


def drawn_by(run: Run, method: str) -> str | None:
    """The method whose models draw for this one: itself or the first of its parts; None where nobody does."""
    for part in dict.fromkeys((method, *get_method(run, method).parts())):
        try:
            models(run, part, config(run))
        except GudaError:
            continue
        if get_method(run, part).fitted():
            return part
    return None


def drawing_tasks(run: Run, methods: Iterable[str]) -> list[Task]:
    """What the report's drawings need, of all methods that can be drawn; a full model they share is drawn once."""
    drawing = dict.fromkeys(by for m in methods if (by := drawn_by(run, m)) is not None)
    tasks = [task for m in drawing for task in same_noise_tasks(run, m, config(run))]
    return list({task.makes: task for task in tasks}.values())


def draw_missing(run: Run, methods: Iterable[str], engine: Callable[[Run, list[Task], str], object]) -> None:
    """Draw what is not there yet."""
    if left := pending(run, drawing_tasks(run, methods)):
        engine(run, left, "draw from the same noise")


def read_drawings(run: Run, methods: list[str], symbols: Symbols) -> Drawings | None:
    """Of the methods that are drawn, in this order while the budget lasts; None where nothing is drawn."""
    asked, groups = config(run), scored_groups(run)
    drawn: dict[str, str] = {}
    for m in methods:
        try:
            by = drawn_by(run, m)
            if by is not None and not pending(run, same_noise_tasks(run, by, asked)):
                drawn[m] = by
        except GudaError:  # e.g. a run of given scores without a model
            continue
    most = BUDGET // (4 * SMALLEST**2) // (asked.n * (1 + len(groups)))
    kept = list(dict.fromkeys(drawn.values()))[: max(most, 1)]
    if not kept:
        return None
    side = min(LARGEST, side_for(len(kept) * asked.n * (1 + len(groups)), BUDGET))
    found = {}
    for by in kept:
        rows = [tuple(symbols.add(image, side) for image in read(run, ref, asked)) for _, ref in models(run, by, asked)]
        found[by] = Drawn(by, rows[0], tuple(rows[1:]))
    told = columns(run, asked)
    shown = {m: found[by] for m, by in drawn.items() if by in found}
    return Drawings(
        tuple(name for name, _ in told), run.recipe.prompts is not None, shown,
        tuple(m for m in methods if m not in shown),
    )  # fmt: skip
