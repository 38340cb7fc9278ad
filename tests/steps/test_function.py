"""Fidelity in function space: products of changes against brute force, the cross-seed oracle, resume and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tinyrun import GROUPS, SET, Inline, copy_run

from guda import steps
from guda.methods.base import get_method
from guda.methods.terms import load_counterfactual, load_queries, run_scorer
from guda.run.models import load_model
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.scoring.products import Products, cosines, cross
from guda.scoring.scores import Scores
from guda.scoring.terms import kl, make_draws
from guda.steps.function import fidelity, product_tasks
from refusals import refused

RNG = np.random.default_rng(0)
N = 7  # pictures: a full shard and a part of one


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = copy_run(tmp_path_factory.mktemp("function") / "run")
    steps.fit(run, ["posterior"], Inline())
    steps.change_scoring(run, plan="stratified")
    steps.evaluate_function(run, SET, ["retrack", "posterior"], Inline(), N, rounds=2)
    return run


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run", finished.root)


# --- arithmetic -----------------------------------------------------------------------------------


def test_cross_is_the_mean_over_pairs_of_different_models() -> None:
    x = RNG.normal(size=(4, 3, 5, 6))
    p = x @ x.swapaxes(-1, -2)
    which = [0, 2, 3]
    pairs = [(i, j) for i in which for j in which if i != j]
    np.testing.assert_allclose(cross(p, which), np.mean([p[..., i, j] for i, j in pairs], axis=0))
    np.testing.assert_allclose(cross(p, [1, 4]), p[..., 1, 4])


def test_cross_is_unbiased_for_the_systematic_change_and_has_no_floor() -> None:
    """Delta_m = mu + noise_m: plain divergences are |mu|^2 plus the noise, even where mu is nothing."""
    dims, noise = 32, 0.5
    for mu in (np.zeros(dims), np.full(dims, 0.2)):
        change = mu + noise * RNG.normal(size=(20_000, 3, dims))
        p = change @ change.swapaxes(1, 2)
        found = cross(p, [0, 1, 2])
        assert abs(found.mean() - mu @ mu) < 4 * found.std() / np.sqrt(len(found))
        plain = p[:, 0, 0]
        assert abs(plain.mean() - (mu @ mu + dims * noise**2)) < 4 * plain.std() / np.sqrt(len(plain))
    assert (cross(p, [0, 1]) < 0).any()  # the price of no floor


def test_cosines_of_nothing_are_zero() -> None:
    x = np.stack([np.ones(3), -2 * np.ones(3), np.zeros(3)])
    np.testing.assert_allclose(cosines(x @ x.T), [[1, -1, 0], [-1, 1, 0], [0, 0, 0]], atol=1e-15)


def test_each_pictures_first_group_is_apart_from_the_others() -> None:
    """Two retrainings agree on the group with the larger systematic change alone, and a method does on the other."""
    changes = np.zeros((1, 2, 2, 1, 3, 4))  # rounds, pictures, groups, strata, models, dims
    changes[:, :, 0, :, :2, 0] = 3.0  # the retrainings, first group
    changes[:, :, 0, :, 2, 1] = 1.0
    changes[:, :, 1, :, 0, 0] = changes[:, :, 1, :, 1, 1] = changes[:, :, 1, :, 2, 0] = 1.0
    rows = fidelity(changes @ changes.swapaxes(-1, -2), np.full((1, 2, 1), 3), ["a", "b", "m"], 2, [0, 2, 10])
    assert [row.band for row in rows] == ["all", "2:10"]  # nothing was drawn below 2
    for row in rows:
        assert {k: v.mean for k, v in row.own.items()} == {"logo": 1.0, "m": 0.0}
        assert {k: v.mean for k, v in row.other.items()} == {"logo": 0.0, "m": 0.5}


# --- in a run -------------------------------------------------------------------------------------


def parts(run: Run) -> tuple[Products, list[str]]:  # type: ignore[type-arg]
    """Each model twice."""
    logo, retrack = get_method(run, "logo"), get_method(run, "retrack")
    sets = [*logo.sets(), *logo.sets(), *retrack.sets(), *retrack.sets()]  # type: ignore[attr-defined]
    return Products(run_scorer(run), sets), ["logo-s1", "logo-s2", "logo-s1", "logo-s2", "retrack", "retrack"]


def test_a_model_has_fidelity_one_with_itself_and_its_product_is_its_path_divergence(run: Run) -> None:
    products, names = parts(run)
    queries = load_queries(run, SET)
    for shard in queries.shards(products.scorer.shard):
        products.evaluate(shard, 2)
    p, t = products.read(queries, 2)
    whole = p.mean(axis=0).sum(axis=2)
    cos = cosines(whole)
    for i, j in ((0, 2), (1, 3), (4, 5)):
        np.testing.assert_allclose(cos[..., i, j], 1.0)
    for i, j in ((0, 1), (0, 4)):
        assert (np.abs(cos[..., i, j]) < 0.999).all()
    rows = fidelity(p[..., [0, 2, 4, 0], :][..., [0, 2, 4, 0]], t, ["a", "b", "m", "a again"], 2, [0, 50, 100])
    for row in rows:
        for of in (row.own, row.other):
            assert of["logo"].mean == pytest.approx(1)
            assert of["a again"].mean == pytest.approx(1)
            assert of["m"].mean < 0.999
    steps.change_scoring(run, estimand="path")
    steps.score(run, SET, ["logo", "retrack"], Inline())
    for i, name in enumerate(names):
        stored = Scores.read(steps.scores_path(run, SET, name))
        np.testing.assert_allclose(whole[..., i, i], stored.score, rtol=1e-4)


def test_products_are_those_of_the_loaded_models_predictions(run: Run) -> None:
    logo, queries, plan = get_method(run, "logo"), load_queries(run, SET), run_plan(run)
    products = Products(run_scorer(run), logo.sets())  # type: ignore[attr-defined]
    for shard in queries.shards(products.scorer.shard):
        products.evaluate(shard, 1)
    found, times = products.read(queries, 1)
    model = load_model(run, "base")
    draws = make_draws(model, model.encode(queries.images), queries.ids, plan, 0)
    x_t, shape = draws.x_t.flatten(0, 2), draws.eps.shape[:3]
    t = torch.from_numpy(np.repeat(draws.t.reshape(-1), shape[2]))
    np.testing.assert_array_equal(times[0], draws.t)
    for g, group in enumerate(GROUPS):
        with torch.no_grad():
            one, two = (
                (load_model(run, full.base).eps(x_t, t) - load_counterfactual(run, others[group]).eps(x_t, t))
                for full, others in logo.sets()  # type: ignore[attr-defined]
            )
        inner = (one.double() * two.double()).flatten(1).sum(1).reshape(shape).mean(dim=2).numpy()
        expected = kl(plan, model.schedule.weights, draws.t, inner)
        np.testing.assert_allclose(found[0, :, g, :, 0, 1], expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_products_are_computed_once_and_only_what_is_missing_again(run: Run) -> None:
    def evaluated(engine: Inline) -> dict[str, bytes]:
        found = steps.evaluate_function(run, SET, ["retrack", "posterior"], engine, N, rounds=2)
        assert found.seeds == [1, 2]
        assert found.pictures == N
        files = {str(p.relative_to(run.root)): p.read_bytes() for p in sorted(run.path("products").rglob("*.parquet"))}
        return files | {"function.json": (steps.scores_folder(run, SET) / "function.json").read_bytes()}

    engine = Inline()
    before = evaluated(engine)
    assert engine.ran == []
    assert len(before) == 2 * 2 + 1  # shards, rounds
    run.path(sorted(before)[-1]).unlink()
    assert evaluated(engine) == before
    assert len(engine.ran) == 1


def test_a_method_that_is_refitted_is_not_mixed_with_what_it_was(run: Run) -> None:
    _, others = get_method(run, "retrack").sets()[0]  # type: ignore[attr-defined]
    files = [run.path(str(others[g].counterfactual)) for g in ("0", "1")]
    files[0].write_bytes(files[1].read_bytes())
    with refused("products-stale"):
        steps.evaluate_function(run, SET, ["retrack", "posterior"], Inline(), N, rounds=2)


@pytest.mark.parametrize("methods", [["similarity-pixel"], ["hybrid"], ["logo"], []])
def test_only_methods_with_a_model_per_group_change_a_function(run: Run, methods: list[str]) -> None:
    if methods == ["hybrid"]:
        steps.fit(run, ["hybrid"], Inline())
    engine = Inline()
    with refused("function-method-unsupported"):
        steps.evaluate_function(run, SET, methods, engine)
    assert engine.ran == []


def test_its_cost_is_that_of_its_networks(run: Run) -> None:
    products, _ = parts(run)
    queries = load_queries(run, SET)
    tasks = product_tasks(run, queries, products, 3)
    assert sum(t.cost for t in tasks) == 12 * 12 * 3 * products.networks  # pictures, draws, rounds
    assert products.networks == 3 + 6 * len(GROUPS)  # full models: of two seeds, and the run's own


def test_the_command_line_tells_cosines_as_json(run: Run, monkeypatch: pytest.MonkeyPatch, capfd: object) -> None:
    import sys

    from guda.cli.main import main

    words = ["evaluate", str(run.root), "--function", "-n", str(N), "--method", "retrack", "--json"]
    monkeypatch.setattr(sys, "argv", ["guda", *words])
    capfd.readouterr()  # type: ignore[attr-defined]
    try:
        main()
    except SystemExit as e:
        assert not e.code  # noqa: PT017
    value = json.loads(capfd.readouterr().out)  # type: ignore[attr-defined]
    assert (value["pictures"], value["seeds"], value["rows"][0]["band"]) == (N, [1, 2], "all")
    for row in value["rows"]:
        assert set(row["own"]) == set(row["other"]) == {"logo", "retrack"}
        assert all(-1 <= f["lo"] <= f["mean"] <= f["hi"] <= 1 for f in [*row["own"].values(), *row["other"].values()])
    stored = json.loads((steps.scores_folder(Run.open(run.root), SET) / "function.json").read_text())
    assert stored == value
