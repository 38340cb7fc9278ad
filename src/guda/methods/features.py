"""Gradient features of training images and queries, computed once and shared by all gradient methods.

    RUN/artifacts/features-<hash>/train-<shard>.safetensors      features of the training images, in the data's order
    RUN/artifacts/features-<hash>/gram.safetensors               their Gram matrix
    RUN/artifacts/features-<hash>/spectrum.safetensors           its eigendecomposition, where a method asks for it
    RUN/artifacts/features-<hash>/queries-<shard>.safetensors    features of queries
    RUN/artifacts/residuals-<hash>/errors-<shard>.safetensors    squared errors of the training images

The hash is of the settings that decide a feature, the network's name, the seed, and the curvature that gradients are
seen through, if any (K-FAC). The header of a file holds these and the digest of the weights, and features whose
headers differ are never combined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from guda.baselines.features import FeatureConfig, Featuriser, Split, feature_settings, meet, profile
from guda.baselines.kfac import Through
from guda.baselines.ridge import Rows, Spectrum, gram
from guda.config import parse_config
from guda.data.queries import Queries
from guda.errors import Mismatch
from guda.files import digest, read_header, read_tensors, write_tensors
from guda.methods.terms import load_queries
from guda.run.data import load_data, prompt_files
from guda.run.models import count_weights, load_model, model_digest, model_files, training_inputs
from guda.run.parts import Sharded, image_shards, query_shard, query_shards
from guda.run.plan import run_settings
from guda.run.run import Run
from guda.run.task import Task, tick

HERE = "guda.methods.features"

STALE = "features-stale"


@dataclass(frozen=True)
class FeatureStore:
    """The features of one network in a run."""

    run: Run
    config: FeatureConfig
    model: str = "base"
    seed: int = 0
    through: Through | None = None

    @property
    def name(self) -> str:
        made = [feature_settings(self.config), self.model, self.seed]
        return f"features-{digest(made + ([asdict(self.through)] if self.through else []), 8)}"

    @property
    def folder(self) -> str:
        return f"artifacts/{self.name}"

    @property
    def evals(self) -> float:
        """Evaluation units of one image: forward and backward at every timestep."""
        return 3.0 * self.config.timesteps

    @property
    def dim(self) -> int:
        """Numbers in the features of one image."""
        config = self.config
        return count_weights(self.run, config.weights) if config.sketch == "identity" else config.dim

    def with_output(self, output: Any) -> FeatureStore:
        """The same features of another function."""
        return replace(self, config=self.config.model_copy(update={"output": output}))

    # ---- files and tasks ------------------------------------------------------------------------------------

    @property
    def train(self) -> Sharded:
        return Sharded(self.run, f"{self.folder}/train-*.safetensors", image_shards(self.run))

    def asked(self, queries: Queries) -> Sharded:
        return Sharded(self.run, f"{self.folder}/queries-*.safetensors", query_shards(queries))

    @property
    def gram_file(self) -> str:
        return f"{self.folder}/gram.safetensors"

    @property
    def spectrum_file(self) -> str:
        return f"{self.folder}/spectrum.safetensors"

    def _args(self) -> dict[str, Any]:
        made = {"config": feature_settings(self.config), "model": self.model, "seed": self.seed}
        return made | ({"through": asdict(self.through)} if self.through else {})

    @property
    def _needs(self) -> tuple[str, ...]:
        return model_files(self.run, self.model) + ((self.through.file,) if self.through else ())

    def fit(self, spectrum: bool = False, kernel: bool = True) -> list[Task]:
        """Features of the training images; with their Gram matrix and its spectrum where a kernel needs them."""
        stage, args, needs, dim = f"fit/{self.name}", self._args(), self._needs + prompt_files(self.run), self.dim
        side = min(load_data(self.run).n, dim)
        tasks = self.train.tasks(
            f"{self.name} of {{}}", stage, f"{HERE}:make_train", args, needs, evals=self.evals, bytes=4 * dim
        )
        if kernel:
            tasks.append(
                Task(f"{self.name} gram", stage, f"{HERE}:make_gram", args, (self.gram_file,), self.train.files,
                     bytes=8 * side**2)
            )  # fmt: skip
        if kernel and spectrum:
            tasks.append(
                Task(f"{self.name} spectrum", stage, f"{HERE}:make_spectrum", args, (self.spectrum_file,),
                     (self.gram_file,), bytes=8 * side**2)
            )  # fmt: skip
        return tasks

    def query_stage(self, queries: str) -> str:
        return f"score/{queries}/{self.name}"

    def query_tasks(self, queries: Queries) -> list[Task]:
        return self.asked(queries).tasks(
            f"{self.name} of {{}}", self.query_stage(queries.name), f"{HERE}:make_queries",
            self._args() | {"queries": queries.name}, self._needs, evals=self.evals, bytes=4 * self.dim,
        )  # fmt: skip

    # ---- what is in the files -------------------------------------------------------------------------------

    def featuriser(self) -> Featuriser:
        model, known = load_model(self.run, self.model), model_digest(self.run, self.model)
        return Featuriser(model, self.config, self.seed, known)

    def meta(self) -> dict[str, Any]:
        """What the stored features were made with; refused if that is not the present network."""
        path, now = self.run.path(self.train.files[0]), model_digest(self.run, self.model)
        meta: dict[str, Any] = read_header(path)[0]["meta"]
        if meta.get("model") != now:
            fix = f"delete {path.parent} and run the command again"
            what = f"{path} was computed with other weights of {self.model}"
            raise Mismatch("features-stale", what, meta.get("model"), now, fix)
        return meta

    def read(
        self, file: str, key: str = "features", meta: dict[str, Any] | None = None, free: tuple[str, ...] = ()
    ) -> torch.Tensor:
        """A tensor of a file; refused where it may not meet `meta`, the training images' features."""
        tensors, header = read_tensors(self.run.path(file))
        meet(meta or self.meta(), header["meta"], str(self.run.path(file)), free)
        return tensors[key]

    def rows(self) -> Rows:
        """The training features, read from disk block by block."""
        meta, train = self.meta(), self.train

        def read() -> Iterator[tuple[int, torch.Tensor]]:
            for shard, file in zip(train.shards, train.files, strict=True):
                yield shard.start, self.read(file, meta=meta)

        return Rows(load_data(self.run).n, self.read(train.files[0], meta=meta).shape[1], read)

    def gram(self) -> torch.Tensor:
        return self.read(self.gram_file, "gram")

    def spectrum(self) -> Spectrum:
        return Spectrum(*(self.read(self.spectrum_file, key) for key in ("values", "vectors")))


# ---- tasks
def _store(
    run: Run, config: dict[str, Any], model: str, seed: int, through: dict[str, Any] | None = None
) -> FeatureStore:
    seen = None if through is None else Through(**through)
    return FeatureStore(run, parse_config(FeatureConfig, config, "features"), model, seed, seen)


def make_train(run: Run, shard: int, **made: Any) -> None:
    store = _store(run, **made)
    featuriser, data, part = store.featuriser(), load_data(run), store.train.shards[shard]
    latents, prompts = training_inputs(run, featuriser.denoiser, False)
    here = slice(part.start, part.stop)
    told = None if prompts is None else prompts[here]
    _write(store, featuriser, store.train, shard, latents.x0[here], data.ids[here], "train", told)


def make_queries(run: Run, queries: str, shard: int, **made: Any) -> None:
    store, given = _store(run, **made), load_queries(run, queries)
    featuriser, part = store.featuriser(), query_shard(given, shard)
    part.check_shape(featuriser.denoiser.image_shape)
    x0 = featuriser.denoiser.encode(part.images)
    _write(store, featuriser, store.asked(given), shard, x0, part.ids, "queries", part.prompts)


def _write(
    store: FeatureStore, featuriser: Featuriser, made: Sharded, shard: int, x0: torch.Tensor, ids: tuple[str, ...],
    split: Split, prompts: Any,
) -> None:  # fmt: skip
    cond = featuriser.denoiser.condition(prompts)
    meta, through, device = featuriser.meta, None, featuriser.denoiser.device
    if store.through is not None:
        through = store.through.load(store.run.path(store.through.file), featuriser.model, device)
        meta |= {"through": asdict(store.through)}
    found = featuriser(x0, ids, split, cond, through, tick)
    made.write(shard, {"features": found}, {"meta": meta, "split": split})


def make_gram(run: Run, **made: Any) -> None:
    store = _store(run, **made)
    write_tensors(run.path(store.gram_file), {"gram": gram(store.rows())}, {"meta": store.meta()})


def make_spectrum(run: Run, **made: Any) -> None:
    store = _store(run, **made)
    found = Spectrum.of(store.gram())
    tensors = {"values": found.values, "vectors": found.vectors.contiguous()}
    write_tensors(run.path(store.spectrum_file), tensors, {"meta": store.meta()})


# ---- residuals: how far a network is off at each training image, on a grid of timesteps
def error_name(run: Run, timesteps: int, model: str, seed: int) -> str:
    return f"residuals-{digest([timesteps, model, seed, run_settings(run).block], 8)}"


def errors(run: Run, timesteps: int, model: str, seed: int) -> Sharded:
    """`errors`: float64 [n, timesteps]."""
    name = error_name(run, timesteps, model, seed)
    return Sharded(run, f"artifacts/{name}/errors-*.safetensors", image_shards(run))


def error_tasks(run: Run, timesteps: int, model: str, seed: int) -> list[Task]:
    name = error_name(run, timesteps, model, seed)
    return errors(run, timesteps, model, seed).tasks(
        f"{name} of {{}}", f"fit/{name}", f"{HERE}:make_errors", {"timesteps": timesteps, "model": model, "seed": seed},
        model_files(run, model) + prompt_files(run), evals=timesteps, bytes=8 * timesteps,
    )  # fmt: skip


def make_errors(run: Run, timesteps: int, model: str, seed: int, shard: int) -> None:
    network, made = load_model(run, model), errors(run, timesteps, model, seed)
    latents, prompts = training_inputs(run, network, False)
    here = slice(made.shards[shard].start, made.shards[shard].stop)
    cond = network.condition(None if prompts is None else prompts[here])
    found = profile(network, latents.x0[here], timesteps, seed, run_settings(run).block, cond, tick)
    made.write(shard, {"errors": torch.from_numpy(found)}, {"model": model_digest(run, model)})
