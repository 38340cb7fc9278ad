"""The tiny run with subset models and a posterior, made once per process; copy it before changing anything."""

from __future__ import annotations

import functools
from pathlib import Path

from tinyrun import SET, Inline, copy_run, finished_root

from guda import steps

MODELS = 16


@functools.cache
def trained_root() -> Path:
    root = finished_root().parent / "with-subsets"
    run = copy_run(root)
    steps.update_settings(run, "subsets", {"models": MODELS})
    steps.update_settings(run, "posterior", {"components": 1})
    steps.fit(run, ["subsets", "posterior"], Inline())
    steps.score(run, SET, ["datamodel"], Inline())
    return root
