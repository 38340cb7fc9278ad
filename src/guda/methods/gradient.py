"""TRAK, D-TRAK, DAS and related methods: influence of training images through gradient features, summed over groups.

Image i acts on a query through one vector (baselines/ridge.py): A_i = w_i phi_q . z_i, with z_i = K^-1 phi_i and

    w_i = r_i / (1 - h_i)^leverage / d_i       residual, leverage, and a length d_i where `divide` names one

so sums, means and the exact removal of a group are one vector per group, made when the method is fitted; max, median
and top<m> keep the images' vectors and stream them. Positive = the image helps (removing it would raise the query's
loss); a squared score is a size without a sign. What each name means is in baselines/influence.py.

Several `seeds` (sketch and noise) and `models` (other full models of the run) are averaged score by score.

K-FAC influence as a method: TracIn's products of gradients, preconditioned by the curvature of the loss.

    A_i = phi_q . phi_i,   phi = S (H + damping I)^{-1/2} grad f       sides: both
    A_i = phi_q . phi_i,   phi_q = S (H + damping I)^{-1} grad f       sides: query

Both estimate grad f(q)^T (H + damping I)^{-1} grad f(i) without bias. `query` shares the images' features with TRAK and
with every other damping, but the error of a sketch grows with the lengths of its two sides, and the inverse makes the
query's long where H is small: the smaller the damping, the more `both` is worth.

Positive = the image helps (removing it would raise the query's loss). What H is: baselines/kfac.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from guda.baselines import influence
from guda.baselines.features import Featuriser, grid, residuals
from guda.baselines.influence import PRESETS, GradientConfig
from guda.baselines.kfac import Draws, Through, curvature, need_library
from guda.baselines.ridge import Cholesky, Eigen, Ridge, Rows, effective
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest, write_tensors
from guda.methods.base import Method, make_method, method
from guda.methods.features import STALE, FeatureStore, error_tasks, errors
from guda.methods.terms import load_queries
from guda.run.data import load_data, prompt_files, scored_groups
from guda.run.models import architecture, full_tasks, load_model, model_digest, model_files, resolve, training_inputs
from guda.run.parts import Sharded, query_shards
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores


class Gradient(Method):
    """One method for all presets: they differ in their default settings alone."""

    Config: ClassVar[type[GradientConfig]] = GradientConfig
    unit = "influence"

    # ---- names ----------------------------------------------------------------------------------------------

    def stores(self) -> list[FeatureStore]:
        """One per network and seed."""
        return [FeatureStore(self.run, self.config, m, s) for m, s in product(self.config.models, self.config.seeds)]

    def _asked(self, store: FeatureStore) -> FeatureStore:
        """Where the queries' features are."""
        return store if self.config.query_output is None else store.with_output(self.config.query_output)

    @property
    def _free(self) -> tuple[str, ...]:
        """What the queries' features may differ in."""
        return () if self.config.query_output is None else ("output",)

    def _errors(self, store: FeatureStore) -> tuple[Run, int, str, int]:
        """Which residuals weigh the images of this network."""
        return self.run, self.config.residual_timesteps, store.model, store.seed

    @property
    def _weighted(self) -> bool:
        return bool(self.config.residual != "none")

    def vectors_files(self, number: int) -> list[str]:
        """Of one network: the vectors of all groups, or those of each group's images, whatever the aggregate."""
        if influence.linear(self.config):
            return [f"{self.artifact()}/vectors-{number}.safetensors"]
        told = self.config.model_dump(mode="json", exclude={"aggregate", "square"})
        folder = f"artifacts/{self.method_id}-items-{digest(told, 8)}"
        return [f"{folder}/items-{number}-{g:04d}.safetensors" for g in range(len(self._members()))]

    def made(self, queries: Queries) -> Sharded:
        """Scores of all groups."""
        return Sharded(self.run, f"{self.artifact()}/scores-*.safetensors", query_shards(queries))

    # ---- tasks ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that would fail in a worker, before anything is trained."""
        model = architecture(self.run)
        if model.frozen is not None and self.run.recipe.prompts is None:
            raise GudaError(
                "training-prompts-missing",
                f"{self.method_id} needs what the model is told of each training image: `prompts` in the recipe",
            )
        Featuriser(model, self.config, model="not trained yet")
        if self._weighted:
            grid(model.schedule.T, self.config.residual_timesteps)

    def _args(self, **more: Any) -> dict[str, Any]:
        return {"method": self.method_id, "config": self.config.model_dump(mode="json"), **more}

    def fit(self) -> list[Task]:
        tasks: list[Task] = []
        ridge, eigen = self.config.kernel == "ridge", self.config.solver == "eigen"
        n_items = 0 if influence.linear(self.config) else load_data(self.run).n
        for number, store in enumerate(self.stores()):
            if (name := resolve(self.run, store.model)).startswith("full-s"):
                tasks += full_tasks(self.run, int(name.removeprefix("full-s")))
            tasks += self._before(store)
            tasks += store.fit(spectrum=eigen, kernel=ridge)
            needs = store.train.files
            if ridge:
                needs += (store.gram_file, *((store.spectrum_file,) if eigen else ()))
            if self._weighted:
                tasks += error_tasks(*self._errors(store))
                needs += errors(*self._errors(store)).files
            for part, file in enumerate(self.vectors_files(number)):
                tasks.append(
                    Task(
                        name=f"fit {self.method_id}, network {number}, part {part}", stage=f"fit/{self.method_id}",
                        fn="guda.methods.gradient:make_vectors", args=self._args(number=number, part=part),
                        makes=(file,), needs=needs, bytes=4 * n_items * store.dim // len(self._members()),
                    )
                )  # fmt: skip
        return tasks

    def _before(self, store: FeatureStore) -> list[Task]:
        """What features of this network need made first."""
        return []

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        stores = [self._asked(store) for store in self.stores()]
        vectors = tuple(file for n in range(len(stores)) for file in self.vectors_files(n))
        tasks = self.made(queries).tasks(
            f"score {{}} by {self.method_id}", f"score/{queries.name}/{self.method_id}",
            "guda.methods.gradient:make_scores", self._args(queries=queries.name), vectors,
        )  # fmt: skip
        features = zip(*(store.asked(queries).files for store in stores), strict=True)
        tasks = [replace(task, needs=task.needs + files) for task, files in zip(tasks, features, strict=True)]
        return [t for store in stores for t in store.query_tasks(queries)] + tasks

    # ---- what is in the files -------------------------------------------------------------------------------

    def _ridge(self, store: FeatureStore, rows: Rows) -> Ridge:
        found = store.gram()
        lam = effective(self.config.lam, self.config.lam_scale, rows, found)
        eigen = self.config.solver == "eigen"
        return Ridge(rows, Eigen(store.spectrum(), lam) if eigen else Cholesky(found, lam))

    def residual(self, store: FeatureStore) -> np.ndarray:
        if not self._weighted:
            return np.ones(load_data(self.run).n)
        weights = {"model": model_digest(self.run, store.model)}
        return residuals(errors(*self._errors(store)).concat("errors", weights, STALE), self.config.residual)

    def vectors(self, number: int, part: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What a task of `fit` makes, and what it was made with."""
        store = self.stores()[number]
        rows, members = store.rows(), self._members()
        ridge = self._ridge(store, rows) if self.config.kernel == "ridge" else None
        about = {"meta": store.meta(), "lambda": None if ridge is None else ridge.factor.lam}
        given = (self.config, rows, ridge, self.residual(store))
        if influence.linear(self.config):
            return {"groups": influence.group_vectors(*given, members)}, about
        return {"items": influence.item_vectors(*given, members[part]).float()}, about

    def _members(self) -> list[np.ndarray]:
        """For every group; the scored ones are selected when scores are read."""
        groups = load_data(self.run).groups
        return [groups.members(k) for k in range(len(groups))]

    def shard_scores(self, queries: Queries, shard: int) -> np.ndarray:
        """float64 [q, G], the mean over networks and seeds."""
        found = []
        for number, store in enumerate(self.stores()):
            asked, meta = self._asked(store), store.meta()
            features = asked.read(asked.asked(queries).files[shard], meta=meta, free=self._free)
            phi = influence.query_vectors(self.config, features)
            if influence.linear(self.config):
                vectors = store.read(self.vectors_files(number)[0], "groups", meta)
                found.append((phi @ vectors.double().T).numpy())
            else:  # one group's images at a time
                files = self.vectors_files(number)
                columns = (influence.item_scores(self.config, phi, store.read(f, "items", meta)) for f in files)
                found.append(np.stack(list(columns), axis=1))
        return np.mean(found, axis=0)

    def models(self) -> list[str]:
        """Digests of the networks that scores are made of."""
        return [model_digest(self.run, store.model) for store in self.stores()]

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        found = self.made(queries).concat("scores", {"models": self.models()}, STALE)
        groups = scored_groups(self.run)
        every = load_data(self.run).groups
        return Scores(
            method=self.method_id, unit=self.unit, estimand=self.estimand, queries=queries.ids, groups=groups,
            score=found[:, [every.index(g) for g in groups]], n_evals=round(self.score_evals()),
            sign=self.sign,
        )  # fmt: skip

    @property
    def sign(self) -> str:
        return "a size without a sign" if self.config.square else "positive = the images help"

    @property
    def estimand(self) -> str:
        config = self.config
        kernel = f"ridge {config.lam:g} ({config.lam_scale})" if config.kernel == "ridge" else "no kernel"
        return f"{config.aggregate} of influences{' squared' * config.square}, f = {config.output}, {kernel}"

    # ---- cost -----------------------------------------------------------------------------------------------

    def fit_stages(self) -> list[str]:
        """Features and residuals are shared, and each method that needs them would have to make them."""
        return list(dict.fromkeys(task.stage for task in self.fit() if not task.trains))

    def score_stages(self, queries: str, terms: str) -> list[str]:
        return [f"score/{queries}/{self.method_id}", *(self._asked(s).query_stage(queries) for s in self.stores())]

    def score_evals(self) -> float:
        return self.stores()[0].evals * len(self.stores())


for _name, (_config, _summary) in PRESETS.items():
    method(_name)(type(_config.__name__.removesuffix("Config"), (Gradient,), {"Config": _config, "summary": _summary}))


# ---- tasks
def _method(run: Run, name: str, config: dict[str, Any]) -> Gradient:
    found = make_method(run, name, config)
    assert isinstance(found, Gradient)
    return found


def make_vectors(run: Run, method: str, config: dict[str, Any], number: int, part: int) -> None:
    found = _method(run, method, config)
    tensors, about = found.vectors(number, part)
    write_tensors(run.path(found.vectors_files(number)[part]), tensors, about)


def make_scores(run: Run, method: str, config: dict[str, Any], queries: str, shard: int) -> None:
    found, given = _method(run, method, config), load_queries(run, queries)
    tensors = {"scores": torch.from_numpy(found.shard_scores(given, shard))}
    found.made(given).write(shard, tensors, {"models": found.models()})


class KfacConfig(GradientConfig):
    kernel: Literal["none"] = Field("none", description="The curvature is the kernel.")
    damping: float = Field(0.1, gt=0, description="Added to every eigenvalue of H, in the scale damping_scale names.")
    damping_scale: Literal["relative", "absolute"] = Field(
        "relative", description="relative: in units of H's mean eigenvalue; absolute: as it is."
    )
    ekfac: bool = Field(False, description="EKFAC: eigenvalues from the layers' own gradients, in a second pass.")
    draws: int = Field(4096, ge=1, description="Draws (image, t, eps) that H is the mean of.")
    sides: Literal["both", "query"] = Field(
        "both", description="Half of the inverse before either sketch, or all of it before the query's."
    )  # fmt: skip


@method("kfac")
class Kfac(Gradient):
    Config: ClassVar[type[GradientConfig]] = KfacConfig
    summary = "K-FAC influence: gradients through the inverse curvature of the loss; + = the images help (a baseline)"

    # ---- names ----------------------------------------------------------------------------------------------

    def curvature_file(self, store: FeatureStore) -> str:
        config = self.config
        named = [config.draws, config.ekfac, config.weights, config.block, store.model, store.seed]
        return f"artifacts/curvature-{digest(named, 8)}/curvature.safetensors"

    def _seen(self, store: FeatureStore, power: float) -> FeatureStore:
        config = self.config
        relative = config.damping_scale == "relative"
        return replace(store, through=Through(self.curvature_file(store), config.damping, relative, power))

    def stores(self) -> list[FeatureStore]:
        found = super().stores()
        return [self._seen(s, -0.5) for s in found] if self.config.sides == "both" else found

    def _asked(self, store: FeatureStore) -> FeatureStore:
        asked = super()._asked(store)
        return asked if self.config.sides == "both" else self._seen(asked, -1.0)

    @property
    def _free(self) -> tuple[str, ...]:
        return super()._free + (() if self.config.sides == "both" else ("through",))

    # ---- tasks ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        if not all(self.run.has(self.curvature_file(store)) for store in self.stores()):
            need_library()

    def _before(self, store: FeatureStore) -> list[Task]:
        config, file = self.config, self.curvature_file(store)
        return [
            Task(
                name=f"curvature of {store.model}", stage=f"fit/{file.split('/')[1]}",
                fn="guda.methods.gradient:make_curvature", makes=(file,),
                args={"draws": config.draws, "ekfac": config.ekfac, "weights": config.weights, "block": config.block,
                      "model": store.model, "seed": store.seed, "file": file},
                needs=model_files(self.run, store.model) + prompt_files(self.run), cost=self._curvature_evals,
            )
        ]  # fmt: skip

    @property
    def estimand(self) -> str:
        config = self.config
        name = "EKFAC" if config.ekfac else "K-FAC"
        return (
            f"{config.aggregate} of influences, f = {config.output}, {name}, damping {config.damping:g} "
            f"({config.damping_scale}); {'squared, no sign' if config.square else 'positive = the images help'}"
        )

    # ---- cost -----------------------------------------------------------------------------------------------

    @property
    def _curvature_evals(self) -> float:
        return 3.0 * self.config.draws * (2 if self.config.ekfac else 1)


def make_curvature(
    run: Run, draws: int, ekfac: bool, weights: str, block: int, model: str, seed: int, file: str
) -> None:
    network = load_model(run, model)
    latents, prompts = training_inputs(run, network, False)
    found = curvature(network, Draws(network, latents, prompts, draws, block, seed), weights, corrected=ekfac)
    found.save(run.path(file), model_digest(run, model))
