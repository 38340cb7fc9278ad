"""Values of coalitions of a run's groups: by the posterior rule (no training), by subset models, by unlearned unions.

Posterior values are computed by tasks, one per shard of pictures, and kept:

    RUN/coalitions/<posterior>/<plan>/<shard>/shares-<settings>.safetensors    shares [R, q, G, S] and their errors
    RUN/coalitions/<posterior>/<plan>/<shard>/values-<settings>.safetensors    values [N, R, q, S] of some coalitions

All are nats relative to the full model, v(all) = 0 (scoring/coalition.py), at the draws of the run's plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest
from guda.methods.base import get_method
from guda.methods.posterior import PosteriorMethod
from guda.methods.terms import ModelRef, load_queries, load_rule, run_scorer
from guda.parts import FolderParts
from guda.run.data import load_data
from guda.run.models import load_model, model_digest
from guda.run.run import Run
from guda.run.task import Task, tick
from guda.scoring.coalition import CoalitionRule, Pooled, coalition_draws, pooled_draws, residuals
from guda.scoring.scorer import shard_names
from guda.scoring.shapley import EXACT, by_orders, coalitions, count_coalitions, exact
from guda.scoring.terms import kl, make_draws
from guda.unlearning.rule import RuleConfig

Value = Literal["elbo", "path"]

NOTHING = "the pooled density: one Gaussian of all images together, which knows none of the groups"

GAUSSIAN = "the pooled density as a model by itself: one Gaussian of all images together"

START = "the pretrained start"


@dataclass(frozen=True)
class Ask:
    """What is asked of the posterior rule; the same for all pictures."""

    groups: tuple[str, ...]  # the players; all other groups are always there
    value: Value
    parcels: tuple[int, ...]
    coalitions: tuple[tuple[int, ...], ...] | None = None  # values of these; None: shares
    alone: bool = False  # the value of nothing, as the pooled density by itself instead of by the rule
    pooled: bool = True  # the pooled density is in every coalition; False: none of them is empty, and it is not needed
    tolerance: float = 0.02  # standard error over orders, of v(all) - v(nothing), at which a picture is settled
    orders: int = 256  # pairs of orders at most
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.__dict__.items()}

    @classmethod
    def of(cls, value: dict[str, Any]) -> Ask:
        listed = {k: tuple(value[k]) for k in ("groups", "parcels")}
        known = value["coalitions"]
        return cls(**(value | listed | {"coalitions": None if known is None else tuple(map(tuple, known))}))

    @property
    def sampled(self) -> bool:
        return self.coalitions is None and count_coalitions(self.parcels) > EXACT


def posterior(run: Run) -> PosteriorMethod:
    found = get_method(run, "posterior")
    assert isinstance(found, PosteriorMethod)
    return found


def refuse_density(run: Run) -> None:
    """Before anything is computed."""
    found = posterior(run)
    found.check()
    if found.config.density != "gaussians" or found.config.directions is not None:
        raise GudaError(
            "coalition-density-unsupported",
            "coalitions need whole Gaussians; set methods.posterior.density: gaussians, without directions",
        )


def coalition_part(run: Run, shard: str, ask: Ask) -> str:
    what = "shares" if ask.coalitions is None else "values"
    folder = run_scorer(run, estimand="elbo").folder.removeprefix("terms/")
    rule = posterior(run).folder.removeprefix("artifacts/")
    rounds = run.recipe.scoring.rounds
    return f"coalitions/{rule}/{folder}-r{rounds}/{shard}/{what}-{digest(ask.as_json(), 16)}.safetensors"


def coalition_tasks(run: Run, queries: Queries, ask: Ask) -> list[Task]:
    """The fit of the density, which evaluates no network, comes first."""
    config, plan = run.recipe.scoring, run_scorer(run, estimand="elbo").plan
    tasks = posterior(run).fit()
    for number, shard in enumerate(shard_names(queries, config.shard)):
        size = min(config.shard, queries.n - number * config.shard)
        what = "shares" if ask.coalitions is None else "coalitions"
        tasks.append(
            Task(
                name=f"{what} of {queries.name}/{number} by posterior, {digest(ask.as_json(), 8)}",
                stage=f"coalitions/{queries.name}", fn="guda.methods.coalitions:value_shard",
                args={"queries": queries.name, "shard": number, "ask": ask.as_json()},
                makes=(coalition_part(run, shard, ask),), needs=(posterior(run).rule, *ModelRef("base").needs(run)),
                cost=float(size * plan.evals_per_round * config.rounds) if ask.value == "elbo" or ask.alone else 0.0,
            )
        )  # fmt: skip
    return tasks


def value_shard(run: Run, queries: str, shard: int, ask: dict[str, Any]) -> None:
    wanted = Ask.of(ask)
    part = load_queries(run, queries).shards(run.recipe.scoring.shard)[shard]
    content = evaluate(run, part, wanted)
    FolderParts(run.root).write(
        coalition_part(run, shard_names(part, part.n)[0], wanted),
        {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in content.items()},
        {"model": model_digest(run, "base")},
    )


def evaluate(run: Run, queries: Queries, ask: Ask) -> dict[str, np.ndarray]:
    """Of one shard. values: [N, R, q, S]; or shares [R, q, G, S], variance [q, G] of drawing orders, orders [q],
    nothing [R, q, S]."""
    model, scorer, data = load_model(run, "base"), run_scorer(run, estimand="elbo"), load_data(run)
    config = posterior(run).config
    assert isinstance(config, RuleConfig)
    pooled = Pooled.fit(model.encode(data.images), config.floor)
    if not ask.pooled:
        pooled = replace(pooled, log_share=-np.inf)
    columns = [data.groups.index(g) for g in ask.groups]
    rule = CoalitionRule(load_rule(run, posterior(run).rule), pooled, columns, ask.parcels)
    weights, block, x0 = scorer.weights(), scorer.settings.block, model.encode(queries.images)
    rounds = []
    for r in range(run.recipe.scoring.rounds):
        drawn = make_draws(model, x0, queries.ids, scorer.plan, r)
        with scorer.settings.active():
            needed = ask.value == "elbo" or ask.alone
            off = residuals(scorer.settings.prepare(model), drawn, block) if needed else None
        rounds.append((drawn, off))

    def value(asked: np.ndarray) -> np.ndarray:
        found = []
        for drawn, off in rounds:
            grown = coalition_draws(rule, drawn, asked, block, off)
            found.append(-kl(scorer.plan, weights, drawn.t, grown))
        tick(0, 1)
        return np.stack(found, axis=1)

    if ask.alone:
        path = ask.value == "path"
        grown = [pooled_draws(rule, drawn, block, off, path) for drawn, off in rounds if off is not None]
        kls = [kl(scorer.plan, weights, drawn.t, g) for (drawn, _), g in zip(rounds, grown, strict=True)]
        return {"values": -np.stack(kls)[None]}
    if ask.coalitions is not None:
        return {"values": value(np.array(ask.coalitions, np.int64))}
    nothing = value(np.zeros((1, len(ask.groups)), np.int64))[0]
    if not ask.sampled:
        shares = np.einsum("gn,nrqs->rqgs", exact(ask.parcels), value(coalitions(ask.parcels)))
        none = np.zeros((queries.n, len(ask.groups)))
        return {"shares": shares, "variance": none, "orders": np.zeros(queries.n, np.int64), "nothing": nothing}
    found = by_orders(
        ask.parcels, value, lambda x: x.mean(axis=-3).sum(axis=-1), ask.tolerance, ask.orders, seed=ask.seed
    )
    shares = np.moveaxis(found.shares, 0, 2)
    return {"shares": shares, "variance": found.variance.T, "orders": found.orders, "nothing": nothing}


def read_coalitions(run: Run, queries: Queries, ask: Ask) -> dict[str, np.ndarray]:
    """The finished parts of a query set, joined along its pictures."""
    parts, header = FolderParts(run.root), {"model": model_digest(run, "base")}
    found: list[dict[str, np.ndarray]] = [
        {k: v.numpy() for k, v in parts.read(coalition_part(run, s, ask), header, "coalitions-stale").items()}
        for s in shard_names(queries, run.recipe.scoring.shard)
    ]
    axis = {"values": 2, "shares": 1, "variance": 0, "orders": 0, "nothing": 1}
    return {k: np.concatenate([f[k] for f in found], axis=axis[k]) for k in found[0]}


def make_parcels(run: Run, groups: Sequence[str], images: int | None) -> tuple[int, ...]:
    """How many parcels of about `images` images each group has; None: one each."""
    known = load_data(run).groups
    sizes = [known.sizes[known.index(g)] for g in groups]
    return (1,) * len(sizes) if images is None else tuple(max(1, round(n / images)) for n in sizes)
