"""Every scored method against the cross-seed oracle: what several retrainings change alike, without their noise.

    gold_qk = sum over t of w_t E <Delta_m, Delta_m'>,   the mean over pairs of seeds m != m'      nats, may be negative

It needs two LOGO seeds; with four or more there is a ceiling, one pair of seeds against a pair that shares none with
it, and methods are compared with the same pairs.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING
from guda.evaluation.intervals import Figure, bootstrap_mean, percentile_interval, resampled_means
from guda.evaluation.metrics import spearman, top1
from guda.files import write_json
from guda.methods.base import get_method
from guda.methods.elbo import run_oracle
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.fit import Engine, check_fitted
from guda.steps.function import product_tasks, products_of
from guda.steps.score import prepared, scored_methods, scores_folder, scores_path

METRICS = {"top1": top1, "spearman": spearman}


class CrossFile(Config):
    queries: str
    seeds: list[int]
    estimand: str = Field(description="of the methods' scores")
    unit: str = "nats"
    systematic: float = Field(description="share of the retrainings' path divergence that they have in common")
    ceiling: dict[str, Figure] | None = Field(description="a pair of seeds against another; null below four seeds")
    methods: dict[str, dict[str, Figure]]
    ratio_to_ceiling: dict[str, dict[str, Figure]]


def cross_scores(run: Run, name: str, engine: Engine, rounds: int = 1) -> dict[tuple[int, int], np.ndarray]:
    """Nats [Q, G] of every pair of LOGO seeds (m < m'; m = m': the path divergence of one)."""
    oracle = run_oracle(run)
    check_fitted(run, [oracle.method_id])
    seeds = list(oracle.seed_sets())
    if len(seeds) < 2:
        raise GudaError("seeds-too-few", "a cross-seed oracle needs at least 2 LOGO seeds; fit another with `--seeds`")
    queries = load_queries(run, name)

    def work() -> dict[tuple[int, int], np.ndarray]:
        products, _ = products_of(run, [], oracle)
        engine(run, product_tasks(run, queries, products, rounds), f"cross products of {name}")
        p = products.read(queries, rounds)[0].mean(axis=0).sum(axis=2)
        return {(a, b): p[..., i, j] for i, a in enumerate(seeds) for j, b in enumerate(seeds) if i <= j}

    return prepared(run, [oracle], engine, work)


def evaluate_cross(run: Run, name: str, engine: Engine, rounds: int = 1) -> CrossFile:
    """By the scores that are stored; written to scores/<set>/cross.json."""
    names = [m for m in scored_methods(run, name) if not get_method(run, m).oracle]
    if not names:
        raise GudaError("scores-missing", f"no method has scored {name!r} yet; run: guda score {run.root}")
    found = cross_scores(run, name, engine, rounds)
    tables = {m: Scores.read(scores_path(run, name, m)) for m in names}
    seeds = sorted({a for a, _ in found})
    gold = {pair: found[pair] for pair in combinations(seeds, 2)}
    values = {m: table.score for m, table in tables.items()}
    columns, ratios, ceiling = compare_pairs(gold, values)
    alike = np.mean([g.mean() for g in gold.values()]) / np.mean([found[s, s].mean() for s in seeds])
    file = CrossFile(
        queries=name, seeds=seeds, estimand=next(iter(tables.values())).estimand, systematic=float(alike),
        ceiling=ceiling, methods=columns, ratio_to_ceiling=ratios,
    )  # fmt: skip
    write_json(scores_folder(run, name) / "cross.json", file.model_dump(mode="json"))
    return file


def compare_pairs(
    gold: dict[tuple[int, int], np.ndarray], methods: dict[str, np.ndarray]
) -> tuple[dict[str, dict[str, Figure]], dict[str, dict[str, Figure]], dict[str, Figure] | None]:
    """(agreement by method and metric, its ratio to the ceiling, the ceiling). `gold`: [Q, G] of every pair of seeds.

    Below four seeds no pair is free of another's seeds: the gold is their mean, and there is no ceiling."""
    apart = [(a, b) for a in gold for b in gold if a < b and not set(a) & set(b)]
    if not apart:
        one = np.mean(list(gold.values()), axis=0)
        plain = {m: {k: bootstrap_mean(f(v, one)) for k, f in METRICS.items()} for m, v in methods.items()}
        return plain, {}, None
    rows = {CEILING: {k: np.mean([f(gold[a], gold[b]) for a, b in apart], axis=0) for k, f in METRICS.items()}}
    for m, v in methods.items():
        rows[m] = {k: np.mean([f(v, g) for g in gold.values()], axis=0) for k, f in METRICS.items()}
    stacked = np.stack([np.stack(list(row.values())) for row in rows.values()])[:, :, None, :]
    drawn = resampled_means(stacked, 2000, 0)  # [n, methods, metrics], the same pictures for all
    table: dict[str, dict[str, Figure]] = {}
    ratio: dict[str, dict[str, Figure]] = {}
    for i, m in enumerate(rows):
        table[m] = {k: percentile_interval(rows[m][k].mean(), drawn[:, i, j]) for j, k in enumerate(METRICS)}
        if m != CEILING:
            ratio[m] = {
                k: percentile_interval(
                    rows[m][k].mean() / rows[CEILING][k].mean(), drawn[:, i, j] / np.maximum(drawn[:, 0, j], 1e-9)
                )
                for j, k in enumerate(METRICS)
                if table[CEILING][k].lo > 0
            }
    ceiling = table.pop(CEILING)
    return table, ratio, ceiling
