"""A tree of groups on the command line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from commandline import Guda, refused

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))
from tinyrun import tiny, write_digits


@pytest.fixture
def art(tmp_path: Path) -> Path:
    flat = write_digits(tmp_path / "flat", ("0", "1", "2", "3"), 10)
    for above, digits in (("a", "01"), ("b", "23")):
        (tmp_path / "art" / above).mkdir(parents=True)
        for digit in digits:
            shutil.move(flat / digit, tmp_path / "art" / above / digit)
    return tmp_path / "art"


@pytest.mark.slow
def test_from_folders_to_a_report_down_the_tree(guda: Guda, art: Path, tmp_path: Path) -> None:
    run, recipe = tmp_path / "run", tmp_path / "recipe.yaml"
    recipe.write_text(tiny("digits").to_yaml())
    made = guda("init", run, "--recipe", recipe, "--data", art, "--group-by", "level:1/level:2")
    assert made.code == 0, made.err
    assert guda("fit", run, "-m", "retrack", "--workers", 1).code == 0
    assert guda("sample", run, "-n", 4, "--workers", 1).code == 0
    rule = ("--stop", "top1@0.9,budget=3000", "--screen", "tree:1")
    answer = guda("score", run, "-m", "retrack", *rule, "--workers", 1)
    assert answer.code == 0, answer.err
    assert "evaluations per picture on average\n" in answer.out
    first, second = [line for line in answer.out.splitlines() if line.startswith("  ") and " nats" in line][:2]
    assert "a: " in first or "b: " in first
    assert "  > 1. " in second
    assert guda("report", run, *rule, "--no-drawings").code == 0
    page = next(run.glob("report-*tree=1.html")).read_text()
    assert "level above (retrack): 1. " in page
    refused(guda("report", run, "--stop", "top1@0.9", "--screen", "tree:2"), "--stop top1@0.9 --screen tree:2")
    refused(guda("report", run, "--screen", "tree:2"), "give --stop too")
    refused(guda("score", run, "-m", "retrack", "--groups", "a,0"), "'0' is a part of 'a'")
