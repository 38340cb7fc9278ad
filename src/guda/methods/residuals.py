"""A run's residuals as tasks: how far the model is off at each training image, on a grid of timesteps.

RUN/artifacts/residuals-<hash>/errors-<shard>.safetensors      e_it of the images of a shard
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from guda.baselines.residuals import profile
from guda.files import digest, read_tensors, write_tensors
from guda.methods.features import SHARD, check_model
from guda.run import progress
from guda.run.data import load_data, prompt_files
from guda.run.models import load_model, model_digest, model_files, training_inputs
from guda.run.run import Run
from guda.run.settings import run_settings
from guda.run.task import Task


@dataclass(frozen=True)
class ErrorStore:
    run: Run
    timesteps: int
    model: str = "base"
    seed: int = 0

    @property
    def name(self) -> str:
        return f"residuals-{digest([self.timesteps, self.model, self.seed, run_settings(self.run).block], 8)}"

    def files(self) -> tuple[str, ...]:
        count = -(-load_data(self.run).n // SHARD)
        return tuple(f"artifacts/{self.name}/errors-{i:05d}.safetensors" for i in range(count))

    def fit(self) -> list[Task]:
        needs, n = model_files(self.run, self.model) + prompt_files(self.run), load_data(self.run).n
        return [
            Task(
                name=f"{self.name} of training images {i * SHARD}..{min(n, (i + 1) * SHARD) - 1}",
                stage=f"fit/{self.name}", fn="guda.methods.residuals:make_errors",
                args={"timesteps": self.timesteps, "model": self.model, "seed": self.seed, "shard": i}, makes=(file,),
                needs=needs, cost=float(min(SHARD, n - i * SHARD) * self.timesteps),
                bytes=4 * min(SHARD, n - i * SHARD) * self.timesteps,
            )
            for i, file in enumerate(self.files())
        ]  # fmt: skip

    def read(self) -> np.ndarray:
        """float64 [n, timesteps], of the present weights."""
        parts = []
        for file in self.files():
            tensors, header = read_tensors(self.run.path(file))
            check_model(self.run, self.model, header.get("model"), file)
            parts.append(tensors["errors"].numpy())
        return np.concatenate(parts)


def make_errors(run: Run, timesteps: int, model: str, seed: int, shard: int) -> None:
    network, store = load_model(run, model), ErrorStore(run, timesteps, model, seed)
    latents, prompts = training_inputs(run, network, False)
    here = slice(shard * SHARD, (shard + 1) * SHARD)
    cond = network.condition(None if prompts is None else prompts[here])
    found = profile(network, latents.x0[here], timesteps, seed, run_settings(run).block, cond, progress.tick)
    tensors = {"errors": torch.from_numpy(found)}
    write_tensors(run.path(store.files()[shard]), tensors, {"model": model_digest(run, model)})
