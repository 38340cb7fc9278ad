"""The query set a recipe asks for: samples of the run's own model, drawn in resumable blocks."""

from __future__ import annotations

from guda.data.queries import Queries
from guda.diffusion.models import load_model, model_digest, model_files, run_schedule
from guda.diffusion.sampling import sample, sample_id
from guda.engine.tasks import Task
from guda.runs import progress
from guda.runs.recipe import QueriesConfig
from guda.runs.run import Run
from guda.runs.store import digest, read_tensors, write_tensors

BLOCK = 64  # images sampled together; part of what makes them


def set_name(config: QueriesConfig) -> str:
    """Says what is in it, so that another recipe's samples are another set."""
    steps = f"-t{config.steps}" if config.steps else ""
    return f"samples-s{config.seed}-n{config.n}{steps}"


def _part(run: Run, config: QueriesConfig, number: int) -> str:
    # n is not part of the name: more samples keep those drawn
    return f"artifacts/samples-{digest([config.seed, config.steps, BLOCK], 8)}/{number:05d}.safetensors"


def sample_tasks(run: Run, config: QueriesConfig) -> list[Task]:
    if run.has(f"queries/{set_name(config)}/index.json"):
        return []
    steps = config.steps or run_schedule(run).T
    return [
        Task(
            name=f"sample block {number}", stage="sample", fn="guda.diffusion.queries:sample_block",
            args={"seed": config.seed, "steps": config.steps, "number": number},
            makes=(_part(run, config, number),), needs=model_files(run, "base"),
            cost=float(BLOCK * steps),
        )
        for number in range(-(-config.n // BLOCK))
    ]  # fmt: skip


def sample_block(run: Run, seed: int, steps: int | None, number: int) -> None:
    import torch

    config = QueriesConfig(n=1, seed=seed, steps=steps)
    indices = range(number * BLOCK, (number + 1) * BLOCK)
    images = sample(
        load_model(run, "base"),
        indices,
        seed=config.seed,
        steps=config.steps,
        block=BLOCK,
        tick=progress.tick,
    )
    header = {"model": model_digest(run, "base")}
    write_tensors(run.path(_part(run, config, number)), {"images": torch.from_numpy(images)}, header)


def collect_samples(run: Run, config: QueriesConfig) -> str:
    """Publish the drawn blocks as a query set of the run; returns its name."""
    import numpy as np

    name = set_name(config)
    if not run.has(f"queries/{name}/index.json"):
        parts = [read_tensors(run.path(_part(run, config, k)))[0]["images"] for k in range(-(-config.n // BLOCK))]
        images = np.concatenate([p.numpy() for p in parts])[: config.n]
        ids = tuple(sample_id(config.seed, i) for i in range(config.n))
        Queries(ids, images, None, name).save(run.path("queries", name))
    return name
