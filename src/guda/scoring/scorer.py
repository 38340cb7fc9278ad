"""The scorer: computes squared errors of models on pictures, keeps them in a part store, and turns them into scores.

A part holds one (shard of queries, model, round) and is immutable: adding a group evaluates one model, adding queries
one shard, adding precision one round. Its header names the weights it was computed with, so stale weights are noticed.
A run keeps its parts in its folder and lets tasks compute them; `guda.attribute` keeps them in memory. Both use this.

Work order: noise and x_t of one shard and round are made once and shared by all models, and are all that is held in
memory; each model sees all (query, t, draw) of the shard packed into full blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.schedule import Schedule
from guda.parts import Parts
from guda.scoring.bands import Bands
from guda.scoring.drift import SUBTRACTED, Drift
from guda.scoring.estimate import difference, rank_columns, stack_estimates
from guda.scoring.plan import Plan
from guda.scoring.scores import Scores
from guda.scoring.settings import Settings
from guda.scoring.terms import Terms, all_squared_errors, kl, make_draws


class Model(Hashable, Protocol):
    """A reference to a model; the models themselves are loaded one after the other."""

    @property
    def key(self) -> str:
        """Folder name of its terms."""

    @property
    def family(self) -> Hashable | None:
        """Models of one family share an evaluation (the members of a rule); None: it is evaluated by itself."""


M = TypeVar("M", bound=Model)
M_contra = TypeVar("M_contra", bound=Model, contravariant=True)

Set = tuple[M, Mapping[str, M]]  # a full model, and its counterfactual per group

Reader = Callable[[M], Terms]

Shares = Callable[[np.ndarray, int], Sequence[np.ndarray | float]]  # (t, number of sets) -> what each set counts for


class Models(Protocol[M_contra]):
    """How a scorer loads the models it evaluates."""

    def base(self, model: M_contra) -> Denoiser:
        """The full model behind it, which encodes the pictures."""

    def identity(self, model: M_contra) -> str:
        """Changes with the weights."""

    def several(self, models: Sequence[M_contra]) -> Denoiser:
        """One denoiser that answers for all of one family; valid until the next call."""


@dataclass(frozen=True)
class Scorer(Generic[M]):
    plan: Plan
    settings: Settings  # block, precision: with the plan, all that decides the last bits of a term
    schedule: Schedule
    models: Models[M]
    parts: Parts
    shard: int  # queries in a part
    folder: str = "terms"

    def part_name(self, shard: str, model: M, round_: int) -> str:
        return f"{self.folder}/{shard}/{model.key}/r{round_:03d}.parquet"

    def evaluate(
        self, queries: Queries, models: Sequence[M], rounds: int, tick: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """Every missing part of one shard."""
        everyone = np.arange(queries.n)
        for r in range(rounds):
            left = [m for m in models if not self.parts.has(self.part_name(shard_name(queries), m, r))]
            self.evaluate_round(queries, dict.fromkeys(left, everyone), r, tick, (r, rounds))

    def evaluate_round(
        self,
        queries: Queries,
        wanted: Mapping[M, np.ndarray],
        round_: int,
        tick: Callable[[int, int], None] = lambda *_: None,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        """One round of one shard: for each model the queries (positions) that still want it."""
        if not wanted:
            return
        first = self.models.base(next(iter(wanted)))
        queries.check_shape(first.image_shape)
        x0, cond = first.encode(queries.images), first.condition(queries.prompts)
        draws = make_draws(first, x0, queries.ids, self.plan, round_)
        kin = families(wanted)
        for number, models in enumerate(kin):
            tick(place[0] * len(kin) + number, place[1] * len(kin))
            # members of a rule share the queries that any of them wants
            chosen = np.unique(np.concatenate([wanted[m] for m in models]))
            all_of_them = len(chosen) == queries.n
            some = draws if all_of_them else draws.of(chosen)
            told = cond if cond is None or all_of_them else cond[torch.from_numpy(chosen)]
            with self.settings.active():
                denoiser = self.settings.prepare(self.models.several(models))
                errors = all_squared_errors(denoiser, some, self.settings.block, told)
            for model, own in zip(models, errors, strict=True):
                mine = np.isin(chosen, wanted[model])
                ids = np.array(queries.ids)[chosen[mine]]
                self._write(shard_name(queries), model, round_, ids, some.t[mine], own[mine])

    def _write(
        self, shard: str, model: M, round_: int, ids: np.ndarray, t: np.ndarray, errors: np.ndarray
    ) -> None:  # fmt: skip
        import pyarrow as pa

        strata = self.plan.n_strata
        table = pa.table(
            {
                "query": pa.array(np.repeat(ids, strata)).dictionary_encode(),
                "round": pa.array(np.full(errors.size, round_, np.int32)),
                "stratum": pa.array(np.tile(np.arange(strata, dtype=np.int32), len(ids))),
                "t": pa.array(t.reshape(-1).astype(np.int32)),
                "error": pa.array(errors.reshape(-1)),
            }
        )
        header = {"model": self.models.identity(model), "estimand": self.plan.estimand, "plan": self.plan.key}
        self.parts.write(self.part_name(shard, model, round_), table, header)

    def read_part(self, shard: str, model: M, round_: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """(t, errors, query ids) of one part, [q, strata]; refused if it was computed with other weights."""
        name, strata = self.part_name(shard, model, round_), self.plan.n_strata
        table = self.parts.read(name, {"model": self.models.identity(model)}, "terms-stale")
        ids = table["query"].to_pylist()[::strata]
        return table["t"].to_numpy().reshape(-1, strata), table["error"].to_numpy().reshape(-1, strata), ids

    def read(self, queries: Queries, model: M, rounds: int, bands: Bands | None = None) -> Terms:
        """All rounds of a fully evaluated model; `bands` other than None weigh the timesteps."""
        shards, weights = shard_names(queries, self.shard), self.weights(bands)
        kls, ts = [], []
        for r in range(rounds):
            parts = [self.read_part(shard, model, r) for shard in shards]
            ts.append(np.concatenate([p[0] for p in parts]))
            kls.append(kl(self.plan, weights, ts[-1], np.concatenate([p[1] for p in parts])))
        return Terms(np.stack(kls), np.stack(ts))

    def reader(self, queries: Queries, rounds: int, bands: Bands | None = None) -> Reader[M]:
        """Reads each model's terms once, however many scores are made of them."""
        cache: dict[M, Terms] = {}

        def read(model: M) -> Terms:
            if model not in cache:
                cache[model] = self.read(queries, model, rounds, bands)
            return cache[model]

        return read

    def weights(self, bands: Bands | None = None) -> np.ndarray:
        """What a squared error at t counts for in the bound, [T]."""
        weights = self.schedule.weights
        return weights if bands is None else weights * bands.factors(self.schedule.T)


def shard_name(shard: Queries) -> str:
    """Named by content, so that the same pictures under the same ids share their terms."""
    return shard.digest[:16]


def shard_names(queries: Queries, size: int) -> list[str]:
    return [shard_name(shard) for shard in queries.shards(size)]


def families(models: Iterable[M]) -> list[list[M]]:
    """Models that share an evaluation: the members of a rule together, every other model by itself."""
    found: dict[Hashable, list[M]] = {}
    for number, model in enumerate(models):
        key: Hashable = number if model.family is None else (model.family,)
        found.setdefault(key, []).append(model)
    return list(found.values())


def networks(sets: Sequence[Set[M]]) -> tuple[int, int]:
    """(shared, each): one draw of n groups costs shared + each n network evaluations."""

    def count(groups: int) -> int:
        used = dict.fromkeys(m for full, others in sets for m in (full, *list(others.values())[:groups]))
        return len(families(used))  # the members of a rule share one

    each = count(2) - count(1)
    return count(1) - each, each


def equal_shares(t: np.ndarray, n_sets: int) -> Sequence[np.ndarray | float]:
    return [1 / n_sets] * n_sets


def contributions(
    sets: Sequence[Set[M]], groups: Sequence[str], read: Reader[M], shares: Shares = equal_shares
) -> np.ndarray:
    """Paired nats [R, Q, G, S]: counterfactual less full model, the weighted mean over sets, draw by draw, so that the
    error bar of a mean over sets is that of the mean."""
    counted = shares(read(sets[0][0]).t, len(sets))
    return np.stack(
        [
            np.sum([w * (read(c[g]).kl - read(f).kl) for w, (f, c) in zip(counted, sets, strict=True)], axis=0)
            for g in groups
        ],
        axis=2,
    )


def combine(
    d: np.ndarray, plan: Plan, networks: int, bands: Bands | None = None, drift: Drift | None = None, **names: Any
) -> Scores:
    """Scores with errors and ranks from paired contributions [R, Q, G, S].

    `networks`: evaluations behind one draw of one score; `drift` is subtracted; `names`: method, unit, queries, groups.
    """
    if drift is not None:
        d = drift.spread(d)
    columns = stack_estimates([difference(d[:, :, g], grid=bool(plan.grid)) for g in range(d.shape[2])])
    estimand = plan.estimand + (f", bands {bands.name} only" if bands else "") + (SUBTRACTED if drift else "")
    return Scores(
        estimand=estimand, n_evals=networks * plan.evals_per_round * len(d), **names,
        **(drift.widen(columns) if drift else columns), **rank_columns(d, drift.cov if drift else 0.0),
    )  # fmt: skip
