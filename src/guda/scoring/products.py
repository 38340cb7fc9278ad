"""Inner products of what several counterfactuals of the same group change, at the same draws.

    P_ij = <Delta_i, Delta_j>,    Delta_i = eps_full(i) - eps_i        each against the full model that it came from

    i = j                       the path divergence, summed over t with its weights
    i, j two retrainings        their noise is independent and cancels on average: unbiased for the squared SYSTEMATIC
                                change of leaving the group out, without a noise floor; may be negative
    cos = P_ij/sqrt(P_ii P_jj)  how far two models move the same way; of an operator and a retraining: its fidelity

Predictions are as large as pictures and are not kept, so these take evaluations of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch

from guda.data.queries import Queries
from guda.files import digest
from guda.scoring.scorer import M, Scorer, Set, shard_name, shard_names
from guda.scoring.terms import Draws, kl, make_draws, measure


@dataclass(frozen=True)
class Products(Generic[M]):
    """Of every group, the products of all pairs of `sets`."""

    scorer: Scorer[M]
    sets: Sequence[Set[M]]

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.sets[0][1])

    @property
    def key(self) -> str:
        """Of these models, in this order."""
        return digest([[full.key, *(other.key for other in others.values())] for full, others in self.sets], 12)

    @property
    def networks(self) -> int:
        """Network evaluations of one draw."""
        return len({full for full, _ in self.sets}) + len(self.sets) * len(self.groups)

    def part_name(self, shard: str, round_: int) -> str:
        return f"products/{self.scorer.folder.removeprefix('terms/')}/{self.key}/{shard}/r{round_:03d}.parquet"

    def _inputs(self) -> dict[str, str]:
        identity = self.scorer.models.identity
        return {"models": digest([[identity(full), *map(identity, o.values())] for full, o in self.sets])}

    def evaluate(self, queries: Queries, rounds: int, tick: Callable[[int, int], None] = lambda *_: None) -> None:
        """Every missing part of one shard."""
        import pyarrow as pa

        base = self.scorer.models.base(self.sets[0][0])
        queries.check_shape(base.image_shape)
        for r in range(rounds):
            name = self.part_name(shard_name(queries), r)
            if self.scorer.parts.has(name):
                continue
            draws = make_draws(base, base.encode(queries.images), queries.ids, self.scorer.plan, r)
            cond = base.condition(queries.prompts)
            full = {model: self._predict(model, draws, cond) for model, _ in self.sets}
            products = []
            for k, group in enumerate(self.groups):
                tick(r * len(self.groups) + k, rounds * len(self.groups))
                changes = [full[model] - self._predict(others[group], draws, cond) for model, others in self.sets]
                products.append(_products(changes, draws))
            columns = {f"p{i}.{j}": np.stack([p[:, :, i, j] for p in products]).reshape(-1) for i, j in self._pairs()}
            t = np.broadcast_to(draws.t, (len(products), *draws.t.shape)).reshape(-1)
            table = pa.table({"t": pa.array(t.astype(np.int32))} | {c: pa.array(v) for c, v in columns.items()})
            self.scorer.parts.write(name, table, self._inputs() | {"plan": self.scorer.plan.key})

    def _predict(self, model: M, draws: Draws, cond: object) -> torch.Tensor:
        settings = self.scorer.settings
        with settings.active():
            denoiser = settings.prepare(self.scorer.models.several([model]))
            predictions = measure(denoiser, draws, settings.block, cond, keep=True).predictions  # type: ignore[arg-type]
        assert predictions is not None
        return predictions

    def _pairs(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(len(self.sets)) for j in range(i, len(self.sets))]

    def read(self, queries: Queries, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(nats [R, Q, G, S, n, n], timesteps [R, Q, S]): what each draw contributes to the sum over t."""
        shards, n, strata = shard_names(queries, self.scorer.shard), len(self.sets), self.scorer.plan.n_strata
        values, times = [], []
        for r in range(rounds):
            tables = [
                self.scorer.parts.read(self.part_name(shard, r), self._inputs(), "products-stale") for shard in shards
            ]
            shape = (len(self.groups), -1, strata)
            t = np.concatenate([table["t"].to_numpy().reshape(shape) for table in tables], axis=1)
            p = np.empty((*t.shape, n, n))
            for i, j in self._pairs():
                squares = np.concatenate([x[f"p{i}.{j}"].to_numpy().reshape(shape) for x in tables], axis=1)
                p[..., i, j] = p[..., j, i] = kl(self.scorer.plan, self.scorer.weights(), t, squares)
            values.append(p.swapaxes(0, 1))
            times.append(t[0])
        return np.stack(values), np.stack(times)


def _products(changes: Sequence[torch.Tensor], draws: Draws) -> np.ndarray:
    """float64 [Q, S, n, n], the mean over the halves of a draw."""
    n_queries, n_strata, halves = draws.eps.shape[:3]
    x = torch.stack([c.flatten(1) for c in changes], dim=1).double()  # [rows, n, D]
    products = (x @ x.transpose(1, 2)).reshape(n_queries, n_strata, halves, len(changes), len(changes))
    return np.asarray(products.mean(dim=2).numpy())


def cosines(p: np.ndarray) -> np.ndarray:
    """[..., n, n] from sums of products; 0 where a model changes nothing."""
    length = np.sqrt(np.maximum(np.diagonal(p, axis1=-2, axis2=-1), 0.0))
    below = length[..., :, None] * length[..., None, :]
    return np.where(below > 0, p / np.where(below > 0, below, 1.0), 0.0)


def cross(p: np.ndarray, which: Sequence[int]) -> np.ndarray:
    """[...]: the mean product of two different of the models `which`, from products [..., n, n]."""
    some = p[..., which, :][..., which]
    n = len(which)
    return np.asarray((some.sum(axis=(-2, -1)) - np.trace(some, axis1=-2, axis2=-1)) / (n * (n - 1)))
