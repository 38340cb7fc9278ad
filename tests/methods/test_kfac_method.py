"""kfac on a tiny run: its scores against products of whole gradients, its limits, and what it shares with TracIn."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tinyrun import SET, Inline, copy_run

from guda import steps
from guda.baselines.features import FeatureConfig, Featuriser
from guda.baselines.kfac import Curvature
from guda.errors import GudaError
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.models import load_model, model_digest
from guda.run.run import Run
from guda.scoring.scores import Scores
from refusals import refused

SMALL = ("timesteps=2", "sketch=identity")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def score(run: Run, name: str, *settings: str) -> tuple[np.ndarray, list[str]]:
    """The scores, and the tasks that fitting took."""
    steps.change_settings(run, [name], list(settings))
    engine = Inline()
    steps.fit(run, [name], engine)
    steps.score(run, SET, [name], Inline())
    return Scores.read(steps.scores_path(run, SET, name)).score, engine.ran


def by_hand(run: Run, file: str, relative: float) -> np.ndarray:
    """grad(q)^T (H + damping I)^-1 grad(i), [Q, n], without sketches and stores."""
    model, data, queries = load_model(run, "base"), load_data(run), load_queries(run, SET)
    made = Featuriser(model, FeatureConfig(timesteps=2, sketch="identity"))
    h = Curvature.load(run.path(file), model_digest(run, "base"))
    damping = relative * h.mean_eigenvalue
    query = made(model.encode(queries.images), queries.ids, "queries", None, lambda g: h.precondition(g, damping))
    train = made(model.encode(data.images), data.ids, "train")
    return (query.double() @ train.double().T).numpy()


@pytest.mark.parametrize("ekfac", ["false", "true"])
def test_both_ways_of_sharing_the_inverse_give_the_product(run: Run, ekfac: str) -> None:
    pytest.importorskip("curvlinops")
    settings = (*SMALL, "draws=64", f"ekfac={ekfac}")
    both, _ = score(run, "kfac", *settings)
    query, ran = score(run, "kfac", *settings, "sides=query")
    assert not any(task.startswith("curvature") for task in ran)  # the same H
    largest, _ = score(run, "kfac", *settings, "sides=query", "aggregate=max")
    found = by_hand(run, get_method(run, "kfac").curvature_file(get_method(run, "kfac").stores()[0]), 0.1)
    groups = load_data(run).groups
    members = [groups.members(i) for i in range(len(groups))]
    expected = np.stack([found[:, m].sum(axis=1) for m in members], axis=1)
    np.testing.assert_allclose(query, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(both, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(
        largest, np.stack([found[:, m].max(axis=1) for m in members], axis=1), rtol=1e-3, atol=1e-4 * found.max()
    )


def test_great_damping_is_tracin_and_the_query_side_shares_its_images(run: Run) -> None:
    pytest.importorskip("curvlinops")
    # norms have no block in H, so they are left out of TracIn too
    layers = ("weights=^(inp|out|embed|blocks.0.(up|down))",)
    tracin, _ = score(run, "tracin", *SMALL, *layers)
    damped = ("damping=1e7", "damping_scale=absolute", "draws=64", "sides=query")
    found, ran = score(run, "kfac", *SMALL, *layers, *damped)
    np.testing.assert_allclose(found * 1e7, tracin, rtol=1e-4, atol=1e-5 * np.abs(tracin).max())
    assert ran == ["curvature of base", "fit kfac, network 0, part 0"]


def test_another_networks_curvature_is_refused(run: Run) -> None:
    pytest.importorskip("curvlinops")
    score(run, "kfac", *SMALL, "draws=64")
    method = get_method(run, "kfac")
    path = run.path(method.curvature_file(method.stores()[0]))
    Curvature.load(path, model_digest(run, "base")).save(path, "0" * 64)
    with pytest.raises(GudaError, match="another network"):
        score(run, "kfac", *SMALL, "draws=64", "damping=0.2")


def test_a_missing_library_is_said_before_anything_is_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    engine = Inline()
    steps.change_settings(run, ["kfac"], [])
    with refused("package-missing", match=r"pip install 'guda\[kfac\]'"):
        steps.fit(run, ["kfac"], engine)
    assert not engine.ran


def test_fitting_is_the_same_twice(run: Run, tmp_path: Path) -> None:
    """The whole store, bit for bit, in a copy of the run."""
    pytest.importorskip("curvlinops")
    one, _ = score(run, "kfac", "draws=32", "timesteps=2", "dim=64")
    two, _ = score(copy_run(tmp_path / "again"), "kfac", "draws=32", "timesteps=2", "dim=64")
    assert torch.equal(torch.from_numpy(one), torch.from_numpy(two))
