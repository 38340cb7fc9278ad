"""Answers in milliseconds: how much of a method a small network keeps. Writes benchmarks/results/distil.json.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/distil.py [--only digits ...]     resumes

digits: the teacher is hybrid, the recipe's first; cifar10 (recipes/cifar10.yaml, the run of natural.py if it is there):
retrack, and pictures are drawn in 100 steps. By path divergence against the average picture. The student learns from
samples of the model (another seed than the reported ones) and is judged on samples of the recipe's seed, which nothing
was chosen on. Figures:

of_teacher          share of the pictures with the teacher's first group, over what the teacher reproduces of itself
same_first          that share; .lo, .hi: Clopper and Pearson's interval over pictures
reproduced          the teacher's first group again, scored with other noise
coverage            share of the teacher's scores within the student's 95 % intervals, over pictures and groups
decided, right      share of pictures where the student's verdict is that a group stands out; of these, the share where
                    it is the teacher's first
milliseconds        of one picture on one core, features included (CPU time, 64 pictures together)
evals_student, evals_teacher   network evaluations of a picture
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from guda import steps
from guda.evaluation.intervals import clopper_pearson
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.methods.base import get_method
from guda.run.run import Run
from path import recipe_of

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/distil.py"


@dataclass(frozen=True)
class Case:
    teacher: str
    pictures: int
    runs: str  # folder below runs/ that has the data set's run
    queries: dict[str, int] = field(default_factory=dict)  # what is not the recipe's


CASES = {
    "digits": Case("hybrid", 4000, "distil"),
    "cifar10": Case("retrack", 3000, "path", {"n": 240, "seed": 2, "steps": 100}),
}


def share(name: str, hits: np.ndarray) -> dict[str, float]:
    lo, hi = clopper_pearson(int(hits.sum()), len(hits))
    return {name: float(hits.mean()), f"{name}.lo": lo, f"{name}.hi": hi}


def prepared(folder: Path, name: str, engine: steps.Engine) -> Run:
    case = CASES[name]
    known = (folder / "run.json").is_file()
    run = Run.open(folder) if known else steps.init(folder, recipe_of(folder.parent, name, engine))
    steps.fit(run, [case.teacher], engine)
    run = steps.override(run, queries=case.queries, scoring={"foreign": "skip"})
    return steps.override(run, methods=["distilled"], settings=[f"teacher={case.teacher}", f"pictures={case.pictures}"])


def measure(run: Run, name: str, engine: steps.Engine) -> DatasetEntry:
    teaches = CASES[name].teacher
    report = steps.distil(run, engine)
    queries = steps.sample(run, engine)
    tables = steps.score(run, queries, [teaches, "distilled"], engine)
    teacher, student = tables[teaches], tables["distilled"]
    other = steps.override(run, scoring={"seed": run.recipe.scoring.seed + 1})
    again = steps.score(other, queries, [teaches], engine)[teaches]
    first = teacher.rank.argmin(axis=1)
    same, reproduced = student.rank.argmin(axis=1) == first, again.rank.argmin(axis=1) == first
    decided = np.array([picture.verdict().kind == "stands-out" for picture in student])
    inside = (np.asarray(student.lo) <= teacher.score) & (teacher.score <= np.asarray(student.hi))
    figures = {
        "of_teacher": float(same.mean() / reproduced.mean()),
        **share("same_first", same), **share("reproduced", reproduced),
        "coverage": float(inside.mean()), "milliseconds": report.milliseconds, "pictures": float(report.pictures),
        **share("decided", decided), **share("right", same[decided]),
        "evals_student": get_method(run, "distilled").score_evals(),
        "evals_teacher": get_method(run, teaches).score_evals(),
    }  # fmt: skip
    return DatasetEntry(
        n_queries=len(first), n_groups=len(teacher.groups), seeds=[], ceiling=None, methods={}, figures=figures,
        estimand=teacher.estimand, unit=teacher.unit, sign=teacher.sign,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    for name in given.only:
        run = prepared(given.runs / CASES[name].runs / name, name, engine)
        entry = measure(run, name, engine)
        keep_entry(ROOT / "benchmarks" / "results" / "distil.json", COMMAND, name, entry, CASES)
        print("\n".join(f"{name} {figure:<24}{value:,.4g}" for figure, value in entry.figures.items()))


if __name__ == "__main__":
    main()
