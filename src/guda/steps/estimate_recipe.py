"""What a recipe would cost, from the recipe alone: before its data set and its model are on this machine.

Evaluations and disk are those of the tasks of a sketch (run/sketch.py), made of the known size of the data set and of
the network built without weights. Times are not known: make the run on the machine it is for, then `guda plan RUN`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from guda.data.sources import known_size
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import build_network, make_scheduler
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError, choices
from guda.methods.base import get_method
from guda.run.data import scored_groups
from guda.run.recipe import Recipe
from guda.run.samples import BLOCK, sample_tasks
from guda.run.sketch import Sketch, blank_data
from guda.steps.plan import Budget, stages
from guda.unlearning.packing import bank_fraction, full_bytes

STORES = ("fp32", "bf16", "lowrank:16", "lora:16", "lora:4", "lora:4:bf16")

STARTS = ("runwayml/stable-diffusion-v1-5",)


def _network(recipe: Recipe, shape: tuple[int, int, int]) -> Denoiser:
    """Without weights."""
    import torch
    from diffusers import DDPMScheduler, UNet2DConditionModel

    path = recipe.model.start or recipe.model.path
    if path is None and recipe.model.scheduler is not None:
        with torch.device("meta"):
            module, _ = build_network(recipe.model, shape)
        return Denoiser(module, Schedule.from_scheduler(make_scheduler(recipe.model.scheduler)), shape)
    if path not in STARTS:
        raise GudaError(
            "model-architecture-unknown",
            f"the architecture of {path or 'the model'} is not known without its files; make the run, then "
            f"guda plan RUN (known: {choices(STARTS)})",
        )
    with torch.device("meta"):
        module = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    betas = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    return Denoiser(module, Schedule.from_scheduler(betas), (4, 64, 64))


def sketch_recipe(recipe: Recipe) -> Sketch:
    data = known_size(recipe.data)
    named = recipe.data.groups or recipe.scoring.groups or ()
    names = [*named, *(f"group {i}" for i in range(data.groups - len(named)))]  # how they are called costs nothing
    return Sketch(recipe, blank_data(names, data.per_group, data.shape[0]), _network(recipe, data.shape))


def outline(recipe: Recipe, n_queries: int | None = None) -> dict[str, Any]:
    """Like `plan`, without times: rows of `Budget`, and the bank of one operator in every form it can be kept in."""
    data, sketch = known_size(recipe.data), sketch_recipe(recipe)
    module, groups = sketch.model.module, len(scored_groups(sketch))
    prompted = recipe.prompts is not None and data.objects is not None
    n = n_queries or (groups * (recipe.queries.objects or data.objects or 1) if prompted else recipe.queries.n)
    methods = {name: get_method(sketch, name) for name in recipe.methods}
    # methods that evaluate another network, or none
    silent = [name for name, m in methods.items() if not m.fit_evals() and not m.score_evals()]
    rows = [stage.budget(module) for stage in stages(sketch, [m for m in methods if m not in silent], n)]
    if not prompted:
        each = sample_tasks(sketch, recipe.queries)[0].cost / BLOCK
        pixels = data.shape[0] * data.shape[1] ** 2
        rows.insert(1, Budget(f"draw {n} queries", n * each, disk=n * pixels))
    whole = full_bytes(module) * groups
    note = "From the recipe alone; for times make the run on the machine it is for, then: guda plan RUN."
    return {
        "recipe": recipe.name,
        "groups": groups,
        "of": data.groups,
        "per_group": data.per_group,
        "queries": n,
        "parameters": sketch.model.n_parameters(),
        "t_max": sketch.model.schedule.t_max,
        "evals_per_model_and_query": sketch.plan.evals_per_round * recipe.scoring.rounds,
        "rows": [asdict(r) for r in rows],
        "bank": {"full copies": whole} | {store: round(whole * bank_fraction(module, store)) for store in STORES},
        "note": note + (f" Not counted: {', '.join(silent)}." if silent else ""),
    }
