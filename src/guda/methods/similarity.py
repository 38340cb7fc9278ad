"""The similarity baselines as methods: similarity-<encoder>, and clipa, which always uses CLIP.

`fit` keeps one vector per group, or where the rule asks for single images (`max`: the nearest neighbour, `top10`: the
mean of the ten nearest, `sum`, `median`) the unit embedding of every image, once for all of these rules. Where the
encoder is a network, queries are embedded once, by a task, and kept beside.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from guda.baselines.efficientnet import SIZE, STRIDES, efficientnet, pooled, statistics
from guda.baselines.encoders import CLIP, DINO, transformer
from guda.baselines.similarity import (
    ENCODERS,
    OF_MEANS,
    RULES,
    Encoder,
    cosines,
    cosines_to_images,
    group_embeddings,
    group_means,
)
from guda.config import Config, parse_config
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest, read_tensors, write_tensors
from guda.methods.base import METHODS, Method, method
from guda.methods.terms import load_queries
from guda.run.data import load_data, scored_groups
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores

ESTIMANDS = {
    "mean": "cosine similarity to the group's mean embedding",
    "cosines": "mean cosine similarity to the group",
    "sum": "sum of the cosine similarities to the group's images",
    "max": "cosine similarity to the group's nearest image",
    "median": "median cosine similarity to the group's images",
}


def estimand(rule: str) -> str:
    number = rule.removeprefix("top")
    return ESTIMANDS.get(rule) or f"mean cosine similarity to the group's {number} nearest images"


class SimilarityConfig(Config):
    rule: str = Field(
        "mean",
        pattern=RULES,
        description="mean: cosine to the group's mean embedding; of the cosines to its images cosines: the mean, "
        "sum, median, max (the nearest), top<m>: the mean of the m nearest.",
    )
    per_group: int | None = Field(
        None, gt=0, description="Images that stand for a group, drawn by its name; null: all."
    )


class Similarity(Method):
    Config: ClassVar[type[SimilarityConfig]] = SimilarityConfig
    unit = "cosine"
    summary = "cosine of the picture to each group's mean image, or nearest (a baseline; no counterfactual)"

    @property
    def _encoder(self) -> Encoder:
        return ENCODERS[self.method_id.removeprefix("similarity-")]

    @property
    def _of_means(self) -> bool:
        return self.config.rule in OF_MEANS

    def artifact(self, **identity: Any) -> str:
        """The usual rule and number of images go unsaid, so means made before they could be chosen are still found;
        rules over single images share their embeddings."""
        value = self.config.model_dump(mode="json") | ({} if self._of_means else {"rule": "images"})
        usual = {name: field.default for name, field in SimilarityConfig.model_fields.items()}
        said = {k: v for k, v in value.items() if k not in usual or v != usual[k]}
        return f"artifacts/{self.method_id}-{digest(said | identity, 8)}"

    @property
    def _file(self) -> str:
        return f"{self.artifact()}/{'means' if self._of_means else 'embeddings'}.safetensors"

    @property
    def _args(self) -> dict[str, Any]:
        """The settings come with a task, not from the recipe: ablations try several."""
        return {"method": self.method_id, "config": self.config.model_dump(mode="json")}

    def fit(self) -> list[Task]:
        return [
            Task(
                name=f"fit {self.method_id}", stage=f"fit/{self.method_id}", fn="guda.methods.similarity:fit_groups",
                args=self._args, makes=(self._file,),
            )
        ]  # fmt: skip

    def embedded_groups(self) -> dict[str, torch.Tensor]:
        """What `fit` makes."""
        data, rule, per_group = load_data(self.run), self.config.rule, self.config.per_group
        if self._of_means:
            means = group_means(data, self._encoder, rule, per_group)
            return {"means": torch.from_numpy(np.ascontiguousarray(means))}
        units, member = group_embeddings(data, self._encoder, per_group)
        return {"units": torch.from_numpy(np.ascontiguousarray(units)), "member": torch.from_numpy(member)}

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return []  # a matrix product: done in `scores`

    def _features(self, queries: Queries) -> np.ndarray:
        """Embedded queries."""
        return self._encoder(queries.images)

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        tensors, _ = read_tensors(self.run.path(self._file))
        groups, every = scored_groups(self.run), load_data(self.run).groups
        asked, features = [every.index(name) for name in groups], self._features(queries)
        if self._of_means:
            score = cosines(features, tensors["means"].numpy(), self.config.rule)[:, asked]
        else:
            units, member = tensors["units"].numpy(), tensors["member"].numpy()[:, asked]
            score = cosines_to_images(features, units, member, self.config.rule)
        return Scores(
            method=self.method_id, unit=self.unit, estimand=estimand(self.config.rule),
            queries=queries.ids, groups=groups, score=score, n_evals=0,
            sign="higher = looks more like the group",
        )  # fmt: skip

    def fit_evals(self) -> float:
        return 0.0

    def score_evals(self) -> float:
        return 0.0


for _name in ENCODERS:
    METHODS.register(f"similarity-{_name}")(type(f"Similarity_{_name}", (Similarity,), {}))


def _similarity(run: Run, name: str, config: dict[str, Any]) -> Similarity:
    cls = METHODS[name]
    found = cls(run, name, parse_config(cls.Config, config, name))
    assert isinstance(found, Similarity)
    return found


def fit_groups(run: Run, method: str, config: dict[str, Any]) -> None:
    found = _similarity(run, method, config)
    write_tensors(run.path(found._file), found.embedded_groups())


# --- networks -------------------------------------------------------------------------------------
class NetworkSimilarity(Similarity):
    """The encoder is a network. `probe`, the embedding of the first training image, is kept with the groups: other
    weights under the same name are noticed, without hashing gigabytes."""

    @abstractmethod
    def load(self) -> Encoder: ...

    @property
    def _encoder(self) -> Encoder:
        return self.load()

    def probe(self, encode: Encoder) -> torch.Tensor:
        return torch.from_numpy(encode(load_data(self.run).images[:1]))

    def embedded_groups(self) -> dict[str, torch.Tensor]:
        return super().embedded_groups() | {"probe": self.probe(self._encoder)}

    def _embedded(self, queries: Queries) -> str:
        return f"{self.artifact()}/queries-{queries.digest[:12]}.safetensors"

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return [
            Task(
                name=f"embed {queries.name} by {self.method_id}", stage=f"score/{queries.name}/{self.method_id}",
                fn="guda.methods.similarity:embed", args=self._args | {"queries": queries.name},
                makes=(self._embedded(queries),), needs=(self._file,),
            )
        ]  # fmt: skip

    def _features(self, queries: Queries) -> np.ndarray:
        return read_tensors(self.run.path(self._embedded(queries)))[0]["features"].numpy()


def embed(run: Run, method: str, config: dict[str, Any], queries: str) -> None:
    found, given = _similarity(run, method, config), load_queries(run, queries)
    assert isinstance(found, NetworkSimilarity)
    encode = found._encoder
    fitted = read_tensors(run.path(found._file))[0]["probe"]
    now = found.probe(encode)
    if fitted.shape != now.shape or not torch.allclose(fitted, now, rtol=1e-2, atol=1e-3 * float(fitted.abs().max())):
        folder = run.path(found.artifact())
        raise GudaError(
            "encoder-changed", f"the encoder of {method} is not the one its group means were made with; delete {folder}"
        )
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
