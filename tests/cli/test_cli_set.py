"""`guda set` changes the recipe; options of other commands, and commands that are refused, do not."""

import json
from pathlib import Path

import pytest
from commandline import Guda, refused
from tinyrun import SET, copy_run, tree, write_digits

from guda.run.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def test_refused_commands_leave_everything_as_it_was(guda: Guda, run: Run) -> None:
    before = tree(run.root)
    for args, code in (
        (("score", "--groups", "0,1", "-q", "nope"), "query-set-unknown"),
        (("score", "--rounds", 7, "-q", "nope"), "query-set-unknown"),
        (("fit", "--groups", "0,1", "-m", "nope"), "method-unknown"),
        (("fit", "-m", "retrack", "--set", "lr=inf"), "setting-invalid"),
        (("fit", "-m", "retrack", "--set", "lr=.inf"), "setting-not-finite"),
        (("fit", "-m", "retrack", "--set", f"steps={'9' * 5000}"), "set-not-yaml"),
        (("score", "-m", "retrack", "--set", "steps=9"), "method-not-fitted"),
        (("set", "methods.retrack.lr=.nan"), "setting-not-finite"),
        (("set", "data.size=3"), "set-section-locked"),
    ):
        command, *rest = args
        refused(guda(command, run.root, *rest), f"[{code}]")
        assert tree(run.root) == before, args


def test_options_hold_for_their_command_and_set_for_good(guda: Guda, run: Run) -> None:
    text = run.path("recipe.yaml").read_bytes()
    fitted = guda("fit", run.root, "-m", "retrack", "--set", "steps=3", "--workers", 1)
    assert fitted.code == 0, fitted.err
    assert "methods.retrack.steps=3" in fitted.out  # the `guda set` that would keep it
    options = ("score", run.root, "-q", SET, "-m", "retrack", "--workers", 1, "--json")
    value = json.loads(guda(*options, "--set", "steps=3", "--rounds", 1).out)
    other = Path(value["scores"]["retrack"]["path"])
    assert run.path("recipe.yaml").read_bytes() == text
    assert other.parent.name.startswith("with-")
    own = Path(json.loads(guda(*options).out)["scores"]["retrack"]["path"])
    assert own == run.path("scores", SET, "retrack.parquet")
    done = guda("set", run.root, "methods.retrack.steps=3", "scoring.rounds=1", "--json")
    assert json.loads(done.out)["set"] == {"methods.retrack.steps": 3, "scoring.rounds": 1}
    assert Path(json.loads(guda(*options).out)["scores"]["retrack"]["path"]) == own
    assert own.read_bytes() == other.read_bytes()  # the same settings, the same scores


def test_sizes_beyond_reason_are_refused_before_anything_is_made(guda: Guda, tmp_path: Path) -> None:
    data = write_digits(tmp_path / "art", each=3)
    for options in (("--size", 60000), ("--size", 8, "--scheduler", "linear:²")):
        answer = guda("init", tmp_path / "new", "--data", data, *options)
        assert answer.code == 2, answer
        assert "Traceback" not in answer.err
        assert not (tmp_path / "new").exists()
