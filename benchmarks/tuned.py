"""Settings chosen by what a method does to the model, or by ranks: which serve better, with how many pictures?

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/tuned.py [--runs FOLDER] [--only digits ...]     resumes

`guda tune` for retrack and shift: ten trials over learning rate and forget weight, five groups, pictures of a seed of
their own, path divergence against the average picture. By function (cosines of changes, 32 pictures), by rank with as
many pictures, and by rank with 200. The retrainings that decide (DECIDE) are not those that judge: what was chosen is
measured on the reported pictures against the other LOGO seeds. The runs are those of path.py.

Figures of benchmarks/results/tuned.json; W: recipe, function-32, rank-32, rank-200; E: path-excess, elbo

top1.E.M-W, of_ceiling.E.M-W    Top-1 with LOGO, and over that of two retrainings; intervals .lo, .hi
lead.E.M-W                      Top-1 of W less that of the recipe's settings, paired over pictures
chosen.M-W.SETTING              what was chosen
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from guda import steps
from guda.evaluation.ceiling import compare
from guda.evaluation.intervals import bootstrap_mean
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.methods.base import get_method
from guda.run.run import Run
from guda.steps.fit import Engine
from guda.steps.search_space import parse_space
from path import Figures, agreement, tables

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/tuned.py"
RESULTS = ROOT / "benchmarks" / "results"
DATASETS = ("digits", "fashion-small")
DECIDE = {"digits": [1, 2], "fashion-small": [1]}
WAYS = {"function-32": ("function", 32), "rank-32": ("rank", 32), "rank-200": ("rank", 200)}
SEARCH = "lr=3e-5..1e-3,lambda_forget=0.03..10"
TRIALS, GROUPS, SEED = 10, 5, 0
PATH = {"plan": "stratified", "strata": 12, "rounds": 3, "estimand": "path", "excess": True}
KINDS = {"path-excess": PATH, "elbo": PATH | {"estimand": "elbo", "excess": False}}


def choose(run: Run, name: str, method: str, way: str, engine: Engine) -> dict[str, float]:
    by, n = WAYS[way]
    seeds = steps.override(run, scoring=PATH, methods=["logo"], settings=[f"seeds={DECIDE[name]}"])
    found = steps.tune(
        seeds, method, TRIALS, engine, queries_seed=SEED, n=n, groups=GROUPS, space=parse_space(SEARCH), by=by
    )
    return {key: float(value) for key, value in found.chosen.items()}


def measure(run: Run, name: str, methods: tuple[str, ...], engine: Engine) -> DatasetEntry:
    queries = steps.sample(run, engine)
    figures: Figures = {}
    settings: dict[tuple[str, str], list[str]] = {}
    for method in methods:
        settings[method, "recipe"] = []
        for way in WAYS:
            chosen = choose(run, name, method, way, engine)
            figures |= {f"chosen.{method}-{way}.{key}": value for key, value in chosen.items()}
            settings[method, way] = [f"{key}={value!r}" for key, value in chosen.items()]
    every = list(get_method(run, "logo").config.seeds)
    judges = [s for s in every if s not in DECIDE[name]]
    for kind, scoring in KINDS.items():
        found = tables(steps.override(run, scoring=scoring), queries, ["logo"], engine)
        gold = np.stack([found[f"logo-s{s}"].score for s in judges])
        rows = {}
        for (method, way), given in settings.items():
            asked = steps.override(run, scoring=scoring, methods=[method], settings=given)
            steps.fit(asked, [method], engine)
            rows[f"{method}-{way}"] = steps.score(asked, queries, [method], engine)[method].score
        agreement(figures, kind, compare(gold, rows))
        right = {label: (score.argmax(axis=1) == gold.argmax(axis=2)).astype(float) for label, score in rows.items()}
        for method, way in settings:
            if way != "recipe":
                lead = bootstrap_mean((right[f"{method}-{way}"] - right[f"{method}-recipe"]).mean(axis=0))
                figures[f"lead.{kind}.{method}-{way}"] = lead.mean
                figures[f"lead.{kind}.{method}-{way}.lo"], figures[f"lead.{kind}.{method}-{way}.hi"] = lead.lo, lead.hi
    return DatasetEntry(
        n_queries=len(found["logo"].queries), n_groups=len(found["logo"].groups), seeds=judges, ceiling=None,
        methods={}, figures=figures, note=f"see benchmarks/tuned.py; settings chosen by LOGO seeds {DECIDE[name]}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "path")
    parser.add_argument("--only", nargs="*", choices=DATASETS, default=DATASETS)
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    for name in given.only:
        run = Run.open(given.runs / name)
        steps.fit(run, ["logo"], engine)
        entry = measure(run, name, ("retrack", "shift"), engine)
        keep_entry(RESULTS / "tuned.json", COMMAND, name, entry, DATASETS)
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
