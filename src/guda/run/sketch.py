"""Sketch: a run that is only planned. Only the sizes of its data and network are known, so the tasks of any method
can be listed and their costs added up before anything is downloaded, trained or written.

`load_data`, `architecture`, `run_schedule` and `run_plan` answer for a sketch from what it was given. The timesteps are
those of a run without a pilot: how many there are does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.plan import Plan, make_plan, prior_density

if TYPE_CHECKING:
    from guda.diffusion.denoiser import Denoiser

ONE = Queries(("query",), np.zeros((1, 1, 1, 1), np.uint8), name="planned")  # scoring costs the same for every query


class Sketch(Run):
    """`of`: the run that it stands for, whose finished files count as done. Without a model fits can be listed, but
    neither scoring nor sampling."""

    def __init__(self, recipe: Recipe, data: ImageData, model: Denoiser | None, of: Run | None = None) -> None:
        root, info = Path(f"recipe {recipe.name}"), {"locked": recipe.locked()}
        super().__init__(*((root, info) if of is None else (of.root, of.info)))
        # drift is measured on training images and excess on samples, whose number does not depend on the queries
        scoring = recipe.scoring.model_copy(update={"drift": "keep", "excess": False})
        self.excess = recipe.scoring.excess
        self.__dict__["recipe"] = recipe.model_copy(update={"scoring": scoring})
        self.data, self._model, self.of = data, model, of

    @property
    def model(self) -> Denoiser:
        if self._model is None:
            raise GudaError("model-architecture-unknown", f"the network of {self.root} is not known without its files")
        return self._model

    @cached_property
    def plan(self) -> Plan:
        return make_plan(self.model.schedule, self.recipe.scoring, prior_density(self.model.schedule))

    def has(self, relative: str) -> bool:
        return self.of is not None and self.of.has(relative)


def blank_data(groups: Sequence[str], per_group: int, channels: int = 1) -> ImageData:
    """So many images of every group, each of a single pixel."""
    n = len(groups) * per_group
    ids = tuple(f"image-{i}" for i in range(n))
    membership = np.repeat(np.eye(len(groups), dtype=bool), per_group, axis=0)
    return ImageData(np.zeros((n, channels, 1, 1), np.uint8), ids, Groups(tuple(groups), membership), "blank")
