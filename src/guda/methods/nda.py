"""nda: the posterior mass of each group's patches, given the noised picture (baselines/nda.py). A baseline that uses
the data and no network: what a model that only copies patches would attribute to each group.

    score = sum over the group's images of mass_j >= 0, averaged over t      positive = the group's patches are in it

Sums over all groups are the number of places, so a group's score is a share. `aggregate: mean` compares groups of
different sizes image by image.

Defaults, chosen before any evaluation. t: the published range is a tenth to half of T, nothing says where in it, so its
ends and a point between, which are SNR 34, 3.7 and 1 of a cosine schedule: from nearest patches to a wide average.
patch: 7 is half of a 14x14 image, parts rather than textures, and still short of the whole image, whose posterior is
its nearest neighbour. positions: 128 random places are most of a small image, and bound the time for a large one.
One scale: a second doubles the time. 500 queries against 10,000 images of 14x14: about four minutes of one core.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator

from guda.baselines.influence import PATTERN, by_group
from guda.baselines.nda import Noised, Patch, cuts, posterior_mass
from guda.baselines.similarity import exemplars
from guda.config import Config, parse_config
from guda.data.images import ImageData, to_float
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.files import write_json
from guda.methods.base import Method, method
from guda.methods.terms import load_queries
from guda.run.data import load_data, scored_groups
from guda.run.models import run_schedule
from guda.run.parts import Sharded, query_shard, query_shards
from guda.run.run import Run
from guda.run.task import Task, tick
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores

HELD = 2**25  # (place, training image) pairs held at once: 256 MB


class NdaConfig(Config):
    t: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        (0.1, 0.3, 0.5), min_length=1, description="Noise levels to average over, as fractions of T; or one."
    )
    patch: Patch = Field(7, description="Pixels a side, odd; or whole: the image is the patch.")
    alpha: float = Field(1.0, ge=0, le=1, description="Weight of the patch as it is; the rest is that of its average.")
    down: int | None = Field(None, ge=2, description="Pixels a side of the cells of the averaged patch.")
    positions: int | None = Field(128, gt=0, description="Places of a query asked about, at random; null: all.")
    seed: int = Field(0, ge=0, description="Of the noise and the places.")
    aggregate: str = Field("sum", pattern=PATTERN, description="From images to groups: sum, mean, max, median, top<m>.")
    per_group: int | None = Field(
        None, gt=0, description="Images that stand for a group, drawn by its name; null: all."
    )

    @field_validator("t", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | float) else value

    @field_validator("patch")
    @classmethod
    def _odd(cls, value: Patch) -> Patch:
        if isinstance(value, int) and (value < 1 or value % 2 == 0):
            raise ValueError("a patch has a centre, so its side is odd")
        return value

    @model_validator(mode="after")
    def _scales(self) -> NdaConfig:
        if (self.alpha < 1) != (self.down is not None):
            raise ValueError("a second scale takes both: alpha below 1 and down, the pixels to average over")
        return self


@method("nda")
class Nda(Method):
    Config: ClassVar[type[NdaConfig]] = NdaConfig
    unit = "posterior mass"
    summary = "NDA: how much of the noised picture the group's patches explain (a baseline; no network is asked)"

    def check(self) -> None:
        (_, height, width), patch = load_data(self.run).shape, self.config.patch
        if isinstance(patch, int) and patch > 2 * max(height, width) - 1:
            raise GudaError(
                "patch-too-large",
                f"methods.nda: patch: {patch} reaches over images of {width}x{height} from everywhere; give whole",
            )

    def fit(self) -> list[Task]:
        """Writes only the chosen images and steps; without any file the method would always count as fitted."""
        return [
            Task(
                name=f"fit {self.method_id}", stage=f"fit/{self.method_id}", fn="guda.methods.nda:fit_choice",
                args={"config": self.config.model_dump(mode="json")}, makes=(self._choice,),
            )
        ]  # fmt: skip

    @property
    def folder(self) -> str:
        """Masses of images: the same however groups are made of them."""
        return self.artifact(**self.config.model_dump(mode="json", exclude={"aggregate"}))

    @property
    def _choice(self) -> str:
        return f"{self.folder}/choice.json"

    def masses(self, queries: Queries) -> Sharded:
        """`mass`: float32 [queries, images]."""
        return Sharded(
            self.run, f"{self.folder}/*.safetensors", query_shards(queries, self.run.recipe.scoring.shard)
        )  # fmt: skip

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        args = {"config": self.config.model_dump(mode="json"), "queries": queries.name}
        stage = f"score/{queries.name}/{self.method_id}"
        return self.masses(queries).tasks(
            f"score {{}} by {self.method_id}", stage, "guda.methods.nda:score_shard", args, (self._choice,)
        )

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        mass = self.masses(queries).concat("mass").astype(np.float64)
        data, groups = load_data(self.run), scored_groups(self.run)
        _, members = chosen(data, self.config.per_group)
        asked = [members[data.groups.index(name)] for name in groups]
        return Scores(
            method=self.method_id, unit=self.unit, queries=queries.ids, groups=groups, n_evals=0,
            estimand=f"{self.config.aggregate} of the posterior mass of the group's patches",
            score=by_group(lambda images: mass[:, images], asked, self.config.aggregate),
            sign="higher = the picture may have come from the group",
        )  # fmt: skip


def chosen(data: ImageData, per_group: int | None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The training images that represent the groups, and each group's positions among them."""
    groups = [exemplars(data, k, per_group) for k in range(len(data.groups))]
    used = np.unique(np.concatenate(groups))
    return used, [np.searchsorted(used, members) for members in groups]


def steps(schedule: Schedule, fractions: tuple[float, ...]) -> list[int]:
    return [min(round(f * schedule.T), schedule.T - 1) for f in fractions]


def fit_choice(run: Run, config: dict[str, Any]) -> None:
    method, data = Nda(run, Nda.id, parse_config(NdaConfig, config, Nda.id)), load_data(run)
    method.check()  # a trial comes here directly
    used, _ = chosen(data, method.config.per_group)
    value = {"steps": steps(run_schedule(run), method.config.t), "images": [data.ids[i] for i in used]}
    write_json(run.path(method._choice), value)


def score_shard(run: Run, config: dict[str, Any], queries: str, shard: int) -> None:
    method, given = Nda(run, Nda.id, parse_config(NdaConfig, config, Nda.id)), load_queries(run, queries)
    data, schedule = load_data(run), run_schedule(run)
    part = query_shard(given, shard, run.recipe.scoring.shard)
    used, _ = chosen(data, method.config.per_group)
    mass = query_mass(part, data.images[used], schedule, method.config)
    method.masses(given).write(shard, {"mass": torch.from_numpy(mass.astype(np.float32))})


def query_mass(queries: Queries, images: np.ndarray, schedule: Schedule, config: NdaConfig) -> np.ndarray:
    """float64 [queries, images]; each query is computed independently of the others."""
    queries.check_shape(images.shape[1:])
    wanted, levels = [(q, t) for q in range(queries.n) for t in steps(schedule, config.t)], len(config.t)
    places = sum(cut.places for cut in cuts(*queries.shape[1:], config.patch))
    held = max(1, HELD // (len(images) * min(places, config.positions or places)))
    mass = np.zeros((queries.n, len(images)))
    for i in range(0, len(wanted), held):
        now = wanted[i : i + held]

        def report(done: int, total: int, before: int = i, size: int = len(now)) -> None:
            tick(before * total + done * size, len(wanted) * total)

        noised = [_noised(queries, q, t, schedule, config, places) for q, t in now]
        found = posterior_mass(noised, images, config.patch, config.down, config.alpha, tick=report)
        for (q, _), row in zip(now, found, strict=True):
            mass[q] += row / levels
    return mass


def _noised(queries: Queries, q: int, t: int, schedule: Schedule, config: NdaConfig, places: int) -> Noised:
    """The query at step t, and the positions to evaluate: all, or a uniform choice."""
    random = generator("nda", config.seed, queries.ids[q], t)
    x = to_float(queries.images[q : q + 1])[0].astype(np.float64)
    a, s = float(schedule.a[t]), float(schedule.s[t])
    noised = a * x + s * random.standard_normal(x.shape)
    if config.positions is None or config.positions >= places:
        return Noised(noised, a, s)
    return Noised(noised, a, s, np.sort(random.permutation(places)[: config.positions]))
