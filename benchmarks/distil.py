"""Answers in milliseconds: how much of a method a small network keeps. Writes benchmarks/results/distil.json.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/distil.py [--runs FOLDER] [--pictures 4000]     resumes

The digits recipe; the teacher is hybrid, the recipe's first, by path divergence against the average picture. The
student learns from samples of the model (another seed than the reported ones) and is judged on the recipe's own 300
samples, which nothing was chosen on. Figures:

of_teacher          share of the 300 pictures with the teacher's first group, over what the teacher reproduces of itself
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
from pathlib import Path

import numpy as np

from guda import steps
from guda.evaluation.intervals import clopper_pearson
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.methods.base import get_method
from guda.run.recipe import builtin_recipe
from guda.run.run import Run

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/distil.py"
TEACHER = "hybrid"


def share(name: str, hits: np.ndarray) -> dict[str, float]:
    lo, hi = clopper_pearson(int(hits.sum()), len(hits))
    return {name: float(hits.mean()), f"{name}.lo": lo, f"{name}.hi": hi}


def measure(folder: Path, pictures: int, engine: steps.Engine) -> DatasetEntry:
    run = Run.open(folder) if (folder / "run.json").is_file() else steps.init(folder, builtin_recipe("digits"))
    steps.update_settings(run, "distilled", {"teacher": TEACHER, "pictures": pictures})
    steps.fit(run, [TEACHER], engine)
    report = steps.distil(run, engine)
    queries = steps.sample(run, engine)
    tables = steps.score(run, queries, [TEACHER, "distilled"], engine)
    teacher, student = tables[TEACHER], tables["distilled"]
    other = steps.override(run, scoring={"seed": run.recipe.scoring.seed + 1})
    again = steps.score(other, queries, [TEACHER], engine)[TEACHER]
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
        "evals_teacher": get_method(run, TEACHER).score_evals(),
    }  # fmt: skip
    return DatasetEntry(
        n_queries=len(first), n_groups=len(teacher.groups), seeds=[], ceiling=None, methods={}, figures=figures,
        estimand=teacher.estimand, unit=teacher.unit, sign=teacher.sign,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "distil")
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    entry = measure(given.runs / "digits", given.pictures, steps.local_engine(given.workers))
    keep_entry(ROOT / "benchmarks" / "results" / "distil.json", COMMAND, "digits", entry)
    print("\n".join(f"{name:<24}{value:,.4g}" for name, value in entry.figures.items()))


if __name__ == "__main__":
    main()
