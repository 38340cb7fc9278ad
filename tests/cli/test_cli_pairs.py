"""`guda evaluate --pairs`: methods against each other, on a finished run."""

from __future__ import annotations

import json
from pathlib import Path

from commandline import Guda
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
    assert "in Top-1 (paired over queries, Holm-corrected over 3 pairs)" in " ".join(without.out.split())
