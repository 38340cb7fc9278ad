"""Leakage, drift and placebos of a run, against brute force on its models."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tinyrun import GROUPS, SET, Inline, copy_run, exact, tree, write_queries

import guda
from guda import steps
from guda.data.groups import Groups
from guda.errors import GudaError
from guda.methods.base import get_method
from guda.methods.health import DriftFigure, Health, leakage, read_health, soundness
from guda.methods.reference import draw_reference, reference
from guda.methods.regroup import Placebos, fitted_placebos, placebo_size, placebos_of
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.scoring.reference import Null
from guda.scoring.scores import Scores
from guda.scoring.terms import kl, make_draws, squared_errors
from guda.unlearning.bank import Counterfactual
from guda.unlearning.unlearn import OPERATORS, unlearn_group
from refusals import refused

NAME = "reference-n6-s0"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = copy_run(tmp_path / "run")
    steps.change_scoring(run, reference=6)
    return run


def by_hand(run: Run, full, others, queries, low=0, high=10**9) -> np.ndarray:
    """Nats [Q, G] straight from the networks, one picture at a time."""
    plan = run_plan(run)
    out = np.zeros((queries.n, len(others)))
    for q, name in enumerate(queries.ids):
        for r in range(run.recipe.scoring.rounds):
            draws = make_draws(full, full.encode(queries.images[q : q + 1]), [name], plan, r)
            weights = np.where((draws.t >= low) & (draws.t < high), 1.0, 0.0)

            def nats(model, draws=draws, weights=weights):
                return (weights * kl(plan, full.schedule.weights, draws.t, squared_errors(model, draws, 7))).sum()

            base = nats(full)
            out[q] += [(nats(m) - base) / run.recipe.scoring.rounds for m in others]
    return out


def bank(run: Run, method) -> list:
    base = load_model(run, "base")
    return [Counterfactual.load(run.path(method.file(g))).apply(base) for g in method.groups]


def close(found, expected) -> None:
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3 * scale)


# --- the reference set ----------------------------------------------------------------------------


def test_the_reference_set_is_training_images_under_ids_that_say_which(run: Run) -> None:
    data, images = load_data(run), reference(run)
    assert images.queries.name == NAME
    assert np.bincount(images.group).tolist() == [6, 6, 6]
    assert len(set(images.index.tolist())) == 18
    for i, index in enumerate(images.index):
        np.testing.assert_array_equal(images.queries.images[i], data.images[index])
        assert data.groups.labels[index] == images.group[i]
    more = draw_reference(data, 9)
    assert set(images.queries.ids) < set(more.ids)  # more images keep those drawn
    assert draw_reference(data, 500).n == data.n  # a small group gives all it has


def test_the_reference_set_is_no_question_of_the_users(run: Run, tmp_path: Path) -> None:
    steps.health(run, ["retrack"], Inline())
    assert run.has(f"queries/{NAME}/index.json")
    assert run.query_sets() == [SET]
    assert steps.choose_queries(run) == SET
    assert list(steps.status(run)["queries"]) == [SET]
    with refused("query-set-unknown"):
        steps.choose_queries(run, NAME)
    folder = write_queries(tmp_path / NAME)
    with refused("query-set-name-reserved"):
        steps.add_queries(run, folder)
    assert steps.add_queries(run, folder, "reference-pictures") == "reference-pictures"
    assert "reference-pictures" in run.query_sets()


# --- leakage and drift ----------------------------------------------------------------------------


def test_the_matrix_is_what_the_networks_say(run: Run) -> None:
    found = steps.health(run, ["retrack"], Inline())["retrack"]
    method, images = get_method(run, "retrack"), reference(run)
    expected = by_hand(run, load_model(run, "base"), bank(run, method), images.queries)
    for k in range(3):
        others = expected[images.group != k, k]
        close(found.drift[k].mean, others.mean())
        close(found.drift[k].stderr, stats.sem(others))
        close(found.drift[k].hi, others.mean() + stats.t.ppf(0.975, 11) * stats.sem(others))
        for j in range(3):
            close(found.matrix[k][j], expected[images.group == j, k].mean())
            close(found.stderr[k][j], stats.sem(expected[images.group == j, k]))
    np.testing.assert_allclose(
        [sum(b.drift[k].mean for b in found.bands) for k in range(3)], [d.mean for d in found.drift], rtol=1e-9
    )
    band = found.bands[-2]
    part = by_hand(run, load_model(run, "base"), bank(run, method), images.queries, band.low, band.high)
    close([d.mean for d in band.drift], [part[images.group != k, k].mean() for k in range(3)])
    path = run.path(f"health/{Path(method.folder).name}.json")
    assert Health.model_validate(json.loads(path.read_text())) == found
    assert read_health(run, method) == found
    assert found.groups == list(GROUPS)


def test_the_oracle_has_the_same_matrix(run: Run) -> None:
    found = steps.health(run, ["logo", "retrack"], Inline())
    method, images = get_method(run, "logo"), reference(run)
    base = load_model(run, "base")
    score = np.zeros((18, 3))
    for seed in (1, 2):  # the mean over seeds, each against its own full model
        models = [Counterfactual.load(run.path(method.file(g, seed))).apply(base) for g in GROUPS]
        score += by_hand(run, load_model(run, f"full-s{seed}"), models, images.queries) / 2
    close(np.array(found["logo"].matrix), leakage(score, images.group, 3)[0])


def test_health_resumes_and_repeats_nothing(run: Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        steps.health(run, ["retrack"], Inline(stop_after=2))
    engine = Inline()
    steps.health(run, ["retrack"], engine)
    assert len(engine.ran) == 4 - 2  # shards of 5
    before, again = tree(run.path("terms")), Inline()
    steps.health(run, ["retrack"], again)
    assert again.ran == []
    assert tree(run.path("terms")) == before
    whole = copy_run(tmp_path / "whole")
    steps.health(whole, ["retrack"], Inline(), 6)  # the number of images as an argument
    assert whole.recipe.scoring.reference == 20
    name = f"health/{Path(get_method(run, 'retrack').folder).name}.json"
    assert whole.path(name).read_bytes() == run.path(name).read_bytes()
    assert exact(whole.root) == exact(run.root)


def test_one_image_has_no_standard_error() -> None:
    mean, error = leakage(np.array([[1.0, 2], [3, 5], [7, 11]]), np.array([0, 0, 1]), 2)
    np.testing.assert_array_equal(mean, [[2, 7], [3.5, 11]])
    np.testing.assert_allclose(error, [[1, np.nan], [1.5, np.nan]])


def test_what_cannot_be_checked(run: Run) -> None:
    with refused("method-without-models"):
        steps.health(run, ["similarity-pixel"], Inline())
    with refused("method-not-fitted"):
        steps.health(run, ["shift"], Inline(), 9)
    assert run.recipe.scoring.reference == 6  # refused before anything changed
    steps.health(run, ["retrack"], Inline())
    path = next(run.path("health").glob("*.json"))
    path.write_text('{"method": 1}')
    with refused("health-damaged"):
        read_health(run, get_method(run, "retrack"))


# --- drift subtraction ----------------------------------------------------------------------------


def test_subtracted_scores_are_scores_less_drift(run: Run) -> None:
    kept = {b: steps.score(run, SET, ["retrack", "logo"], Inline(), band=b) for b in (None, "20:100")}
    measured = steps.health(run, ["retrack"], Inline())["retrack"]
    steps.change_scoring(run, drift="subtract")
    engine = Inline()
    for band in (None, "20:100"):
        found = steps.score(run, SET, ["retrack", "logo", "similarity-pixel"], engine, band=band)
        before, after = kept[band]["retrack"], found["retrack"]
        assert after.estimand == before.estimand + ", drift subtracted"
        images = reference(run)
        low, high = (0, 10**9) if band is None else (20, 100)
        score = by_hand(run, load_model(run, "base"), bank(run, get_method(run, "retrack")), images.queries, low, high)
        for k in range(3):
            others = score[images.group != k, k]
            close(after.score[:, k], before.score[:, k] - others.mean())
            close(after.stderr[:, k], np.hypot(before.stderr[:, k], stats.sem(others)))
            if band is None:
                np.testing.assert_allclose(after.score[:, k], before.score[:, k] - measured.drift[k].mean, rtol=1e-9)
        np.testing.assert_array_equal(found["logo"].score, kept[band]["logo"].score)  # the oracle is left alone
        assert found["logo"].estimand == kept[band]["logo"].estimand
        assert (after.hi - after.lo > before.hi - before.lo).all()
        top = after.score.argmax(axis=1)
        assert (after.rank_lo[np.arange(12), top] == 1).all()
        assert (np.abs(after.p_first.sum(axis=1) - 1) < 1e-9).all()
    assert engine.ran == []  # `health` had made all terms
    assert Scores.read(steps.scores_path(run, SET, "retrack")).estimand.endswith("drift subtracted")
    steps.evaluate(run, SET)


def test_subtraction_asks_for_the_terms_it_needs(run: Run) -> None:
    steps.change_scoring(run, drift="subtract")
    with refused("scores-missing"):
        steps.evaluate(run, SET)
    engine = Inline()
    steps.score(run, SET, ["retrack"], engine)
    assert [name.split()[1] for name in engine.ran] == [f"{NAME}/{i}" for i in range(4)]
    steps.evaluate(run, SET)


def test_what_cannot_be_subtracted(run: Run) -> None:
    with refused("stop-with-drift"):
        steps.variant(run, "top1@0.9", None, "subtract")
    steps.change_scoring(run, drift="subtract")
    with refused("stop-with-drift"):
        steps.score(run, SET, ["retrack"], Inline(), stop="top1@0.9")
    model, data = load_model(run, "base"), load_data(run)
    pictures = guda.Queries.from_arrays(data.images[:2])
    bank = guda.unlearn(model, data, steps=1)
    asked = {"estimand": "elbo", "excess": False, "drift": "subtract"}
    assert guda.attribute(model, bank, pictures, reference=4, **asked).estimand.endswith("drift subtracted")
    with pytest.raises(GudaError) as e:
        guda.attribute(model, guda.Bank(bank), pictures, **asked)
    assert e.value.code == "training-images-missing"


# --- placebos -------------------------------------------------------------------------------------


def regroup(known: Groups, number: int) -> Groups:
    grouping = Placebos(n=number + 1, size=placebo_size(known), seed=0, passes=1.0)
    return grouping.regroup(known, f"placebo-{number}")


def test_a_placebo_is_a_random_group_of_the_median_size(run: Run) -> None:
    data = load_data(run)
    one, two = (regroup(data.groups, i) for i in (0, 1))
    assert one.names == ("placebo-0", "rest")
    assert one.sizes == (16, 32)
    assert len(set(data.groups.labels[one.members(0)].tolist())) > 1
    assert one.members(0).tolist() != two.members(0).tolist()
    assert regroup(data.groups, 0) == one
    uneven = data.take(np.concatenate([data.groups.members(k)[:n] for k, n in enumerate((3, 9, 16))]))
    assert regroup(uneven.groups, 0).sizes == (9, 19)


def test_placebos_are_unlearned_and_scored_like_groups(run: Run) -> None:
    plain = Scores.read(steps.scores_path(run, SET, "retrack"))
    engine = Inline()
    assert steps.fit(run, ["retrack"], engine, 2) == 2
    assert steps.fit(run, ["retrack"], Inline(), 3) == 1  # one more keeps the others
    method = get_method(run, "retrack")
    null = fitted_placebos(method)
    assert null.groups == ("placebo-0", "placebo-1", "placebo-2")
    assert null.file("placebo-0").startswith(f"{method.folder}/placebo/")
    base, data = load_model(run, "base"), load_data(run)
    regrouped = replace(data, groups=regroup(data.groups, 1))
    direct = unlearn_group(base, regrouped, "placebo-1", "retrack", method.config)
    stored = Counterfactual.load(run.path(null.file("placebo-1")))
    assert all(np.array_equal(stored.tensors[k], v) for k, v in direct.tensors.items())

    steps.score(run, SET, ["retrack"], Inline())
    beside = Scores.read(steps.scores_path(run, SET, "retrack"))
    assert beside.to_pandas().equals(plain.to_pandas())  # only what must be cleared is new
    assert plain.floor == 0 != beside.floor
    found = Scores.read(run.path("scores", SET, "retrack-placebo.parquet"))
    assert found.groups == null.groups
    close(found.score, by_hand(run, base, bank(run, null), load_queries(run, SET)))
    assert "retrack-placebo" not in steps.scored_methods(run, SET)
    assert "retrack-placebo" not in steps.fitted_methods(run)
    steps.evaluate(run, SET)
    again = Inline()
    steps.score(run, SET, ["retrack"], again)
    assert again.ran == []


def test_placebos_drift_too(run: Run) -> None:
    steps.fit(run, ["retrack"], Inline(), 2)
    steps.score(run, SET, ["retrack"], Inline())
    before = steps.placebo_null(run, SET, "retrack").scores
    steps.change_scoring(run, drift="subtract")
    steps.score(run, SET, ["retrack"], Inline())
    after, images = steps.placebo_null(run, SET, "retrack").scores, reference(run)
    null = fitted_placebos(get_method(run, "retrack"))
    score = by_hand(run, load_model(run, "base"), bank(run, null), images.queries)
    for i in range(2):
        members = set(regroup(load_data(run).groups, i).members(0).tolist())
        outside = [q for q, index in enumerate(images.index) if int(index) not in members]
        assert 2 <= len(outside) < 18
        close(after.score[:, i], before.score[:, i] - score[outside, i].mean())


def test_a_placebo_of_an_operator_that_does_nothing_scores_zero(run: Run) -> None:
    steps.change_settings(run, ["retrack"], ["lr=1e-300"])  # no weight moves
    steps.fit(run, ["retrack"], Inline(), 2)
    found = steps.score(run, SET, ["retrack"], Inline())["retrack"]
    null = steps.placebo_null(run, SET, "retrack")
    assert (null.scores.score == 0).all()
    assert null.quantile() == 0
    assert not null.clears(found).any()  # its groups are at zero too: nothing stands out
    assert (np.array(steps.health(run, ["retrack"], Inline())["retrack"].matrix) == 0).all()


def test_the_line_is_the_95_percent_quantile_of_all_placebo_scores(run: Run) -> None:
    placebos = Scores("p", "nats", "e", tuple("abcde"), ("x", "y"), np.arange(10.0).reshape(5, 2), 1)
    null = Null(placebos, 16)
    assert null.quantile() == pytest.approx(8.55)
    scores = replace(placebos, score=np.array([[8.5, 1], [8.6, 1], [0, 9], [8.54, 0], [1, 1]]))
    assert null.clears(scores).tolist() == [False, True, True, False, False]
    assert null.to_json(scores) == {"placebos": 2, "images": 16, "median": 4.5, "q95": null.quantile(),
                                    "first_above": 2, "of": 5}  # fmt: skip
    assert "95 % below 8.55" in null.sentence("nats")


def test_a_null_of_other_settings_does_not_stay(run: Run) -> None:
    steps.fit(run, ["retrack"], Inline(), 1)
    steps.score(run, SET, ["retrack"], Inline())
    assert steps.placebo_null(run, SET, "retrack").n == 1
    steps.change_settings(run, ["retrack"], ["steps=4"])
    assert fitted_placebos(get_method(run, "retrack")) is None
    steps.fit(run, ["retrack"], Inline())
    steps.score(run, SET, ["retrack"], Inline())
    assert steps.placebo_null(run, SET, "retrack") is None
    steps.fit(run, ["retrack"], Inline(), 1)
    steps.evaluate(run, SET)  # fitted, not yet scored: the comparison does without
    assert steps.placebo_null(run, SET, "retrack") is None


def test_where_placebos_make_no_sense(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(run.root)
    for name in ("similarity-pixel", "logo"):
        with pytest.raises(GudaError, match=f"{name} unlearns nothing"):
            steps.fit(run, [name], Inline(), 1)
    assert fitted_placebos(placebos_of(get_method(run, "retrack"), 1)) is None
    monkeypatch.setattr(OPERATORS["retrack"], "regroupable", False)
    with refused("placebo-labels-unsupported"):
        steps.fit(run, ["retrack"], Inline(), 1)
    assert tree(run.root) == before


def test_health_of_other_settings_is_not_shown(run: Run) -> None:
    """Also where it is not the method's own settings that changed, but those of what it combines."""
    small = ["steps=2", "batch_forget=8", "batch_retain=8"]
    steps.change_settings(run, ["shift"], small)
    steps.fit(run, ["hybrid"], Inline())
    steps.health(run, ["hybrid", "logo"], Inline())
    assert read_health(run, get_method(run, "hybrid")) is not None
    assert read_health(run, get_method(run, "logo")) is not None
    steps.change_settings(run, ["shift"], ["steps=3"])
    steps.change_settings(run, ["logo"], ["seeds=[1]"])
    assert read_health(run, get_method(run, "hybrid")) is None
    assert read_health(run, get_method(run, "logo")) is None


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "drift", "expected"),
    [
        ([90.0, 4.0, 5.0], (4.5, 4.0, 5.0), "sound"),
        (
            [90.0, 45.0, 5.0],
            (25.0, 20.0, 30.0),
            "leaks",
        ),  # exactly half of its own; before drift, which follows from it
        ([90.0, 44.0, 5.0], (24.5, 20.0, 30.0), "drifts"),
        ([90.0, 24.0, 25.0], (24.5, -1.0, 50.0), "sound"),  # not clear of zero
        ([90.0, -24.0, -25.0], (-24.5, -30.0, -20.0), "drifts"),  # explained better: the model changed all the same
        ([90.0, 20.0, 20.0], (22.5, 22.0, 23.0), "sound"),  # a quarter of its own is not more than a quarter
        ([1.9, 0.0, 0.0], (0.0, -1.0, 1.0), "forgets nothing"),
        ([-5.0, -9.0, 3.0], (-3.0, -4.0, -2.0), "forgets nothing"),
    ],
)
def test_a_counterfactual_is_sound_or_it_is_said_why_not(row, drift, expected) -> None:
    mean, lo, hi = drift
    assert soundness(0, row, [1.0, 1.0, 1.0], DriftFigure(mean=mean, stderr=1.0, lo=lo, hi=hi)) == expected


def test_a_leak_within_its_error_is_none() -> None:
    drift = DriftFigure(mean=0.0, stderr=1.0, lo=-2.0, hi=2.0)
    assert soundness(0, [10.0, 6.0], [1.0, 3.1], drift) == "sound"
    assert soundness(0, [10.0, 6.0], [1.0, 2.9], drift) == "leaks"
    assert soundness(0, [10.0, 6.0], [None, None], drift) == "leaks"  # one image each: no error is known


def test_verdicts_are_in_the_file_and_computed_of_files_from_before(run: Run) -> None:
    found = steps.health(run, ["retrack"], Inline())["retrack"]
    path = run.path("health", f"{found.artifact}.json")
    kept = json.loads(path.read_text())
    assert kept["verdicts"] == found.verdicts
    assert set(kept["verdicts"]) == set(GROUPS)
    del kept["verdicts"]
    path.write_text(json.dumps(kept))
    assert read_health(run, get_method(run, "retrack")) == found
    bad = [g for g, v in found.verdicts.items() if v != "sound"]
    assert (found.unsound() == "") == (not bad)
    assert [w for w in steps.warnings(run, ["retrack"]) if w.startswith("retrack: ")] == (
        [found.unsound()] if bad else []
    )


def test_many_groups_are_counted_in_the_line(run: Run) -> None:
    found = steps.health(run, ["retrack"], Inline())["retrack"]
    zero, n = np.zeros((7, 7)), 7
    many = found.model_copy(
        update={"groups": [f"g{i}" for i in range(n)], "matrix": zero.tolist(), "stderr": zero.tolist(),
                "drift": [found.drift[0]] * n}
    )  # fmt: skip
    assert many.unsound() == (
        "retrack: 7 of 7 counterfactuals are not sound (forgets nothing: g0, g1, g2, g3 and 3 more)"
    )
