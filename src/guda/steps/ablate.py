"""Sweeps over a method's settings, one axis at a time around a base: what matters, and how much.

    name: lr
    method: retrack
    base: recipe                 # the run's own settings, or settings spelled out
    settings: {schedule: cosine} # other than the base's, the same in every row; may be left out
    axes:                        # one axis: `axis:` and `values:` do
      - {axis: lr, values: [1.0e-4, 3.0e-4]}
      - {axis: k_nearest, values: {"10": 10, all: null}}        # with labels

Not a grid: axes are not crossed, rows keep the file's order, and the recipe's own setting is a row of every axis.

`axis: epochs` is the paper's count: an epoch is one pass over the forget set, |D_k| / batch_forget steps. A method has
one number of steps for all groups, so |D_k| is the mean group size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from guda.config import Config, read_config
from guda.errors import GudaError, NotFinite
from guda.evaluation.sweep import SweepFile, SweepRow, markdown
from guda.files import canonical, write_json, write_text
from guda.methods.base import Method
from guda.run.data import load_data, scored_groups
from guda.run.recipe import recipes_folder
from guda.run.run import Run
from guda.run.samples import set_name
from guda.steps.fit import Engine
from guda.steps.queries import choose_queries
from guda.steps.setting_trial import Trials, method_class

EPOCHS = "epochs"


class Axis(Config):
    axis: str = Field(description="A setting of the method, or `epochs`.")
    values: list[Any] | dict[str, Any] = Field(min_length=1, description="Values, or label: value.")

    def labelled(self) -> list[tuple[str, Any]]:
        if isinstance(self.values, dict):
            return list(self.values.items())
        return [(_text(v), v) for v in self.values]


class Ablation(Config):
    """A file of recipes/ablations/."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the table.")
    about: str = Field("", description="One sentence above the table.")
    method: str = Field(description="Method id.")
    base: Literal["recipe"] | dict[str, Any] = Field("recipe", description="Settings that are not swept.")
    settings: dict[str, Any] = Field({}, description="Settings other than the base's, the same in every row.")
    axes: tuple[Axis, ...] = Field(min_length=1, description="What is swept, each axis by itself.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """`axis` and `values` stand for a list of one axis."""
        if isinstance(value, dict) and "axes" not in value and "axis" in value:
            rest = {k: v for k, v in value.items() if k not in ("axis", "values")}
            return rest | {"axes": [{k: value[k] for k in ("axis", "values") if k in value}]}
        return value


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else canonical(value)


def read_ablation(name: str) -> Ablation:
    """A file, or by its plain name one that is shipped."""
    path = Path(name)
    if path.name == name and path.suffix not in (".yaml", ".yml"):
        folder = recipes_folder() / "ablations"
        path = folder / f"{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
            raise GudaError(
                "ablation-unknown", f"no ablation {name!r}; shipped: {known}; or give a file ending in .yaml"
            )
    found: Ablation = read_config(Ablation, path, "ablation")
    return found


@dataclass(frozen=True)
class Cell:
    """One setting of the sweep."""

    axis: str
    label: str
    method: Method


def epochs_to_steps(run: Run, epochs: float, batch_forget: int) -> int:
    """The nearest whole number of steps, at least one."""
    return max(1, round(epochs * _mean_size(run) / batch_forget))


def _mean_size(run: Run) -> float:
    """Images of a group that is asked about."""
    groups = load_data(run).groups
    sizes = [groups.sizes[groups.index(name)] for name in scored_groups(run)]
    return sum(sizes) / len(sizes)


def ablate(run: Run, ablation: Ablation, engine: Engine, queries: str | None = None) -> SweepFile:
    """Carry out a sweep on a query set (default: the recipe's); written to RUN/ablations/<name>.json and .md."""
    method_class(ablation.method)
    name = choose_queries(run, queries)
    trials = Trials(run, name)
    base, cells = _cells(trials, ablation)
    trials.prepare(engine)
    failed: dict[str, str] = {}
    worked: dict[str, Method] = {}
    for cell in cells:
        key = trials.label(cell.method)
        if key in worked or key in failed:
            continue
        try:
            trials.carry_out(cell.method, engine)
            cell.method.scores(trials.queries)
            worked[key] = cell.method
        except NotFinite as e:
            failed[key] = str(e)
    own = next((k for k, m in worked.items() if trials.own(m)), None)
    found = trials.compare(worked, reference=own)
    rows = []
    for cell in cells:
        key = trials.label(cell.method)
        figures = (
            trials.cost(cell.method) | {"metrics": {}, "failed": failed[key]}
            if key in failed
            else trials.figures(cell.method, found, key)
        )
        figures |= trials.seconds(cell.method)
        rows.append(SweepRow(axis=cell.axis, label=cell.label, own=trials.own(cell.method), **figures))
    table = SweepFile(
        name=ablation.name, about=ablation.about, method=ablation.method, base=base, queries=name,
        groups=trials.groups, oracle=trials.oracle_entry(found), rows=tuple(rows),
    )  # fmt: skip
    path = table_path(run, table)
    write_json(path, table.model_dump(mode="json"))
    write_text(path.with_suffix(".md"), markdown(table))
    return table


def table_path(run: Run, table: SweepFile) -> Path:
    """Of the recipe's queries under the plain name, of others with theirs."""
    other = "" if table.queries == set_name(run, run.recipe.queries) else f"-{table.queries}"
    return run.path("ablations", f"{table.name}{other}.json")


def _cells(trials: Trials, ablation: Ablation) -> tuple[dict[str, Any], list[Cell]]:
    """(base settings, every setting), all of them checked before anything is fitted."""
    run, method = trials.run, ablation.method
    if ablation.base == "recipe":
        if method not in run.recipe.methods:
            raise GudaError(
                "ablation-settings-missing",
                f"ablation {ablation.name} starts from the recipe's settings of {method}, and the recipe of {run.root} "
                f"has none; name it (guda set {run.root} methods.{method}.KEY=VALUE), or spell out `base` in the file",
            )
        base = run.recipe.methods[method] | ablation.settings
    else:
        base = ablation.base | ablation.settings
    where = f"ablation {ablation.name}"
    middle = trials.method(method, base, f"{where}, base")
    cells = []
    for axis in ablation.axes:
        field, values, own = axis.axis, axis.labelled(), middle.config.model_dump(mode="json")
        own_label = _text(own.get(field))
        if field == EPOCHS and field not in own:
            field, values = "steps", _in_steps(run, axis, middle, where)
            own_label = _steps_label(own["steps"] * own["batch_forget"] / _mean_size(run), own["steps"])
        swept = [
            Cell(axis.axis, label, trials.method(method, base | {field: value}, f"{where}, {axis.axis} = {label}"))
            for label, value in values
        ]
        if trials.own(middle) and not any(trials.own(c.method) for c in swept):
            place = _place(own[field], [getattr(c.method.config, field) for c in swept])
            swept.insert(place, Cell(axis.axis, own_label, middle))
        cells += swept
    return base, cells


def _place(value: Any, others: list[Any]) -> int:
    """Of the recipe's row among the others: before the first larger number, or at the end."""
    numbers = int | float
    larger = (i for i, v in enumerate(others) if isinstance(v, numbers) and isinstance(value, numbers) and v > value)
    return next(larger, len(others))


def _in_steps(run: Run, axis: Axis, middle: Method, where: str) -> list[tuple[str, int]]:
    """Labels and numbers of steps for an axis in epochs."""
    batch = getattr(middle.config, "batch_forget", None)
    if batch is None or not hasattr(middle.config, "steps"):
        raise GudaError(
            "ablation-axis-unsupported",
            f"{where}: {middle.method_id} has no steps and batch_forget, so no epochs; name another axis",
        )
    rows = []
    for label, epochs in axis.labelled():
        if isinstance(epochs, bool) or not isinstance(epochs, int | float) or not epochs > 0:
            raise GudaError("epochs-invalid", f"{where}: epochs = {label} is not a positive number")
        steps = epochs_to_steps(run, epochs, batch)
        rows.append((_steps_label(label, steps), steps))
    return rows


def _steps_label(epochs: str | float, steps: int) -> str:
    return f"{epochs if isinstance(epochs, str) else f'{epochs:.3g}'} ({steps} steps)"
