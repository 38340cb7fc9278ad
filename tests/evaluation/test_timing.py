"""The cost line T_total = T_fit + Q t_query, from synthetic times and from a finished run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))
from tinyrun import GROUPS, SET, copy_run

from guda.evaluation.published import published
from guda.evaluation.results import Cost, DatasetEntry, MethodEntry
from guda.evaluation.timing import (
    SAME_TIME,
    SAME_WORK,
    Timing,
    alike,
    crossing,
    one_retraining,
    published_timings,
    rate,
)
from guda.methods.base import get_method
from guda.report.costs import measure, timings
from guda.run.run import Run
from refusals import refused


def line(fit: float | None, query: float | None, name: str = "m") -> Timing:
    return Timing(method=name, n_groups=3, n_queries=10, fit_seconds=fit, query_seconds=query)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def retime(run: Run, stage: str, tasks: list[tuple[float, float | None]]) -> None:
    """Replace what a stage recorded."""
    for file in run.path("timings", stage).glob("*.json"):
        file.unlink()
    for i, (seconds, evals) in enumerate(tasks):
        run.record_time(stage, f"task {i}", seconds, evals)


def test_the_line_and_where_two_meet() -> None:
    retrack, logo, das = line(100, 2), line(9100, 2), line(100, 20)
    assert [retrack.total(q) for q in (0, 1, 50)] == [100, 102, 200]
    assert crossing(retrack, logo) is None  # parallel: one is cheaper throughout
    assert crossing(logo, das) == crossing(das, logo) == 500
    assert logo.total(500) == das.total(500)
    assert crossing(das, line(200, 30)) is None  # dearer in both
    assert line(None, 2).total(5) is None
    assert crossing(line(None, 2), das) is None


def test_lines_that_are_parallel_but_for_noise_meet_nowhere() -> None:
    def noisy(fit: float, query: float, stderr: float, evals: float) -> Timing:
        return line(fit, query).model_copy(update={"query_stderr": stderr, "query_evals": evals})

    logo = noisy(400, 0.2, 0.003, 40)
    assert crossing(noisy(10, 0.21, 0.0, 40), logo) is None  # the same work: a difference is the machine's
    assert alike(noisy(10, 0.21, 0.0, 40), logo) == SAME_WORK
    assert crossing(noisy(10, 0.209, 0.004, 80), logo) is None  # 0.009 <= 1.96 * 0.005
    assert alike(noisy(10, 0.209, 0.004, 80), logo) == SAME_TIME
    assert crossing(noisy(10, 0.21, 0.004, 80), logo) == pytest.approx(39_000)
    assert alike(noisy(10, 0.21, 0.004, 80), logo) is None


def test_rate_is_the_slope_and_its_error_is_the_ratio_estimators() -> None:
    assert rate([(4.0, 2.0), (20.0, 10.0)]) == (2.0, 0.0)
    assert rate([(3.0, 2.0)]) == (1.5, None)
    with refused("timing-without-work"):
        rate([])
    rng = np.random.default_rng(0)
    work = np.array([64.0] * 15 + [40.0])
    slopes, errors = [], []
    for _ in range(400):
        seconds = 0.3 * work + rng.normal(0, 1, 16) * np.sqrt(work)
        slope, error = rate(list(zip(seconds, work, strict=True)))
        slopes.append(slope)
        errors.append(error)
    assert np.mean(slopes) == pytest.approx(0.3, abs=0.01)
    assert np.mean(errors) == pytest.approx(np.std(slopes), rel=0.1)


def test_tasks_record_seconds_and_evaluations(run: Run) -> None:
    found = run.timings("fit/retrack")
    assert len(found) == len(GROUPS)
    assert {e for _, e in found} == {get_method(run, "retrack").fit_evals()}
    assert all(s > 0 for s, _ in found)
    run.record_time("old", "task", 2.5)
    assert run.timings("old") == [(2.5, None)]


@pytest.mark.parametrize(
    "value",
    [{}, [], {"seconds": "2"}, {"seconds": -1}, {"seconds": True}, {"seconds": 1, "evals": None}, {"guda": "0.1"}],
)
def test_a_damaged_timing_is_named(run: Run, value: object) -> None:
    run.record_time("odd", "task", 2.5)
    (file,) = run.path("timings", "odd").iterdir()
    file.write_text(json.dumps(value))
    with refused("timing-damaged", match=re.escape(str(file))):
        run.timings("odd")


def test_a_run_is_charged_by_work_whoever_evaluated_the_full_model(run: Run) -> None:
    folder = next(run.path("timings", "score", SET, "retrack").iterdir()).name
    retrack, logo = get_method(run, "retrack"), get_method(run, "logo")
    groups, queries = len(GROUPS), 12
    draws = retrack.score_evals() / (1 + groups)
    assert logo.score_evals() == 2 * (1 + groups) * draws  # two seeds
    # the full model's terms were made by somebody else: retrack's tasks did the counterfactuals alone, at 1 ms each
    retime(run, f"score/{SET}/retrack/{folder}", [(0.001 * groups * draws * n, groups * draws * n) for n in (5, 5, 2)])
    retime(run, "fit/retrack", [(1.0, None), (2.0, None), (3.0, None)])
    found = measure(run, retrack, SET)
    assert found.query_seconds == pytest.approx(0.001 * (1 + groups) * draws)
    assert found.query_stderr == pytest.approx(0, abs=1e-12)
    assert (found.fit_seconds, found.query_evals) == (6.0, (1 + groups) * draws)
    assert found.fit_evals == groups * retrack.fit_evals()
    assert found.total(queries) == pytest.approx(6 + queries * 0.001 * (1 + groups) * draws)
    # two seeds of LOGO: one is charged
    retime(run, "fit/logo", [(10.0, 1.0)] * (2 * groups))
    retime(run, f"score/{SET}/logo/{folder}", [(8.0, 2 * (1 + groups) * draws * queries)])
    one = measure(run, logo, SET)
    assert one.fit_seconds == 10.0 * groups
    assert one.query_seconds == pytest.approx(4.0 / queries)
    assert one.query_evals == (1 + groups) * draws


def test_runs_that_did_not_count_evaluations(run: Run) -> None:
    folder = next(run.path("timings", "score", SET, "retrack").iterdir()).name
    retime(run, f"score/{SET}/retrack/{folder}", [(6.0, None), (6.0, None)])
    found, similarity = timings(run, SET, ["retrack", "similarity-pixel"])
    assert (found.query_seconds, found.query_stderr) == (1.0, None)
    assert similarity.query_seconds is None  # arithmetic, in no task
    assert similarity.fit_seconds is not None


def test_published_lines_give_the_published_totals() -> None:
    table = published().table("timing.cifar10")
    lines = {t.method: t for t in published_timings(table)}
    for row in table.rows.values():
        assert lines[row.name].total(2048) == pytest.approx(row.times["total"].seconds, abs=61)  # minutes are rounded
        assert lines[row.name].query_seconds == pytest.approx(row.query_seconds, rel=0.01)
    main = {t.method: t for t in published_timings(published().table("main.cifar10"))}
    assert len(main) == 7
    clipa = main["CLIPA"]  # "<0:01" throughout
    assert (clipa.under, clipa.fit_seconds, clipa.query_seconds, clipa.total(2048)) == (60.0, None, None, None)
    assert crossing(clipa, main["LOGOA (oracle)"]) is None


def test_one_retraining_is_charged_by_its_line() -> None:
    """Two seeds that share a full model did 7 networks' work, of which one seed needs 4."""
    logo = MethodEntry(metrics={}, fit_evals=100, fit_seconds=60, score_evals=70, score_seconds=14)
    entry = DatasetEntry(n_queries=10, seeds=[1, 2], ceiling=None, methods={"logo": logo})
    line_ = Timing(method="logo", n_groups=3, n_queries=10, fit_seconds=30, query_seconds=0.8, query_evals=40)
    assert one_retraining(entry, [line_]) == Cost(fit_evals=100, fit_seconds=30, score_evals=40, score_seconds=8)
    assert one_retraining(entry) == Cost(fit_evals=100, fit_seconds=30, score_evals=35, score_seconds=7)
