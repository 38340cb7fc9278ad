"""What a recipe would cost, from the recipe alone: before its data set and its model are on this machine.

Evaluations and disk follow from the recipe, the shapes of the network (built without weights) and the known size of the
data set. Times do not: for those make the run where it is to be done, and ask `guda plan RUN`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from guda.baselines.features import feature_settings
from guda.baselines.presets import LINEAR, GradientConfig
from guda.config import DataConfig, parse_config
from guda.diffusion.loading import build_network, make_scheduler
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError, choices
from guda.methods.base import known_methods
from guda.run.recipe import Recipe
from guda.scoring.plan import make_plan, prior_density
from guda.steps.plan import BYTES_PER_TERM, Budget
from guda.unlearning.packing import bank_fraction, full_bytes
from guda.unlearning.unlearn import OPERATORS

STORES = ("fp32", "bf16", "lowrank:16", "lora:16", "lora:4", "lora:4:bf16")

STARTS = ("runwayml/stable-diffusion-v1-5",)


@dataclass(frozen=True)
class Contents:
    """What is known of a data set without reading it."""

    groups: int
    per_group: int  # images
    shape: tuple[int, int, int]
    objects: int | None = None  # things that every group shows, where prompts name them

    def cut(self, config: DataConfig) -> Contents:
        """What the recipe keeps of it."""
        groups = self.groups if config.groups is None else len(config.groups)
        objects, images = self.objects, self.per_group
        if objects is not None and config.limit_contents is not None:
            images, objects = images // objects * config.limit_contents, config.limit_contents
        images = min(images, config.limit_per_group or images)
        side = config.size or self.shape[1]
        return Contents(groups, images, (self.shape[0], side, side), objects)


def _contents(recipe: Recipe) -> Contents:
    from guda.data import cifar10, fashion, fonts, unlearncanvas

    test = recipe.data.split == "test"
    known = {
        "cifar10": Contents(len(cifar10.NAMES), 1000 if test else 5000, (3, 32, 32)),
        "digits": Contents(10, 180, (1, 8, 8)),  # 1,797 in all
        "fashion-mnist": Contents(len(fashion.NAMES), 6000, (1, 28, 28)),
        "unlearncanvas": Contents(len(unlearncanvas.STYLES), 400, (3, 512, 512), len(unlearncanvas.OBJECTS)),
    }
    if recipe.data.source == "fonts":
        families, characters = sum(len(p["families"]) for p in fonts.pinned().values()), len(fonts.CHARACTERS)
        images = characters * (recipe.data.variants or fonts.VARIANTS)
        known["fonts"] = Contents(families, images, (1, 16, 16), characters)
    name = recipe.data.source.partition(":")[0]
    if name not in known:
        raise GudaError(
            "data-size-unknown",
            f"the size of data source {recipe.data.source!r} is not known here; make the run, then plan it",
        )
    return known[name].cut(recipe.data)


def _network(recipe: Recipe, shape: tuple[int, int, int]) -> tuple[Any, Schedule]:
    """The network without weights, and its noise schedule."""
    import torch
    from diffusers import DDPMScheduler, UNet2DConditionModel

    path = recipe.model.start or recipe.model.path
    if path is None and recipe.model.scheduler is not None:
        with torch.device("meta"):
            module, _ = build_network(recipe.model, shape)
        return module, Schedule.from_scheduler(make_scheduler(recipe.model.scheduler))
    if path not in STARTS:
        raise GudaError(
            "model-architecture-unknown",
            f"the architecture of {path or 'the model'} is not known without its files; make the run, then "
            f"guda plan RUN (known: {choices(STARTS)})",
        )
    with torch.device("meta"):
        module = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    betas = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    return module, Schedule.from_scheduler(betas)


class Gradients:
    """Features and residuals of the gradient methods: what two of them share is counted in the row that comes first."""

    def __init__(self, images: int) -> None:
        self.images, self.made = images, set[str]()

    def _new(self, *key: Any) -> bool:
        new = repr(key) not in self.made
        self.made.add(repr(key))
        return new

    def fit(self, config: GradientConfig) -> tuple[float, int]:
        """(evaluations, bytes); the Gram matrix is kept at 8 bytes a number, features at 4."""
        evals, disk, n, dim = 0.0, 0, self.images, config.dim
        for model in config.models:
            for seed in config.seeds:
                if self._new("features", feature_settings(config), model, seed):
                    evals += 3.0 * config.timesteps * n
                    disk += 4 * n * dim + (8 * min(n, dim) ** 2 if config.kernel == "ridge" else 0)
                if config.residual != "none" and self._new("residuals", config.residual_timesteps, model, seed):
                    evals += config.residual_timesteps * n
                    disk += 4 * n * config.residual_timesteps
                if config.aggregate not in LINEAR or config.square:
                    disk += 4 * n * dim  # vectors of single images
        return evals, disk

    def score(self, config: GradientConfig, queries: int) -> tuple[float, int]:
        output = config.query_output or config.output
        settings = feature_settings(config) | {"output": output}
        new = sum(self._new("queries", settings, m, s) for m in config.models for s in config.seeds)
        return 3.0 * config.timesteps * queries * new, 4 * config.dim * queries * new


def outline(recipe: Recipe, n_queries: int | None = None) -> dict[str, Any]:
    """Like `plan`, without times: rows of `Budget`, and the bank of one operator in every form it can be kept in."""
    data = _contents(recipe)
    module, schedule = _network(recipe, data.shape)
    groups = len(recipe.scoring.groups or range(data.groups))
    prompted = recipe.prompts is not None and data.objects is not None
    n = n_queries or (groups * (recipe.queries.objects or data.objects or 1) if prompted else recipe.queries.n)
    timesteps = make_plan(schedule, recipe.scoring, prior_density(schedule))
    draws = timesteps.evals_per_round * recipe.scoring.rounds
    whole, training = full_bytes(module), recipe.training
    trained = 0 if training is None else 3 * training.steps * training.batch
    rows = [Budget("train the full model", trained, None, whole)]
    if not prompted:
        steps = recipe.queries.steps or schedule.T
        rows.append(Budget(f"draw {n} queries", float(n * steps), None, n * data.shape[0] * data.shape[1] ** 2))
    gradients, silent = Gradients(data.groups * data.per_group), list[str]()

    def score(name: str, networks: int) -> Budget:
        terms = timesteps.n_strata * recipe.scoring.rounds
        return Budget(
            f"score {n} queries by {name}", float(networks * n * draws), None, networks * n * terms * BYTES_PER_TERM
        )

    for name, settings in recipe.methods.items():
        if name not in known_methods():
            raise GudaError(
                "method-unknown",
                f"the recipe names an unknown method {name!r}; known: {choices(sorted(known_methods()))}",
            )
        config = parse_config(known_methods()[name].Config, settings, f"methods.{name}")
        if name == "logo":
            seeds, full = len(config.seeds), config.own_full
            models = seeds * (groups + full)
            rows.append(Budget("fit logo", float(trained * models), None, whole * models))
            rows.append(score("logo", seeds * (groups + full) + (not full)))
        elif name in OPERATORS:
            if OPERATORS[name].needs_conditional:
                rows.append(Budget(f"train the conditional model of {name}", trained, None, whole))
            kept = round(whole * groups * bank_fraction(module, config.store))
            rows.append(Budget(f"fit {name}", float(groups * OPERATORS[name].fit_evals(config)), None, kept))
            rows.append(score(name, 1 + groups))
        elif name == "posterior":
            rows.append(score(name, 2))  # the full model, and once more with the change for every group
        elif isinstance(config, GradientConfig) and not hasattr(config, "damping"):  # K-FAC's curvature is not known
            evals, disk = gradients.fit(config)
            rows.append(Budget(f"fit {name}", evals, None, disk))
            rows.append(Budget(f"score {n} queries by {name}", *_split(gradients.score(config, n))))
        else:
            silent.append(name)
    note = "From the recipe alone; for times make the run on the machine it is for, then: guda plan RUN."
    return {
        "recipe": recipe.name,
        "groups": groups,
        "of": data.groups,
        "per_group": data.per_group,
        "queries": n,
        "parameters": sum(p.numel() for p in module.parameters()),
        "t_max": schedule.t_max,
        "evals_per_model_and_query": draws,
        "rows": [asdict(r) for r in rows],
        "bank": {"full copies": whole * groups}
        | {store: round(whole * groups * bank_fraction(module, store)) for store in STORES},
        "note": note + (f" Not counted: {', '.join(silent)}." if silent else ""),
    }


def _split(value: tuple[float, int]) -> tuple[float, None, int]:
    return value[0], None, value[1]
