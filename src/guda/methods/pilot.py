"""The pilot of a run as a task: measured on the first fitted method's counterfactuals, once."""

from __future__ import annotations

from collections.abc import Sequence

from guda.errors import GudaError
from guda.methods.base import Method, get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import load_counterfactual
from guda.run.models import load_model
from guda.run.plan import needs_pilot, pilot_file, run_settings, write_pilot
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.pilot import IMAGES, MODELS, POINTS


def pilot_tasks(run: Run, methods: Sequence[Method]) -> list[Task]:
    """Nothing where the plan needs no pilot, or the run has one."""
    asked = [m for m in methods if has_counterfactuals(m)]
    if not asked or not needs_pilot(run):
        return []
    elbo = [m for m in asked if m.ranks_groups]
    if not elbo:
        names = ", ".join(m.method_id for m in asked)
        raise GudaError(
            "pilot-groups-missing",
            f"{names} has no groups to measure a pilot on; score another method first, or with it",
        )
    chosen = min(elbo, key=lambda m: len(m.sets()))  # an unlearned method before an oracle of several seeds
    for_path = ", path" if run.recipe.scoring.estimand == "path" else ""
    models = list(chosen.sets()[0][1].values())[:MODELS]
    silent = run.recipe.scoring.estimand == "path" and models[0].family is not None  # a rule's change needs no network
    return [
        Task(
            name=f"pilot on {chosen.method_id}{for_path}", stage="pilot", fn="guda.methods.pilot:make_pilot",
            args={"method": chosen.method_id}, makes=(pilot_file(run),),
            needs=tuple(sorted({p for m in chosen.sets()[0][1].values() for p in m.needs(run)})),
            cost=0.0 if silent else float(2 * POINTS * IMAGES * (1 + len(models))),
        )
    ]  # fmt: skip


def make_pilot(run: Run, method: str) -> None:
    found = get_method(run, method)
    assert has_counterfactuals(found)
    full, groups = found.sets()[0]
    refs = list(groups.values())[:MODELS]
    base = load_model(run, full.base)
    others = [load_counterfactual(run, r) for r in refs]
    settings = run_settings(run)
    with settings.active():
        write_pilot(run, base, others, [r.key for r in refs], settings.block)
