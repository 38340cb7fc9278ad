"""Continuation in a run: scores are against the control, whatever is fitted first, and every door accepts it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tinyrun import GROUPS, SET, Inline, copy_run, digits_folder, tiny

from guda import steps
from guda.methods.base import get_method
from guda.methods.terms import ModelRef, load_queries
from guda.methods.unlearned import Unlearned
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.bank import bank_list, bank_verify
from guda.steps.score import scores_path
from refusals import refused

SMALL = ["steps=4", "batch=16", "warmup=1"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = copy_run(tmp_path / "run")
    steps.change_settings(found, ["continuation"], SMALL)
    return found


def method(run: Run) -> Unlearned:
    found = get_method(run, "continuation")
    assert isinstance(found, Unlearned)
    return found


def files(run: Run) -> dict[str, str]:
    found = run.path("artifacts").glob("continuation-*/**/*.safetensors")
    return {str(f.relative_to(run.root)): hashlib.sha256(f.read_bytes()).hexdigest() for f in found}


@pytest.mark.parametrize("estimand", ["elbo", "path"])
def test_scores_are_against_the_control(run: Run, estimand: str) -> None:
    steps.change_scoring(run, estimand=estimand)
    steps.fit(run, ["continuation"], engine := Inline())
    assert len(engine.ran) == len(GROUPS) + 1
    scores = steps.score(run, SET, ["continuation"], Inline())["continuation"]
    found = method(run)
    full, others = found.sets()[0]
    assert full.counterfactual is not None
    assert full.reference is None
    assert all(other.reference == full for other in others.values())
    queries = load_queries(run, SET)
    read = found.reader(queries)
    kind = "error" if estimand == "elbo" else "change"
    if estimand == "elbo":
        by_hand = np.stack([(read(others[g], kind).kl - read(full, kind).kl).mean(0).sum(-1) for g in GROUPS], axis=1)
        against_full = np.stack(
            [(read(others[g], kind).kl - read(ModelRef("base"), kind).kl).mean(0).sum(-1) for g in GROUPS], axis=1
        )
        assert not np.allclose(against_full, scores.score)
    else:
        by_hand = np.stack([read(others[g], kind).kl.mean(0).sum(-1) for g in GROUPS], axis=1)
        assert (scores.score > 0).all()
    np.testing.assert_allclose(scores.score, by_hand)


def test_path_divergence_from_the_control_is_that_of_the_two_networks(run: Run) -> None:
    """Brute force at the draws of one part: both networks, their difference squared."""
    import torch

    from guda.methods.terms import load_counterfactual, run_scorer
    from guda.run.models import load_model
    from guda.scoring.scorer import shard_names
    from guda.scoring.terms import make_draws

    steps.change_scoring(run, estimand="path")
    steps.fit(run, ["continuation"], Inline())
    steps.score(run, SET, ["continuation"], Inline())
    full, others = method(run).sets()[0]
    queries, scorer, base = load_queries(run, SET), run_scorer(run), load_model(run, "base")
    shard = queries.shards(scorer.shard)[0]
    draws = make_draws(base, base.encode(shard.images), shard.ids, scorer.plan, 0)
    x0 = base.encode(shard.images)
    _, squares, _ = scorer.read_part(shard_names(queries, scorer.shard)[0], others["1"], 0, "change")
    one, two = (load_counterfactual(run, ref) for ref in (full, others["1"]))
    for q in range(shard.n):
        for s in range(scorer.plan.n_strata):
            t = torch.full((draws.eps.shape[2],), int(draws.t[q, s]))
            x_t = base.schedule.add_noise(x0[q][None].expand(len(t), *x0[q].shape), draws.eps[q, s], t)
            with torch.no_grad():
                apart = (one.eps(x_t, t) - two.eps(x_t, t)).square().flatten(1).sum(1).mean()
            assert squares[q, s] == pytest.approx(float(apart), rel=1e-3, abs=1e-9)


def test_bytes_do_not_depend_on_the_order(run: Run, tmp_path: Path) -> None:
    steps.fit(run, ["continuation"], Inline())
    other = copy_run(tmp_path / "other")
    steps.change_settings(other, ["continuation"], SMALL)
    Inline()(other, method(other).fit()[::-1], "backwards")
    assert files(run) == files(other)
    assert len(files(run)) == len(GROUPS) + 1


def test_every_seed_has_its_control(run: Run) -> None:
    steps.change_settings(run, ["continuation"], ["seeds=[0,1,2]"])
    steps.fit(run, ["continuation"], Inline())
    assert len(set(files(run).values())) == 3 * (len(GROUPS) + 1)
    scores = steps.score(run, SET, ["continuation"], Inline())["continuation"]
    assert scores.stderr_training is not None
    seeds = [Scores.read(scores_path(run, SET, f"continuation-s{s}")).score for s in (0, 1, 2)]
    np.testing.assert_allclose(scores.score, np.mean(seeds, axis=0))


def test_it_is_evaluated_raced_and_compared_in_function_space(run: Run) -> None:
    steps.fit(run, ["continuation"], Inline())
    steps.score(run, SET, ["continuation"], Inline())
    assert "continuation" in steps.evaluate(run, SET).methods
    fidelity = steps.evaluate_function(run, SET, ["continuation", "retrack"], Inline())
    assert set(fidelity.rows[0].own) == {"logo", "continuation", "retrack"}
    steps.score(run, SET, ["continuation"], Inline(), stop="budget=200")
    rows = [row for row in bank_list(run) if row.method == "continuation"]
    assert len(rows) == len(GROUPS) + 1
    assert all(row.base_ok and row.used for row in rows)
    assert bank_verify(run)["problems"] == []


def test_placebos_share_the_control(run: Run) -> None:
    steps.fit(run, ["continuation"], Inline(), placebos=2)
    assert len(files(run)) == len(GROUPS) + 1 + 2
    steps.score(run, SET, ["continuation"], Inline())
    assert steps.placebo_null(run, SET, "continuation") is not None


def test_its_price_includes_the_control(run: Run) -> None:
    found = method(run)
    assert found.fit_evals() == pytest.approx(4 * 16 * 3 * (1 + 1 / 3))
    assert sum(task.cost for task in found.fit()) == pytest.approx(len(GROUPS) * found.fit_evals())


def test_a_short_retraining_needs_a_pretrained_start(run: Run) -> None:
    with refused("pretrained-start-missing"):
        steps.fit(run, ["short"], Inline())


def test_a_short_retraining_begins_at_the_start(tmp_path: Path) -> None:
    first = steps.init(tmp_path / "start", tiny(digits_folder(), methods={}))
    start = steps.train(first, Inline())
    model = {"net": "mlp", "options": {}, "start": start, "scheduler": None}
    recipe = tiny(digits_folder(), model=model, methods={"short": {"steps": 4, "batch": 16, "warmup": 1}})
    run = steps.init(tmp_path / "run", recipe)
    steps.fit(run, ["short"], engine := Inline())
    assert sum("short" in name for name in engine.ran) == len(GROUPS) + 1
    steps.sample(run, Inline())
    scores = steps.score(run, SET, ["short"], Inline())["short"]
    assert np.isfinite(scores.score).all()
    assert {ref.base for full, others in get_method(run, "short").sets() for ref in (full, *others.values())} == {
        "start"
    }
    assert bank_verify(run)["problems"] == []
    assert all(row.base_ok for row in bank_list(run))
