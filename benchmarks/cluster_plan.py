"""Toward 10,000 groups and 10,000,000 queries: evaluations, GPU-hours, storage and schedules. Writes
benchmarks/results/cluster-plan.json and cluster-plan.svg; docs/planning.md quotes them.

    python benchmarks/cluster_plan.py [RUN]

Nothing here ran on a cluster. The model is Stable Diffusion 1.5 as in recipe unlearncanvas-paper. Seconds per
evaluation are what the paper's published times come to when divided by this recipe's evaluations; scenarios are
arithmetic; schedules are simulated. With RUN, a finished run of retrack (digits), its recorded times are scaled too.
"""

from __future__ import annotations

import sys
from math import ceil
from pathlib import Path

from guda import steps
from guda.engine.simulate import Cluster, simulate, staged
from guda.evaluation.published import published
from guda.files import write_json
from guda.report.figures import cluster_schedules
from guda.run.recipe import builtin_recipe
from guda.run.run import Run
from guda.steps.cluster import row

RESULTS = Path(__file__).parent / "results"
GROUPS, QUERIES, WORKERS = 10_000, 10_000_000, (10, 30, 100, 300, 1000)
METHOD, TABLE = "anchors-weighted", "main.unlearncanvas"
STORE = "lora:4:bf16"
SCORE_BYTES = 40  # of one query and group in a parquet of scores, measured on digits (300 x 10, 119 kB)
ASSUMED = {"overhead": 20.0, "start": 120.0, "submit": 0.005, "price": 2.5}  # s, s, s, per GPU-hour
TASK = 1800.0  # seconds that a scoring task should take
BRANCH, BEAM = 100, 3  # a tree of 100 x 100 groups, descended into 3
FIRST = 1 / 8  # of the draws before a race has thinned the field to two


def unit() -> dict[str, float]:
    """What one group and one (query, model) cost on the paper's GPU, from the recipe and the published times."""
    outline = steps.outline(builtin_recipe("unlearncanvas-paper"))
    rows = {r["what"]: r for r in outline["rows"]}
    table = published().table(TABLE)
    times = next(r for r in table.rows.values() if r.id == METHOD).times
    n, groups = outline["queries"], outline["groups"]
    fit, score = rows[f"fit {METHOD}"], rows[f"score {n} queries by {METHOD}"]
    return {
        "draws": outline["evals_per_model_and_query"],
        "fit_evals": fit["evals"] / groups,
        "fit_seconds": times["preprocessing"].seconds / groups,
        "score_seconds": times["query"].seconds / (n * (groups + 1)),
        "train_evals": rows["train the full model"]["evals"],
        "train_seconds": rows["train the full model"]["evals"] * times["preprocessing"].seconds / fit["evals"],
        "fit_evals_per_second": fit["evals"] / times["preprocessing"].seconds,
        "score_evals_per_second": score["evals"] / times["query"].seconds,
        "bank_bytes": outline["bank"][STORE] / groups,
        "full_bytes": outline["bank"]["full copies"] / groups,
        "term_bytes": score["disk"] / (n * (groups + 1)),
    }


def scenarios(n: int) -> dict[str, dict[str, float]]:
    """Networks per query (in whole passes over the draws) and models whose terms are kept."""
    tree = BRANCH + BEAM * ceil(n / BRANCH)
    return {
        "every group": {"networks": 1 + n, "kept": 1 + n},
        "tree": {"networks": 1 + tree, "kept": 1 + tree},
        "screen to 100": {"networks": 2 + 100, "kept": 1 + 100},
        "screen to 10": {"networks": 2 + 10, "kept": 1 + 10},
        "screen to 10, race": {"networks": 2 + 10 * FIRST + 2 * (1 - FIRST), "kept": 1 + 10 * FIRST + 2 * (1 - FIRST)},
    }


def scenario(name: str, cost: dict[str, float], one: dict[str, float], n: int, q: int) -> dict:
    per_query = cost["networks"] * one["score_seconds"]
    shards = min(100_000, max(1, ceil(q * per_query / TASK)))
    banks = n + (BRANCH if name == "tree" else 0)
    works = staged(one["train_seconds"], banks, one["fit_seconds"], shards, q * per_query / shards)
    stage = {w.name: w.stage for w in works}
    cluster = {k: ASSUMED[k] for k in ("overhead", "start", "submit")}
    found = [simulate(works, Cluster(w, **cluster)) for w in WORKERS]
    if name == "screen to 10":
        cluster_schedules(found, RESULTS / "cluster-plan.svg")
    hours = (banks * one["fit_seconds"], q * per_query)
    return {
        "groups": n,
        "queries": q,
        "evals_per_query": cost["networks"] * one["draws"],
        "seconds_per_query": per_query,
        "fit_gpu_hours": hours[0] / 3600,
        "score_gpu_hours": hours[1] / 3600,
        "cost": sum(hours) / 3600 * ASSUMED["price"],
        "bank_bytes": banks * one["bank_bytes"],
        "bank_bytes_full_copies": banks * one["full_bytes"],
        "terms_bytes": cost["kept"] * q * one["term_bytes"],
        "scores_bytes": (cost["kept"] - 1) * q * SCORE_BYTES,
        "queries_per_task": q / shards,
        "schedules": [row(s, ASSUMED["price"], stage) | {"chain": len(s.chain)} for s in found],
    }


def main() -> None:
    one = unit()
    value = {
        "what": "arithmetic and simulation; nothing ran on a cluster",
        "unit": one,
        "assumed": ASSUMED | {"task_seconds": TASK, "tree": [BRANCH, BEAM], "race_first": FIRST, "store": STORE},
        "scenarios": {k: scenario(k, c, one, GROUPS, QUERIES) for k, c in scenarios(GROUPS).items()},
        "sizes": {
            f"{n} groups, {q} queries": {
                k: {"seconds_per_query": c["networks"] * one["score_seconds"],
                    "gpu_hours": (n * one["fit_seconds"] + q * c["networks"] * one["score_seconds"]) / 3600}
                for k, c in scenarios(n).items() if k != "tree" or n >= BRANCH
            }
            for n, q in ((60, 10_000), (1_000, 1_000_000), (GROUPS, QUERIES))
        },
    }  # fmt: skip
    if len(sys.argv) > 1:
        run = Run.open(sys.argv[1])
        value["measured_run"] = {}
        for n, q, shard in ((10, 300, 64), (1_000, 100_000, 64), (10_000, 1_000_000, 64)):
            config = steps.ClusterConfig(groups=n, queries=q, shard=shard, workers=WORKERS)
            found = steps.plan_cluster(run, ["retrack"], config, q)
            for schedule in found["schedules"]:
                schedule["chain"] = len(schedule["chain"])
            value["measured_run"][f"{n} groups, {q} queries"] = found | {"run": run.recipe.name}
    write_json(RESULTS / "cluster-plan.json", value)
    for name, s in value["scenarios"].items():
        last = s["schedules"][-1]
        print(
            f"{name:<20}{s['evals_per_query']:>12,.0f} evals {s['seconds_per_query']:>9,.1f} s"
            f"{s['fit_gpu_hours']:>9,.0f} + {s['score_gpu_hours']:>13,.0f} h   bank {s['bank_bytes'] / 1e9:,.0f} GB"
            f"  terms {s['terms_bytes'] / 1e12:,.2f} TB  1,000 workers {last['makespan'] / 86400:,.1f} d, "
            f"{last['bottleneck']}"
        )


if __name__ == "__main__":
    main()
