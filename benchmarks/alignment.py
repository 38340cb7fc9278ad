"""How far two retrainings agree, by learning rate and by whether their batches are aligned: alignment.json.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/alignment.py [--runs FOLDER] [--workers N]     resumes

The recipe cifar10 with 400 steps, three of the ten classes left out (chance 1/3), retrainings with seeds 101 and 102,
which no other benchmark has, and 128 pictures of their own. What was chosen here (learning rate, alignment) is measured
with other seeds and pictures (natural.py). Path divergence against the average picture, by setting S:

reliability_top1.E.S    Top-1 of one retraining with the other; E: path-excess, path-excess-t100 (timesteps from 100 on)
reliability.E.S         Spearman, which has a null of its own with three groups: compare settings only
systematic.S            the part of a divergence that both retrainings have in common (whole path)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from guda import steps
from guda.evaluation.ceiling import compare
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.methods.terms import load_queries
from guda.run.models import load_model
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.bands import Bands
from guda.steps.evaluate import run_oracle
from guda.steps.function import cross_scores, systematic
from path import START, Figures, put, scoring

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/alignment.py"
SETTINGS = {"coupled-1e-3": (1e-3, False), "coupled-1e-4": (1e-4, False), "aligned-1e-4": (1e-4, True)}
CLASSES, SEEDS, STEPS, PICTURES = ("automobile", "frog", "horse"), (101, 102), 400, 128


def prepared(root: Path, name: str) -> Run:
    if (root / name / "run.json").is_file():
        return Run.open(root / name)
    value = Recipe.read(ROOT / "benchmarks" / "recipes" / "cifar10.yaml").model_dump(mode="json")
    lr, aligned = SETTINGS[name]
    value["name"], value["model"]["start"] = name, str(START)
    value["training"] |= {"lr": lr, "steps": STEPS}
    value["methods"] = {"logo": {"seeds": list(SEEDS), "coupled": True, "aligned": aligned}}
    value["queries"] |= {"n": PICTURES, "seed": 5}
    value["scoring"]["groups"] = list(CLASSES)
    value["evaluation"] = {"against": "logo"}
    return steps.init(root / name, Recipe.from_dict(value, name))


def measure(run: Run, name: str, engine: steps.Engine) -> Figures:
    figures: Figures = {}
    steps.train(run, engine)
    steps.fit(run, ["logo"], engine)
    queries = steps.sample(run, engine)
    every = load_model(run, "base").schedule.T
    kinds = {"path-excess": Bands(((0, every, 1.0),)), "path-excess-t100": Bands(((100, every, 1.0),))}
    with scoring(run, estimand="path", excess=True):
        steps.score(run, queries, ["logo"], engine)
        gold = run_oracle(run).seed_values(load_queries(run, queries), list(kinds.values()))
        for i, kind in enumerate(kinds):
            found = compare(gold[i], {}).ceiling
            assert found is not None
            put(figures, f"reliability_top1.{kind}.{name}", found.intervals["top1"])
            put(figures, f"reliability.{kind}.{name}", found.intervals["spearman"])
        figures[f"systematic.{name}"] = systematic(cross_scores(run, queries, engine))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "alignment")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    figures: Figures = {}
    for name in SETTINGS:
        figures |= measure(prepared(given.runs, name), name, engine)
        print({k: round(v, 3) for k, v in figures.items() if k.endswith(name)}, flush=True)
    entry = DatasetEntry(
        n_queries=PICTURES, n_groups=len(CLASSES), seeds=list(SEEDS), ceiling=None, methods={}, figures=figures,
        note="see benchmarks/alignment.py",
    )  # fmt: skip
    keep_entry(ROOT / "benchmarks" / "results" / "alignment.json", COMMAND, "cifar10", entry)


if __name__ == "__main__":
    main()
