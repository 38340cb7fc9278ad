"""Whether the run's model is trained enough, as a run keeps it and every command repeats it."""

import shutil
from pathlib import Path

import pytest
from tinyrun import copy_run

from guda import steps
from guda.files import read_json
from guda.methods.trained import FILE, trained
from guda.run.run import Run
from guda.scoring.trained import Trained

BAD = Trained(pictures=48, skill=-3.0, skill_stderr=0.1, bands=[], samples=48, unlike=0.9)


def test_it_is_measured_once_and_told_before_any_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = copy_run(tmp_path / "run")
    found = trained(run)
    assert found is not None
    assert found.pictures == 48
    assert found.samples == 0  # twelve are too few
    assert Trained.model_validate(read_json(run.path(FILE))["found"]) == found
    assert (found.text in steps.warnings(run)) == bool(found.problems)

    def asked(*_: object) -> Trained:
        asks.append(1)
        return BAD

    asks: list[int] = []
    monkeypatch.setattr("guda.methods.trained.how_trained", asked)
    assert trained(Run.open(run.root)) == found
    assert not asks
    for damaged in ("{", '{"of": 3}'):
        run.path(FILE).write_text(damaged)
        assert trained(run) == BAD
    assert len(asks) == 2
    assert BAD.problems == ("knows-little", "samples-unlike-data")
    assert BAD.text in steps.warnings(run)


def test_nothing_is_claimed_without_a_model(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    shutil.rmtree(run.path("models"))
    assert trained(run) is None
    assert not run.path(FILE).exists()
