"""Terms on disk: immutable parts keyed (plan, shard of queries, model, round), computed by independent tasks.

Adding a group evaluates one model, adding queries one shard, adding precision one round: only parts that are missing
are computed. A part's header names the weights it was computed with, so a stale base cannot go unnoticed.

Work order: a task is one shard. Noise and x_t are made once per round and shared by all models; each model's weights
are swapped in place once (unlearning/bank.py) and see all (query, t, draw) packed into full blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from guda.data.queries import Queries
from guda.errors import Mismatch
from guda.files import digest, digest_file, read_table, write_table
from guda.run import progress
from guda.run.models import load_data, load_model, model_digest, model_files, run_schedule
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.run.settings import run_settings
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.terms import Terms, all_squared_errors, kl, make_draws
from guda.unlearning.bank import Counterfactual, Workbench
from guda.unlearning.rule import Rule, RuledDenoiser, read_rule

PORTION = 32  # models in one task

BYTES_PER_TERM = 12  # measured: a compressed parquet row, headers included


@dataclass(frozen=True)
class ModelRef:
    """A model of the run: a full model, or a counterfactual applied to it."""

    base: str  # name of a full model, see run/models.py
    counterfactual: str | None = None  # file, relative to the run
    member: int | None = None  # which group, where one file is the rule of all (unlearning/rule.py)

    @property
    def key(self) -> str:
        """Folder name of its terms."""
        if self.counterfactual is None:
            return self.base
        name = self.counterfactual.removesuffix(".safetensors")
        return name if self.member is None else f"{name}/{self.member:04d}"

    def identity(self, run: Run) -> str:
        """Changes with the weights."""
        base = model_digest(run, self.base)
        if self.counterfactual is None:
            return base
        told = [] if self.member is None else [self.member]
        return digest([base, _file_digest(run, self.counterfactual), *told])

    def as_json(self) -> list[Any]:
        return [self.base, self.counterfactual, self.member]

    def needs(self, run: Run) -> tuple[str, ...]:
        return model_files(run, self.base) + ((self.counterfactual,) if self.counterfactual else ())


class Bench:
    """Working copies for a task: one per base model, its counterfactuals swapped in."""

    def __init__(self, run: Run) -> None:
        self.run, self._benches = run, dict[str, Workbench]()

    def use(self, ref: ModelRef):  # type: ignore[no-untyped-def]
        if ref.base not in self._benches:
            self._benches[ref.base] = Workbench(load_model(self.run, ref.base), model_digest(self.run, ref.base))
        changed = None
        if ref.counterfactual is not None and ref.member is None:
            changed = Counterfactual.load(self.run.path(ref.counterfactual))
        return self._benches[ref.base].use(changed)

    def several(self, refs: Sequence[ModelRef]):  # type: ignore[no-untyped-def]
        """One denoiser that answers for all of `refs`: a single model, or members of one rule."""
        base = self.use(refs[0])
        if refs[0].member is None:
            return base
        return RuledDenoiser(base, load_rule(self.run, str(refs[0].counterfactual)), [int(str(r.member)) for r in refs])


def families(refs: Iterable[ModelRef]) -> list[list[ModelRef]]:
    """Models that share an evaluation: the members of a rule together, every other model by itself."""
    found: dict[tuple[str, str | None, int | None], list[ModelRef]] = {}
    for number, ref in enumerate(refs):
        key = (ref.base, ref.counterfactual, number if ref.member is None else None)
        found.setdefault(key, []).append(ref)
    return list(found.values())


def portions(refs: Iterable[ModelRef]) -> list[list[ModelRef]]:
    """What one task evaluates: a thousand models are many tasks, not one that nobody can share or resume quickly."""
    kin = families(refs)
    return [[ref for family in kin[i : i + PORTION] for ref in family] for i in range(0, len(kin), PORTION)]


def load_rule(run: Run, file: str) -> Rule:
    return _rule(str(run.root), file, run.path(file).stat().st_mtime_ns, run)


def _rule(root: str, file: str, stamp: int, run: Run) -> Rule:
    key = (root, file, stamp)
    if key not in _RULES:
        _RULES.clear()  # a density of the images is as large as they are
        base = load_model(run, "base")
        _RULES[key] = read_rule(run.path(file), base, model_digest(run, "base"), load_data(run))
    return _RULES[key]


_RULES: dict[tuple[str, str, int], Rule] = {}


def load_counterfactual(run: Run, ref: ModelRef):  # type: ignore[no-untyped-def]
    """A network of its own, beside its base."""
    base = load_model(run, ref.base)
    if ref.counterfactual is None:
        return base
    if ref.member is not None:
        return RuledDenoiser(base, load_rule(run, ref.counterfactual), [ref.member])
    return Counterfactual.load(run.path(ref.counterfactual)).apply(base)


def _file_digest(run: Run, relative: str) -> str:
    path = run.path(relative)
    return _cached_digest(str(path), path.stat().st_mtime_ns, path.stat().st_size)


@lru_cache(maxsize=4096)
def _cached_digest(path: str, mtime: int, size: int) -> str:
    return digest_file(Path(path))


def terms_folder(run: Run, race: str | None = None) -> str:
    """Everything that decides the last bits: plan, block, precision; raced terms are packed by their own history,
    which `race` names."""
    name = f"{run_plan(run).key}-{run_settings(run).key}"
    return f"terms/{name}" if race is None else f"terms/{name}-race-{race}"


def part_path(folder: str, shard: str, model: ModelRef, round_: int) -> str:
    return f"{folder}/{shard}/{model.key}/r{round_:03d}.parquet"


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
    """Tasks per shard and portion of the models; together they make every missing part."""
    config, plan, folder = run.recipe.scoring, run_plan(run), terms_folder(run)
    tasks = []
    for number, shard in enumerate(shard_names(queries, config.shard)):
        size = min(config.shard, queries.n - number * config.shard)
        wanted = {m: [part_path(folder, shard, m, r) for r in range(config.rounds)] for m in models}
        pieces = portions(models)
        for piece, several in enumerate(pieces):
            these = [m for m in several if not all(map(run.has, wanted[m]))]
            if not these:
                continue
            which = f"{number}" if len(pieces) == 1 else f"{number}.{piece}"
            tasks.append(
                Task(
                    name=f"score {queries.name}/{which} by {len(these)} models for {stage}",
                    stage=f"score/{queries.name}/{stage}/{folder.removeprefix('terms/')}",
                    fn="guda.methods.terms:score_shard",
                    args={
                        "queries": queries.name,
                        "shard": number,
                        "models": [m.as_json() for m in these],
                    },
                    makes=tuple(part for m in these for part in wanted[m]),
                    needs=tuple(sorted({p for m in these for p in m.needs(run)})),
                    cost=float(len(families(these)) * size * plan.evals_per_round * config.rounds),
                    bytes=len(these) * size * plan.n_strata * config.rounds * BYTES_PER_TERM,
                )
            )
    return tasks


def score_shard(run: Run, queries: str, shard: int, models: list[list[Any]]) -> None:
    config = run.recipe.scoring
    part = load_queries(run, queries).shards(config.shard)[shard]
    refs = [ModelRef(*m) for m in models]
    folder, name = terms_folder(run), part.digest[:16]
    everyone = np.arange(part.n)
    for r in range(config.rounds):
        todo = [ref for ref in refs if not run.has(part_path(folder, name, ref, r))]
        evaluate_round(run, part, dict.fromkeys(todo, everyone), folder, r, (r, config.rounds))


def evaluate_round(
    run: Run,
    part: Queries,
    wanted: dict[ModelRef, np.ndarray],
    folder: str,
    round_: int,
    place: tuple[int, int] = (0, 1),
) -> None:
    """One round of one shard: for each model the queries (positions) that still want it."""
    import pyarrow as pa

    if not wanted:
        return
    plan, settings = run_plan(run), run_settings(run)
    first = load_model(run, next(iter(wanted)).base)
    part.check_shape(first.image_shape)
    x0, cond = first.encode(part.images), first.condition(part.prompts)
    draws = make_draws(first, x0, part.ids, plan, round_)
    bench, name = Bench(run), part.digest[:16]

    def write(ref: ModelRef, queries: np.ndarray, t: np.ndarray, errors: np.ndarray) -> None:
        ids = np.array(part.ids)[queries]
        table = pa.table(
            {
                "query": pa.array(np.repeat(ids, plan.n_strata)).dictionary_encode(),
                "round": pa.array(np.full(errors.size, round_, np.int32)),
                "stratum": pa.array(np.tile(np.arange(plan.n_strata, dtype=np.int32), len(ids))),
                "t": pa.array(t.reshape(-1).astype(np.int32)),
                "error": pa.array(errors.reshape(-1)),
            }
        ).replace_schema_metadata({"model": ref.identity(run), "estimand": plan.estimand, "plan": plan.key})
        write_table(run.path(part_path(folder, name, ref, round_)), table)

    kin = families(wanted)
    for number, refs in enumerate(kin):
        progress.tick(place[0] * len(kin) + number, place[1] * len(kin))
        # members of a rule share the queries that any of them wants
        queries = np.unique(np.concatenate([wanted[ref] for ref in refs]))
        some = draws if len(queries) == part.n else draws.of(queries)
        told = cond if cond is None or len(queries) == part.n else cond[_index(queries)]
        with settings.active():
            settings.prepare(bench.use(refs[0]))
            found = all_squared_errors(bench.several(refs), some, settings.block, told)
        for ref, errors in zip(refs, found, strict=True):
            mine = np.isin(queries, wanted[ref])
            write(ref, queries[mine], some.t[mine], errors[mine])


def _index(positions: np.ndarray):  # type: ignore[no-untyped-def]
    import torch

    return torch.from_numpy(positions)


def read_part(run: Run, path: str, model: ModelRef) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(t, errors, query ids) of one part, [q, strata]; refused if it was computed with other weights."""
    strata = run_plan(run).n_strata
    table = read_table(run.path(path))
    found, identity = (table.schema.metadata or {}).get(b"model", b"").decode(), model.identity(run)
    if found != identity:
        raise Mismatch(
            "terms-stale",
            f"{run.path(path)} was computed with other weights",
            found,
            identity,
            "delete it and score again",
        )
    ids = table["query"].to_pylist()[::strata]
    return table["t"].to_numpy().reshape(-1, strata), table["error"].to_numpy().reshape(-1, strata), ids


def read_terms(run: Run, queries: Queries, model: ModelRef, bands: Bands | None = None) -> Terms:
    """All rounds of a fully scored model; `bands` other than None weigh the timesteps."""
    config, plan, folder = run.recipe.scoring, run_plan(run), terms_folder(run)
    weights = band_weights(run, bands)
    kls, ts = [], []
    for r in range(config.rounds):
        parts = [read_part(run, part_path(folder, s, model, r), model) for s in shard_names(queries, config.shard)]
        ts.append(np.concatenate([p[0] for p in parts]))
        kls.append(kl(plan, weights, ts[-1], np.concatenate([p[1] for p in parts])))
    return Terms(np.stack(kls), np.stack(ts))


def band_weights(run: Run, bands: Bands | None) -> np.ndarray:
    schedule = run_schedule(run)
    return schedule.weights if bands is None else schedule.weights * bands.factors(schedule.T)
