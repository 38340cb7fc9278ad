"""What the tasks of `synthesized` do: the Fisher information, the losses of training images, a shard of queries.

Settings come with the task, so that tuning and ablations can try several in one run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guda.baselines.features import grid
from guda.baselines.fisher import Fisher, fisher_pass, inverse, mean_of, per_sample_block
from guda.baselines.gradients import KEYS_AND_VALUES, Gradients
from guda.baselines.synthesized import Ascent, Query, Samples, first_order, losses, unlearn_query
from guda.config import parse_config
from guda.diffusion.denoiser import Denoiser, Latents
from guda.diffusion.noise import generator
from guda.errors import Mismatch
from guda.files import read_tensors, write_tensors
from guda.methods.synthesized import SHARD, Synthesized, SynthesizedConfig
from guda.methods.terms import load_queries
from guda.run import progress
from guda.run.data import load_data
from guda.run.models import load_model, model_digest, training_inputs
from guda.run.run import Run
from guda.run.settings import run_settings
from guda.scoring.settings import Settings

DIRECTIONS = 2**27  # numbers of query directions held at once (order: first)


def pattern(model: Denoiser, config: SynthesizedConfig) -> str:
    """`auto` spelled out for this model."""
    if config.weights != "auto":
        return config.weights
    return "all" if model.frozen is None else KEYS_AND_VALUES


class _Work:
    """What every task needs: the settings, the model and the training images as it sees them."""

    def __init__(self, run: Run, config: dict[str, Any]) -> None:
        self.run, self.config = run, parse_config(SynthesizedConfig, config, Synthesized.id)
        self.method = Synthesized(run, Synthesized.id, self.config)
        self.model, self.data = load_model(run, "base"), load_data(run)
        self.weights = pattern(self.model, self.config)
        self.settings = Settings(run_settings(run).block, self.model.device.type)  # differences need full precision
        self.t = torch.from_numpy(grid(self.model.schedule.T, self.config.levels))

    @property
    def header(self) -> dict[str, str]:
        return {"model": model_digest(self.run, "base")}

    def _inputs(self, flips: bool) -> tuple[Latents, tuple[str, ...] | None]:
        return training_inputs(self.run, self.model, flips)

    def gradients(self) -> Gradients:
        return Gradients(self.model, "loss", self.weights, self.config.per_sample)

    def samples(self) -> Samples:
        """The followed images, then their mirror images where those are too: in one row, so that blocks are full."""
        latents, prompts = self._inputs(self.config.flips)
        index = np.concatenate(self.method.chosen)
        ids = [self.data.ids[i] for i in index]
        cond = None if prompts is None else self.model.condition([prompts[i] for i in index])
        copies = [False, True] if self.config.flips else [False]
        flip = np.ones(len(index), bool)
        parts = [latents.take(index, flip if mirrored else None) for mirrored in copies]
        return Samples.cat([Samples.of(x, ids, cond, self.config.seed, m) for x, m in zip(parts, copies, strict=True)])

    def fisher(self, number: int) -> Fisher:
        latents, prompts = self._inputs(False)
        index = np.arange(self.data.n)
        if self.config.fisher_images is not None:
            drawn = generator("fisher", self.config.seed, "images").permutation(self.data.n)
            index = np.sort(drawn[: self.config.fisher_images])
        cond = None if prompts is None else self.model.condition([prompts[i] for i in index])
        gradients, ids = self.gradients(), [self.data.ids[i] for i in index]
        return fisher_pass(
            gradients, latents.take(index), ids, cond, seed=self.config.seed, number=number, tick=progress.tick,
            block=per_sample_block(gradients.sizes, block=self.settings.block),
        )  # fmt: skip

    def ascent(self) -> Ascent:
        config = self.config
        passes = [read(self.run, self.method.fisher_file(i)) for i in range(config.fisher_passes)]
        rate = config.lr / {"n": self.data.n, "none": 1, "length": config.steps}[config.scale]
        return Ascent(
            self.model, self.weights, inverse(mean_of(passes), config.damping), rate=rate,
            of_length=config.scale == "length", levels=config.levels, seed=config.seed, cap=config.cap,
        )  # fmt: skip


def read(run: Run, file: str) -> dict[str, torch.Tensor]:
    """A file of this method, refused if it was made with another model."""
    tensors, header = read_tensors(run.path(file))
    if (found := header.get("model")) != (expected := model_digest(run, "base")):
        raise Mismatch(
            "synthesized-stale",
            f"{run.path(file)} was made with other weights",
            found,
            expected,
            "delete it and score again",
        )
    return tensors


def fit_fisher(run: Run, config: dict[str, Any], number: int) -> None:
    work = _Work(run, config)
    with work.settings.active():
        found = work.fisher(number)
    write_tensors(run.path(work.method.fisher_file(number)), found, work.header)


def fit_losses(run: Run, config: dict[str, Any]) -> None:
    work = _Work(run, config)
    with work.settings.active():
        found = losses(work.model, work.samples(), work.t, work.settings.block)
    write_tensors(run.path(work.method.losses_file), {"loss": torch.from_numpy(found)}, work.header)


def score_shard(run: Run, config: dict[str, Any], queries: str, shard: int) -> None:
    """change: [queries, checkpoints, images], mirrored ones last; moved: [queries, checkpoints], of the ascent only."""
    work = _Work(run, config)
    part = load_queries(run, queries).shards(SHARD)[shard]
    part.check_shape(work.model.image_shape)
    x0, cond = work.model.encode(part.images), work.model.condition(part.prompts)
    asked = [Query(name, x0[i], None if cond is None else cond[i : i + 1]) for i, name in enumerate(part.ids)]
    with work.settings.active():
        found = _first(work, asked) if work.config.order == "first" else _steps(work, asked)
    write_tensors(run.path(work.method.file(part.digest[:16])), found, work.header)


def _steps(work: _Work, asked: list[Query]) -> dict[str, torch.Tensor]:
    ascent, samples = work.ascent(), work.samples()
    before = read(work.run, work.method.losses_file)["loss"].numpy()
    changes, moved = [], []
    for done, query in enumerate(asked):
        found = unlearn_query(ascent, query, samples, before, work.config.reached, work.t, work.settings.block)
        changes.append(found.change)
        moved.append(found.moved)
        progress.tick(done + 1, len(asked))
    return {"change": torch.from_numpy(np.stack(changes)), "moved": torch.from_numpy(np.stack(moved))}


def _first(work: _Work, asked: list[Query]) -> dict[str, torch.Tensor]:
    ascent, gradients, samples = work.ascent(), work.gradients(), work.samples()
    block = per_sample_block(gradients.sizes, len(work.t), work.settings.block)
    at_once = max(1, DIRECTIONS // (sum(gradients.sizes.values()) * len(work.config.reached)))
    parts = []
    for i in range(0, len(asked), at_once):
        towards = [ascent.directions(query, work.config.reached) for query in asked[i : i + at_once]]
        parts.append(first_order(gradients, samples, work.t, towards, block))
        progress.tick(min(i + at_once, len(asked)), len(asked))
    return {"change": torch.from_numpy(np.concatenate(parts))}
