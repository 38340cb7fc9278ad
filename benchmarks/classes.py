"""Class-conditional models whose groups are their classes: digits and Fashion-MNIST.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/classes.py [--runs FOLDER] [--only digits] [--workers N]

The recipes digits and fashion-small with a label for every class and a null label, to which a tenth of the images is
dropped in training; LOGO with two seeds; samples of every class in turn. Methods: anchors over labels (weighted by
the label embeddings, uniform, null), continuation and tangent with the training's own settings, dtrak, similarity, and
`prompt`. Nothing is tuned on these data sets: anchors have the settings of the unconditional digits' retrack. Resumes.

Writes benchmarks/results/classes.{json,md}; the figures are explained in benchmarks/conditional.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import conditional
from guda import steps
from guda.evaluation.results import keep_entry
from guda.files import write_text
from guda.run.recipe import Recipe, builtin_recipe
from guda.run.run import Run
from guda.steps.fit import Engine

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/classes.py"
RESULTS = ROOT / "benchmarks" / "results"
DATASETS = ("digits", "fashion-mnist")
SMALL = ROOT / "benchmarks" / "recipes" / "fashion-small.yaml"  # a network that can be trained 22 times on two cores
ANCHORS = {"steps": 100, "lr": 3e-4, "decay": True, "batch_forget": 32, "batch_retain": 32, "lambda_preserve": 1.0}
METHODS: dict[str, dict[str, object]] = {
    "anchors-weighted": ANCHORS,
    "anchors-uniform": ANCHORS,
    "anchors-removed": ANCHORS,
    "continuation": {},
    "tangent": {},
    "dtrak": {},
    "similarity-pixel": {},
    "prompt": {},
}


def recipe(name: str) -> Recipe:
    found = Recipe.read(SMALL) if name == "fashion-mnist" else builtin_recipe(name)
    value = found.model_dump(mode="json")
    value["name"] = f"{name}-classes"
    value["model"]["options"] |= {"num_class_embeds": 11}
    value["training"]["prompt_dropout"] = 0.1
    value["methods"] = {"logo": {"seeds": [1, 2], "coupled": True}} | METHODS
    value["queries"] = {"n": 200, "seed": 1}
    value["scoring"] |= {"estimand": "path", "excess": True, "strata": 6, "rounds": 4}
    value["evaluation"] = {"against": "logo", "reference": "prompt"}
    return Recipe.from_dict(value, f"{name}, class-conditional")


def prepared(root: Path, name: str, engine: Engine) -> Run:
    run = steps.init(root / name, recipe(name), keep_edits=True)
    steps.fit(run, ["logo", *METHODS], engine)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "classes")
    parser.add_argument("--only", nargs="*", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    for name in given.only:
        run = prepared(given.runs, name, engine)
        entry = conditional.measure(run, steps.sample(run, engine), list(METHODS), engine)
        datasets = keep_entry(RESULTS / "classes.json", COMMAND, name, entry, DATASETS)
        text = "\n\n".join(conditional.markdown(n, e) for n, e in datasets.items())
        write_text(
            RESULTS / "classes.md", f"# Class-conditional models\n\nWritten by `make bench-classes`.\n\n{text}\n"
        )
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
