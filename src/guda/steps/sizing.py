"""How long training takes on this machine, and how many steps fit into the hours there are.

A first recipe must not start a training of days without a word. So `guda init` without a model trains the network of
the recipe on its images for a few seconds, in one thread as a worker does, and plans

    steps = min(the recipe's, hours x 3600 x steps per second), two digits of it

unless the user names the hours: then as many steps as fit. The weights of this trial are thrown away.
"""

from __future__ import annotations

import time
from typing import Any

from guda.data.images import ImageData
from guda.diffusion.denoiser import default_device
from guda.diffusion.loading import build_denoiser
from guda.errors import GudaError
from guda.run.recipe import Recipe

HOURS = 1.0  # of a first training, where nobody said

TRIAL = 3.0  # seconds

FEWEST = 100  # steps; below that nothing is learned


class _Enough(Exception):
    """Ends the trial."""


def steps_per_second(recipe: Recipe, data: ImageData, seconds: float = TRIAL) -> float:
    """Optimiser steps of the recipe's training, measured after the first, which is slower."""
    import torch

    from guda.diffusion.training import train

    assert recipe.training is not None
    config = recipe.training.model_copy(update={"steps": 10_000, "warmup": 1})
    ticks: list[float] = []

    def tick(done: int, total: int) -> None:
        ticks.append(time.monotonic())
        if len(ticks) > 2 and ticks[-1] - ticks[0] > seconds:
            raise _Enough

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            denoiser = build_denoiser(recipe.model, data.shape).to(default_device())
            train(denoiser, data.images, data.groups, config, seed=0, tick=tick)
    except _Enough:
        pass
    finally:
        torch.set_num_threads(threads)
    return (len(ticks) - 1) / max(ticks[-1] - ticks[0], 1e-9)


def sized(recipe: Recipe, rate: float, hours: float | None) -> Recipe:
    """The recipe with as many steps as fit; without `hours`, never more than it has."""
    assert recipe.training is not None
    fit = (HOURS if hours is None else hours) * 3600 * rate
    steps = max(FEWEST, _two_digits(fit))
    if hours is None:
        steps = min(steps, recipe.training.steps)
    changes: dict[str, Any] = {"steps": steps, "warmup": min(recipe.training.warmup, max(1, steps // 10))}
    changes["checkpoint_every"] = min(recipe.training.checkpoint_every, max(10, steps // 20))
    return recipe.changed({"training": changes})


def _two_digits(value: float) -> int:
    digits = max(0, len(str(int(value))) - 2)
    return int(value / 10**digits) * 10**digits


def check_hours(recipe: Recipe, hours: float | None) -> None:
    if hours is not None and (recipe.training is None or recipe.model.path or recipe.model.start):
        raise GudaError(
            "hours-without-training",
            "--hours sizes the training of a new model; with a given one, leave it out",
        )
