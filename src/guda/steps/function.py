"""Fidelity in function space: does a method move the model the way retraining does?

For every picture, group and noise band the cosine of the two changes, beside that of one retraining with another. It
needs far fewer pictures than ranks do, because every picture tells of every group.

Every scored method against the cross-seed oracle: what several retrainings change alike, without their noise.

    gold_qk = sum over t of w_t E <Delta_m, Delta_m'>,   the mean over pairs of seeds m != m'      nats, may be negative

It needs two LOGO seeds; with four or more there is a ceiling, one pair of seeds against a pair that shares none with
it, and methods are compared with the same pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING
from guda.evaluation.intervals import Figure, bootstrap_mean, percentile_interval, resampled_means
from guda.evaluation.metrics import spearman, top1
from guda.files import write_json
from guda.methods.base import Method, get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals, run_oracle
from guda.methods.terms import ModelRef, load_queries, run_scorer
from guda.run.models import run_schedule
from guda.run.run import Run
from guda.run.task import Task, pending, tick
from guda.scoring.bands import default_edges
from guda.scoring.products import Products, cosines, cross
from guda.scoring.scorer import Set, shard_name
from guda.scoring.scores import Scores
from guda.steps.fit import Engine, check_fitted, fitted_methods
from guda.steps.score import prepared, scored_methods, scores_folder, scores_path

if TYPE_CHECKING:
    from typing_extensions import TypeIs


ALL = "all"  # the row of all noise bands together


class Fidelity(Config):
    """One noise band: mean cosine with a retraining, by method; `logo`: of one retraining with another."""

    band: str
    own: dict[str, Figure] = Field(description="each picture's first group, by the retrainings")
    other: dict[str, Figure] = Field(description="all other groups")


class FunctionFile(Config):
    queries: str
    pictures: int
    seeds: list[int]
    estimand: str
    note: str
    rows: list[Fidelity]


def products_of(run: Run, methods: Sequence[ElboMethod], oracle: ElboMethod) -> tuple[Products[ModelRef], list[str]]:
    """The products of all methods and retrainings, and their names in that order."""
    sets: list[Set[ModelRef]] = [*oracle.seed_sets().values(), *(m.sets()[0] for m in methods)]
    names = [f"{oracle.method_id}-s{s}" for s in oracle.seed_sets()] + [m.method_id for m in methods]
    return Products(run_scorer(run), sets), names


def product_tasks(run: Run, queries: Queries, products: Products[ModelRef], rounds: int) -> list[Task]:
    """One task for each shard."""
    tasks = []
    for number, shard in enumerate(queries.shards(products.scorer.shard)):
        names = tuple(products.part_name(shard_name(shard), r) for r in range(rounds))
        refs = [ref for full, others in products.sets for ref in (full, *others.values())]
        tasks.append(
            Task(
                name=f"changes {queries.name}/{number} by {products.key}",
                stage=f"function/{queries.name}", fn="guda.steps.function:product_shard",
                args={"queries": queries.name, "ids": list(shard.ids), "rounds": rounds, "groups": products.groups,
                      "sets": [[full.as_json(), *(o.as_json() for o in others.values())]
                               for full, others in products.sets]},
                makes=names, needs=tuple(sorted({p for ref in refs for p in ref.needs(run)})),
                cost=float(products.networks * shard.n * products.scorer.plan.evals_per_round * rounds),
            )
        )  # fmt: skip
    return pending(run, tasks)


def product_shard(
    run: Run, queries: str, ids: list[str], rounds: int, groups: list[str], sets: list[list[list[object]]]
) -> None:
    found: list[Set[ModelRef]] = []
    for full, *others in sets:
        refs = [ModelRef(*ref) for ref in others]  # type: ignore[arg-type]
        found.append((ModelRef(*full), dict(zip(groups, refs, strict=True))))  # type: ignore[arg-type]
    shard = load_queries(run, queries).subset(ids)
    Products(run_scorer(run), found).evaluate(shard, rounds, tick)


def evaluate_function(
    run: Run, name: str, methods: Sequence[str] | None, engine: Engine, n: int | None = None, rounds: int = 1
) -> FunctionFile:
    """On the first `n` pictures, by default of every such method; written to scores/<set>/function.json."""
    oracle = run_oracle(run)
    methods = [m for m in fitted_methods(run) if changes_function(get_method(run, m))] if methods is None else methods
    chosen = [get_method(run, m) for m in methods]
    check_fitted(run, [oracle.method_id, *methods])
    simple = [m for m in chosen if changes_function(m)]
    if len(simple) < len(chosen) or not chosen:
        unfit = ", ".join(m.method_id for m in chosen if m not in simple) or "nothing"
        raise GudaError(
            "function-method-unsupported",
            f"{unfit}: only methods with one counterfactual model per group change a function; name some with --method",
        )
    queries = load_queries(run, name)
    queries = queries if n is None or n >= queries.n else queries.subset(queries.ids[:n])

    def work() -> FunctionFile:
        products, names = products_of(run, simple, oracle)
        engine(run, product_tasks(run, queries, products, rounds), f"changes of {name}")
        p, t = products.read(queries, rounds)
        seeds = list(oracle.seed_sets())
        found = FunctionFile(
            queries=name, pictures=queries.n, seeds=seeds, estimand=products.scorer.plan.estimand,
            note="Mean over pictures and groups of the cosine between what a method and what a retraining changes.",
            rows=fidelity(p, t, names, len(seeds), default_edges(run_schedule(run).T)),
        )  # fmt: skip
        write_json(scores_folder(run, name) / "function.json", found.model_dump(mode="json"))
        return found

    return prepared(run, [oracle, *chosen], engine, work)


def changes_function(method: Method) -> TypeIs[ElboMethod]:
    """Whether it has one counterfactual model per group."""
    return has_counterfactuals(method) and not method.oracle and len(method.sets()) == 1


def fidelity(
    p: np.ndarray, t: np.ndarray, names: Sequence[str], n_seeds: int, edges: Sequence[int],
    own: np.ndarray | None = None,
) -> list[Fidelity]:  # fmt: skip
    """From products [R, Q, G, S, n, n] whose first `n_seeds` models are retrainings; all bands, then each. `own`: bool
    [Q, G], one group of every picture; default: its first by the retrainings."""
    whole = p.mean(axis=0).sum(axis=2)  # [Q, G, n, n]
    seeds = list(range(n_seeds))
    if own is None:
        size = cross(whole, seeds) if n_seeds > 1 else whole[..., 0, 0]
        first = size.argmax(axis=1)
        own = np.zeros(size.shape, bool)
        own[np.arange(len(first)), first] = True
    rows: list[Fidelity] = []
    for low, high in [(0, edges[-1]), *pairwise(edges)]:
        inside = (t >= low) & (t < high)
        drawn = inside.any(axis=(0, 2))  # pictures with a draw in this band
        if drawn.sum() < 2:  # no interval
            continue
        cos = cosines(np.where(inside[:, :, None, :, None, None], p, 0.0).mean(axis=0).sum(axis=2))[drawn]
        values = {m: cos[..., i, seeds].mean(axis=-1) for i, m in enumerate(names) if i >= n_seeds}
        if n_seeds > 1:
            values = {CEILING: np.mean([cos[..., i, j] for i, j in combinations(seeds, 2)], axis=0)} | values
        rows.append(
            Fidelity(
                band=ALL if (low, high) == (0, edges[-1]) and not rows else f"{low}:{high}",
                own={m: _mean(v, own[drawn]) for m, v in values.items()},
                other={m: _mean(v, ~own[drawn]) for m, v in values.items()},
            )
        )
    return rows


def _mean(values: np.ndarray, which: np.ndarray) -> Figure:
    """Over groups inside a picture, then over pictures, with an interval over pictures."""
    return bootstrap_mean(np.where(which, values, 0.0).sum(axis=1) / which.sum(axis=1))


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


def systematic(found: dict[tuple[int, int], np.ndarray]) -> float:
    """The share of the retrainings' path divergence that two of them have in common; `found`: of cross_scores."""
    alike = [v.mean() for (a, b), v in found.items() if a != b]
    return float(np.mean(alike) / np.mean([v.mean() for (a, b), v in found.items() if a == b]))


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
    file = CrossFile(
        queries=name, seeds=seeds, estimand=next(iter(tables.values())).estimand, systematic=systematic(found),
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
