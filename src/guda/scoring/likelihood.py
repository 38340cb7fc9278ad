"""log p on disk: immutable parts keyed (solver, shard of queries, model, seed), one task per model and shard.

Adding a model, queries or a seed computes only what is missing. A part's header names the weights it was computed with.
Blocks have one fixed size and probes go by name, so parts are byte-identical whatever the order, process count or
resume. Networks run in single precision everywhere: half precision is no match for an integral over hundreds of steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from guda.data.queries import Queries
from guda.diffusion.denoiser import default_device
from guda.diffusion.likelihood import evals, log_likelihoods
from guda.diffusion.models import load_model, run_schedule
from guda.engine.tasks import Task
from guda.errors import GudaError, Mismatch
from guda.runs.recipe import LikelihoodConfig
from guda.runs.run import Run
from guda.runs.store import digest, read_table, write_table
from guda.scoring.terms import Bench, ModelRef, load_queries, shard_names


def describe(config: LikelihoodConfig) -> str:
    """The solver in words."""
    if config.solver == "adaptive":
        return f"dopri5 at tolerance {config.tolerance:g}"
    return f"{config.solver} in {config.steps} steps" + ("" if config.probes == "fresh" else " with one probe per path")


def estimand(run: Run) -> str:
    config = run.recipe.likelihood
    seeds = "1 probe seed" if config.seeds == 1 else f"{config.seeds} probe seeds"
    last = run_schedule(run).t_max
    return f"log p by the probability-flow ODE, t = 0 to {last}, then N(0, I); {describe(config)}, {seeds}"


def likelihood_folder(run: Run) -> str:
    """Everything that decides the last bits, but for seeds and queries, which have files of their own."""
    config, schedule, device = run.recipe.likelihood, run_schedule(run).digest, default_device()
    if config.solver == "adaptive":
        how: list[Any] = [config.tolerance]
    else:
        how = [config.steps, config.probes, config.block]
    return f"likelihood/{config.solver}-{digest([config.solver, *how, schedule, device])}"


def part_path(folder: str, shard: str, model: ModelRef, seed: int) -> str:
    return f"{folder}/{shard}/{model.key}/s{seed:03d}.parquet"


def asked_queries(run: Run, queries: Queries) -> Queries:
    """The first by id, as many as the recipe says."""
    return queries.subset(queries.ids[: run.recipe.likelihood.n])


def likelihood_tasks(run: Run, queries: Queries, models: Iterable[ModelRef], stage: str) -> list[Task]:
    """`queries`: those asked about. One task per model and shard that lacks a seed."""
    config, folder = run.recipe.likelihood, likelihood_folder(run)
    names = shard_names(queries, config.block)
    tasks = []
    for model in models:
        for number, shard in enumerate(names):
            wanted = {seed: part_path(folder, shard, model, seed) for seed in range(config.seeds)}
            seeds = [seed for seed, part in wanted.items() if not run.has(part)]
            if seeds:
                size = min(config.block, queries.n - number * config.block)
                tasks.append(
                    Task(
                        name=f"log p of {queries.name}/{number} of {queries.n} by {model.key}",
                        stage=f"likelihood/{queries.name}/{stage}/{folder.removeprefix('likelihood/')}",
                        fn="guda.scoring.likelihood:solve_shard",
                        args={"queries": queries.name, "shard": number, "model": model.as_json(), "seeds": seeds},
                        makes=tuple(wanted[seed] for seed in seeds), needs=model.needs(run),
                        cost=float(size * evals(config.model_copy(update={"seeds": len(seeds)}))),
                    )
                )  # fmt: skip
    return tasks


def solve_shard(run: Run, queries: str, shard: int, model: list[Any], seeds: list[int]) -> None:
    import pyarrow as pa
    import torch

    config, folder, ref = run.recipe.likelihood, likelihood_folder(run), ModelRef(*model)
    part = asked_queries(run, load_queries(run, queries)).shards(config.block)[shard]
    first = load_model(run, ref.base)
    part.check_shape(first.image_shape)
    x0, cond = first.encode(part.images), first.condition(part.prompts)
    try:
        found, calls = log_likelihoods(Bench(run).several([ref]), x0, part.ids, config, seeds, cond)
    except torch.OutOfMemoryError:
        raise GudaError(
            "block-out-of-memory",
            f"{config.block} pictures with their gradients do not fit into memory; set likelihood.block lower",
        ) from None
    for seed, values, counts in zip(seeds, found, calls, strict=True):
        table = pa.table(
            {
                "query": pa.array(part.ids),
                "seed": pa.array(np.full(part.n, seed, np.int32)),
                "log_p": pa.array(values),
                "calls": pa.array(counts),
            }
        ).replace_schema_metadata({"model": ref.identity(run), "settings": folder, "unit": "nats"})
        write_table(run.path(part_path(folder, part.digest[:16], ref, seed)), table)


@dataclass(frozen=True)
class LogP:
    """Of one model: nats, and network calls; both [seeds, Q]."""

    values: np.ndarray
    calls: np.ndarray


def read_log_p(run: Run, queries: Queries, model: ModelRef) -> LogP:
    """All seeds of a model that is done; refused if it was computed with other weights."""
    config, folder, identity = run.recipe.likelihood, likelihood_folder(run), model.identity(run)
    values, calls = [], []
    for seed in range(config.seeds):
        tables = []
        for shard in shard_names(queries, config.block):
            path = run.path(part_path(folder, shard, model, seed))
            tables.append(read_table(path))
            found = (tables[-1].schema.metadata or {}).get(b"model", b"").decode()
            if found != identity:
                fix = "delete it and run guda likelihood again"
                raise Mismatch("likelihoods-stale", f"{path} was computed with other weights", found, identity, fix)
        values.append(np.concatenate([t["log_p"].to_numpy() for t in tables]))
        calls.append(np.concatenate([t["calls"].to_numpy() for t in tables]))
    return LogP(np.stack(values), np.stack(calls))
