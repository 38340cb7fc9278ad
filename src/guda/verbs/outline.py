"""What a recipe would cost, from the recipe alone: before its data set and its model are on this machine.

Evaluations and disk follow from the recipe, the shapes of the network (built without weights) and the known size of the
data set. Times do not: for those make the run where it is to be done, and ask `guda plan RUN`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from guda.counterfactuals.packing import bank_fraction, full_bytes
from guda.counterfactuals.unlearn import OPERATORS
from guda.data.groups import choices
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.methods.base import known_methods
from guda.runs.recipe import Recipe, parse_config
from guda.scoring.plan import make_plan, prior_density
from guda.verbs.plan import BYTES_PER_TERM, Budget

STORES = ("fp32", "bf16", "lowrank:16", "lora:16", "lora:4", "lora:4:bf16")
STARTS = ("runwayml/stable-diffusion-v1-5",)


def _network(recipe: Recipe) -> tuple[Any, Schedule]:
    """The network without weights, and its noise schedule."""
    import torch
    from diffusers import DDPMScheduler, UNet2DConditionModel

    if (path := recipe.model.start or recipe.model.path) not in STARTS:
        raise GudaError(
            f"the architecture of {path or 'the model'} is not known without its files; make the run, then "
            f"guda plan RUN (known: {choices(STARTS)})"
        )
    with torch.device("meta"):
        module = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    betas = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    return module, Schedule.from_scheduler(betas)


def _contents(recipe: Recipe) -> tuple[int, int]:
    """(groups, objects) of the data set."""
    from guda.data.unlearncanvas import OBJECTS, STYLES

    if recipe.data.source != "unlearncanvas":
        raise GudaError(f"the size of data source {recipe.data.source!r} is not known here; make the run, then plan it")
    return len(STYLES), len(OBJECTS)


def outline(recipe: Recipe, n_queries: int | None = None) -> dict[str, Any]:
    """Like `plan`, without times: rows of `Budget`, and the bank of one operator in every form it can be kept in."""
    module, schedule = _network(recipe)
    styles, objects = _contents(recipe)
    groups = len(recipe.scoring.groups or range(styles))
    n = n_queries or groups * (recipe.queries.objects or objects)
    timesteps = make_plan(schedule, recipe.scoring, prior_density(schedule))
    draws = timesteps.evals_per_round * recipe.scoring.rounds
    whole, training = full_bytes(module), recipe.training
    trained = 0 if training is None else 3 * training.steps * training.batch
    rows = [Budget("train the full model", trained, None, whole)]

    def score(name: str, networks: int) -> Budget:
        terms = timesteps.n_strata * recipe.scoring.rounds
        return Budget(
            f"score {n} queries by {name}", float(networks * n * draws), None, networks * n * terms * BYTES_PER_TERM
        )

    for name, settings in recipe.methods.items():
        if name not in known_methods():
            raise GudaError(f"the recipe names an unknown method {name!r}; known: {choices(sorted(known_methods()))}")
        config = parse_config(known_methods()[name].Config, settings, f"methods.{name}")
        if name == "logo":
            seeds, full = len(config.seeds), config.own_full
            models = seeds * (groups + full)
            rows.append(Budget("fit logo", float(trained * models), None, whole * models))
            rows.append(score("logo", seeds * (groups + full)))
        elif name in OPERATORS:
            kept = round(whole * groups * bank_fraction(module, config.store))
            rows.append(Budget(f"fit {name}", float(groups * OPERATORS[name].fit_evals(config)), None, kept))
            rows.append(score(name, 1 + groups))
    return {
        "recipe": recipe.name,
        "groups": groups,
        "of": styles,
        "queries": n,
        "parameters": sum(p.numel() for p in module.parameters()),
        "t_max": schedule.t_max,
        "evals_per_model_and_query": draws,
        "rows": [asdict(r) for r in rows],
        "bank": {"full copies": whole * groups}
        | {store: round(whole * groups * bank_fraction(module, store)) for store in STORES},
        "note": "From the recipe alone; for times make the run on the machine it is for, then: guda plan RUN.",
    }
