"""similarity-<encoder>: the similarity baseline as a method."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guda.baselines.similarity import ENCODERS, cosine_to_means, group_means
from guda.data.queries import Queries
from guda.diffusion.models import load_data
from guda.engine.tasks import Task
from guda.methods.base import METHODS, Method, get_method
from guda.runs.recipe import Config
from guda.runs.run import Run
from guda.runs.store import read_tensors, write_tensors
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores


class SimilarityConfig(Config):
    """Nothing to set yet."""


class Similarity(Method):
    Config = SimilarityConfig
    unit = "cosine"
    summary = "cosine of the picture to each group's mean image (a baseline; no counterfactual)"

    @property
    def _encoder(self) -> Any:
        return ENCODERS[self.method_id.removeprefix("similarity-")]

    @property
    def _file(self) -> str:
        return f"{self.artifact()}/means.safetensors"

    def fit(self) -> list[Task]:
        return [
            Task(
                name=f"fit {self.method_id}", stage=f"fit/{self.method_id}", fn="guda.methods.similarity:fit_means",
                args={"method": self.method_id}, makes=(self._file,),
            )
        ]  # fmt: skip

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return []  # a matrix product: done in `scores`

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        tensors, _ = read_tensors(self.run.path(self._file))
        return Scores(
            method=self.method_id, unit=self.unit, estimand="cosine similarity to the group's mean embedding",
            queries=queries.ids, groups=load_data(self.run).groups.names,
            score=cosine_to_means(queries.images, tensors["means"].numpy(), self._encoder), n_evals=0,
        )  # fmt: skip

    def fit_evals(self) -> float:
        return 0.0

    def score_evals(self, queries: Queries) -> float:
        return 0.0


for _name in ENCODERS:
    METHODS[f"similarity-{_name}"] = type(f"Similarity_{_name}", (Similarity,), {"id": f"similarity-{_name}"})


def fit_means(run: Run, method: str) -> None:
    found = get_method(run, method)
    assert isinstance(found, Similarity)
    means = group_means(load_data(run), found._encoder)
    write_tensors(run.path(found._file), {"means": torch.from_numpy(np.ascontiguousarray(means))})
