"""`guda tune` and `guda ablate` as a user types them, right and wrong."""

import json
from pathlib import Path

import pytest
import yaml
from commandline import Guda, program, refused
from tinyrun import SET, copy_run, tree

from guda.evaluation.sweep import read_sweep

TUNING = "samples-s1-n5-t4"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "run").root


def as_json(answer) -> dict:
    assert answer.code == 0, answer
    return json.loads(answer.out)


@pytest.mark.slow
def test_tune(guda: Guda, run: Path) -> None:
    asked = ("tune", run, "--method", "retrack", "-n", 5, "--search", "lr=1e-4..1e-1,steps=1|2", "--workers", 1)
    value = as_json(guda(*asked, "--trials", 2, "--groups", "0,2", "--json"))
    assert value["queries"] == TUNING
    assert value["groups"] == ["0", "2"]
    assert (value["trials"], value["new_trials"], value["applied"]) == (2, 2, False)
    assert value["best"]["settings"]["lr"] == value["chosen"]["lr"]
    assert isinstance(value["separated"], bool)
    again = as_json(guda(*asked, "--trials", 2, "--groups", "0", "--groups", "2", "--apply", "--json"))
    assert again == value | {"new_trials": 0, "applied": True}
    assert yaml.safe_load((run / "recipe.yaml").read_text())["methods"]["retrack"]["lr"] == value["chosen"]["lr"]
    shown = guda(*asked, "--trials", 2, "--groups", "2")  # how many: a name alone has no ranking
    assert shown.code == 0, shown.err
    assert "retrack: 2 trials (" in shown.out
    assert "separated from the second (top1 difference" in shown.out
    assert f"Recipe: {run}/tune/retrack-" in shown.out


def test_ablate(guda: Guda, run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "short.yaml"
    mine.write_text("{name: short, method: retrack, axis: steps, values: [1, 2]}")
    shown = guda("ablate", run, mine, "--workers", 1)
    assert shown.code == 0, shown.err
    for part in ("LOGO, one retraining (ceiling)", "steps = 1", "steps = 5 (recipe)", "random ranking", "short.json"):
        assert part in shown.out
    assert shown.out.rstrip().splitlines()[-1].startswith("This sweep is reported, not selected on")
    value = as_json(guda("ablate", run, mine, "-q", SET, "--json"))["short"]
    found = read_sweep(Path(value.pop("path")))
    assert found.model_dump(mode="json") == value


def test_a_shipped_sweep_by_its_name(guda: Guda, run: Path, tmp_path: Path) -> None:
    """No folder of the user's is looked at for a plain name."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["methods"]["retrack"] |= {"steps": 2, "batch_forget": 2, "batch_retain": 2}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    value = as_json(guda("ablate", run, "k", "--workers", 1, "--json"))
    assert [(r["label"], r["settings"]["k_nearest"]) for r in value["k"]["rows"]] == [
        ("1", 1),
        ("5", 5),
        ("10", 10),
        ("50", 50),
        ("all", None),
    ]


def test_mistakes_are_one_line(guda: Guda, run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("{name: mine, method: retrack, axis: steps, values: [many]}")
    before = tree(run)
    tune = ("tune", run, "--method")
    for args, parts in [
        ((*tune, "retrak"), ["unknown method 'retrak'", "did you mean"]),
        ((*tune, "logo"), ["logo is the oracle"]),
        ((*tune, "similarity-pixel"), ["no default search", "--search"]),
        ((*tune, "retrack", "--queries-seed", 0), ["seed 0", "evaluated on", "--queries-seed"]),
        ((*tune, "retrack", "--groups", 9), ["--groups", "the run has 3"]),
        ((*tune, "retrack", "--groups", "0,a"), ["unknown group 'a'"]),
        ((*tune, "retrack", "--search", "lr"), ["write key=low..high"]),
        ((*tune, "retrack", "--search", "l=1|2"), ["search of retrack", "settings: steps, lr"]),
        ((*tune, "retrack", "--space", tmp_path / "none.yaml"), ["no such file"]),
        ((*tune, "retrack", "--space", mine, "--search", "lr=1|2"), ["either --search or --space"]),
        (("tune", tmp_path / "none", "--method", "retrack"), ["does not exist"]),
        (("ablate", run, "epoch"), ["no ablation 'epoch'", "epochs, eta, hybrid, k, lambda"]),
        (("ablate", run, tmp_path / "none.yaml"), ["none.yaml does not exist"]),
        (("ablate", run, mine), ["ablation mine, steps = many"]),
        (("ablate", run, mine, mine), ["two ablations are called 'mine'"]),
        (("ablate", run, "shift-lr", "--queries", "nothing"), ["no query set 'nothing'"]),
    ]:
        refused(guda(*args), *parts)
        assert tree(run) == before, args


def test_help_needs_nothing_heavy() -> None:
    answer = program("--help")
    assert " tune " in answer.out
    assert " ablate " in answer.out
