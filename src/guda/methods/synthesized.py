"""synthesized: unlearn the query and measure which training images are forgotten with it (baselines/synthesized.py).

    artifacts/synthesized-<weights, images, seed>/fisher-<pass>.safetensors     the diagonal Fisher information
    artifacts/synthesized-<images, levels, seed>/losses.safetensors             training losses of the untouched model
    artifacts/synthesized-<all that decides>/<shard of queries>.safetensors     loss changes at every checkpoint

Which checkpoint counts and how images become groups is decided when scores are read, so both can be changed for free.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from guda.baselines.features import grid
from guda.baselines.gradients import Fisher, Gradients, chosen_weights, fisher_pass, inverse, mean_of, per_sample_block
from guda.baselines.influence import by_group
from guda.baselines.similarity import exemplars
from guda.baselines.synthesized import Ascent, Query, Samples, SynthesizedConfig, first_order, losses, unlearn_query
from guda.config import parse_config
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.errors import GudaError, NotFinite
from guda.files import write_tensors
from guda.methods.base import Method, method
from guda.methods.terms import load_queries
from guda.parts import FolderParts
from guda.run.data import load_data, prompt_files, scored_groups
from guda.run.models import architecture, count_weights, load_model, model_digest, model_files, training_inputs
from guda.run.parts import Sharded, query_shard, query_shards
from guda.run.plan import run_settings
from guda.run.run import Run
from guda.run.task import Task, tick
from guda.scoring.bands import Bands
from guda.scoring.plan import Settings
from guda.scoring.scores import Scores

SHARD = 16  # queries of one task: what a kill loses at most

HERE = "guda.methods.synthesized"

STALE = "synthesized-stale"

DIRECTIONS = 2**27  # numbers of query directions held at once (order: first)


@method("synthesized")
class Synthesized(Method):
    Config = SynthesizedConfig
    unit = "loss"
    summary = "unlearn the picture; the loss that each group's images gain with it, positive = helps (a baseline)"

    # ---- names ----------------------------------------------------------------------------------------------

    def _named(self, *fields: str) -> dict[str, Any]:
        """Those settings, and what else decides the last bits."""
        value = self.config.model_dump(mode="json", include=set(fields))
        return value | {"block": run_settings(self.run).block}

    def fisher_file(self, number: int) -> str:
        folder = self.artifact(part="fisher", **self._named("weights", "fisher_images", "per_sample", "seed"))
        return f"{folder}/fisher-{number}.safetensors"

    @property
    def _images(self) -> dict[str, Any]:
        groups = self.run.recipe.scoring.groups
        return self._named("per_group", "flips", "levels", "seed") | {"groups": groups and list(groups)}

    @property
    def losses_file(self) -> str:
        return f"{self.artifact(part='losses', **self._images)}/losses.safetensors"

    @property
    def folder(self) -> str:
        decide = ["weights", "lr", "scale", "damping", "fisher_passes", "fisher_images", "order", "per_sample"]
        decide += [] if self.config.order == "first" else ["cap"]
        return self.artifact(part="changes", at=list(self.config.reached), **(self._images | self._named(*decide)))

    def made(self, queries: Queries) -> Sharded:
        """`change`: [queries, checkpoints, images], mirrored ones last; `moved`: [queries, checkpoints]."""
        return Sharded(self.run, f"{self.folder}/*.safetensors", query_shards(queries, SHARD))

    @property
    def header(self) -> dict[str, str]:
        return {"model": model_digest(self.run, "base")}

    def read(self, file: str) -> dict[str, torch.Tensor]:
        """A file of `fit`."""
        found: dict[str, torch.Tensor] = FolderParts(self.run.root).read(file, self.header, STALE)
        return found

    # ---- work -----------------------------------------------------------------------------------------------

    @cached_property
    def chosen(self) -> list[np.ndarray]:
        """Positions of the images that represent each scored group."""
        data = load_data(self.run)
        return [exemplars(data, data.groups.index(name), self.config.per_group) for name in scored_groups(self.run)]

    @property
    def _losses_evals(self) -> int:
        """One evaluation of every training sample."""
        copies = 2 if self.config.flips else 1
        return sum(map(len, self.chosen)) * copies * self.config.levels

    @cached_property
    def _weights(self) -> int:
        """Numbers that a pass of the Fisher information is kept for."""
        return count_weights(self.run, self.config.pattern(architecture(self.run)))

    @property
    def _pass_evals(self) -> int:
        n = load_data(self.run).n
        return 3 * min(self.config.fisher_images or n, n)

    def check(self) -> None:
        model = architecture(self.run)
        if model.frozen is not None and self.run.recipe.prompts is None:
            raise GudaError(
                "training-prompts-missing",
                f"{self.method_id} is not defined for conditional models without prompts of the training images",
            )
        grid(model.schedule.T, self.config.levels)
        chosen_weights(model, self.config.pattern(model))

    def fit(self) -> list[Task]:
        needs = model_files(self.run, "base") + prompt_files(self.run)
        args = {"config": self.config.model_dump(mode="json")}
        stage = f"fit/{self.method_id}"
        passes = [
            Task(
                name=f"fit {self.method_id}: Fisher information, pass {i}", stage=stage, fn=f"{HERE}:fit_fisher",
                args=args | {"number": i}, makes=(self.fisher_file(i),), needs=needs, cost=float(self._pass_evals),
                bytes=8 * self._weights,
            )
            for i in range(self.config.fisher_passes)
        ]  # fmt: skip
        before = Task(
            name=f"fit {self.method_id}: losses", stage=stage, fn=f"{HERE}:fit_losses", args=args,
            makes=(self.losses_file,), needs=needs, cost=float(self._losses_evals),
        )  # fmt: skip
        return [*passes, before]

    def fitted(self) -> bool:
        passes = [self.fisher_file(i) for i in range(self.config.fisher_passes)]
        return all(map(self.run.has, [*passes, self.losses_file]))

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        needs = tuple(path for task in self.fit() for path in (*task.makes, *task.needs))
        args = {"config": self.config.model_dump(mode="json"), "queries": queries.name}
        return self.made(queries).tasks(
            f"score {{}} by {self.method_id}", f"score/{queries.name}/{self.method_id}", f"{HERE}:score_shard", args,
            tuple(dict.fromkeys(needs)), evals=self.score_evals(),
        )  # fmt: skip

    # ---- scores ---------------------------------------------------------------------------------------------

    def changes(self, queries: Queries) -> np.ndarray:
        """float64 [queries, images]: tau at the checkpoint of the settings; of flip pairs the larger."""
        place, step = self.config.place, self.config.reached[self.config.place]
        copies = 2 if self.config.flips else 1
        change = self.made(queries).concat("change", self.header, STALE)
        found = change[:, place].reshape(queries.n, copies, -1).max(axis=1)
        if (lost := np.flatnonzero(~np.isfinite(found).all(axis=1))).size:
            raise NotFinite(
                "unlearning-diverged",
                f"{self.method_id}: unlearning {queries.ids[lost[0]]!r} ({len(lost)} of {queries.n} queries) diverged "
                f"before step {step}; set lr lower, scale to length, or at to fewer steps",
            )
        return found

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        tau = self.changes(queries)
        ends = np.cumsum([len(members) for members in self.chosen])
        places = [np.arange(end - len(members), end) for end, members in zip(ends, self.chosen, strict=True)]
        config = self.config
        how = "to first order" if config.order == "first" else f"after {config.reached[config.place]} steps"
        return Scores(
            method=self.method_id, unit=self.unit,
            estimand=f"{config.aggregate} of training losses gained by unlearning the query, {how}",
            queries=queries.ids, groups=scored_groups(self.run),
            score=by_group(lambda images: tau[:, images], places, config.aggregate),
            n_evals=round(self._ascent_evals + self._after_evals / len(self.chosen)),  # the ascent serves all groups,
            sign="positive = the images help",
        )  # fmt: skip

    def score_evals(self) -> float:
        return self._ascent_evals + self._after_evals

    @property
    def _ascent_evals(self) -> float:
        return 3.0 * self.config.steps * self.config.levels

    @property
    def _after_evals(self) -> float:
        """Training losses at each checkpoint; to first order their gradients, once for the queries of a task."""
        if self.config.order == "first":
            return 3 * self._losses_evals / SHARD
        return float(len(self.config.reached) * self._losses_evals)


# ---- tasks
class _Work:
    """What every task needs: the settings, the model and the training images as it sees them."""

    def __init__(self, run: Run, config: dict[str, Any]) -> None:
        self.run, self.config = run, parse_config(SynthesizedConfig, config, Synthesized.id)
        self.method = Synthesized(run, Synthesized.id, self.config)
        self.model, self.data = load_model(run, "base"), load_data(run)
        self.weights = self.config.pattern(self.model)
        self.settings = Settings(run_settings(run).block, self.model.device.type)  # differences need full precision
        self.t = torch.from_numpy(grid(self.model.schedule.T, self.config.levels))

    def gradients(self) -> Gradients:
        return Gradients(self.model, "loss", self.weights, self.config.per_sample)

    def samples(self) -> Samples:
        """The followed images, then their mirror images where those are too: in one row, so that blocks are full."""
        latents, prompts = training_inputs(self.run, self.model, self.config.flips)
        index = np.concatenate(self.method.chosen)
        ids = [self.data.ids[i] for i in index]
        cond = None if prompts is None else self.model.condition([prompts[i] for i in index])
        copies = [False, True] if self.config.flips else [False]
        flip = np.ones(len(index), bool)
        parts = [latents.take(index, flip if mirrored else None) for mirrored in copies]
        return Samples.cat([Samples.of(x, ids, cond, self.config.seed, m) for x, m in zip(parts, copies, strict=True)])

    def fisher(self, number: int) -> Fisher:
        latents, prompts = training_inputs(self.run, self.model, False)
        index = np.arange(self.data.n)
        if self.config.fisher_images is not None:
            drawn = generator("fisher", self.config.seed, "images").permutation(self.data.n)
            index = np.sort(drawn[: self.config.fisher_images])
        cond = None if prompts is None else self.model.condition([prompts[i] for i in index])
        gradients, ids = self.gradients(), [self.data.ids[i] for i in index]
        return fisher_pass(
            gradients, latents.take(index), ids, cond, seed=self.config.seed, number=number, tick=tick,
            block=per_sample_block(gradients.sizes, block=self.settings.block),
        )  # fmt: skip

    def ascent(self) -> Ascent:
        config = self.config
        passes = [self.method.read(self.method.fisher_file(i)) for i in range(config.fisher_passes)]
        rate = config.lr / {"n": self.data.n, "none": 1, "length": config.steps}[config.scale]
        return Ascent(
            self.model, self.weights, inverse(mean_of(passes), config.damping), rate=rate,
            of_length=config.scale == "length", levels=config.levels, seed=config.seed, cap=config.cap,
        )  # fmt: skip


def fit_fisher(run: Run, config: dict[str, Any], number: int) -> None:
    work = _Work(run, config)
    with work.settings.active():
        found = work.fisher(number)
    write_tensors(run.path(work.method.fisher_file(number)), found, work.method.header)


def fit_losses(run: Run, config: dict[str, Any]) -> None:
    work = _Work(run, config)
    with work.settings.active():
        found = losses(work.model, work.samples(), work.t, work.settings.block)
    write_tensors(run.path(work.method.losses_file), {"loss": torch.from_numpy(found)}, work.method.header)


def score_shard(run: Run, config: dict[str, Any], queries: str, shard: int) -> None:
    work, given = _Work(run, config), load_queries(run, queries)
    part = query_shard(given, shard, SHARD)
    part.check_shape(work.model.image_shape)
    x0, cond = work.model.encode(part.images), work.model.condition(part.prompts)
    asked = [Query(name, x0[i], None if cond is None else cond[i : i + 1]) for i, name in enumerate(part.ids)]
    with work.settings.active():
        found = _first(work, asked) if work.config.order == "first" else _steps(work, asked)
    work.method.made(given).write(shard, found, work.method.header)


def _steps(work: _Work, asked: list[Query]) -> dict[str, torch.Tensor]:
    ascent, samples = work.ascent(), work.samples()
    before = work.method.read(work.method.losses_file)["loss"].numpy()
    changes, moved = [], []
    for done, query in enumerate(asked):
        found = unlearn_query(ascent, query, samples, before, work.config.reached, work.t, work.settings.block)
        changes.append(found.change)
        moved.append(found.moved)
        tick(done + 1, len(asked))
    return {"change": torch.from_numpy(np.stack(changes)), "moved": torch.from_numpy(np.stack(moved))}


def _first(work: _Work, asked: list[Query]) -> dict[str, torch.Tensor]:
    ascent, gradients, samples = work.ascent(), work.gradients(), work.samples()
    block = per_sample_block(gradients.sizes, len(work.t), work.settings.block)
    at_once = max(1, DIRECTIONS // (sum(gradients.sizes.values()) * len(work.config.reached)))
    parts = []
    for i in range(0, len(asked), at_once):
        towards = [ascent.directions(query, work.config.reached) for query in asked[i : i + at_once]]
        parts.append(first_order(gradients, samples, work.t, towards, block))
        tick(min(i + at_once, len(asked)), len(asked))
    return {"change": torch.from_numpy(np.concatenate(parts))}
