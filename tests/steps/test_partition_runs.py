"""Two tiny runs, one of them with a noisy partition, side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinyrun import SET, Inline, copy_run, digits_folder, tiny

from guda import steps
from guda.errors import Mismatch
from guda.evaluation.partition import PartitionFile
from guda.files import read_json
from guda.run.run import Run
from guda.steps.score import scores_path
from refusals import refused


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("partition")
    noisy = steps.init(folder / "noisy", tiny(digits_folder(), data={"partition": {"fraction": 0.13}}))
    steps.pipeline(noisy, Inline())
    return copy_run(folder / "clean"), noisy


def test_every_method_of_both_runs(runs: tuple[Run, Run]) -> None:
    clean, noisy = runs
    found = steps.partition(clean, noisy)
    assert [r.method for r in found.rows] == ["logo", "retrack", "similarity-pixel"]
    assert found.moved_per_group == 2
    assert found.oracle is None  # exposure matching made another full model, and so other pictures
    logo = found.rows[0]
    assert logo.change["top1"].mean == pytest.approx(logo.noisy["top1"].mean - logo.clean["top1"].mean)
    assert PartitionFile.model_validate(read_json(noisy.path("partition.json"))) == found
    first = noisy.path("partition.md").read_bytes()
    steps.partition(clean, noisy)
    assert noisy.path("partition.md").read_bytes() == first


def test_oracles_are_compared_on_the_same_pictures(runs: tuple[Run, Run], tmp_path: Path) -> None:
    import shutil

    clean, noisy = runs
    shutil.copytree(noisy.root, tmp_path / "noisy")
    other = Run.open(tmp_path / "noisy")
    for part in ("queries", "scores"):
        shutil.rmtree(other.path(part, SET))
        shutil.copytree(clean.path(part, SET), other.path(part, SET))
    found = steps.partition(clean, other)
    assert found.oracle is not None
    assert found.oracle["top1"].mean == 1.0  # the scores are copies of the clean oracle's
    assert scores_path(other, SET, "logo").is_file()


def test_the_wrong_runs_are_refused(runs: tuple[Run, Run], tmp_path: Path) -> None:
    clean, noisy = runs
    with refused("partition-runs-swapped"):
        steps.partition(clean, clean)
    with refused("partition-runs-swapped"):
        steps.partition(noisy, noisy)
    other = steps.init(tmp_path / "other", tiny(digits_folder(), training={"steps": 41}))
    with refused("partition-recipes-differ", kind=Mismatch):
        steps.partition(other, noisy)
    plain = steps.init(tmp_path / "plain", tiny(digits_folder()))
    with refused("query-set-missing"):
        steps.partition(plain, noisy)
