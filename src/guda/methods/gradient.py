"""TRAK, D-TRAK, DAS and their kin: influence of training images through gradient features, summed up to groups.

Image i acts on a query through one vector (baselines/ridge.py): A_i = w_i phi_q . z_i, with z_i = K^-1 phi_i and

    w_i = r_i / (1 - h_i)^leverage / d_i       residual, leverage, and a length d_i where `divide` names one

so sums, means and the exact removal of a group are one vector per group, made when the method is fitted; max, median
and top<m> keep the images' vectors and stream them. Positive = the image helps (removing it would raise the query's
loss); a squared score is a size without a sign. What each name means is in baselines/presets.py.

Several `seeds` (sketch and noise) and `models` (other full models of the run) are averaged score by score.
"""

from __future__ import annotations

from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch

from guda.baselines import influence
from guda.baselines.features import Featuriser, grid, meet
from guda.baselines.presets import (
    DasConfig,
    DasPublicConfig,
    DasSquaredConfig,
    DtrakConfig,
    GradientConfig,
    RelatifConfig,
    TracinConfig,
    TrakConfig,
)
from guda.baselines.residuals import residuals
from guda.baselines.ridge import Cholesky, Eigen, Ridge, Rows, effective
from guda.config import parse_config
from guda.data.queries import Queries
from guda.errors import GudaError, Mismatch
from guda.files import digest, read_tensors, write_tensors
from guda.methods.base import Method, known_methods, method
from guda.methods.features import SHARD, FeatureStore
from guda.methods.residuals import ErrorStore
from guda.methods.terms import load_queries
from guda.run.data import load_data, scored_groups
from guda.run.models import architecture, full_tasks, model_digest, resolve
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores


@method("trak")
class Trak(Method):
    Config: ClassVar[type[GradientConfig]] = TrakConfig
    unit = "influence"
    summary = "TRAK: gradients of the loss through a ridge kernel; + = the images help (a baseline)"

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

    def errors(self, store: FeatureStore) -> ErrorStore | None:
        if self.config.residual == "none":
            return None
        return ErrorStore(self.run, self.config.residual_timesteps, store.model, store.seed)

    def vectors_files(self, number: int) -> list[str]:
        """Of one network: the vectors of all groups, or those of each group's images, whatever the aggregate."""
        if influence.linear(self.config):
            return [f"{self.artifact()}/vectors-{number}.safetensors"]
        told = self.config.model_dump(mode="json", exclude={"aggregate", "square"})
        folder = f"artifacts/{self.method_id}-items-{digest(told, 8)}"
        return [f"{folder}/items-{number}-{g:04d}.safetensors" for g in range(len(self._members()))]

    def scores_file(self, part: Queries) -> str:
        return f"{self.artifact()}/scores-{part.digest[:16]}.safetensors"

    # ---- tasks ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that would fail in a worker, before anything is trained."""
        model = architecture(self.run)
        if model.conditional and self.run.recipe.prompts is None:
            raise GudaError(
                "training-prompts-missing",
                f"{self.method_id} needs what the model is told of each training image: `prompts` in the recipe",
            )
        Featuriser(model, self.config, model="not trained yet")
        if self.config.residual != "none":
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
            needs = tuple(store.shards())
            if ridge:
                needs += (store.gram_file, *((store.spectrum_file,) if eigen else ()))
            if (errors := self.errors(store)) is not None:
                tasks += errors.fit()
                needs += errors.files()
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
        stage, stores = f"score/{queries.name}/{self.method_id}", self.stores()
        tasks = [t for store in stores for t in self._asked(store).query_tasks(queries)]
        vectors = tuple(file for n in range(len(stores)) for file in self.vectors_files(n))
        for i, part in enumerate(queries.shards(SHARD)):
            tasks.append(
                Task(
                    name=f"score {queries.name}/{i} by {self.method_id}", stage=stage,
                    fn="guda.methods.gradient:make_scores", args=self._args(queries=queries.name, shard=i),
                    makes=(self.scores_file(part),),
                    needs=vectors + tuple(self._asked(store).query_file(part) for store in stores),
                )
            )  # fmt: skip
        return tasks

    # ---- what is in the files -------------------------------------------------------------------------------

    def _ridge(self, store: FeatureStore, rows: Rows) -> Ridge:
        found = store.gram()
        lam = effective(self.config.lam, self.config.lam_scale, rows, found)
        eigen = self.config.solver == "eigen"
        return Ridge(rows, Eigen(store.spectrum(), lam) if eigen else Cholesky(found, lam))

    def residual(self, store: FeatureStore) -> np.ndarray:
        errors = self.errors(store)
        return np.ones(load_data(self.run).n) if errors is None else residuals(errors.read(), self.config.residual)

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
        """Of every group: which of them are asked about is decided when scores are read."""
        groups = load_data(self.run).groups
        return [groups.members(k) for k in range(len(groups))]

    def shard_scores(self, part: Queries) -> np.ndarray:
        """float64 [q, G], the mean over networks and seeds."""
        found = []
        for number, store in enumerate(self.stores()):
            phi = influence.query_vectors(self.config, self._asked(store).queries(part, self._free, store.meta()))
            if influence.linear(self.config):
                vectors = self._vectors(store, self.vectors_files(number)[0], "groups")
                found.append((phi @ vectors.double().T).numpy())
            else:  # one group's images at a time
                files = self.vectors_files(number)
                columns = (influence.item_scores(self.config, phi, self._vectors(store, f, "items")) for f in files)
                found.append(np.stack(list(columns), axis=1))
        return np.mean(found, axis=0)

    def _vectors(self, store: FeatureStore, file: str, what: str) -> torch.Tensor:
        tensors, header = read_tensors(self.run.path(file))
        meet(store.meta(), header["meta"], str(self.run.path(file)))
        return tensors[what]

    def models(self) -> list[str]:
        """Digests of the networks that scores are made of."""
        return [model_digest(self.run, store.model) for store in self.stores()]

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        parts, now = [], self.models()
        for part in queries.shards(SHARD):
            path = self.run.path(self.scores_file(part))
            tensors, header = read_tensors(path)
            if header.get("models") != now:
                fix = f"delete {path.parent} and the features it was made of, then fit and score again"
                raise Mismatch(
                    "gradients-stale", f"{path} was computed with other weights", header.get("models"), now, fix
                )
            parts.append(tensors["scores"])
        groups = scored_groups(self.run)
        every = load_data(self.run).groups
        return Scores(
            method=self.method_id, unit=self.unit, estimand=self.estimand, queries=queries.ids, groups=groups,
            score=torch.cat(parts).numpy()[:, [every.index(g) for g in groups]], n_evals=round(self.score_evals()),
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
        shared = [f"fit/{store.name}" for store in self.stores()]
        shared += [f"fit/{errors.name}" for store in self.stores() if (errors := self.errors(store)) is not None]
        return [f"fit/{self.method_id}", *dict.fromkeys(shared)]

    def score_stages(self, queries: str, terms: str) -> list[str]:
        return [f"score/{queries}/{self.method_id}", *(self._asked(s).query_stage(queries) for s in self.stores())]

    def fit_evals(self) -> float:
        n, groups = load_data(self.run).n, len(scored_groups(self.run))
        per_image = self.stores()[0].evals + (self.config.residual_timesteps if self.config.residual != "none" else 0)
        return float(n * per_image * len(self.stores()) / groups)

    def score_evals(self) -> float:
        return self.stores()[0].evals * len(self.stores())


@method("dtrak")
class Dtrak(Trak):
    Config = DtrakConfig
    summary = "D-TRAK: gradients of the output's squared norm through a ridge kernel; + = similar, helps (a baseline)"


@method("das")
class Das(Trak):
    Config = DasConfig
    summary = "DAS: change of the predicted noise when an image leaves, linearised; + = the images help (a baseline)"


@method("das-public")
class DasPublic(Trak):
    Config = DasPublicConfig
    summary = "DAS as its public code has it: residuals, no leverage; + = the images help (a baseline)"


@method("das-squared")
class DasSquared(Trak):
    Config = DasSquaredConfig
    summary = "the square of das-public: how much images act, for or against (a baseline)"


@method("tracin")
class Tracin(Trak):
    Config = TracinConfig
    summary = (
        "TracIn at the last checkpoint: gradient of the picture times gradients of the images; + = helps (a baseline)"
    )


@method("relatif")
class Relatif(Trak):
    Config = RelatifConfig
    summary = "RelatIF: TRAK's influence divided by how far an image moves the model; + = helps (a baseline)"


# --- what tasks do ------------------------------------------------------------------------------------
def _method(run: Run, name: str, config: dict[str, Any]) -> Trak:
    cls = known_methods()[name]  # in a fresh process too, and of other files than this one
    found = cls(run, name, parse_config(cls.Config, config, name))
    assert isinstance(found, Trak)
    return found


def make_vectors(run: Run, method: str, config: dict[str, Any], number: int, part: int) -> None:
    found = _method(run, method, config)
    tensors, about = found.vectors(number, part)
    write_tensors(run.path(found.vectors_files(number)[part]), tensors, about)


def make_scores(run: Run, method: str, config: dict[str, Any], queries: str, shard: int) -> None:
    found, part = _method(run, method, config), load_queries(run, queries).shards(SHARD)[shard]
    tensors = {"scores": torch.from_numpy(found.shard_scores(part))}
    write_tensors(run.path(found.scores_file(part)), tensors, {"models": found.models()})
