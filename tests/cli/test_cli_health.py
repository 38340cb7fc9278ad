"""`guda health`, placebos and drift from the command line."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from commandline import Guda, refused
from rich.console import Console
from subsetrun import trained_root
from tinyrun import SET, Inline, copy_run, digits_folder, tiny, tree

from guda import steps
from guda.cli.display import health_tables
from guda.methods.health import Health
from guda.report.content import Content
from guda.run.run import Run
from guda.scoring.scores import Scores


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker needs seconds to import torch; test_cli_paths.py has them."""
    monkeypatch.setattr("guda.cli.options.make_engine", lambda quiet, **asked: Inline())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = copy_run(tmp_path / "run")
    steps.change_scoring(run, reference=4)
    return run


def test_health_for_people_and_for_machines(guda: Guda, run: Run) -> None:
    said = guda("health", run.root, "-n", 5)
    assert said.code == 0, said
    assert "retrack: nats; positive = images explained worse without the group" in said.out
    assert "on 15 training images: the full model has trained on them" in " ".join(said.out.split())
    assert "logo" not in said.out  # the oracle only when asked for
    assert Run.open(run.root).recipe.scoring.reference == 4  # of the recipe
    again = guda("health", run.root, "--method", "retrack", "-n", 5, "--json")
    found = Health.model_validate(json.loads(again.out)["retrack"])
    assert found.reference == "reference-n5-s0"
    assert again.err == ""
    for k, line in enumerate(line for line in said.out.splitlines() if line[:2] in ("0 ", "1 ", "2 ")):
        assert f"{abs(found.drift[k].mean):.2f} ± {found.drift[k].stderr:.2f}" in line
        assert f"{abs(found.matrix[k][k]):.2f}" in line


def test_verdicts_end_health_and_are_repeated_by_score(guda: Guda, run: Run) -> None:
    said = guda("health", run.root, "--method", "retrack")
    found = steps.health(run, ["retrack"], Inline())["retrack"]
    last = " ".join(said.out.split()).rpartition("retrack: ")[2]
    verdict = found.unsound().removeprefix("retrack: ") or "all 3 counterfactuals are sound"
    assert last == verdict
    warned = json.loads(guda("score", run.root, "--method", "retrack", "--json").out)["warnings"]
    assert [w for w in warned if w.startswith("retrack: ")] == ([found.unsound()] if found.unsound() else [])
    if found.unsound():
        assert f"Warning: {found.unsound()}" in guda("score", run.root, "--method", "retrack").out


def test_a_loss_that_still_falls_is_said_at_fit_and_score(guda: Guda, run: Run) -> None:
    card = run.path("models", "full-s0", "guda.json")
    value = json.loads(card.read_text())
    for losses, warned in (([1.0] * 100, False), ([1.0 - i / 110 for i in range(100)], True)):
        card.write_text(json.dumps(value | {"losses": losses}))
        for command in ("fit", "score"):
            said = guda(command, run.root, "--method", "retrack")
            assert said.code == 0, said
            assert ("Warning: the model may not be trained enough" in said.out) == warned
            told = json.loads(guda(command, run.root, "--method", "retrack", "--json").out)["warnings"]
            assert any("trained enough" in line for line in told) == warned


def test_a_narrow_terminal_gets_the_largest_leaks(run: Run) -> None:
    found = steps.health(run, ["retrack"], Inline())["retrack"]

    def printed(width: int) -> str:
        console = Console(width=100)
        with console.capture() as captured:
            console.print(*health_tables(found, width), sep="\n")
        return captured.get()

    assert "largest leak" in printed(30)
    assert "largest leak" not in printed(100)


def test_placebos_from_fit_to_score(guda: Guda, run: Run) -> None:
    # similarity cannot be fitted to a random group; retrack can, and is
    done = guda("fit", run.root, "--method", "similarity-pixel", "--method", "retrack", "--placebos", 2, "--json")
    value = json.loads(done.out)
    assert len(value.pop("warnings")) == 1  # a model of a few steps is not trained
    assert value == {"methods": ["similarity-pixel", "retrack"], "left_out": [], "tasks_run": 2}
    said = guda("score", run.root, "--method", "retrack")
    assert "2 placebo groups of 16 random images: half of their scores are below" in said.out
    assert "the first group is above that for" in said.out
    told = json.loads(guda("score", run.root, "--method", "retrack", "--json").out)["scores"]["retrack"]
    value = told["placebo"]
    assert value["placebos"] == 2
    assert value["median"] <= value["q95"]
    # one line for all doors: the table, the command line, the report and the page
    [name] = run.query_sets()
    stored = Scores.read(steps.scores_path(run, name, "retrack"))
    assert stored.floor == value["q95"]
    kinds = {query: verdict.kind for query, verdict in stored.verdict().items()}
    assert {query: answer["verdict"] for query, answer in told["answers"].items()} == kinds
    assert Counter(kinds.values()) == told["verdicts"]
    view = next(v for v in Content.read(run, name).views if v.id == "retrack")
    assert [v.kind for v in view.verdicts] == list(kinds.values())
    raced = guda("score", run.root, "--method", "retrack", "--stop", "budget=60")
    assert raced.code == 0
    assert "placebo groups of" not in raced.out  # placebos are not raced, but their line counts
    assert Scores.read(steps.scores_path(run, name, "retrack", "budget=60")).floor == value["q95"]


def test_drift_from_score_to_evaluate(guda: Guda, run: Run) -> None:
    said = guda("score", run.root, "--method", "retrack", "--drift", "subtract")
    assert "drift subtracted" in said.out
    value = json.loads(guda("evaluate", run.root, "--drift", "subtract", "--json").out)
    assert set(value["methods"]) == {"logo", "retrack", "similarity-pixel"}
    assert "less their drift" in value["note"]
    assert Run.open(run.root).recipe.scoring.drift == "keep"
    assert "drift subtracted" not in guda("score", run.root, "--method", "retrack").out


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["health", "--method", "similarity-pixel", "-n", 9], ["makes no counterfactual models"]),
        (["health", "--method", "retrak"], ["unknown method", "did you mean 'retrack'?"]),
        (["health", "--method", "shift", "-n", 9], ["shift is not fitted", "guda fit"]),
        (["score", "--drift", "halve"], ["scoring.drift", "'keep' or 'subtract'"]),
        (["score", "--method", "retrack", "--stop", "top1@0.9", "--drift", "subtract"], ["give --drift keep"]),
        (["evaluate", "--drift", "none"], ["scoring.drift"]),
        (["fit", "--method", "similarity-pixel", "--placebos", 1], ["similarity-pixel unlearns nothing"]),
        (["fit", "--method", "logo", "--placebos", 1], ["logo unlearns nothing"]),
        (["score", "--queries", "reference-n4-s0"], ["no query set", SET]),
    ],
)
def test_mistakes_change_nothing(guda: Guda, run: Run, args: list, parts: list[str]) -> None:
    before = tree(run.root)
    refused(guda(args[0], run.root, *args[1:]), *parts)
    assert tree(run.root) == before


def test_nothing_unlearned_yet(guda: Guda, tmp_path: Path) -> None:
    steps.init(tmp_path / "new", tiny(digits_folder()))
    refused(guda("health", tmp_path / "new"), "nothing is unlearned", "guda fit")


def test_fitted_subset_models_are_not_left_out(guda: Guda, tmp_path: Path) -> None:
    """They are scored only through datamodel, so they are no method of `guda score`."""
    run = copy_run(tmp_path / "halves", trained_root())
    assert json.loads(guda("fit", run.root, "--json").out)["left_out"] == []
    for folder in run.path("artifacts").glob("subsets-*"):
        shutil.rmtree(folder)
    assert json.loads(guda("fit", run.root, "--json").out)["left_out"] == ["subsets"]


def test_fit_says_what_it_leaves_out_and_evaluate_what_is_missing(guda: Guda, run: Run) -> None:
    """fit, sample, score, evaluate, without a word of LOGO, ends in a line that says how to go on."""
    assert json.loads(guda("fit", run.root, "--json").out)["left_out"] == []  # it is fitted here
    for folder in run.path("artifacts").glob("logo-*"):
        shutil.rmtree(folder)
    done = guda("fit", run.root, "--json")
    assert (done.code, json.loads(done.out)["left_out"]) == (0, ["logo"])
    command = f"guda fit {run.root} --method logo"
    assert command in guda("fit", run.root).out
    missing = guda("evaluate", run.root)
    assert missing.code == 2
    assert "[scores-missing]" in missing.err
    assert command in missing.err
