"""A run's gradient features as tasks: made once, whichever of the gradient methods asks first.

    RUN/artifacts/features-<hash>/train-<shard>.safetensors      training images, in the data's order
    RUN/artifacts/features-<hash>/gram.safetensors               their Gram matrix
    RUN/artifacts/features-<hash>/spectrum.safetensors           its eigendecomposition, where asked for
    RUN/artifacts/features-<hash>/queries-<shard>.safetensors    queries, a shard named by its content

The hash is of the settings that decide a feature, the network's name and the seed, and of the curvature that gradients
are seen through, if any (K-FAC). Every file says what it was made
with, the digest of the weights included, and files that differ in that never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from guda.baselines.curvature import Through
from guda.baselines.features import FeatureConfig, Featuriser, Split, feature_settings, meet
from guda.baselines.ridge import Rows, Spectrum, gram
from guda.config import parse_config
from guda.data.queries import Queries
from guda.errors import Mismatch
from guda.files import digest, read_header, read_tensors, write_tensors
from guda.methods.terms import load_queries
from guda.run import progress
from guda.run.data import load_data, prompt_files
from guda.run.models import count_weights, load_model, model_digest, model_files, training_inputs
from guda.run.run import Run
from guda.run.task import Task

SHARD = 256  # images of one task: what a kill loses at most


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

    def _args(self) -> dict[str, Any]:
        made = {"config": feature_settings(self.config), "model": self.model, "seed": self.seed}
        return made | ({"through": asdict(self.through)} if self.through else {})

    @property
    def _needs(self) -> tuple[str, ...]:
        return model_files(self.run, self.model) + ((self.through.file,) if self.through else ())

    @property
    def evals(self) -> float:
        """Evaluation units of one image: forward and backward at every timestep."""
        return 3.0 * self.config.timesteps

    @property
    def dim(self) -> int:
        """Numbers in the features of one image."""
        config = self.config
        return count_weights(self.run, config.weights) if config.sketch == "identity" else config.dim

    def shards(self) -> list[str]:
        count = -(-load_data(self.run).n // SHARD)
        return [f"{self.folder}/train-{i:05d}.safetensors" for i in range(count)]

    # ---- tasks --------------------------------------------------------------------------------------------

    def fit(self, spectrum: bool = False, kernel: bool = True) -> list[Task]:
        """Features of the training images; with their Gram matrix and its spectrum where a kernel needs them."""
        needs = self._needs + prompt_files(self.run)
        stage, n, dim, shards = f"fit/{self.name}", load_data(self.run).n, self.dim, self.shards()
        tasks = [
            Task(
                name=f"{self.name} of training images {i * SHARD}..{min(n, (i + 1) * SHARD) - 1}", stage=stage,
                fn="guda.methods.features:make_train", args=self._args() | {"shard": i}, makes=(shards[i],),
                needs=needs, cost=self.evals * min(SHARD, n - i * SHARD), bytes=4 * dim * min(SHARD, n - i * SHARD),
            )
            for i in range(len(shards))
        ]  # fmt: skip
        files = [(self.gram_file, "make_gram", tuple(shards))] if kernel else []
        files += [(self.spectrum_file, "make_spectrum", (self.gram_file,))] if kernel and spectrum else []
        for file, fn, before in files:
            tasks.append(
                Task(
                    name=f"{self.name} {fn.removeprefix('make_')}", stage=stage, fn=f"guda.methods.features:{fn}",
                    args=self._args(), makes=(file,), needs=before, bytes=8 * min(n, dim) ** 2,
                )
            )  # fmt: skip
        return tasks

    def query_stage(self, queries: str) -> str:
        return f"score/{queries}/{self.name}"

    def query_tasks(self, queries: Queries) -> list[Task]:
        stage = self.query_stage(queries.name)
        return [
            Task(
                name=f"{self.name} of {queries.name}/{i}", stage=stage, fn="guda.methods.features:make_queries",
                args=self._args() | {"queries": queries.name, "shard": i}, makes=(self.query_file(part),),
                needs=self._needs, cost=self.evals * part.n, bytes=4 * self.dim * part.n,
            )
            for i, part in enumerate(queries.shards(SHARD))
        ]  # fmt: skip

    # ---- files --------------------------------------------------------------------------------------------

    @property
    def gram_file(self) -> str:
        return f"{self.folder}/gram.safetensors"

    @property
    def spectrum_file(self) -> str:
        return f"{self.folder}/spectrum.safetensors"

    def query_file(self, part: Queries) -> str:
        return f"{self.folder}/queries-{part.digest[:16]}.safetensors"

    def featuriser(self) -> Featuriser:
        model, known = load_model(self.run, self.model), model_digest(self.run, self.model)
        return Featuriser(model, self.config, self.seed, known)

    def meta(self) -> dict[str, Any]:
        """What the stored features were made with; refused if that is not the present network."""
        file = self.shards()[0]
        found = read_header(self.run.path(file))[0]["meta"]
        check_model(self.run, self.model, found.get("model"), file)
        return found

    def rows(self) -> Rows:
        """The training features, read from disk block by block; refused where a block is of another making."""
        meta, shards = self.meta(), self.shards()

        def read() -> Iterator[tuple[int, torch.Tensor]]:
            for i, file in enumerate(shards):
                yield i * SHARD, self._read(file, meta)

        first = self._read(shards[0], meta)
        return Rows(load_data(self.run).n, first.shape[1], read)

    def queries(self, part: Queries, free: tuple[str, ...] = (), meta: dict[str, Any] | None = None) -> torch.Tensor:
        """Features of a shard of queries; refused where they may not meet `meta`, the training images'."""
        return self._read(self.query_file(part), meta or self.meta(), free)

    def gram(self) -> torch.Tensor:
        return self._tensors(self.gram_file)["gram"]

    def spectrum(self) -> Spectrum:
        found = self._tensors(self.spectrum_file)
        return Spectrum(found["values"], found["vectors"])

    def _tensors(self, file: str, free: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
        tensors, header = read_tensors(self.run.path(file))
        meet(self.meta(), header["meta"], str(self.run.path(file)), free)
        return tensors

    def _read(self, file: str, meta: dict[str, Any], free: tuple[str, ...] = ()) -> torch.Tensor:
        tensors, header = read_tensors(self.run.path(file))
        meet(meta, header["meta"], str(self.run.path(file)), free)
        return tensors["features"]

    def with_output(self, output: Any) -> FeatureStore:
        """The same features of another function."""
        return replace(self, config=self.config.model_copy(update={"output": output}))


def check_model(run: Run, model: str, found: str | None, file: str) -> None:
    """Refuse a file that was computed with other weights."""
    if found != (now := model_digest(run, model)):
        where = run.path(file)
        fix = f"delete {where.parent} and run the command again"
        raise Mismatch("features-stale", f"{where} was computed with other weights of {model}", found, now, fix)


# --- what tasks do ------------------------------------------------------------------------------------
def _store(
    run: Run, config: dict[str, Any], model: str, seed: int, through: dict[str, Any] | None = None
) -> FeatureStore:
    seen = None if through is None else Through(**through)
    return FeatureStore(run, parse_config(FeatureConfig, config, "features"), model, seed, seen)


def make_train(run: Run, shard: int, **made: Any) -> None:
    store = _store(run, **made)
    featuriser, data = store.featuriser(), load_data(run)
    latents, prompts = training_inputs(run, featuriser.denoiser, False)
    here = range(shard * SHARD, min(data.n, (shard + 1) * SHARD))
    told = None if prompts is None else [prompts[i] for i in here]
    ids, x0 = [data.ids[i] for i in here], latents.x0[here.start : here.stop]
    _write(store, featuriser, store.shards()[shard], x0, ids, "train", told)


def make_queries(run: Run, queries: str, shard: int, **made: Any) -> None:
    store = _store(run, **made)
    featuriser, part = store.featuriser(), load_queries(run, queries).shards(SHARD)[shard]
    part.check_shape(featuriser.denoiser.image_shape)
    x0 = featuriser.denoiser.encode(part.images)
    _write(store, featuriser, store.query_file(part), x0, list(part.ids), "queries", part.prompts)


def _write(
    store: FeatureStore, featuriser: Featuriser, file: str, x0: torch.Tensor, ids: list[str], split: Split, prompts: Any
) -> None:
    cond = featuriser.denoiser.condition(prompts)
    meta, through, device = featuriser.meta, None, featuriser.denoiser.device
    if store.through is not None:
        through = store.through.load(store.run.path(store.through.file), featuriser.model, device)
        meta |= {"through": asdict(store.through)}
    found = featuriser(x0, ids, split, cond, through, progress.tick)
    write_tensors(store.run.path(file), {"features": found}, {"meta": meta, "split": split})


def _derived(store: FeatureStore, file: str, make: Callable[[], dict[str, torch.Tensor]]) -> None:
    write_tensors(store.run.path(file), make(), {"meta": store.meta()})


def make_gram(run: Run, **made: Any) -> None:
    store = _store(run, **made)
    _derived(store, store.gram_file, lambda: {"gram": gram(store.rows())})


def make_spectrum(run: Run, **made: Any) -> None:
    store = _store(run, **made)
    found = Spectrum.of(store.gram())
    _derived(store, store.spectrum_file, lambda: {"values": found.values, "vectors": found.vectors.contiguous()})
