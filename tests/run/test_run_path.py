"""Path divergence and excess scores in a run: brute force, resume, switching estimands, references, races, screens."""

import functools
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tinyrun import GROUPS, SET, Inline, copy_run, digits_folder, exact, finished_root, tiny, tree, write_queries

from guda import steps
from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.methods.base import get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import load_counterfactual, load_queries, run_scorer
from guda.run.models import load_model, run_schedule
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.scoring.bands import Bands
from guda.scoring.scorer import Reader
from guda.scoring.scores import PATH_SIGN, Scores
from guda.scoring.terms import kl, make_draws
from guda.steps.score import scores_path
from refusals import refused

METHODS: dict[str, Any] = {
    "shift": {"steps": 3, "batch_forget": 8, "batch_retain": 8},
    "posterior": {"components": 1},
    "hybrid": {"edge": 0.4, "share": 0.25},
}
ALL = ("logo", "retrack", "shift", "posterior", "hybrid")


@functools.cache
def fitted_root() -> Path:
    """The complete tiny run by ELBO differences, with more methods fitted; copy it before changing anything."""
    holder = tempfile.TemporaryDirectory(prefix="guda-path-")
    fitted_root.holder = holder  # type: ignore[attr-defined]
    run = copy_run(Path(holder.name) / "run")
    known = tiny(digits_folder())
    run.update(known.model_copy(update={"methods": {**known.methods, **METHODS}}))
    steps.fit(run, ["hybrid"], Inline())
    steps.score(run, SET, list(METHODS), Inline())
    return run.root


@functools.cache
def path_root() -> Path:
    """The same run, scored by path divergence."""
    run = copy_run(fitted_root().parent / "path", fitted_root())
    steps.change_scoring(run, estimand="path")
    steps.score(run, SET, ALL, Inline())
    return run.root


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run", fitted_root())


@pytest.fixture
def by_path(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "path", path_root())


def files(root: Path) -> dict[str, str]:
    """Everything that must be byte-identical, this estimand's pilot included."""
    pilot = root / "pilot-path.json"
    return exact(root) | ({"pilot-path.json": pilot.read_text()} if pilot.is_file() else {})


def stored(run: Run, method: str, variant: str | None = None, name: str = SET) -> Scores:
    return Scores.read(scores_path(run, name, method, variant))


def divergences(run: Run, method: str, queries: Queries) -> np.ndarray:
    """[R, Q, G, S] of a method with one set, from the predictions of models loaded one by one."""
    plan, out = run_plan(run), []
    full, others = get_method(run, method).sets()[0]  # type: ignore[attr-defined]
    model = load_model(run, full.base)
    x0 = model.encode(queries.images)
    for r in range(run.recipe.scoring.rounds):
        draws = make_draws(model, x0, queries.ids, plan, r)
        x_t, shape = draws.x_t.flatten(0, 2), draws.eps.shape[:3]
        t = torch.from_numpy(np.repeat(draws.t.reshape(-1), shape[2]))
        with torch.no_grad():
            before = model.eps(x_t, t)
            moved = [before - load_counterfactual(run, ref).eps(x_t, t) for ref in others.values()]
        squares = [m.double().square().flatten(1).sum(1).reshape(shape).mean(dim=2).numpy() for m in moved]
        out.append(np.stack([kl(plan, model.schedule.weights, draws.t, s) for s in squares], axis=1))
    return np.stack(out)


# --- the numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["retrack", "posterior"])
def test_path_scores_are_the_divergence_of_the_loaded_models_predictions(by_path: Run, method: str) -> None:
    found = stored(by_path, method)
    expected = divergences(by_path, method, load_queries(by_path, SET)).mean(axis=0).sum(axis=-1)
    np.testing.assert_allclose(found.score, expected, rtol=1e-3)
    assert (found.score > 0).all()
    assert found.sign == PATH_SIGN
    assert found.estimand == run_plan(by_path).path_estimand != run_plan(by_path).estimand


def test_logo_is_compared_with_its_own_full_model(by_path: Run) -> None:
    """Of each seed by itself; their mean is the oracle."""
    queries, logo = load_queries(by_path, SET), get_method(by_path, "logo")
    each = []
    for seed, (full, others) in logo.seed_sets().items():  # type: ignore[attr-defined]
        assert {ref.reference for ref in others.values()} == {full}
        assert full.base != "base"
        model, plan = load_model(by_path, full.base), run_plan(by_path)
        nats = []
        for r in range(by_path.recipe.scoring.rounds):
            draws = make_draws(model, model.encode(queries.images), queries.ids, plan, r)
            x_t, shape = draws.x_t.flatten(0, 2), draws.eps.shape[:3]
            t = torch.from_numpy(np.repeat(draws.t.reshape(-1), shape[2]))
            with torch.no_grad():
                moved = model.eps(x_t, t) - load_counterfactual(by_path, others["1"]).eps(x_t, t)
            squares = moved.double().square().flatten(1).sum(1).reshape(shape).mean(dim=2).numpy()
            nats.append(kl(plan, model.schedule.weights, draws.t, squares).sum(axis=1))
        each.append(np.mean(nats, axis=0))
        np.testing.assert_allclose(stored(by_path, f"logo-s{seed}").score[:, 1], each[-1], rtol=1e-3)
    np.testing.assert_allclose(stored(by_path, "logo").score[:, 1], np.mean(each, axis=0), rtol=1e-3)


def test_another_reference_is_refused_never_mixed(by_path: Run) -> None:
    before = files(by_path.root)
    steps.change_settings(by_path, ["logo"], ["own_full=false"])
    with refused("terms-stale"):
        steps.score(by_path, SET, ["logo"], Inline())
    assert files(by_path.root) == before
    steps.change_settings(by_path, ["logo"], ["own_full=true"])
    steps.score(by_path, SET, ["logo"], Inline())
    assert files(by_path.root) == before


def test_a_hybrid_is_its_halves_divergences_weighed_by_t(by_path: Run) -> None:
    queries = load_queries(by_path, SET)
    tuned, rule, both = (get_method(by_path, m) for m in ("shift", "posterior", "hybrid"))
    read = both.reader(queries)  # type: ignore[attr-defined]
    parts = [m.contributions(m.sets(), read) for m in (tuned, rule)]  # type: ignore[attr-defined]
    share = np.where(read.times(both.sets()) < 0.4 * run_schedule(by_path).T, 0.25, 0.0)[:, :, None]  # type: ignore[attr-defined]
    assert 0 < (share > 0).mean() < 1
    expected = (share * parts[0] + (1 - share) * parts[1]).mean(axis=0).sum(axis=-1)
    np.testing.assert_allclose(stored(by_path, "hybrid").score, expected, rtol=1e-12)
    steps.change_scoring(by_path, excess=True)
    excess = steps.score(by_path, SET, ["hybrid"], Inline())["hybrid"].score
    logs = np.log(expected)  # the weighted mean first, then its logarithm
    others = (logs.sum(axis=0) - logs) / (len(logs) - 1)
    np.testing.assert_allclose(excess, logs - others, rtol=1e-9, atol=1e-9)


def test_the_path_of_a_rule_evaluates_no_network(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pilot included; nor does its race, or its excess over samples that are there."""

    def never(*args: Any) -> torch.Tensor:
        raise AssertionError("a network was evaluated")

    for net in (load_model(run, "base"), Denoiser):
        monkeypatch.setattr(net, "raw", never)
    monkeypatch.setattr(torch.nn.Linear, "forward", never)
    steps.change_scoring(run, estimand="path")
    found = steps.score(run, SET, ["posterior"], Inline())["posterior"]
    assert np.asarray(found.n_evals).max() == 0
    assert get_method(run, "posterior").score_evals() == 0
    assert steps.evals_per_picture(run, found) == 0
    raced = steps.score(run, SET, ["posterior"], Inline(), stop="top1@0.9")["posterior"]
    assert np.isfinite(raced.score).all()
    steps.change_scoring(run, excess=True)
    assert np.isfinite(steps.score(run, SET, ["posterior"], Inline())["posterior"].score).all()


def test_evaluations_are_those_that_networks_make(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is evaluated once for all counterfactuals of it."""
    seen: list[int] = []

    def counted(self: Denoiser, x: torch.Tensor, t: torch.Tensor, cond: Any = None) -> torch.Tensor:
        seen.append(len(x))
        return real(self, x, t, cond)

    real = Denoiser.raw
    steps.change_scoring(run, estimand="path", plan="stratified", block=12)  # nothing is padded
    monkeypatch.setattr(Denoiser, "raw", counted)
    for method, models in (("posterior", 0), ("retrack", 4), ("hybrid", 4), ("logo", 8)):
        seen.clear()
        found = steps.score(run, SET, [method], Inline())[method]
        each = models * 12 * 2  # strata in pairs, rounds
        assert sum(seen) == 12 * each, method
        assert get_method(run, method).score_evals() == each
        if method != "logo":
            assert steps.evals_per_picture(run, found) == each


# --- how the work is done -------------------------------------------------------------------------


def test_path_scores_do_not_depend_on_order_interruption_or_lost_parts(run: Run, tmp_path: Path) -> None:
    steps.change_scoring(run, estimand="path")
    rng = random.Random(0)
    for _ in range(100):
        try:
            steps.score(Run.open(run.root), SET, ALL, Inline(stop_after=rng.randint(1, 4)))
            break
        except KeyboardInterrupt:
            pass
    assert files(run.root) == files(path_root())
    parts = sorted(run.path("terms").rglob("c*.parquet"))
    for part in rng.sample(parts, 6):
        part.unlink()
    shutil.rmtree(run.path("scores", SET, "path"))
    for method in reversed(ALL):
        steps.score(run, SET, [method], Inline())
    assert files(run.root) == files(path_root())


def test_two_workers_score_to_the_bytes_of_one_process(run: Run) -> None:
    steps.change_scoring(run, estimand="path")
    steps.score(run, SET, ALL, steps.local_engine(2))
    assert files(run.root) == files(path_root())


def test_another_block_size_agrees_to_1e_3(by_path: Run) -> None:
    before = stored(by_path, "retrack").score
    steps.change_scoring(by_path, block=7)
    np.testing.assert_allclose(steps.score(by_path, SET, ["retrack"], Inline())["retrack"].score, before, rtol=1e-3)


def test_the_other_estimands_parts_and_scores_stay(by_path: Run) -> None:
    before, elbo = files(by_path.root), files(fitted_root())
    assert {k: before[k] for k in elbo} == elbo  # path has only added
    assert {k.split("/")[2] for k in before if k.startswith("scores/") and k not in elbo} == {"path"}
    steps.change_scoring(by_path, estimand="elbo")
    again = Inline()
    found = steps.score(by_path, SET, ALL, again)
    assert again.ran == []
    assert files(by_path.root) == before
    assert found["retrack"].estimand != stored(Run.open(path_root()), "retrack").estimand


def test_estimands_of_one_plan_share_their_terms(tmp_path: Path) -> None:
    """Path keeps errors too; whichever is scored first, the files are the same."""
    found = []
    for order in (("elbo", "path"), ("path", "elbo")):
        run = copy_run(tmp_path / order[0], fitted_root())
        ran = []
        for estimand in order:
            steps.change_scoring(run, plan="stratified", estimand=estimand)
            engine = Inline()
            steps.score(run, SET, ["retrack", "logo"], engine)
            ran.append(len(engine.ran))
        assert (ran[1] == 0) == (order[0] == "path")
        found.append(files(run.root))
    assert found[0] == found[1]
    assert len(found[0]) > len(files(fitted_root()))


def test_health_is_of_elbo_differences_whatever_the_estimand(run: Run) -> None:
    steps.change_scoring(run, plan="stratified", reference=3)
    expected = steps.health(run, ["retrack", "hybrid"], Inline())
    steps.change_scoring(run, estimand="path")
    again = Inline()
    assert steps.health(run, ["retrack", "hybrid"], again) == expected
    assert again.ran == []  # the same terms
    shutil.rmtree(run.path("terms"))
    assert steps.health(run, ["retrack", "hybrid"], Inline()) == expected


def test_what_drift_is_not_measured_for_is_refused(run: Run) -> None:
    before = tree(run.root)
    for code, changes in (
        ("path-with-drift", {"estimand": "path"}),
        ("excess-with-drift", {"excess": True}),
        ("excess-with-drift", {"estimand": "path", "excess": True}),
    ):
        steps.change_scoring(run, **{"estimand": "elbo", "excess": False, "drift": "subtract", **changes})
        with refused(code):
            steps.score(run, SET, ["retrack"], Inline())
    steps.change_scoring(run, estimand="elbo", excess=False, drift="keep")
    after = tree(run.root)
    assert after.keys() == before.keys()


# --- excess ---------------------------------------------------------------------------------------


def keep(run: Run, name: str, queries: Queries) -> str:
    Queries(queries.ids, queries.images, None, name).save(run.path("queries", name))
    return name


@pytest.mark.parametrize("estimand", ["path", "elbo"])
def test_a_picture_of_the_average_is_left_out_of_its_own(by_path: Run, estimand: str) -> None:
    steps.change_scoring(by_path, estimand=estimand)
    plain = {m: stored(by_path, m) for m in ("retrack", "posterior", "logo", "logo-s1", "logo-s2")}
    steps.change_scoring(by_path, excess=True)
    engine = Inline()
    steps.score(by_path, SET, ["retrack", "posterior", "logo"], engine)
    assert engine.ran == []  # the average is the set itself
    for method, before in plain.items():
        found = stored(by_path, method)  # of a seed by itself: against that seed's own average
        values = np.log(before.score) if estimand == "path" else before.score
        expected = [values[q] - np.delete(values, q, axis=0).mean(axis=0) for q in range(len(values))]
        np.testing.assert_allclose(found.score, expected, rtol=1e-9, atol=1e-9)
        assert found.unit == ("log ratio" if estimand == "path" else before.unit)
        assert found.estimand.startswith(before.estimand)
        assert found.estimand != before.estimand
        own = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
        assert (found.stderr >= 0.9 * own).all()  # the average's error is in it


@pytest.mark.parametrize("estimand", ["path", "elbo"])
def test_a_retraining_by_itself_is_compared_with_its_own_average(run: Run, estimand: str) -> None:
    """logo-s1 against what seed 1 says of the average picture, logo against what the mean of the seeds says."""
    name = keep(run, "new", Queries.from_folder(write_queries(run.root / "tmp-q")))
    steps.change_scoring(run, estimand=estimand)
    steps.score(run, SET, ["logo"], Inline())
    steps.score(run, name, ["logo"], Inline())
    methods = ("logo", "logo-s1", "logo-s2")
    plain = {m: (stored(run, m, name=name).score, stored(run, m).score) for m in methods}
    steps.change_scoring(run, excess=True)
    engine = Inline()
    steps.score(run, name, ["logo"], engine)
    assert engine.ran == []  # both are scored
    for m, (score, average) in plain.items():
        one, two = (np.log(score), np.log(average)) if estimand == "path" else (score, average)
        np.testing.assert_allclose(stored(run, m, name=name).score, one - two.mean(axis=0), rtol=1e-9, atol=1e-9)
    averages = [average.mean(axis=0) for _, average in plain.values()]
    assert not np.allclose(averages[1], averages[2], rtol=1e-3)  # another seed's average would be noticed


@pytest.mark.parametrize("stop", [None, "budget=200"])
def test_a_new_picture_alone_has_the_excess_that_it_has_among_others(run: Run, stop: str | None) -> None:
    steps.change_scoring(run, estimand="path", excess=True)
    many = Queries.from_folder(write_queries(run.root / "tmp-q", n=7))
    together = steps.score(run, keep(run, "many", many), ["retrack", "posterior"], Inline(), stop=stop)
    for picture in (0, 6):
        alone = many.subset([many.ids[picture]])
        found = steps.score(run, keep(run, f"alone-{picture}", alone), ["retrack", "posterior"], Inline(), stop=stop)
        for method, scores in found.items():
            for column in ("score", "stderr", "lo", "hi", "rank"):
                np.testing.assert_array_equal(getattr(scores, column)[0], getattr(together[method], column)[picture])
    if stop is None:
        plain = divergences(run, "retrack", many).mean(axis=0).sum(axis=-1)
        reference = divergences(run, "retrack", load_queries(run, SET)).mean(axis=0).sum(axis=-1)
        expected = np.log(plain) - np.log(reference).mean(axis=0)
        np.testing.assert_allclose(together["retrack"].score, expected, atol=2e-3)


def test_excess_resumes_and_draws_the_samples_that_it_needs(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run", fitted_root())
    whole = copy_run(tmp_path / "whole", fitted_root())
    pictures = Queries.from_folder(write_queries(tmp_path / "pictures"))
    for each in (run, whole):
        shutil.rmtree(each.path("queries"))
        shutil.rmtree(each.path("terms"))
        for folder in each.path("artifacts").glob("samples-*"):
            shutil.rmtree(folder)
        keep(each, "pictures", pictures)
        steps.change_scoring(each, estimand="path", excess=True)
    engine = Inline()
    steps.score(whole, "pictures", ["retrack"], engine)
    assert whole.has(f"queries/average-{SET}/index.json")
    assert whole.query_sets() == ["pictures"]
    for _ in range(100):
        try:
            steps.score(Run.open(run.root), "pictures", ["retrack"], Inline(stop_after=1))
            break
        except KeyboardInterrupt:
            pass
    assert files(run.root) == files(whole.root)
    drawn, known = (load_queries(Run.open(r), n) for r, n in ((run.root, f"average-{SET}"), (finished_root(), SET)))
    assert drawn.digest == known.digest


# --- races ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("excess", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("method", ["retrack", "hybrid"])
def test_a_race_ends_with_the_plans_first_where_it_is_clear_and_resumes(
    run: Run, tmp_path: Path, method: str, excess: bool
) -> None:
    steps.change_scoring(run, estimand="path", excess=excess, rounds=8)
    plain = steps.score(run, SET, [method], Inline())[method]
    # the error of an average of twelve pictures is large, and a race takes the average as it is
    clear = np.asarray(plain.p_first).max(axis=1) > (0.75 if excess else 0.98)
    assert clear.any()
    before = files(run.root)
    rule = "top1@0.95,budget=1500"
    other = copy_run(tmp_path / "other", run.root)
    raced = steps.score(run, SET, [method], Inline(), stop=rule)[method]
    assert (raced.rank.argmin(axis=1) == plain.rank.argmin(axis=1))[clear].all()
    assert raced.unit == plain.unit
    close = np.abs(raced.score - plain.score) < 4 * np.hypot(raced.stderr, plain.stderr)
    assert close[np.isfinite(raced.stderr)].mean() > 0.95
    assert {k: v for k, v in files(run.root).items() if k in before} == before
    for _ in range(200):
        try:
            steps.score(Run.open(other.root), SET, [method], Inline(stop_after=3), stop=rule)
            break
        except KeyboardInterrupt:
            pass
    assert files(other.root) == files(run.root)


def test_a_raced_excess_knows_the_averages_error(by_path: Run) -> None:
    steps.change_scoring(by_path, excess=True)
    plain = steps.score(by_path, SET, ["retrack"], Inline())["retrack"]
    raced = steps.score(by_path, SET, ["retrack"], Inline(), stop="budget=400")["retrack"]
    less = get_method(by_path, "retrack").excess(load_queries(by_path, SET), get_method(by_path, "retrack").sets())  # type: ignore[attr-defined]
    known = np.isfinite(raced.stderr)
    assert known.any()
    assert (raced.stderr >= less.stderr)[known].all()
    assert ((raced.hi - raced.lo) / 2 >= less.reach)[known].all()
    assert (plain.stderr >= less.stderr).all()


def test_another_average_is_another_race(by_path: Run) -> None:
    """What a race still wants depends on the average that it compares with."""
    steps.change_scoring(by_path, excess=True)
    first = steps.score(by_path, SET, ["retrack"], Inline(), stop="budget=200")["retrack"]
    value = by_path.recipe.model_dump(mode="json")
    value["queries"]["seed"] = 5
    by_path.update(type(by_path.recipe).from_dict(value, "test"))
    second = steps.score(by_path, SET, ["retrack"], Inline(), stop="budget=200")["retrack"]
    assert not np.array_equal(first.score, second.score)


@pytest.mark.parametrize("excess", [False, True])
def test_a_screen_by_posterior_chooses_who_races(by_path: Run, excess: bool) -> None:
    steps.change_scoring(by_path, excess=excess)
    rule = "top1@0.9,budget=400"
    found = steps.score(by_path, SET, ["retrack"], Inline(), stop=rule, screen="posterior:2")["retrack"]
    screen = stored(by_path, "posterior")
    started = screen.rank <= 2
    assert (np.asarray(found.n_evals) > 0).tolist() == started.tolist()
    assert np.array_equal(found.score[~started], screen.score[~started])
    assert np.isnan(found.lo[~started]).all()
    assert (found.rank[~started] == len(GROUPS)).all()
    assert found.unit == screen.unit
    again = Inline()
    same = steps.score(Run.open(by_path.root), SET, ["retrack"], again, stop=rule, screen="posterior:2")["retrack"]
    assert again.ran == []
    assert np.array_equal(same.score, found.score)


def test_parts_name_the_models_that_they_compare(by_path: Run) -> None:
    """A counterfactual whose file changed is refused."""
    method = get_method(by_path, "retrack")
    ref = method.sets()[0][1]["0"]  # type: ignore[attr-defined]
    other = method.sets()[0][1]["1"]  # type: ignore[attr-defined]
    queries, scorer = load_queries(by_path, SET), run_scorer(by_path)
    Reader(scorer, queries, 1)(ref, "change")
    by_path.path(str(ref.counterfactual)).write_bytes(by_path.path(str(other.counterfactual)).read_bytes())
    with refused("terms-stale"):
        Reader(scorer, queries, 1)(ref, "change")


def test_bare_scores_are_of_the_estimand_that_is_reported(by_path: Run) -> None:
    """What tuning, the noise bands and the query-noise floor compare: excess where the scores are."""
    steps.change_scoring(by_path, excess=True)
    steps.score(by_path, SET, ["logo"], Inline())
    logo, queries = get_method(by_path, "logo"), load_queries(by_path, SET)
    assert has_counterfactuals(logo)
    whole = Bands(((0, run_schedule(by_path).T, 1.0),))
    [values] = logo.values(queries, [whole])
    np.testing.assert_allclose(values, logo.scores(queries).score, atol=1e-9)
    [seeds] = logo.seed_values(queries, [whole])
    for seed, value in zip(logo.seed_sets(), seeds, strict=True):
        np.testing.assert_allclose(value, Scores.read(scores_path(by_path, SET, f"logo-s{seed}")).score, atol=1e-9)
    rounds = logo.round_values(queries)
    assert rounds.shape == (by_path.recipe.scoring.rounds, *values.shape)
    assert np.abs(rounds.mean(axis=0) - values).max() < np.abs(values).max()


def test_log_p_is_compared_with_elbo_differences_only(by_path: Run) -> None:
    with refused("likelihood-estimand-unsupported"):
        steps.likelihood(by_path, SET, Inline())
