"""`guda evaluate --pairs`, methods against each other; `guda pairs`, two groups left out together."""

from __future__ import annotations

import json
from pathlib import Path

from commandline import Guda, refused
from tinyrun import copy_run


def test_methods_against_each_other(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    answer = guda("evaluate", run.root, "--pairs")
    assert answer.code == 0, answer.err
    assert "every pair of methods, paired over 12 queries, 3 comparisons" in answer.out
    assert "- similarity-pixel" in answer.out
    assert "not separated" in answer.out  # two dozen steps of training tell nothing apart
    found = json.loads(guda("evaluate", run.root, "--pairs", "--json").out)
    assert [(p["a"], p["b"]) for p in found["pairs"]] == [
        ("logo", "retrack"), ("logo", "similarity-pixel"), ("retrack", "similarity-pixel"),
    ]  # fmt: skip
    assert set(found["pairs"][0]["metrics"]["top1"]) == {"mean", "lo", "hi", "p", "p_holm"}
    without = guda("evaluate", run.root)
    assert "every pair of methods" not in without.out
    assert (
        "Top-1 (paired over queries, Holm-corrected over 3 pairs in 3 metrics): not separated from the best, "
        in " ".join(without.out.split())
    )


def test_two_groups_together(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    answer = guda("pairs", run.root, "--pair", "0,2", "--method", "retrack", "--workers", 1)
    assert answer.code == 0, answer.err
    assert "0 + 2, logo" in answer.out
    assert "joint - sum > 0" in answer.out
    found = json.loads(guda("pairs", run.root, "--pair", "2,0", "--json").out)
    assert [(r["method"], r["a"], r["b"]) for r in found["rows"]] == [("logo", "0", "2"), ("retrack", "0", "2")]
    refused(guda("pairs", run.root, "--pair", "0,nine"), "unknown group 'nine'")
