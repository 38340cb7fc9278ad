"""The similarity baselines as methods: similarity-<encoder>, and clipa, the one with CLIP.

`fit` keeps one vector per group or, where the rule needs single images (`max`: the nearest neighbour, `top10`: the
mean of the ten nearest, `sum`, `median`), the unit embedding of every image, once for all of these rules. Queries are
embedded once, by a task, and kept beside.

An encoder of another package is one file: a function images -> features, registered by
`@guda.baselines.similarity.ENCODERS.register("my-encoder")` in a module that the package names under the entry-point
group `guda.encoders`. It is then the method similarity-my-encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from guda.baselines.encoders import CLIP, DINO, SIZE, STRIDES, efficientnet, pooled, statistics, transformer
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
from guda.config import Config
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest
from guda.methods.base import METHODS, Method, make_method
from guda.methods.terms import load_queries
from guda.parts import FolderParts
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
    load: ClassVar[Callable[[Any], Encoder]]  # settings -> the encoder
    network: ClassVar[bool] = True  # encoding takes time and depends on weights

    @property
    def encoder(self) -> Encoder:
        return type(self).load(self.config)

    @classmethod
    def check_weights(cls, config: Any) -> None:
        if cls.network:
            cls.load(config)

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
        """What `fit` makes. `probe`, the embedding of the first training image, is kept with the groups of a network:
        other weights under the same name are noticed without hashing gigabytes."""
        data, rule, per_group, encode = load_data(self.run), self.config.rule, self.config.per_group, self.encoder
        if self._of_means:
            found = {"means": group_means(data, encode, rule, per_group)}
        else:
            units, member = group_embeddings(data, encode, per_group)
            found = {"units": units, "member": member}
        if self.network:
            found["probe"] = encode(data.images[:1])
        return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in found.items()}

    def _embedded(self, queries: Queries) -> str:
        return f"{self.artifact()}/queries-{queries.digest[:12]}.safetensors"

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        if not self.network:
            return []  # a matrix product: done in `scores`
        return [
            Task(
                name=f"embed {queries.name} by {self.method_id}", stage=f"score/{queries.name}/{self.method_id}",
                fn="guda.methods.similarity:embed", args=self._args | {"queries": queries.name},
                makes=(self._embedded(queries),), needs=(self._file,),
            )
        ]  # fmt: skip

    def embed(self, queries: Queries) -> dict[str, torch.Tensor]:
        """What a task of `score` makes; refused by another encoder than the groups were embedded with."""
        encode = self.encoder
        fitted, now = self._read(self._file)["probe"], torch.from_numpy(encode(load_data(self.run).images[:1]))
        near = 1e-3 * float(fitted.abs().max())
        if fitted.shape != now.shape or not torch.allclose(fitted, now, rtol=1e-2, atol=near):
            raise GudaError(
                "encoder-changed",
                f"the encoder of {self.method_id} is not the one its group means were made with; "
                f"delete {self.run.path(self.artifact())}",
            )
        return {"features": torch.from_numpy(encode(queries.images))}

    def _read(self, file: str) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = FolderParts(self.run.root).read(file)
        return found

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        made, groups, every = self._read(self._file), scored_groups(self.run), load_data(self.run).groups
        asked = [every.index(name) for name in groups]
        if self.network:
            features = self._read(self._embedded(queries))["features"].numpy()
        else:
            features = self.encoder(queries.images)
        if self._of_means:
            score = cosines(features, made["means"].numpy(), self.config.rule)[:, asked]
        else:
            score = cosines_to_images(
                features, made["units"].numpy(), made["member"].numpy()[:, asked], self.config.rule
            )
        return Scores(
            method=self.method_id, unit=self.unit, estimand=estimand(self.config.rule),
            queries=queries.ids, groups=groups, score=score, n_evals=0,
            sign="higher = looks more like the group",
        )  # fmt: skip


# ---- tasks
def _similarity(run: Run, name: str, config: dict[str, Any]) -> Similarity:
    found = make_method(run, name, config)
    assert isinstance(found, Similarity)
    return found


def fit_groups(run: Run, method: str, config: dict[str, Any]) -> None:
    found = _similarity(run, method, config)
    FolderParts(run.root).write(found._file, found.embedded_groups())


def embed(run: Run, method: str, config: dict[str, Any], queries: str) -> None:
    found, given = _similarity(run, method, config), load_queries(run, queries)
    FolderParts(run.root).write(found._embedded(given), found.embed(given))


# ---- encoders, each a method
class EncoderConfig(SimilarityConfig):
    model: str = Field(
        DINO, description="A vision model of transformers: its folder or its name on the Hugging Face Hub."
    )


class ClipConfig(SimilarityConfig):
    model: str = Field(CLIP, description="A CLIP model: its folder or its name on the Hugging Face Hub.")


class EfficientNetConfig(SimilarityConfig):
    size: int = Field(SIZE, ge=32, description="Pictures are scaled (bicubic) to this many pixels for the network.")


class EfficientNetStyleConfig(EfficientNetConfig):
    layer: int = Field(
        5, ge=0, lt=len(STRIDES), description="Channel means and deviations are taken after this block; early is style."
    )


def _made(
    name: str, load: Callable[[Any], Encoder], config: type[SimilarityConfig], summary: str, network: bool = True
) -> type[Similarity]:
    """The method of one encoder."""
    return type(f"Similarity[{name}]", (Similarity,), {
        "id": name, "Config": config, "load": staticmethod(load), "network": network,
        "summary": f"{summary} (a baseline; no counterfactual)",
    })  # fmt: skip


def _registered(name: str, encode: Encoder) -> type[Similarity]:
    if name == "pixel":
        summary = "cosine of the picture to each group's mean image, or nearest"
    else:
        summary = f"CLIPA's rule with the encoder {name}"
    return _made(f"similarity-{name}", lambda config: encode, SimilarityConfig, summary, network=name != "pixel")


METHODS.derive(ENCODERS, _registered, "similarity-")

for _method in (
    _made(
        "clipa",
        lambda config: transformer(config.model, only_clip=True),
        ClipConfig,
        "CLIPA: cosine of the picture's CLIP embedding to each group's mean",
    ),
    _made(
        "similarity-encoder",
        lambda config: transformer(config.model),
        EncoderConfig,
        "CLIPA's rule with any vision model of transformers",
    ),
    _made(
        "similarity-efficientnet",
        lambda config: efficientnet(None, pooled, config.size),
        EfficientNetConfig,
        "CLIPA's rule with EfficientNet-Lite0's last features: which object",
    ),
    _made(
        "similarity-efficientnet-style",
        lambda config: efficientnet(config.layer, statistics, config.size),
        EfficientNetStyleConfig,
        "CLIPA's rule with EfficientNet-Lite0's early statistics: which style",
    ),
):
    METHODS.register(_method.id)(_method)
