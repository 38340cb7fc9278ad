"""Distilling a method: pictures are drawn, the method scores them, a small network learns what it says."""

from __future__ import annotations

import time
from dataclasses import dataclass

from guda.evaluation.intervals import Figure, clopper_pearson
from guda.methods.base import get_method
from guda.methods.distilled import Distilled
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.run.samples import collect_samples, sample_tasks
from guda.steps.fit import Engine, check_fitted, fit
from guda.steps.score import score

METHOD = "distilled"


@dataclass(frozen=True)
class DistilReport:
    teacher: str
    pictures: int
    checked: int  # pictures that neither training nor calibration has seen
    same_first: Figure  # share of them for which teacher and student agree on the first group
    inside: float  # share of the teacher's scores within the 95 % intervals
    milliseconds: float  # of one picture, features included, on one core


def distil(run: Run, engine: Engine) -> DistilReport:
    """Make the run's student, by the recipe's settings of `distilled`; what is there is kept."""
    found = get_method(run, METHOD)
    assert isinstance(found, Distilled)
    found.check()
    teacher = found.teacher.method_id
    check_fitted(run, [teacher])
    engine(run, sample_tasks(run, found.pictures), f"draw {found.config.pictures:,} pictures")
    name = collect_samples(run, found.pictures)
    score(run, name, [teacher], engine)
    fit(run, [METHOD], engine)
    student, header = found.student()
    n = int(header["checked"])
    lo, hi = clopper_pearson(round(float(header["same_first"]) * n), n)
    same = Figure(mean=float(header["same_first"]), lo=lo, hi=hi)
    queries = load_queries(run, name)
    few = queries.subset(queries.ids[: min(64, queries.n)])
    student.predict(found.features(few))  # warm
    started = time.process_time()
    student.predict(found.features(few))
    each = 1000 * (time.process_time() - started) / few.n
    return DistilReport(teacher, queries.n, n, same, float(header["inside"]), each)
