"""The pilot of a run as a task: made once, before anything is scored by a plan that needs it."""

from __future__ import annotations

from collections.abc import Sequence

from guda.methods.base import Method
from guda.run.data import load_data, training_prompts
from guda.run.models import load_model, model_files
from guda.run.plan import needs_pilot, pilot_file, run_settings, write_pilot
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.pilot import GROUPS, IMAGES, POINTS, pilot_kind


def pilot_tasks(run: Run, methods: Sequence[Method]) -> list[Task]:
    """Nothing where no method or plan needs a pilot, or the run has one. Which method asks does not matter to it."""
    if not any(m.counterfactuals for m in methods) or not needs_pilot(run):
        return []
    path = run.recipe.scoring.estimand == "path"
    kind = pilot_kind(load_model(run, "base"), load_data(run), training_prompts(run))
    models = {"nothing": 0, "rule": 0 if path else 2, "prompts": 1 + GROUPS}[kind]  # a rule answers for all groups
    return [
        Task(
            name="pilot, path" if path else "pilot", stage="pilot", fn="guda.methods.pilot:make_pilot", args={},
            makes=(pilot_file(run),), needs=model_files(run, "base"), cost=float(2 * POINTS * IMAGES * models),
        )
    ]  # fmt: skip


def make_pilot(run: Run) -> None:
    settings = run_settings(run)
    with settings.active():
        write_pilot(run, load_model(run, "base"), settings.block)
