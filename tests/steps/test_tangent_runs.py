"""Tangent in a run: one task for all groups, the same files whatever was there, placebos, seeds, both doors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinyrun import SET, Inline, copy_run

import guda
from guda import steps
from guda.methods.base import get_method
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.run import Run
from guda.unlearning.bank import Counterfactual

SMALL = {"steps": 4, "batch": 16, "warmup": 1}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = copy_run(tmp_path / "run")
    steps.change_settings(found, ["tangent"], [f"{k}={v}" for k, v in SMALL.items()])
    return found


def files(run: Run) -> dict[str, bytes]:
    found = run.path("artifacts").glob("tangent-*/**/*.safetensors")
    return {p.relative_to(run.root).as_posix(): p.read_bytes() for p in found}


def test_one_task_makes_every_group_and_the_cost_is_shared(run: Run) -> None:
    method = get_method(run, "tangent")
    [task] = method.fit()
    groups = load_data(run).groups.names
    assert len(task.makes) == len(groups)
    assert task.cost == SMALL["steps"] * SMALL["batch"] * 3
    assert task.copies == len(groups)
    assert method.fit_evals() == pytest.approx(task.cost / len(groups))
    steps.fit(run, ["tangent"], Inline())
    assert method.fitted()
    scores = steps.score(run, SET, ["tangent"], Inline())["tangent"]
    assert (scores.score != 0).all()
    assert "tangent" in steps.evaluate(run, SET).methods
    assert set(steps.evaluate_function(run, SET, ["tangent"], Inline()).rows[0].own) == {"logo", "tangent"}


def test_a_missing_group_is_made_again_in_the_same_bytes_and_the_others_are_left(run: Run) -> None:
    steps.fit(run, ["tangent"], Inline())
    before = files(run)
    gone, *rest = sorted(before)
    stamps = {name: run.path(name).stat().st_mtime_ns for name in rest}
    run.path(gone).unlink()
    assert not get_method(run, "tangent").fitted()
    steps.fit(run, ["tangent"], Inline())
    assert files(run) == before
    assert {name: run.path(name).stat().st_mtime_ns for name in rest} == stamps


def test_python_makes_the_same_counterfactuals(run: Run) -> None:
    steps.fit(run, ["tangent"], Inline())
    method, training = get_method(run, "tangent"), run.recipe.training
    assert training is not None
    known = {k: getattr(training, k) for k in ("lr", "clip", "weight_decay", "flips")}
    bank = guda.unlearn(load_model(run, "base"), load_data(run), "tangent", **SMALL | known)
    for group in load_data(run).groups.names:
        assert Counterfactual.load(run.path(method.file(group))).digest() == bank[group].digest()  # type: ignore[attr-defined]


def test_placebos_and_seeds(run: Run) -> None:
    steps.change_settings(run, ["tangent"], ["seeds=[0,1]"])
    steps.fit(run, ["tangent"], Inline(), placebos=2)
    scores = steps.score(run, SET, ["tangent"], Inline())["tangent"]
    assert scores.stderr_training is not None
    assert len(files(run)) == 2 * len(load_data(run).groups) + 2
    first = files(run)
    steps.fit(run, ["tangent"], Inline(), placebos=3)
    assert first.items() <= files(run).items()


def test_bits_of_a_placebo_do_not_depend_on_the_others(run: Run, tmp_path: Path) -> None:
    other = copy_run(tmp_path / "other")
    steps.change_settings(other, ["tangent"], [f"{k}={v}" for k, v in SMALL.items()])
    steps.fit(run, ["tangent"], Inline(), placebos=1)
    steps.fit(other, ["tangent"], Inline(), placebos=3)
    assert files(run).items() <= files(other).items()
    assert len(files(other)) == len(files(run)) + 2
