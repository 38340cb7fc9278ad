"""A method of somebody else's: one small file."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.data.queries import Queries
from guda.files import read_json, write_json
from guda.methods.base import Method, get_method
from guda.run.data import load_data
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores


class ConstantConfig(Config):
    slope: float = Field(1.0, description="Score of group number k is -slope k.")


class Constant(Method):
    Config = ConstantConfig
    unit = "points"

    @property
    def file(self) -> str:
        return f"{self.artifact()}/slope.json"

    def fit(self) -> list[Task]:
        return [Task("fit constant", "fit/constant", "constantmethod:fit_constant", {}, (self.file,))]

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return []

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        groups = load_data(self.run).groups.names
        slope = read_json(self.run.path(self.file))["slope"]
        score = np.tile(-slope * np.arange(len(groups)), (queries.n, 1))
        return Scores(self.method_id, self.unit, "nothing", queries.ids, groups, score, 0)

    def fit_evals(self) -> float:
        return 7.0

    def score_evals(self) -> float:
        return 0.0


def fit_constant(run: Run) -> None:
    found = get_method(run, "constant")
    write_json(run.path(found.file), {"slope": found.config.slope})
