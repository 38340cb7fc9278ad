"""A method: groups that are as bright as the picture score high. It evaluates no network."""

from typing import Any

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.data.queries import Queries
from guda.files import read_json, write_json
from guda.methods.base import Method, make_method, method
from guda.run.data import load_data, scored_groups
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores


class BrightnessConfig(Config):
    scale: float = Field(255.0, gt=0, description="Brightness that counts as a distance of 1.")


@method("brightness")
class Brightness(Method):
    Config = BrightnessConfig
    unit = "points"
    summary = "how near the group's mean brightness is to the picture's"

    @property
    def file(self) -> str:
        return f"{self.artifact()}/means.json"  # named after the settings

    def fit(self) -> list[Task]:
        args = {"config": self.config.model_dump(mode="json")}
        return [Task("fit brightness", "fit/brightness", "guda_example.method:fit_means", args, makes=(self.file,))]

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return []  # nothing to compute ahead

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        groups, means = scored_groups(self.run), read_json(self.run.path(self.file))
        apart = queries.images.mean(axis=(1, 2, 3))[:, None] - np.array([means[g] for g in groups])
        score = -np.abs(apart) / self.config.scale
        return Scores(self.method_id, self.unit, "brightness", queries.ids, groups, score, n_evals=0)

    def fit_evals(self) -> float:
        return 0.0

    def score_evals(self) -> float:
        return 0.0


def fit_means(run: Run, config: dict[str, Any]) -> None:
    """What the task runs, perhaps on another machine: everything it needs is in the run folder."""
    found, data = make_method(run, "brightness", config), load_data(run)
    bright = data.images.mean(axis=(1, 2, 3))
    means = {name: float(bright[data.groups.members(k)].mean()) for k, name in enumerate(data.groups.names)}
    write_json(run.path(found.file), means)
