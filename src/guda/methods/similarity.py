"""The similarity baselines as methods: similarity-<encoder>, and clipa, which is the one with CLIP and no other.

Where the encoder is a network, queries are embedded once, by a task, and kept beside the groups' means.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from guda.baselines.efficientnet import SIZE, STRIDES, efficientnet, pooled, statistics
from guda.baselines.encoders import CLIP, DINO, transformer
from guda.baselines.similarity import ENCODERS, Encoder, cosine_to_means, cosines, group_means
from guda.data.queries import Queries
from guda.diffusion.models import asked_groups, load_data
from guda.engine.tasks import Task
from guda.errors import GudaError
from guda.methods.base import METHODS, Method, get_method, method
from guda.runs.recipe import Config
from guda.runs.run import Run
from guda.runs.store import digest, read_tensors, write_tensors
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores
from guda.scoring.terms import load_queries

ESTIMANDS = {
    "mean": "cosine similarity to the group's mean embedding",
    "cosines": "mean cosine similarity to the group",
}


class SimilarityConfig(Config):
    rule: Literal["mean", "cosines"] = Field(
        "mean", description="mean: cosine to the group's mean embedding; cosines: mean of the cosines to its images."
    )
    per_group: int | None = Field(
        None, gt=0, description="Images that stand for a group, drawn by its name; null: all."
    )


class Similarity(Method):
    Config: ClassVar[type[SimilarityConfig]] = SimilarityConfig
    unit = "cosine"
    summary = "cosine of the picture to each group's mean image (a baseline; no counterfactual)"

    @property
    def _encoder(self) -> Encoder:
        return ENCODERS[self.method_id.removeprefix("similarity-")]

    def artifact(self, **identity: Any) -> str:
        """The usual rule and number of images go unsaid, so means made before they could be chosen are still found."""
        value = self.config.model_dump(mode="json")
        usual = {name: field.default for name, field in SimilarityConfig.model_fields.items()}
        said = {k: v for k, v in value.items() if k not in usual or v != usual[k]}
        return f"artifacts/{self.method_id}-{digest(said | identity, 8)}"

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

    def means(self) -> dict[str, torch.Tensor]:
        """What `fit` makes."""
        config = self.config
        found = group_means(load_data(self.run), self._encoder, config.rule, config.per_group)
        return {"means": torch.from_numpy(np.ascontiguousarray(found))}

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return []  # a matrix product: done in `scores`

    def _scores(self, queries: Queries, means: np.ndarray) -> np.ndarray:
        return cosine_to_means(queries.images, means, self._encoder, self.config.rule)

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        tensors, _ = read_tensors(self.run.path(self._file))
        groups, every = asked_groups(self.run), load_data(self.run).groups
        score = self._scores(queries, tensors["means"].numpy())[:, [every.index(name) for name in groups]]
        return Scores(
            method=self.method_id, unit=self.unit, estimand=ESTIMANDS[self.config.rule],
            queries=queries.ids, groups=groups, score=score, n_evals=0,
        )  # fmt: skip

    def fit_evals(self) -> float:
        return 0.0

    def score_evals(self) -> float:
        return 0.0


for _name in ENCODERS:
    METHODS[f"similarity-{_name}"] = type(f"Similarity_{_name}", (Similarity,), {"id": f"similarity-{_name}"})


def _similarity(run: Run, name: str) -> Similarity:
    found = get_method(run, name)
    assert isinstance(found, Similarity)
    return found


def fit_means(run: Run, method: str) -> None:
    found = _similarity(run, method)
    write_tensors(run.path(found._file), found.means())


# --- networks -------------------------------------------------------------------------------------


class NetworkSimilarity(Similarity):
    """The encoder is a network. `probe`, the embedding of the first training image, is kept with the means and the
    queries: other weights under the same name are noticed, without hashing gigabytes."""

    @abstractmethod
    def load(self) -> Encoder: ...

    @property
    def _encoder(self) -> Encoder:
        return self.load()

    def probe(self, encode: Encoder) -> torch.Tensor:
        return torch.from_numpy(encode(load_data(self.run).images[:1]))

    def means(self) -> dict[str, torch.Tensor]:
        return super().means() | {"probe": self.probe(self._encoder)}

    def _embedded(self, queries: Queries) -> str:
        return f"{self.artifact()}/queries-{queries.digest[:12]}.safetensors"

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return [
            Task(
                name=f"embed {queries.name} by {self.method_id}", stage=f"score/{queries.name}/{self.method_id}",
                fn="guda.methods.similarity:embed", args={"method": self.method_id, "queries": queries.name},
                makes=(self._embedded(queries),), needs=(self._file,),
            )
        ]  # fmt: skip

    def _scores(self, queries: Queries, means: np.ndarray) -> np.ndarray:
        tensors, _ = read_tensors(self.run.path(self._embedded(queries)))
        return cosines(tensors["features"].numpy(), means, self.config.rule)


def embed(run: Run, method: str, queries: str) -> None:
    found, given = _similarity(run, method), load_queries(run, queries)
    assert isinstance(found, NetworkSimilarity)
    encode = found._encoder
    fitted = read_tensors(run.path(found._file))[0]["probe"]
    now = found.probe(encode)
    if fitted.shape != now.shape or not torch.allclose(fitted, now, rtol=1e-2, atol=1e-3 * float(fitted.abs().max())):
        folder = run.path(found.artifact())
        raise GudaError(f"the encoder of {method} is not the one its group means were made with; delete {folder}")
    write_tensors(run.path(found._embedded(given)), {"features": torch.from_numpy(encode(given.images))})


class EncoderConfig(SimilarityConfig):
    model: str = Field(
        DINO, description="A vision model of transformers: its folder or its name on the Hugging Face Hub."
    )


class ClipConfig(SimilarityConfig):
    model: str = Field(CLIP, description="A CLIP model: its folder or its name on the Hugging Face Hub.")


@method("clipa")
class Clipa(NetworkSimilarity):
    Config = ClipConfig
    summary = "CLIPA: cosine of the picture's CLIP embedding to each group's mean (a baseline; no counterfactual)"

    def load(self) -> Encoder:
        return transformer(self.config.model, only_clip=True)


@method("similarity-encoder")
class AnyEncoder(NetworkSimilarity):
    Config = EncoderConfig
    summary = "CLIPA's rule with any vision model of transformers (a baseline; no counterfactual)"

    def load(self) -> Encoder:
        return transformer(self.config.model)


class EfficientNetConfig(SimilarityConfig):
    size: int = Field(SIZE, ge=32, description="Pictures are scaled (bicubic) to this many pixels for the network.")


class EfficientNetStyleConfig(EfficientNetConfig):
    layer: int = Field(
        5, ge=0, lt=len(STRIDES), description="Channel means and deviations are taken after this block; early is style."
    )


@method("similarity-efficientnet")
class EfficientNet(NetworkSimilarity):
    Config = EfficientNetConfig
    summary = "CLIPA's rule with EfficientNet-Lite0's last features: which object (a baseline; no counterfactual)"

    def load(self) -> Encoder:
        return efficientnet(None, pooled, self.config.size)


@method("similarity-efficientnet-style")
class EfficientNetStyle(NetworkSimilarity):
    Config = EfficientNetStyleConfig
    summary = "CLIPA's rule with EfficientNet-Lite0's early statistics: which style (a baseline; no counterfactual)"

    def load(self) -> Encoder:
        return efficientnet(self.config.layer, statistics, self.config.size)
