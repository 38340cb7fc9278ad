"""The coalitions benchmark end to end on the tiny run: every figure that the issue names, none of it not a number."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "benchmarks", ROOT / "tests" / "run"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

pytestmark = pytest.mark.slow


def test_figures_of_a_tiny_run(tmp_path: Path) -> None:
    from subsetrun import MODELS, trained_root
    from tinyrun import Inline, copy_run

    import coalitions

    run = copy_run(tmp_path / "digits", trained_root())
    methods = ("retrack", "posterior", "similarity-pixel")
    coalitions.prepared(tmp_path, "digits", MODELS, methods, Inline())
    entry = coalitions.measure(run, "digits", methods, Inline())
    figures = entry.figures
    for name in (
        "trainings", "reliability_logo", "reliability_datamodel", "lds.retrack", "lds.logo", "lds.datamodel",
        "lds_ceiling", "share_correlation", "share_error", "without_r2.posterior", "without_r2.subsets",
        "reliability_datamodel_path.lo", "train_seconds",
    ):  # fmt: skip
        assert np.isfinite(figures[name]), name
    assert figures["trainings"] == MODELS
    text = coalitions.markdown({"digits": entry})
    assert "| reliability of datamodel |" in text


def test_reliability_by_spearman_brown() -> None:
    """Two halves with signal variance s and noise variance n each: r = s / (s + n), of both together 2r / (1 + r)."""
    import coalitions

    rng = np.random.default_rng(0)
    signal = rng.normal(size=(4000, 8))
    tables = tuple(signal + 2.0 * rng.normal(size=signal.shape) for _ in range(2))
    found = coalitions.repeated([tables], 2.0)  # type: ignore[list-item]
    assert found.mean == pytest.approx(2 / 6, abs=0.02)
    assert found.lo < found.mean < found.hi
