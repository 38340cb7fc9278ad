"""How a run is scored: its plan, its pilot (RUN/pilot.json), from which an importance plan is built, and its execution
settings (RUN/probe.json), measured once on a GPU (see scoring/plan.py).
"""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError, Mismatch
from guda.files import read_json, write_json
from guda.run.data import load_data
from guda.run.models import load_model, model_digest, model_files, run_schedule, training_prompts
from guda.run.run import Run
from guda.run.sketch import Sketch
from guda.run.task import Task
from guda.scoring.pilot import GROUPS, IMAGES, POINTS, measure_density, pilot_kind
from guda.scoring.plan import Plan, Settings, fastest, make_plan

_PLANS: dict[tuple[str, str, int], Plan] = {}


def pilot_file(run: Run) -> str:
    """What spreads along t is another thing for each estimand."""
    return "pilot-path.json" if run.recipe.scoring.estimand == "path" else "pilot.json"


def run_plan(run: Run) -> Plan:
    """The run's plan; an importance plan needs RUN/pilot.json, measured on this run's model."""
    if isinstance(run, Sketch):
        return run.plan
    stamp = run.path(pilot_file(run)).stat().st_mtime_ns if run.has(pilot_file(run)) else 0
    key = (str(run.root), run.recipe.scoring.model_dump_json(), stamp)
    if key not in _PLANS:
        _PLANS.clear()
        _PLANS[key] = make_plan(run_schedule(run), run.recipe.scoring, _stored_density(run))
    return _PLANS[key]


def needs_pilot(run: Run) -> bool:
    config = run.recipe.scoring
    return config.estimand != "paper" and config.plan == "importance" and not run.has(pilot_file(run))


def _stored_density(run: Run) -> np.ndarray | None:
    config = run.recipe.scoring
    if config.estimand == "paper" or config.plan != "importance":
        return None
    if not run.has(pilot_file(run)):
        raise GudaError(
            "pilot-missing", f"{run.root} has no pilot yet; `guda score` makes it, or set scoring.plan: stratified"
        )
    stored = read_json(run.path(pilot_file(run)))
    if not isinstance(stored, dict) or not isinstance(stored.get("density"), list):
        raise GudaError("pilot-damaged", f"{run.path(pilot_file(run))} is damaged; delete it and score again")
    if stored.get("base") != (base := model_digest(run, "base")):
        raise Mismatch(
            "pilot-stale",
            f"{run.path(pilot_file(run))} was measured on another model",
            stored.get("base"),
            base,
            "delete it, score again",
        )
    return np.array(stored["density"])


def pilot_tasks(run: Run) -> list[Task]:
    """Nothing where the plan needs no pilot, or the run has one. Which method is scored does not matter to it."""
    if not needs_pilot(run):
        return []
    path = run.recipe.scoring.estimand == "path"
    kind = pilot_kind(load_model(run, "base"), load_data(run), training_prompts(run))
    models = {"nothing": 0, "rule": 0 if path else 2, "prompts": 1 + GROUPS}[kind]  # a rule answers for all groups
    return [
        Task(
            name="pilot, path" if path else "pilot", stage="pilot", fn="guda.run.plan:make_pilot", args={},
            makes=(pilot_file(run),), needs=model_files(run, "base"), cost=float(2 * POINTS * IMAGES * models),
        )
    ]  # fmt: skip


def make_pilot(run: Run) -> None:
    settings, path = run_settings(run), run.recipe.scoring.estimand == "path"
    with settings.active():
        model = load_model(run, "base")
        pilot = measure_density(model, load_data(run), settings.block, training_prompts(run), path)
    value = {
        "base": model_digest(run, "base"), "by": pilot.by, "groups": list(pilot.groups), "images": pilot.images,
        "evals": pilot.evals, "t": pilot.t.tolist(), "size": pilot.size.tolist(), "density": pilot.density.tolist(),
    }  # fmt: skip
    write_json(run.path(pilot_file(run)), value)


PROBE = "probe.json"


def run_settings(run: Run) -> Settings:
    """What this run scores with; a GPU's settings come from the probe."""
    wanted = Settings(run.recipe.scoring.block)
    if not run.has(PROBE):
        return wanted
    found = read_json(run.path(PROBE))
    try:
        stored, asked = Settings(**found["settings"]), int(found["asked_block"])
    except (KeyError, TypeError, ValueError):
        raise GudaError("probe-damaged", f"{run.path(PROBE)} is damaged; delete it and score again") from None
    # another block in the recipe is another question; the probe answers the one it was asked
    return stored if asked == wanted.block else replace(stored, block=wanted.block)


def keep(run: Run, settings: Settings, seconds: dict[str, float] | None = None) -> None:
    write_json(
        run.path(PROBE),
        {"settings": asdict(settings), "asked_block": run.recipe.scoring.block, "seconds_per_block": seconds or {}},
    )


def halve_block(run: Run) -> Settings:
    """After an OutOfMemory: the same settings with half the block, kept."""
    smaller = run_settings(run).halved()
    keep(run, smaller)
    return smaller


def probe(run: Run, denoiser: Denoiser) -> Settings:
    """Time the candidates on this device and keep the fastest; on the CPU there is one, and nothing is written."""
    if denoiser.device.type == "cpu" or run.has(PROBE):
        return run_settings(run)
    best, seconds = fastest(denoiser, run.recipe.scoring.block)
    keep(run, best, seconds)
    return best
