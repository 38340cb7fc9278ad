"""`guda likelihood` from the command line."""

import json
from pathlib import Path

import pytest
from commandline import Guda, refused
from tinyrun import SET, Inline, copy_run, tree

from guda.run.run import Run


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker needs seconds to import torch; test_cli_paths.py has them."""
    monkeypatch.setattr("guda.cli.options.make_engine", lambda quiet, **asked: Inline())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def test_for_people_and_for_machines(guda: Guda, run: Run) -> None:
    options = ("-n", 5, "--steps", 3, "--solver", "rk4", "--seeds", 1)
    said = guda("likelihood", run.root, *options)
    assert said.code == 0, said
    flat = " ".join(said.out.split())
    assert f"Delta ELBO against delta log p: 5 queries of {SET}" in flat
    assert "rk4 in 3 steps, 1 probe seed" in flat
    assert flat.index("Oracle: LOGO by delta ELBO") < flat.index("Oracle: LOGO by delta log p")
    for row in ("similarity-pixel", "retrack-logp", "LOGO"):
        assert said.out.count(row) >= 2, row
    assert Run.open(run.root).recipe == run.recipe
    value = json.loads(guda("likelihood", run.root, *options, "--json").out)
    assert json.loads(Path(value.pop("path")).read_text()) == value
    assert set(value["oracles"]) == {"elbo", "likelihood"}
    only = guda("likelihood", run.root, "--method", "retrack", *options, "--steps", 2)
    assert "Not compared with LOGO" in only.out


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--solver", "euler"], ["likelihood.solver", "'heun', 'rk4' or 'adaptive'"]),
        (["--method", "similarity-pixel"], ["makes no counterfactual models"]),
        (["--method", "retrak", "--steps", 9], ["unknown method", "did you mean 'retrack'?"]),
        (["--method", "shift", "--seeds", 3], ["shift is not fitted", "guda fit"]),
        (["--queries", "nowhere"], ["no query set 'nowhere'", SET]),
    ],
)
def test_mistakes_change_nothing(guda: Guda, run: Run, args: list, parts: list[str]) -> None:
    before = tree(run.root)
    refused(guda("likelihood", run.root, *args), *parts)
    assert tree(run.root) == before


def test_without_torchdiffeq_one_line_says_what_to_install(
    guda: Guda, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchdiffeq", None)
    before = tree(run.root)
    refused(guda("likelihood", run.root, "--solver", "adaptive"), "guda[likelihood]", "--solver heun")
    assert tree(run.root) == before


def test_nothing_scored_yet(guda: Guda, run: Run) -> None:
    for path in run.path("scores", SET).glob("*.parquet"):
        path.unlink()
    refused(guda("likelihood", run.root), "no model is scored", "guda score")
