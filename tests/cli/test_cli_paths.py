"""What the README tells a user to type."""

import json
import os
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from commandline import PROGRAM, Guda, program, refused
from tinyrun import (
    SET,
    copy_run,
    digits_folder,
    exact,
    finished_root,
    tiny,
    tree,
    unet_folder,
    write_digits,
    write_queries,
)

import guda as package
from guda.scoring.reading import RACED
from guda.scoring.scores import Scores
from programs import Programs
from waiting import LIMIT, wait_for


def as_json(answer) -> dict:
    assert answer.code == 0, answer
    return json.loads(answer.out)


def test_help_imports_nothing_heavy() -> None:
    answer = program("--help")
    assert answer.code == 0
    for verb in ("demo", "init", "train", "fit", "sample", "score", "evaluate", "report", "status"):
        assert f" {verb} " in answer.out
    code = (
        "import sys; sys.argv = ['guda', 'fit', '--help']\n"
        "from guda.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'diffusers', 'numpy', 'pandas', 'pyarrow', 'sklearn'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "--set" in out
    assert out.rstrip().endswith("[]")


def test_version(guda: Guda) -> None:
    """One line for a bug report, from metadata alone: nothing heavy is imported (test above)."""
    line = guda("--version").out
    assert line.startswith(f"guda {package.__version__} (")
    assert line.count("\n") == 1
    for part in (f"Python {platform.python_version()}", f"torch {version('torch')}", "diffusers "):
        assert part in line


def test_usage_errors_exit_with_2(guda: Guda) -> None:
    for args in (
        ["fitt", "x"],
        ["fit"],
        ["fit", "x", "--nope"],
        ["fit", "x", "--workers", "0"],
        ["init", "x", "--size", "a"],
    ):
        answer = guda(*args)
        assert answer.code == 2
        assert answer.err
        assert "Traceback" not in answer.err


def test_own_pictures_and_own_model(guda: Guda, tmp_path: Path) -> None:
    """guda init, fit, score, report, status; each verb plain and with --json, real programs for the long ones."""
    run, art = tmp_path / "runs" / "art", write_digits(tmp_path / "art", each=8)
    pictures = write_queries(tmp_path / "generated")
    made = program("init", run, "--model", unet_folder(), "--data", art)
    assert made.code == 0, made.err
    assert "24 images in 3 groups" in made.out
    assert f"Next: guda fit {run}" in made.out
    value = as_json(guda("init", run, "--model", unet_folder(), "--data", art, "--json"))
    assert value["groups"] == {"0": 8, "1": 8, "2": 8}
    assert len(value["model"]) == 64

    recipe = yaml.safe_load((run / "recipe.yaml").read_text())  # editable sections: smaller, so that it is quick
    recipe["scoring"] = {"strata": 4, "rounds": 2, "block": 16, "shard": 4}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))

    assert guda("set", run, "methods.retrack.steps=2").code == 0
    fitted = guda("fit", run, "--method", "retrack", "--workers", "1")
    assert fitted.code == 0, fitted.err
    assert "Fitted retrack (3 tasks run)." in fitted.out
    again = program("fit", run, "--method", "retrack", "--json")
    assert as_json(again) == {"methods": ["retrack"], "left_out": [], "tasks_run": 0, "warnings": []}
    assert "Traceback" not in again.err

    value = as_json(program("score", run, "--queries", pictures, "--workers", "1", "--json"))
    assert value["queries"] == "generated"
    scored = value["scores"]["retrack"]
    assert scored["unit"] == "nats"
    table = Scores.read(Path(scored["path"]))
    assert table.queries == tuple(f"q{i:02d}" for i in range(6))
    assert table.groups == ("0", "1", "2")
    shown = guda("score", run, "--queries", "generated", "--top", "2")
    assert shown.code == 0
    assert "positive = the group mattered" in shown.out
    assert "ELBO: sum over 1 <= t <=" in shown.out
    assert "nats" in shown.out
    assert "... 1 more in" in shown.out

    page = guda("report", run, "--no-drawings")
    assert page.code == 0, page.err
    assert (run / "report.html").is_file(), "src/guda/report/page.py writes nothing yet"
    told = {"report": str(run / "report.html"), "json": str(run / "report.json")}
    assert as_json(guda("report", run, "--json", "--no-drawings")) == told

    told = program("status", run)
    assert told.code == 0
    for line in ("retrack: 3/3 fitted", "generated: 6, scored by retrack", "ready"):
        assert line in told.out
    value = as_json(guda("status", run, "--json"))
    assert value["methods"]["retrack"] == {"fitted": 3, "of": 3}
    assert value["report"] == str(run / "report.html")


@pytest.mark.slow
def test_no_model_yet(guda: Guda, tmp_path: Path) -> None:
    """init with a recipe, train, fit, sample, score, evaluate; one worker gives the bytes of this process."""
    run, recipe = tmp_path / "run", tmp_path / "tiny.yaml"
    recipe.write_text(tiny("digits").to_yaml())
    made = guda("init", run, "--data", digits_folder(), "--recipe", recipe)
    assert made.code == 0, made.err
    assert f"Next: guda train {run}" in made.out
    assert "not trained" in guda("status", run).out
    assert as_json(guda("train", run, "--workers", "1", "--json")) == {"model": str(run / "models" / "full-s0")}
    assert guda("train", run).code == 0  # nothing left to do
    value = as_json(
        guda("fit", run, "-m", "logo", "-m", "retrack", "-m", "similarity-pixel", "--workers", "1", "--json")
    )
    assert value["tasks_run"] == 2 + 6 + 3 + 1
    assert as_json(guda("sample", run, "--workers", "1", "--json")) == {"queries": SET}
    assert f"Query set {SET}" in guda("sample", run).out
    scored = guda("score", run, "--workers", "1")
    assert scored.code == 0, scored.err
    for name in ("logo (nats", "retrack (nats", "similarity-pixel (cosine"):
        assert name in scored.out
    entry = as_json(guda("evaluate", run, "--json"))
    assert entry == json.loads((run / "evaluation.json").read_text())
    assert set(entry["methods"]) == {"logo", "retrack", "similarity-pixel"}
    guda.monkeypatch.setenv("COLUMNS", "200")
    shown = guda("evaluate", run)
    assert shown.code == 0
    assert "retrack" in shown.out
    assert exact(run) == exact(finished_root())


def test_demo_goes_on_from_a_folder_of_its_own_recipe_only(guda: Guda, tmp_path: Path) -> None:
    copy_run(tmp_path / "run")
    answer = guda("demo", tmp_path / "run")
    assert answer.code == 2
    assert "differs: found" in answer.err


def test_ctrl_c_says_that_nothing_is_lost(tmp_path: Path, launch: Programs) -> None:
    from guda import steps

    root = tmp_path / "run"
    steps.init(root, tiny(digits_folder(), training={"steps": 100_000, "checkpoint_every": 100_000}))
    command = [PROGRAM, "train", str(root), "--workers", "1", "--json"]
    process = launch(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def heartbeats() -> list[Path]:
        return [p for p in (root / "progress").glob("*.json") if not p.name.startswith(".")]  # not half-written ones

    wait_for(lambda: heartbeats() or process.poll() is not None, "a heartbeat")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the driver and its workers
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert out == ""
    assert err == "guda: stopped; nothing finished is lost, run the same command again to resume\n"
    assert heartbeats() == []


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "demo", "demo", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)
    assert (tmp_path / entry["report"]).is_file()
    assert entry["ceiling"]["top1"]["mean"] > 0.3
    assert entry["methods"]["retrack"]["metrics"]["top1"]["mean"] > 0.3


def test_plan_race_and_bands_from_the_command_line(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run").root
    value = as_json(guda("plan", run, "-m", "retrack", "-n", 5, "--json"))
    rows = {r["what"]: r for r in value["rows"]}
    assert rows["fit retrack"]["evals"] == 0
    assert rows["score 5 queries by retrack"]["evals"] == 4 * 12 * 2 * 5
    text = guda("plan", run, "-m", "retrack")
    assert text.code == 0
    assert "precision against budget" in text.out
    banded = as_json(guda("score", run, "-m", "retrack", "--band", "30:100", "--json"))["scores"]["retrack"]
    assert banded["estimand"].endswith("bands 30:100 only")
    assert Path(banded["path"]).parent.name == "30-100"
    raced = as_json(guda("score", run, "-m", "retrack", "--stop", "budget=60", "--workers", 1, "--json"))
    assert "raced to budget=60" in raced["scores"]["retrack"]["estimand"]
    assert Path(raced["scores"]["retrack"]["path"]).is_file()
    assert raced["scores"]["retrack"]["validation"] == RACED
    table = as_json(guda("evaluate", run, "--bands", "--json"))
    assert set(table["60:100"]) == {"ceiling", "retrack", "similarity-pixel"}
    assert "t in 60:100" in guda("evaluate", run, "--bands").out


def test_bad_stop_rules_and_bands_leave_the_run_alone(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run").root
    folder = write_queries(tmp_path / "new")
    before = tree(run)
    for options, part in (
        (["--stop", "top1"], "stop rule"),
        (["--stop", "budget=0"], "budget of no evaluations"),
        (["--band", "5"], "write FROM:TO"),
        (["--stop", "top1@0.9", "--band", "1:50"], "either --stop or --band"),
    ):
        refused(guda("score", run, "-q", folder, "-m", "retrack", "--rounds", 5, *options), part)
        assert tree(run) == before
    refused(guda("evaluate", run, "--band", "90:300"), "outside this schedule")
