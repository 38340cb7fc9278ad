"""Terms on disk: immutable parts keyed (plan, shard of queries, model, round), computed by independent tasks.

Adding a group evaluates one model, adding queries one shard, adding precision one round: only parts that are missing
are computed. A part's header names the weights it was computed with, so a stale base cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from guda.counterfactuals.bank import Counterfactual
from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.models import load_model, model_digest
from guda.engine.tasks import Task
from guda.errors import Mismatch
from guda.runs import progress
from guda.runs.recipe import ScoringConfig
from guda.runs.run import Run
from guda.runs.store import digest, digest_file, read_table, write_table
from guda.scoring.elbo import kl, make_draws, squared_errors
from guda.scoring.plan import Plan, make_plan


@dataclass(frozen=True)
class ModelRef:
    """A model of the run: a full model, or a counterfactual applied to it."""

    base: str  # name of a full model, see diffusion/models.py
    counterfactual: str | None = None  # file, relative to the run

    @property
    def key(self) -> str:
        """Folder name of its terms."""
        return self.base if self.counterfactual is None else self.counterfactual.removesuffix(".safetensors")

    def identity(self, run: Run) -> str:
        """Changes with the weights."""
        base = model_digest(run, self.base)
        return base if self.counterfactual is None else digest([base, _file_digest(run, self.counterfactual)])

    def load(self, run: Run) -> Denoiser:
        base = load_model(run, self.base)
        return base if self.counterfactual is None else Counterfactual.load(run.path(self.counterfactual)).apply(base)

    def needs(self, run: Run) -> tuple[str, ...]:
        from guda.diffusion.models import model_files

        return model_files(run, self.base) + ((self.counterfactual,) if self.counterfactual else ())


def _file_digest(run: Run, relative: str) -> str:
    path = run.path(relative)
    return _cached_digest(str(path), path.stat().st_mtime_ns, path.stat().st_size)


@lru_cache(maxsize=4096)
def _cached_digest(path: str, mtime: int, size: int) -> str:
    from pathlib import Path

    return digest_file(Path(path))


def part_path(plan: Plan, config: ScoringConfig, shard: str, model: ModelRef, round_: int) -> str:
    return f"terms/{plan.key}-b{config.block}/{shard}/{model.key}/r{round_:03d}.parquet"


def shard_names(queries: Queries, size: int) -> list[str]:
    """Named by content, so that the same pictures under the same ids share their terms."""
    return [shard.digest[:16] for shard in queries.shards(size)]


@lru_cache(maxsize=4)
def _queries(folder: str, mtime: int) -> Queries:
    return Queries.load(folder)


def load_queries(run: Run, name: str) -> Queries:
    folder = run.path("queries", name)
    index = folder / "index.json"
    return _queries(str(folder), index.stat().st_mtime_ns) if index.is_file() else Queries.load(folder)


def score_tasks(run: Run, queries: Queries, models: Sequence[ModelRef], stage: str) -> list[Task]:
    """One task per shard and batch of models; together they make every missing part."""
    config = run.recipe.scoring
    plan = make_plan(load_schedule(run), config)
    tasks = []
    for number, shard in enumerate(shard_names(queries, config.shard)):
        size = min(config.shard, queries.n - number * config.shard)
        missing = [
            m for m in models
            if not all(run.has(part_path(plan, config, shard, m, r)) for r in range(config.rounds))
        ]  # fmt: skip
        if not missing:
            continue
        tasks.append(
            Task(
                name=f"score {queries.name}/{number} by {len(missing)} models for {stage}",
                stage=f"score/{queries.name}/{stage}",
                fn="guda.scoring.terms:score_shard",
                args={
                    "queries": queries.name,
                    "shard": number,
                    "models": [[m.base, m.counterfactual] for m in missing],
                },
                makes=tuple(part_path(plan, config, shard, m, r) for m in missing for r in range(config.rounds)),
                needs=tuple(sorted({p for m in missing for p in m.needs(run)})),
                cost=float(len(missing) * size * plan.n_strata * config.rounds),
            )
        )
    return tasks


def load_schedule(run: Run) -> Any:
    from guda.diffusion.models import run_schedule

    return run_schedule(run)


def score_shard(run: Run, queries: str, shard: int, models: list[list[str | None]]) -> None:
    """Noise and x_t are made once per round and shared by all models; each model's weights are loaded once."""
    import pyarrow as pa

    config = run.recipe.scoring
    part = load_queries(run, queries).shards(config.shard)[shard]
    refs = [ModelRef(str(base), counterfactual) for base, counterfactual in models]
    schedule_owner = load_model(run, refs[0].base)
    part.check_shape(schedule_owner.shape)
    plan = make_plan(schedule_owner.schedule, config)
    x0, cond = schedule_owner.encode(part.images), schedule_owner.condition(part.prompts)
    name = part.digest[:16]
    draws = [make_draws(schedule_owner, x0, part.ids, plan, r) for r in range(config.rounds)]
    for number, ref in enumerate(refs):
        progress.tick(number, len(refs))
        todo = [r for r in range(config.rounds) if not run.has(part_path(plan, config, name, ref, r))]
        if not todo:
            continue
        denoiser = ref.load(run)
        for r in todo:
            errors = squared_errors(denoiser, draws[r], config.block, cond)
            n_queries, n_strata = errors.shape
            table = pa.table(
                {
                    "query": pa.array(np.repeat(part.ids, n_strata)).dictionary_encode(),
                    "round": pa.array(np.full(errors.size, r, np.int32)),
                    "stratum": pa.array(np.tile(np.arange(n_strata, dtype=np.int32), n_queries)),
                    "t": pa.array(draws[r].t.reshape(-1).astype(np.int32)),
                    "error": pa.array(errors.reshape(-1)),
                }
            ).replace_schema_metadata({"model": ref.identity(run), "estimand": plan.estimand, "plan": plan.key})
            write_table(run.path(part_path(plan, config, name, ref, r)), table)


def read_kl(run: Run, queries: Queries, model: ModelRef) -> np.ndarray:
    """Contributions to sum_t KL_t in nats, [rounds, Q, strata], of a fully scored model."""
    config = run.recipe.scoring
    schedule = load_schedule(run)
    plan = make_plan(schedule, config)
    identity = model.identity(run)
    rounds = []
    for r in range(config.rounds):
        pieces = []
        for name in shard_names(queries, config.shard):
            path = run.path(part_path(plan, config, name, model, r))
            table = read_table(path)
            found = (table.schema.metadata or {}).get(b"model", b"").decode()
            if found != identity:
                raise Mismatch(f"{path} was computed with other weights", found, identity, "delete it and score again")
            t, error = table["t"].to_numpy(), table["error"].to_numpy()
            pieces.append(kl(plan, schedule.weights, t.reshape(-1, plan.n_strata), error.reshape(-1, plan.n_strata)))
        rounds.append(np.concatenate(pieces))
    return np.stack(rounds)
