"""`guda evaluate --cross`: methods against what several retrainings change alike."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run

from guda import steps
from guda.evaluation.metrics import top1
from guda.run.run import Run
from guda.steps.function import compare_pairs, cross_scores
from refusals import refused


def retrainings(seeds: int, noise: float, n: int = 150, groups: int = 5, size: int = 400) -> tuple[dict, np.ndarray]:
    """(products of every pair of seeds [Q, G], the squared systematic change): vectors of length `size` with noise."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(n, groups, size)) * rng.gamma(2.0, size=(n, groups, 1)) / np.sqrt(size)
    changes = [truth + noise * rng.normal(size=truth.shape) for _ in range(seeds)]
    pairs = {(a, b): (changes[a] * changes[b]).sum(-1) for a, b in combinations(range(seeds), 2)}
    return pairs, (truth**2).sum(-1)


def test_pairs_are_compared_with_pairs_that_share_no_seed() -> None:
    gold, truth = retrainings(4, 0.3)
    methods, ratio, ceiling = compare_pairs(
        gold, {"truth": truth, "noise": np.random.default_rng(1).normal(size=truth.shape)}
    )
    assert ceiling is not None
    brute = [top1(gold[a], gold[b]).mean() for a, b in (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))]
    assert ceiling["top1"].mean == pytest.approx(np.mean(brute))
    assert methods["truth"]["top1"].mean == pytest.approx(np.mean([top1(truth, g).mean() for g in gold.values()]))
    assert methods["truth"]["top1"].mean > ceiling["top1"].mean  # it has no retraining noise
    assert ratio["truth"]["top1"].lo > 1
    assert methods["noise"]["top1"].lo < 0.2 < methods["noise"]["top1"].hi


def test_below_four_seeds_there_is_no_ceiling() -> None:
    gold, truth = retrainings(3, 0.3)
    methods, ratio, ceiling = compare_pairs(gold, {"truth": truth})
    assert ceiling is None
    assert ratio == {}
    assert methods["truth"]["top1"].mean == pytest.approx(top1(truth, np.mean(list(gold.values()), axis=0)).mean())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def test_a_run_is_compared_and_nothing_is_computed_twice(run: Run) -> None:
    found = steps.evaluate_cross(run, SET, Inline())
    pairs = cross_scores(run, SET, Inline())
    one, two = found.seeds
    assert set(pairs) == {(one, one), (one, two), (two, two)}
    assert (np.abs(pairs[one, two]) <= np.sqrt(pairs[one, one] * pairs[two, two]) + 1e-9).all()
    assert found.systematic == pytest.approx(pairs[one, two].mean() / ((pairs[one, one] + pairs[two, two]) / 2).mean())
    assert "retrack" in found.methods
    assert "logo" not in found.methods
    stored = json.loads((steps.scores_folder(run, SET) / "cross.json").read_text())
    assert stored["methods"]["retrack"]["top1"]["mean"] == found.methods["retrack"]["top1"].mean
    again = Inline()
    steps.evaluate_cross(run, SET, again)
    assert again.ran == []


def test_one_seed_has_nothing_in_common_with_another(run: Run) -> None:
    steps.change_settings(run, ["logo"], ["seeds=[1]"])
    with refused("seeds-too-few"):
        steps.evaluate_cross(run, SET, Inline())
