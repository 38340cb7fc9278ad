"""posterior and hybrid in a run: shared evaluations, arithmetic on terms, races, resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run, digits_folder, tiny, write_digits, write_queries

import guda
from guda import steps
from guda.errors import GudaError
from guda.files import read_tensors, write_tensors
from guda.methods.base import get_method
from guda.methods.regroup import Subset, fitted_placebos, placebos_of
from guda.methods.terms import ModelRef, families, load_counterfactual, load_queries, run_scorer
from guda.run.data import load_data
from guda.run.models import load_model, run_schedule
from guda.run.plan import run_plan
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.scorer import Reader
from guda.scoring.terms import kl, make_draws, measure, squared_errors
from guda.steps.bank import bank_list, bank_verify
from guda.unlearning.rule import _identity

METHODS = {
    "shift": {"steps": 3, "batch_forget": 8, "batch_retain": 8},
    "posterior": {"components": 1},
    "hybrid": {"edge": 0.4, "share": 0.25},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("rules")
    recipe = tiny(write_digits(root / "data")).model_dump(mode="json") | {"methods": METHODS}
    found = steps.init(root / "run", Recipe.from_dict(recipe, "test"))
    engine = Inline()
    steps.fit(found, ["hybrid"], engine)
    steps.sample(found, engine)
    steps.score(found, SET, list(METHODS), engine)
    return found


def test_terms_of_a_rule_equal_those_of_its_denoiser_alone(run: Run) -> None:
    queries, plan = load_queries(run, SET), run_plan(run)
    base = load_model(run, "base")
    refs = get_method(run, "posterior").sets()[0][1]  # type: ignore[attr-defined]
    read = Reader(run_scorer(run), queries, run.recipe.scoring.rounds)
    for group, ref in refs.items():
        terms = read(ref)
        draws = make_draws(base, base.encode(queries.images), queries.ids, plan, 1)
        alone = squared_errors(load_counterfactual(run, ref), draws, 16)
        np.testing.assert_allclose(terms.kl[1], kl(plan, base.schedule.weights, draws.t, alone), rtol=1e-4)
        assert not np.allclose(terms.kl, read(ModelRef("base")).kl), group


def test_the_python_interface_gives_the_same_scores(run: Run) -> None:
    queries, model, data = load_queries(run, SET), load_model(run, "base"), load_data(run)
    bank = guda.unlearn(model, data, operator="posterior", components=1)
    found = guda.attribute(
        model, bank, queries, plan="stratified", strata=6, rounds=2, block=16, estimand="elbo", excess=False
    )
    steps.change_scoring(run, plan="stratified")
    try:
        stored = steps.score(run, SET, ["posterior"], Inline())["posterior"]
    finally:
        steps.change_scoring(run, plan="importance")
    np.testing.assert_allclose(found.score, stored.score, rtol=1e-4, atol=1e-4)
    with pytest.raises(GudaError, match="guda fit"):
        bank["0"].save(run.path("x.safetensors"))


def test_members_of_a_rule_are_evaluated_together() -> None:
    one, two, other = ModelRef("base", "r.safetensors", 0), ModelRef("base", "r.safetensors", 1), ModelRef("base", "x")
    assert families([one, other, two, ModelRef("base")]) == [[one, two], [other], [ModelRef("base")]]


def test_a_hybrid_is_its_halves_weighed_by_t(run: Run) -> None:
    queries = load_queries(run, SET)
    tuned, rule, both = (get_method(run, m) for m in ("shift", "posterior", "hybrid"))
    read = both.reader(queries)  # type: ignore[attr-defined]
    parts = [m.contributions(m.sets(), read) for m in (tuned, rule)]  # type: ignore[attr-defined]
    t = read(ModelRef("base")).t
    share = np.where(t < 0.4 * run_schedule(run).T, 0.25, 0.0)[:, :, None]
    assert (share > 0).any()
    assert (share == 0).any()
    expected = (share * parts[0] + (1 - share) * parts[1]).mean(axis=0).sum(axis=-1)
    np.testing.assert_allclose(both.scores(queries).score, expected, rtol=1e-12)


def test_a_hybrid_needs_no_terms_of_its_own_and_no_second_fit(run: Run) -> None:
    engine = Inline()
    steps.score(run, SET, ["hybrid"], engine)
    steps.fit(run, ["shift", "posterior", "hybrid"], engine)
    assert engine.ran == []


def test_races_take_rules_and_hybrids(run: Run) -> None:
    queries = load_queries(run, SET)
    for name in ("posterior", "hybrid"):
        engine = Inline()
        raced = steps.score(run, SET, [name], engine, stop="top1@0.9,budget=60")[name]
        assert engine.ran
        assert np.isfinite(raced.score).all()
        again = Inline()
        same = steps.score(run, SET, [name], again, stop="top1@0.9,budget=60")[name]
        assert again.ran == []
        assert same.score.tobytes() == raced.score.tobytes()
        full = get_method(run, name).scores(queries)
        two = raced.n_evals == raced.n_evals.min()
        assert np.corrcoef(raced.score[two], full.score[two])[0, 1] > 0.5


def add_fresh(run: Run, folder: Path) -> str:
    """Six queries with terms of their own: parts go by content, names included."""
    for path in write_queries(folder).iterdir():
        path.rename(folder / f"{folder.name}-{path.name}")
    return steps.add_queries(run, folder)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Images sent through a network, call by call."""
    seen: list[int] = []

    def counted(denoiser: Any, draws: Any, *args: Any) -> Any:
        seen.append(int(np.prod(draws.eps.shape[:3])))
        return measure(denoiser, draws, *args)

    monkeypatch.setattr("guda.scoring.scorer.measure", counted)
    return seen


@pytest.mark.parametrize(("name", "models"), [("posterior", 2), ("shift", 4), ("hybrid", 5)])
def test_evaluations_are_those_that_networks_make(
    run: Run, passes: list[int], tmp_path: Path, name: str, models: int
) -> None:
    fresh = add_fresh(run, tmp_path / f"fresh-{name}")
    found = steps.score(run, fresh, [name], Inline())[name]
    each = models * 12 * 2  # strata in pairs, rounds
    assert sum(passes) == 6 * each
    assert get_method(run, name).score_evals() == each
    assert steps.evals_per_picture(run, found) == each
    rows = {r["what"]: r["evals"] for r in steps.plan(run, [name], 6)["rows"]}
    assert rows[f"score 6 queries by {name}"] == 6 * each


@pytest.mark.parametrize("name", ["posterior", "hybrid"])
def test_a_race_keeps_its_budget(run: Run, passes: list[int], tmp_path: Path, name: str) -> None:
    fresh = add_fresh(run, tmp_path / f"raced-{name}")
    with pytest.raises(GudaError, match=f"costs {24 if name == 'posterior' else 60} evaluations"):
        steps.score(run, fresh, [name], Inline(), stop="budget=23")
    found = steps.score(run, fresh, [name], Inline(), stop="budget=110")[name]
    assert sum(passes) == 6 * steps.evals_per_picture(run, found)
    assert sum(passes) <= 6 * 110


def test_times_are_booked_by_half_whoever_is_scored_first(run: Run, tmp_path: Path) -> None:
    fresh = add_fresh(run, tmp_path / "timed")
    steps.score(run, fresh, ["hybrid", "shift", "posterior"], Inline())
    assert {p.name for p in run.path("timings", "score", fresh).iterdir()} == {"shift", "posterior"}


def test_a_hybrid_of_some_groups_fits_these_alone(run: Run) -> None:
    both = get_method(run, "hybrid").on(Subset(names=("2", "0")))  # type: ignore[attr-defined]
    assert [t.name for t in both.fit()] == ["fit shift without 2", "fit shift without 0", "fit posterior"]


BREAKS: dict[str, tuple[Any, str]] = {
    "no config": (lambda h, t: (without(h, "config"), t), "tells of no rule"),
    "bad config": (lambda h, t: (h | {"config": "{}x"}, t), "tells of no rule"),
    "no digest": (lambda h, t: (without(h, "digest"), t), "is damaged: digest"),
    "no means": (lambda h, t: signed(h, without(t, "mean")), "holds no 'mean'"),
    "other numbers": (lambda h, t: (h, t | {"mean": 2 * t["mean"]}), "is damaged: digest"),
    "other base": (lambda h, t: signed(h | {"base": "abc"}, t), "base model: found 'abc'"),
    "other groups": (lambda h, t: signed(h, t | {"owner": 0 * t["owner"]}), "groups: found 1, given 3"),
}


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}


def signed(header: dict[str, Any], tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """As a sound file of other content."""
    return header | {"digest": _identity(header, tensors)}, tensors


@pytest.mark.parametrize("how", BREAKS)
def test_a_rule_that_is_not_this_runs_is_one_clear_line(run: Run, tmp_path: Path, how: str) -> None:
    file = get_method(run, "posterior").rule  # type: ignore[attr-defined]
    change, said = BREAKS[how]
    path = run.path(file)
    sound = path.read_bytes()
    assert bank_verify(run)["problems"] == []
    assert [(r.kind, r.group, r.base_ok, r.used) for r in bank_list(run) if r.file == file] == [
        ("rule", "(all)", True, True)
    ]
    fresh = add_fresh(run, tmp_path / f"broken-{how.replace(' ', '-')}")
    try:
        tensors, header = read_tensors(path)
        header, tensors = change(header, tensors)
        write_tensors(path, tensors, header)
        with pytest.raises(GudaError, match=said):
            steps.score(run, fresh, ["posterior"], Inline())
        problems = bank_verify(run)["problems"]
        assert [p["file"] for p in problems] == [file]
        assert said.removeprefix("is ") in problems[0]["problem"]
        bank_list(run)
    finally:
        path.write_bytes(sound)


def test_rules_are_refused_where_they_mean_nothing(run: Run) -> None:
    for value in ({"tuned": "hybrid"}, {"rule": "similarity-pixel"}):
        with pytest.raises(GudaError, match=r"methods\.hybrid"):
            steps.change_settings(run, ["hybrid"], [f"{k}={v}" for k, v in value.items()])


def test_a_hybrid_of_an_unknown_half_makes_no_run(run: Run, tmp_path: Path) -> None:
    value = run.recipe.model_dump(mode="json")
    value["methods"]["hybrid"] = {"tuned": "shfit"}
    with pytest.raises(GudaError, match=r"methods\.hybrid: unknown method 'shfit'"):
        steps.init(tmp_path / "run", Recipe.from_dict(value, "test"))
    assert not (tmp_path / "run").exists()


def test_a_recipe_may_ask_for_placebos_and_health(run: Run) -> None:
    value = run.recipe.model_dump(mode="json")
    value["methods"]["logo"] = {"seeds": [1, 2]}
    value["evaluation"] |= {"placebos": 1, "health": True}
    value["scoring"]["reference"] = 2
    run.update(Recipe.from_dict(value, "test"))
    entry = steps.pipeline(run, Inline())
    assert {"shift", "posterior", "hybrid"} <= set(entry.methods)
    assert all(steps.scores_path(run, SET, f"{m}-placebo").is_file() for m in METHODS)
    assert [(r.method, r.used) for r in bank_list(run) if r.group == "placebo-0"] == [
        ("posterior", True), ("shift", True)
    ]  # fmt: skip
    assert bank_verify(run)["problems"] == []
    measured = {p.name.rsplit("-", 1)[0] for p in run.path("health").glob("*.json")}
    assert measured == {"shift", "posterior", "hybrid"}
    hybrid, shift = entry.methods["hybrid"], entry.methods["shift"]
    assert hybrid.fit_evals == shift.fit_evals
    assert hybrid.fit_seconds is not None
    assert shift.fit_seconds is not None
    assert hybrid.fit_seconds >= shift.fit_seconds
    steps.change_scoring(run, drift="subtract")
    steps.score(run, SET, list(METHODS), Inline())
    assert str(steps.evaluate(run, SET).note).endswith("Scores of shift are less their drift.")


def test_random_groups_by_the_rule_and_by_a_hybrid(run: Run) -> None:
    run = copy_run(run.root.parent / "placebos", run.root)
    engine = Inline()
    steps.fit(run, ["posterior", "hybrid"], engine, placebos=6)
    fitted = [name for name in engine.ran if "placebo-5" in name]
    assert fitted == ["fit posterior without placebo-5", "fit shift without placebo-5"]
    steps.score(run, SET, ["hybrid", "posterior"], Inline())
    rule, both = (fitted_placebos(get_method(run, m)) for m in ("posterior", "hybrid"))
    assert rule is not None
    assert both is not None
    assert rule.groups == both.groups == tuple(f"placebo-{i}" for i in range(6))
    # the same images leave both halves, and a hybrid is its halves weighed by t
    assert {half.grouping.seed for half in both.members} == {rule.grouping.seed}  # type: ignore[attr-defined,union-attr]
    queries = load_queries(run, SET)
    read = both.reader(queries)
    tuned, own = (half.contributions(half.sets(), read) for half in both.members)  # type: ignore[attr-defined]
    share = np.where(read(ModelRef("base")).t < 0.4 * run_schedule(run).T, 0.25, 0.0)[:, :, None]
    assert np.allclose(both.contributions(both.sets(), read), share * tuned + (1 - share) * own)
    stored = steps.placebo_null(run, SET, "hybrid")
    assert stored is not None
    expected = (share * tuned + (1 - share) * own).mean(axis=0).sum(axis=-1)
    np.testing.assert_allclose(stored.scores.score, expected, rtol=1e-9)


def test_placebos_of_another_seed_are_other_files(run: Run) -> None:
    rule = get_method(run, "posterior")
    mine = placebos_of(rule, 1)
    other = mine.on(mine.grouping.model_copy(update={"seed": 7}))  # type: ignore[union-attr]
    assert mine.file("placebo-0") != other.file("placebo-0")
    assert not np.array_equal(mine.regrouped("placebo-0").membership, other.regrouped("placebo-0").membership)


def test_the_plan_knows_how_counterfactuals_are_stored(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", tiny(digits_folder()))

    def disk() -> int:
        return {r["what"]: r["disk"] for r in steps.plan(run, ["retrack"], 1)["rows"]}["fit retrack"]

    whole = disk()
    steps.change_settings(run, ["retrack"], ["store=bf16"])
    assert disk() == whole / 2
    steps.change_settings(run, ["retrack"], ["store=lora:2"])
    assert disk() < whole / 4


def test_a_plan_counts_the_work_of_a_hybrid_once(run: Run) -> None:
    def rows(*methods: str) -> dict[str, float]:
        return {r["what"]: r["evals"] for r in steps.plan(run, list(methods), 10)["rows"]}

    steps.change_settings(run, ["shift"], ["seed=1"])  # not fitted yet
    alone, behind, before = rows("hybrid"), rows("shift", "posterior", "hybrid"), rows("hybrid", "shift", "posterior")
    assert alone["fit hybrid"] > 0
    assert sum(v for k, v in behind.items() if k.startswith("fit")) == alone["fit hybrid"]
    assert behind["fit hybrid"] == behind["score 10 queries by hybrid"] == 0
    assert before["fit hybrid"] == alone["fit hybrid"]
    assert before["fit shift"] == before["score 10 queries by shift"] == before["score 10 queries by posterior"] == 0
