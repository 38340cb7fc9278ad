"""The scorer: computes the terms of models on pictures, keeps them in a part store, and turns them into scores.

A part holds one (shard of queries, model, round) and is immutable: adding a group evaluates one model, adding queries
one shard, adding precision one round. Its header names the weights it was computed with, so stale weights are noticed.
A run keeps its parts in its folder and lets tasks compute them; `guda.attribute` keeps them in memory. Both use this.

Work order: noise and x_t of one shard and round are made once and shared by all models, and are all that is held in
memory; each model sees all (query, t, draw) of the shard packed into full blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import torch

from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.schedule import Schedule
from guda.parts import Parts
from guda.scoring.bands import Bands
from guda.scoring.plan import Plan, Settings
from guda.scoring.reading import PATH_SIGN, SIGN
from guda.scoring.terms import Draws, Measured, Terms, kl, make_draws, measure, measure_rule
from guda.unlearning.rule import RuledDenoiser


class Model(Hashable, Protocol):
    """A reference to a model; the models themselves are loaded one after the other."""

    @property
    def key(self) -> str:
        """Folder name of its terms."""

    @property
    def family(self) -> Hashable | None:
        """Models of one family are the members of a rule and share an evaluation; None: it is evaluated by itself."""

    @property
    def reference(self) -> Self | None:
        """The full model that a counterfactual came from, which it is compared with; None: it is a full model."""


M = TypeVar("M", bound=Model)
M_contra = TypeVar("M_contra", bound=Model, contravariant=True)

Set = tuple[M, Mapping[str, M]]  # a full model, and its counterfactual per group

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
    path: bool = False  # scores are path divergences, not ELBO differences

    @property
    def kind(self) -> str:
        """What the estimand needs of a counterfactual."""
        return "change" if self.path else "error"

    def part_name(self, shard: str, model: M, round_: int, kind: str | None = None) -> str:
        """`kind`: "error" or "change"; default: what the estimand needs."""
        letter = {"error": "r", "change": "c"}[kind or self.kind]
        return f"{self.folder}/{shard}/{model.key}/{letter}{round_:03d}.parquet"

    def evaluated(self, models: Iterable[M]) -> list[M]:
        """Those that have parts of their own: a path divergence asks nothing of a full model but its predictions."""
        return [m for m in models if not self.path or m.reference is not None]

    def networks(self, models: Iterable[M]) -> int:
        """Network evaluations that one draw of all of them takes. Members of a rule share one, and their changes take
        none; those of other models need the model that they came from at the same draw."""
        kin = families(models)
        if not self.path:
            return len(kin)
        with_network = [of[0] for of in kin if of[0].family is None]
        return len(with_network) + len({m.reference for m in with_network})

    def evaluate(
        self, queries: Queries, models: Sequence[M], rounds: int, tick: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """Every missing part of one shard."""
        everyone, shard = np.arange(queries.n), shard_name(queries)
        for r in range(rounds):
            left = [m for m in self.evaluated(models) if not self.parts.has(self.part_name(shard, m, r))]
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
        shard = _Round(self, queries, make_draws(first, x0, queries.ids, self.plan, round_), cond, round_)
        kin = by_reference(wanted)
        count = sum(map(len, kin.values()))
        done = 0
        for reference, of_it in kin.items():  # the predictions of one reference are held at a time
            before = shard.predict(reference, of_it, wanted)
            for models in of_it:
                tick(place[0] * count + done, place[1] * count)
                done += 1
                if models != [reference]:  # which has been evaluated above
                    shard.measure(models, wanted, before)

    def write(
        self, shard: str, model: M, round_: int, kind: str, ids: np.ndarray, t: np.ndarray, squares: np.ndarray
    ) -> None:  # fmt: skip
        import pyarrow as pa

        strata = self.plan.n_strata
        table = pa.table(
            {
                "query": pa.array(np.repeat(ids, strata)).dictionary_encode(),
                "round": pa.array(np.full(squares.size, round_, np.int32)),
                "stratum": pa.array(np.tile(np.arange(strata, dtype=np.int32), len(ids))),
                "t": pa.array(t.reshape(-1).astype(np.int32)),
                kind: pa.array(squares.reshape(-1)),
            }
        )
        header = self.inputs(model, kind) | {"estimand": self.plan.estimand, "plan": self.plan.key}
        self.parts.write(self.part_name(shard, model, round_, kind), table, header)

    def inputs(self, model: M, kind: str) -> dict[str, str]:
        """What a part was computed from."""
        inputs = {"model": self.models.identity(model)}
        if kind == "change":
            assert model.reference is not None
            inputs["reference"] = self.models.identity(model.reference)
        return inputs

    def read_part(
        self, shard: str, model: M, round_: int, kind: str | None = None
    ) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """(t, squares, query ids) of one part, [q, strata]; refused if it was computed with other weights."""
        kind, strata = kind or self.kind, self.plan.n_strata
        table = self.parts.read(self.part_name(shard, model, round_, kind), self.inputs(model, kind), "terms-stale")
        ids = table["query"].to_pylist()[::strata]
        return table["t"].to_numpy().reshape(-1, strata), table[kind].to_numpy().reshape(-1, strata), ids

    def weights(self, bands: Bands | None = None) -> np.ndarray:
        """What a squared error at t counts for in the bound, [T]."""
        weights = self.schedule.weights
        return weights if bands is None else weights * bands.factors(self.schedule.T)

    @property
    def estimand(self) -> str:
        """Named in every output."""
        return self.plan.path_estimand if self.path else self.plan.estimand

    @property
    def sign(self) -> str:
        """What a positive score says."""
        return PATH_SIGN if self.path else SIGN


@dataclass(frozen=True)
class _Round(Generic[M]):
    """One round of one shard while it is evaluated."""

    scorer: Scorer[M]
    queries: Queries
    draws: Draws
    cond: Cond | None
    number: int

    def predict(self, reference: M, kin: list[list[M]], wanted: Mapping[M, np.ndarray]) -> _Predictions | None:
        """Evaluate the model that others came from, where it is wanted itself or their changes need it."""
        path = self.scorer.path
        needs = [m for models in kin for m in models if m == reference or (path and m.family is None)]
        if not needs:
            return None
        chosen = np.unique(np.concatenate([wanted[m] for m in needs]))
        measured = self._measure([reference], chosen, keep=path)
        self._write(reference, "error", chosen, measured.errors[0], wanted)
        return None if measured.predictions is None else _Predictions(chosen, measured.predictions)

    def measure(self, models: list[M], wanted: Mapping[M, np.ndarray], before: _Predictions | None) -> None:
        scorer = self.scorer
        # members of a rule share the queries that any of them wants
        chosen = np.unique(np.concatenate([wanted[m] for m in models]))
        if models[0].family is not None and scorer.path:
            with scorer.settings.active():
                ruled = scorer.models.several(models)
                assert isinstance(ruled, RuledDenoiser)
                draws, cond = self._some(chosen)
                by_kind = {"change": measure_rule(ruled, draws, scorer.settings.block, cond=cond)}
        else:
            measured = self._measure(models, chosen, None if before is None else before.at(chosen))
            by_kind = {"error": measured.errors}
            if measured.changes is not None:
                by_kind["change"] = measured.changes  # last: it says that the work is done
        for kind, squares in by_kind.items():
            for model, own in zip(models, squares, strict=True):
                self._write(model, kind, chosen, own, wanted)

    def _some(self, chosen: np.ndarray) -> tuple[Draws, Cond | None]:
        if len(chosen) == self.queries.n:
            return self.draws, self.cond
        return self.draws.of(chosen), None if self.cond is None else self.cond[torch.from_numpy(chosen)]

    def _measure(
        self, models: list[M], chosen: np.ndarray, reference: torch.Tensor | None = None, keep: bool = False
    ) -> Measured:
        settings, (draws, cond) = self.scorer.settings, self._some(chosen)
        with settings.active():
            denoiser = settings.prepare(self.scorer.models.several(models))
            return measure(denoiser, draws, settings.block, cond, reference, keep)

    def _write(
        self, model: M, kind: str, chosen: np.ndarray, squares: np.ndarray, wanted: Mapping[M, np.ndarray]
    ) -> None:  # fmt: skip
        """What the estimand needs of the model. Errors, which a path divergence does not need, are kept too where they
        are of the whole shard: they tell its sign, and whether the model makes such pictures."""
        shard, mine = shard_name(self.queries), np.isin(chosen, wanted.get(model, chosen))
        if kind != self.scorer.kind or model not in wanted:
            exists = self.scorer.parts.has(self.scorer.part_name(shard, model, self.number, kind))
            if exists or int(mine.sum()) < self.queries.n:
                return
        ids = np.array(self.queries.ids)[chosen[mine]]
        self.scorer.write(shard, model, self.number, kind, ids, self.draws.t[chosen[mine]], squares[mine])


@dataclass(frozen=True)
class _Predictions:
    """Of a reference, at the draws of some queries."""

    queries: np.ndarray
    values: torch.Tensor  # [queries S halves, C, H, W]

    def at(self, chosen: np.ndarray) -> torch.Tensor:
        if len(chosen) == len(self.queries):
            return self.values
        rows = self.values.unflatten(0, (len(self.queries), -1))
        return rows[torch.from_numpy(np.searchsorted(self.queries, chosen))].flatten(0, 1)


class Reader(Generic[M]):
    """Terms of a query set, of models that are fully evaluated; each model's are read once, however many scores are
    made of them. `bands` other than None weigh the timesteps."""

    def __init__(self, scorer: Scorer[M], queries: Queries, rounds: int, bands: Bands | None = None) -> None:
        self.scorer, self.queries, self.rounds = scorer, queries, rounds
        self._shards, self._weights = shard_names(queries, scorer.shard), scorer.weights(bands)
        self._read: dict[tuple[M, str], Terms] = {}

    def __call__(self, model: M, kind: str = "error") -> Terms:
        if (model, kind) not in self._read:
            kls, ts = [], []
            for r in range(self.rounds):
                parts = [self.scorer.read_part(shard, model, r, kind) for shard in self._shards]
                ts.append(np.concatenate([p[0] for p in parts]))
                kls.append(kl(self.scorer.plan, self._weights, ts[-1], np.concatenate([p[1] for p in parts])))
            self._read[model, kind] = Terms(np.stack(kls), np.stack(ts))
        return self._read[model, kind]

    def has(self, model: M, kind: str) -> bool:
        """Whether all its parts of this kind are there."""
        names = (self.scorer.part_name(s, model, r, kind) for s in self._shards for r in range(self.rounds))
        return all(map(self.scorer.parts.has, names))

    def paired(self, full: M, other: M, kind: str | None = None) -> Terms:
        """What a draw contributes to the score of `other` against `full`, nats: by the estimand, or of `kind`
        "error" to the ELBO difference, of "change" to the path divergence."""
        if (kind or self.scorer.kind) == "change":
            return self(other, "change")
        terms = self(other)
        return Terms(terms.kl - self(full).kl, terms.t)

    def times(self, sets: Sequence[Set[M]]) -> np.ndarray:
        """The timesteps [R, Q, S] of the draws."""
        full, others = sets[0]
        return self.paired(full, next(iter(others.values()))).t


def shard_name(shard: Queries) -> str:
    """Named by content, so that the same pictures under the same ids share their terms."""
    return shard.digest[:16]


def shard_names(queries: Queries, size: int) -> list[str]:
    return [shard_name(shard) for shard in queries.shards(size)]


def families(models: Iterable[M]) -> list[list[M]]:
    """Models that share an evaluation: the members of a rule together, every other model by itself."""
    by_family: dict[Hashable, list[M]] = {}
    for number, model in enumerate(models):
        key: Hashable = number if model.family is None else (model.family,)
        by_family.setdefault(key, []).append(model)
    return list(by_family.values())


def by_reference(models: Iterable[M]) -> dict[M, list[list[M]]]:
    """Families of models by the full model they came from; that of a full model is itself."""
    groups: dict[M, list[M]] = {}
    for model in models:
        groups.setdefault(model.reference or model, []).append(model)
    return {reference: families(of_it) for reference, of_it in groups.items()}
