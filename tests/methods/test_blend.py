"""Blend: weights by least squares in function space on tuning pictures only, and scores made of the members' terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run

from guda import steps
from guda.files import read_json, write_json
from guda.methods.base import get_method
from guda.methods.blend import Blend, band_weights
from guda.methods.terms import load_queries
from guda.run.run import Run
from refusals import refused

MEMBERS = ("retrack", "continuation")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = copy_run(tmp_path / "run")
    steps.change_settings(found, ["continuation"], ["steps=4", "batch=16", "warmup=1"])
    steps.change_settings(found, ["blend"], ["methods=[retrack,continuation]", "pictures=6"])
    return found


def products(changes: np.ndarray) -> np.ndarray:
    """[Q, G, S, n, n] of changes [Q, G, S, n, D]."""
    return np.einsum("qgsid,qgsjd->qgsij", changes, changes)


def test_weights_are_what_the_retrainings_are_made_of() -> None:
    """Retrainings that are exactly 2 a + 0 b at low noise and 0.5 a + 3 b above; b alone would be negative below."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5, 3, 8, 40))
    t = np.tile(np.arange(8) * 100, (5, 1))
    low = (t < 400)[:, None, :, None]
    gold = np.where(low, 2 * a - 0.3 * b, 0.5 * a + 3 * b)
    changes = np.stack([gold, gold, a, b], axis=3)
    found = band_weights(products(changes), t, ["a", "b"], 2, (0, 400, 800))
    assert found["0:400"]["b"] == 0
    assert found["0:400"]["a"] == pytest.approx(2, abs=0.1)
    assert found["400:800"] == pytest.approx({"a": 0.5, "b": 3}, abs=1e-6)


def test_a_method_that_opposes_retraining_counts_for_nothing() -> None:
    rng = np.random.default_rng(1)
    gold = rng.normal(size=(4, 2, 3, 20))
    t = np.tile(np.array([0, 1, 2]), (4, 1))
    with refused("blend-weights-zero"):
        band_weights(products(np.stack([gold, -gold], axis=3)), t, ["a"], 1, (0, 3))


@pytest.mark.parametrize("estimand", ["elbo", "path"])
def test_scores_are_the_weighted_sum_of_the_members_draws(run: Run, estimand: str) -> None:
    steps.change_scoring(run, estimand=estimand)
    steps.fit(run, ["blend"], Inline())
    scores = steps.score(run, SET, ["blend"], Inline())["blend"]
    blend = get_method(run, "blend")
    assert isinstance(blend, Blend)
    read, expected = blend.reader(load_queries(run, SET)), 0.0
    for member, (full, others) in zip(blend.members, blend.sets(), strict=True):
        for g, group in enumerate(scores.groups):
            found = read.paired(full, others[group])
            weight = np.zeros(found.t.shape)
            for band, row in blend.weights().items():
                low, high = map(int, band.split(":"))
                w = row[member.method_id]
                weight += np.where((found.t >= low) & (found.t < high), w**2 if estimand == "path" else w, 0.0)
            part = np.zeros(scores.score.shape)
            part[:, g] = (weight * found.kl).mean(axis=0).sum(axis=-1)
            expected = expected + part
    np.testing.assert_allclose(scores.score, expected)
    if estimand == "elbo":
        assert "blend" in steps.evaluate(run, SET).methods


def test_weights_are_recorded_and_damage_is_noticed(run: Run) -> None:
    steps.fit(run, ["blend"], Inline())
    blend = get_method(run, "blend")
    assert isinstance(blend, Blend)
    kept = read_json(run.path(blend.weights_file))
    assert kept["seeds"] == [1, 2]
    assert kept["pictures"] == load_queries(run, kept["queries"]).digest
    assert kept["queries"] != SET
    write_json(run.path(blend.weights_file), kept | {"n": 7})
    with refused("weights-damaged"):
        blend.weights()


def test_tuning_pictures_are_refused(run: Run) -> None:
    steps.fit(run, ["blend"], Inline())
    blend = get_method(run, "blend")
    assert isinstance(blend, Blend)
    with refused("weights-tuning-pictures"):
        steps.score(run, read_json(run.path(blend.weights_file))["queries"], ["blend"], Inline())
    steps.change_settings(run, ["blend"], ["seed=0"])
    with refused("tuning-seed-taken"):
        steps.fit(run, ["blend"], Inline())


def test_given_weights_need_no_retraining(run: Run) -> None:
    given = "weights={'0:100': {retrack: 0.5, continuation: 2.0}}"
    steps.change_settings(run, ["blend"], [given.replace("'", '"')])
    assert not any("weigh" in task.name for task in get_method(run, "blend").fit())
    steps.fit(run, ["blend"], Inline())
    assert np.isfinite(steps.score(run, SET, ["blend"], Inline())["blend"].score).all()


def test_what_cannot_be_blended(run: Run) -> None:
    with refused("member-unsupported"):
        steps.change_settings(run, ["blend"], ["methods=[retrack,similarity-pixel]"])
    with refused("member-unsupported"):
        steps.change_settings(run, ["blend"], ["methods=[retrack,logo]"])
