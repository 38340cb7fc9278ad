"""`guda reproduce NAME --smoke`: the same experiment through the same code in minutes, for a first look and for CI.

One function shrinks a recipe: optimiser steps, images per group, network, queries, draws, two LOGO seeds. Groups,
methods and questions stay, so that whatever an experiment would do is done once. Its figures mean nothing. So that they
are never mistaken for results, every name says so: the recipe's (which tables show) and the run folder's end in -smoke.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from guda.methods.base import METHODS
from guda.run.recipe import Recipe

SUFFIX = "-smoke"

WARNING = "SMOKE RUN: models are hardly trained and only a few pictures are scored. These figures mean nothing."

# at most this much of a setting that has this name, by section
TRAINING = {"steps": 8, "batch": 8, "warmup": 2, "accumulate": 1}
DATA = {"limit_per_group": 20}  # 5 % of a group, as noisy partitions move, is one image
PROMPTED = {"limit_contents": 4}
QUERIES = {"n": 6, "objects": 1, "steps": 5}
SCORING = {"strata": 3, "rounds": 2, "block": 16, "shard": 6, "reference": 2}
LIKELIHOOD = {"steps": 3, "n": 4, "block": 4, "seeds": 2}
EVALUATION = {"resamples": 100, "placebos": 1, "calibration": 0}
METHOD = {
    "steps": 2, "batch_forget": 4, "batch_retain": 4, "dim": 32, "timesteps": 2, "residual_timesteps": 2, "draws": 32,
    "positions": 8, "levels": 2, "per_group": 4, "fisher_images": 8, "fisher_passes": 1,
}  # fmt: skip
NETWORK = {
    "mlp": {"width": 32, "depth": 1},
    "unet2d": {"layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 4},
    "unet2d-condition": {"layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 4},
}
CHANNELS = 8  # of every level of a U-Net
GROUPS = 3  # of those that a recipe lists to be scored
STRIDE = 100  # of the paper's grid


def smoke_root(root: Path) -> Path:
    """The run folder of a smoke run, whatever folder was named."""
    return root if root.name.endswith(SUFFIX) else root.with_name(root.name + SUFFIX)


def smoke_recipe(recipe: Recipe) -> Recipe:
    """The recipe with every budget shrunk, under a name that says so."""
    if recipe.name.endswith(SUFFIX):
        return recipe
    value = recipe.model_dump(mode="json")
    value["name"] += SUFFIX
    data = DATA | (PROMPTED if value["prompts"] else {})
    value["data"] |= {key: min(value["data"][key] or most, most) for key, most in data.items()}
    if value["prompts"] and value["prompts"]["source"] == "vlm":  # a model of several billion weights
        value["prompts"] |= {"source": "similarity", "model": None}
    value["model"]["options"] = _small_network(value["model"])
    if value["training"]:
        value["training"] = _at_most(value["training"], TRAINING) | {"ema": None}  # an average would not move
    value["queries"] = _at_most(value["queries"], QUERIES) | {"steps": QUERIES["steps"]}
    value["scoring"] = _at_most(value["scoring"], SCORING) | {"stride": max(value["scoring"]["stride"], STRIDE)}
    if value["scoring"]["groups"]:
        value["scoring"]["groups"] = value["scoring"]["groups"][:GROUPS]
    value["likelihood"] = _at_most(value["likelihood"], LIKELIHOOD) | {"solver": "heun"}
    value["evaluation"] = _at_most(value["evaluation"], EVALUATION)
    value["methods"] = {name: _small_method(name, settings) for name, settings in value["methods"].items()}
    if "logo" in value["methods"]:
        own = value["training"]["seed"] if value["training"] else None
        value["methods"]["logo"]["seeds"] = [seed for seed in (1, 2, 3) if seed != own][:2]
    return Recipe.from_dict(value, f"the smoke recipe of {recipe.name}")


def _at_most(settings: dict[str, Any], limits: dict[str, int]) -> dict[str, Any]:
    """`given` with its numbers cut; what is not given (null) stays so."""
    return settings | {key: min(settings[key], most) for key, most in limits.items() if settings.get(key) is not None}


def _small_method(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a method; large defaults are cut too, unless they mean nothing beside the other settings."""
    config = METHODS.find(name).Config
    small = _at_most(settings, METHOD)
    if "checkpoints" in config.model_fields:
        small |= {"steps": METHOD["steps"], "checkpoints": [METHOD["steps"]], "at": None}
    for key, most in METHOD.items():
        default = config.model_fields[key].default if key in config.model_fields else None
        if key not in small and default is not None and default > most:
            with suppress(ValidationError):
                config.model_validate(small | {key: most})
                small[key] = most
    return small


def _small_network(model: dict[str, Any]) -> dict[str, Any]:
    """Options of a network that is trained from scratch; a given one stays as it is."""
    options = dict(model["options"])
    if model["path"] or model["start"] or model["net"] not in NETWORK:
        return options
    options = {key: NETWORK[model["net"]].get(key, value) for key, value in options.items()} | NETWORK[model["net"]]
    if "block_out_channels" in options:
        options["block_out_channels"] = [CHANNELS] * len(options["block_out_channels"])
    return options
