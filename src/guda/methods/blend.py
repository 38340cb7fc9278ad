"""blend: several kinds of counterfactual together, each band of noise with the weights at which they move the model as
retraining does.

    Delta_LOGO ~ sum_m w_m(t) Delta_m,   w >= 0 by least squares in function space, band by band, on tuning pictures

Delta_m: what method m changes in the model's prediction. Anchors change what the group's own prompt asks for and little
else; a continuation or a short retraining moves all groups, but not as far. A change w Delta has w^2 times the path
divergence, and its ELBO difference is nearly linear in w where it matters, so draws count

    path    d(t) = sum_m w_m(t)^2 d_m(t)             elbo    d(t) = sum_m w_m(t) d_m(t)

(d: the paired contribution of a draw, nats; products of two methods' changes are left out). Weights are chosen once, on
pictures of a seed of their own, and kept with the digests of pictures and models; pictures that they were chosen on are
refused. They need retrainings; a run without any takes the weights of another run (`weights`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from guda.config import Config, QueriesConfig, ScoringConfig
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest, write_json
from guda.methods.base import make_method, method
from guda.methods.combination import Combination, read_weights, refuse_tuned, tuning_pictures
from guda.methods.elbo import ElboMethod, Set, run_oracle
from guda.methods.terms import ModelRef, load_queries, run_scorer
from guda.run.models import run_schedule
from guda.run.run import Run
from guda.run.samples import collect_samples, sample_tasks
from guda.run.task import Task, tick
from guda.scoring.bands import default_edges
from guda.scoring.plan import make_plan
from guda.scoring.products import Products

Weights = dict[str, dict[str, float]]  # "FROM:TO" -> method -> weight

STRATA = 12


class BlendConfig(Config):
    methods: tuple[str, ...] = Field(
        ("anchors-weighted", "continuation"), min_length=2, description="Methods with one counterfactual per group."
    )
    weights: Weights | None = Field(
        None, description="Of every method in every band of timesteps (FROM:TO); null: chosen against retraining."
    )
    pictures: int = Field(64, ge=2, description="Tuning pictures that the weights are chosen on, about this many.")
    seed: int | None = Field(
        None, ge=0, description="Seed of these pictures; null: far from that of the reported ones."
    )

    @model_validator(mode="after")
    def _complete(self) -> BlendConfig:
        if len(set(self.methods)) < len(self.methods):
            raise ValueError("methods are named twice")
        for band, row in (self.weights or {}).items():
            low, _, high = band.partition(":")
            if not (low.isdecimal() and high.isdecimal() and int(low) < int(high)):
                raise ValueError(f"weights: {band!r} is not a band; write FROM:TO, e.g. 100:1000")
            if set(row) != set(self.methods) or min(row.values()) < 0:
                raise ValueError(f"weights of {band}: give one of 0 or more for each of {', '.join(self.methods)}")
        return self


@method("blend")
class Blend(Combination):
    Config = BlendConfig
    summary = "several methods' counterfactuals, weighted band by band as they resemble retraining on tuning pictures"

    def named(self) -> tuple[str, ...]:
        return tuple(self.config.methods)

    def takes(self, member: ElboMethod) -> bool:
        return not member.oracle and member.ranks_groups

    @property
    def tuning(self) -> QueriesConfig:
        """The pictures that weights are chosen on."""
        return tuning_pictures(self.run, self.method_id, self.config)

    @property
    def weights_file(self) -> str:
        """Named after what decides it: the members' settings too."""
        told = {m.method_id: m.config.model_dump(mode="json") for m in self.members}
        return f"{self.artifact(config=self.config.model_dump(mode='json'), members=told)}/weights.json"

    def weights(self) -> Weights:
        if self.config.weights is not None:
            return dict(self.config.weights)
        weights: Weights = read_weights(self.run, self.method_id, self.weights_file)
        return weights

    def shares(self, t: np.ndarray, n_sets: int) -> list[np.ndarray | float]:
        power = 2 if self.run.recipe.scoring.estimand == "path" else 1
        counted: list[np.ndarray | float] = []
        for member in self.members:
            of_t = np.zeros(run_schedule(self.run).T)
            for band, row in self.weights().items():
                low, high = map(int, band.split(":"))
                of_t[low:high] = row[member.method_id] ** power
            counted.append(of_t[t])
        return counted

    def check(self) -> None:
        super().check()
        for member in self.members:
            member.check()
        oracle = run_oracle(self.run)
        planned = oracle.method_id in self.run.recipe.methods and self.run.recipe.training is not None
        if self.config.weights is None and not planned and not oracle.fitted():
            raise GudaError(
                "blend-oracle-missing",
                f"{self.method_id} chooses its weights by retrainings, and {self.run.root} has none; run: guda fit "
                f"{self.run.root} --method {oracle.method_id}, or give methods.{self.method_id}.weights",
            )

    def fit(self) -> list[Task]:
        tasks = super().fit()
        if self.config.weights is not None:
            return tasks
        drawn = sample_tasks(self.run, self.tuning)
        refs = [ref for full, others in self._compared() for ref in (full, *others.values())]
        needs = {path for ref in refs for path in ref.needs(self.run)} | {p for task in drawn for p in task.makes}
        networks = sum(1 + len(others) for _, others in self._compared())
        weigh = Task(
            name=f"weigh {self.method_id}", stage=f"fit/{self.method_id}", fn="guda.methods.blend:weigh",
            args={"config": self.config.model_dump(mode="json")}, makes=(self.weights_file,),
            needs=tuple(sorted(needs)), cost=float(networks * self.config.pictures * 2 * STRATA),
        )  # fmt: skip
        return [*tasks, *drawn, weigh]

    def fitted(self) -> bool:
        known = self.config.weights is not None or self.run.has(self.weights_file)
        return known and super().fitted()

    def _compared(self) -> list[Set]:
        """The retrainings, then the members."""
        return [*run_oracle(self.run).seed_sets().values(), *self.sets()]

    def weigh(self) -> dict[str, Any]:
        """What the file of weights holds."""
        run, oracle = self.run, run_oracle(self.run)
        queries = load_queries(run, collect_samples(run, self.tuning))
        scoring = ScoringConfig(plan="stratified", strata=STRATA, seed=run.recipe.scoring.seed)  # type: ignore[call-arg]
        products = Products[ModelRef](run_scorer(run, plan=make_plan(run_schedule(run), scoring)), self._compared())
        shards = queries.shards(products.scorer.shard)
        for number, shard in enumerate(shards):
            tick(number, len(shards))
            products.evaluate(shard, 1)
        p, t = products.read(queries, 1)
        n_seeds = len(oracle.seed_sets())
        names = [m.method_id for m in self.members]
        found: dict[str, Any] = {
            "weights": band_weights(p[0], t[0], names, n_seeds, default_edges(run_schedule(run).T)),
            "queries": queries.name, "pictures": queries.digest, "n": queries.n, "seeds": list(oracle.seed_sets()),
            "models": products._inputs()["models"], "config": self.config.model_dump(mode="json"),
        }  # fmt: skip
        return found | {"digest": digest(found)}

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        if self.config.weights is None:
            refuse_tuned(self.run, self.method_id, self.weights_file, queries)
        return super().score(queries, planned)


def band_weights(
    p: np.ndarray, t: np.ndarray, names: list[str], n_seeds: int, edges: tuple[int, ...]
) -> Weights:  # fmt: skip
    """Non-negative least squares of what retrainings change (their mean) on what methods change, in every band.

    p: products [Q, G, S, n, n] whose first `n_seeds` models are retrainings; t [Q, S]. Pictures count alike: each is
    divided by the size of its retrainings' changes. A band without a draw has the weights of all timesteps."""
    from scipy.optimize import nnls

    def solve(inside: np.ndarray) -> dict[str, float]:
        sums = np.where(inside[:, None, :, None, None], p, 0.0).sum(axis=2)  # [Q, G, n, n]
        size = np.trace(sums[..., :n_seeds, :n_seeds], axis1=-2, axis2=-1).sum(axis=1)
        sums = (sums / np.where(size > 0, size, 1.0)[:, None, None, None])[size > 0].sum(axis=(0, 1))
        own, with_seeds = sums[n_seeds:, n_seeds:], sums[n_seeds:, :n_seeds].mean(axis=1)
        scale = np.sqrt(np.maximum(np.diag(own), 1e-300))  # methods of very different size
        unit = own / scale[:, None] / scale + 1e-9 * np.eye(len(own))
        root = np.linalg.cholesky(unit)
        found, _ = nnls(root.T, np.linalg.solve(root, with_seeds / scale))
        return dict(zip(names, (found / scale).tolist(), strict=True))

    whole = solve(np.ones(t.shape, bool))
    weights = {}
    for low, high in pairwise(edges):
        inside = (t >= low) & (t < high)
        weights[f"{low}:{high}"] = solve(inside) if inside.any() else whole
    if not any(w for row in weights.values() for w in row.values()):
        raise GudaError("blend-weights-zero", "no method moves the model as retraining does; there is nothing to blend")
    return weights


def weigh(run: Run, config: dict[str, Any]) -> None:
    found = make_method(run, "blend", config)
    assert isinstance(found, Blend)
    write_json(run.path(found.weights_file), found.weigh())
