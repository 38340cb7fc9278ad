"""log p in a run: parts on disk, resume, scores as differences, both oracles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run, exact, finished_root, tiny, write_digits

from guda import steps
from guda.diffusion.likelihood import evals, log_likelihoods
from guda.errors import GudaError
from guda.evaluation.metrics import top1
from guda.files import read_table, write_table
from guda.methods.base import get_method
from guda.methods.likelihood import asked_queries, likelihood_folder, method_tasks, read_log_p, seed_values
from guda.methods.terms import load_counterfactual, load_queries
from guda.run.models import load_model
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.run.task import pending
from guda.scoring.scores import Scores
from guda.steps.likelihood import read_likelihood

FEW: dict[str, Any] = {"steps": 4, "n": 7}


def parts(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.glob("likelihood/**/*.parquet"))}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The finished tiny run with log p of the first seven queries, in blocks of five."""
    run = copy_run(tmp_path_factory.mktemp("likelihood") / "run")
    small(run)
    steps.likelihood(run, SET, Inline(), **FEW)
    return run


def small(run: Run) -> None:
    value = run.recipe.model_dump(mode="json")
    value["likelihood"]["block"] = 5
    run.update(Recipe.from_dict(value, "test"))


def test_scores_are_differences_of_log_p(run: Run) -> None:
    queries = asked_queries(run, load_queries(run, SET))
    assert queries.ids == load_queries(run, SET).ids[:7]
    config = run.recipe.likelihood
    base = load_model(run, "base")
    x0 = base.encode(queries.images)
    found = Scores.read(steps.likelihood_path(run, SET, "retrack.parquet"))
    full, others = get_method(run, "retrack").sets()[0]  # type: ignore[attr-defined]
    alone = log_likelihoods(load_counterfactual(run, full), x0, queries.ids, config, range(2))[0]
    for g, group in enumerate(found.groups):
        model = load_counterfactual(run, others[group])
        d = alone - log_likelihoods(model, x0, queries.ids, config, range(2))[0]
        np.testing.assert_allclose(found.score[:, g], d.mean(axis=0), atol=1e-3)
        assert found.stderr is not None
        np.testing.assert_allclose(found.stderr[:, g], d.std(axis=0, ddof=1) / 2**0.5, atol=1e-3)
    assert found.unit == "nats"
    assert "log p by the probability-flow ODE, t = 0 to" in found.estimand
    assert "heun in 4 steps, 2 probe seeds" in found.estimand
    assert (np.asarray(found.n_evals) == 2 * evals(config)).all()


def test_logo_is_the_mean_of_its_seeds_by_log_p_too(run: Run) -> None:
    files = [Scores.read(steps.likelihood_path(run, SET, f"{m}.parquet")) for m in ("logo", "logo-s1", "logo-s2")]
    np.testing.assert_allclose(files[0].score, (files[1].score + files[2].score) / 2, atol=1e-9)


def test_both_oracles_and_the_correlations_are_of_the_same_queries(run: Run) -> None:
    file = read_likelihood(steps.likelihood_path(run, SET, "evaluation.json"))
    assert (file.n_queries, list(file.correlations)) == (7, ["logo", "retrack"])
    elbo = {m: s.score[:7] for m, s in get_method(run, "logo").all_scores(load_queries(run, SET)).items()}  # type: ignore[attr-defined]
    log_p = {m: Scores.read(steps.likelihood_path(run, SET, f"{m}.parquet")).score for m in (*elbo, "retrack")}
    flat = np.corrcoef(elbo["logo"].ravel(), log_p["logo"].ravel())[0, 1]
    assert file.correlations["logo"]["pearson"].mean == pytest.approx(flat)
    for kind, gold in (("elbo", elbo), ("likelihood", log_p)):
        entry = file.oracles[kind]
        assert entry.n_queries == 7
        assert set(entry.methods) == {"logo", "retrack", "similarity-pixel", "retrack-logp"}
        assert entry.ceiling is not None
        one = np.mean([top1(gold["logo-s1"], gold["logo-s2"]), top1(gold["logo-s2"], gold["logo-s1"])])
        assert entry.ceiling["top1"].mean == pytest.approx(one)
        mine = np.mean([top1(log_p["retrack"], gold[f"logo-s{s}"]) for s in (2, 1)])
        assert entry.methods["retrack-logp"].metrics["top1"].mean == pytest.approx(mine)
        assert len(entry.pairs or ()) == 6  # the ceiling and three rows
        assert entry.floor is not None
    logo = get_method(run, "logo")
    by_seed = seed_values(logo, asked_queries(run, load_queries(run, SET)))  # type: ignore[arg-type]
    assert by_seed.shape == (2, 7, 3)
    np.testing.assert_allclose(by_seed.mean(axis=0), log_p["logo"], atol=1e-9)
    floor = file.oracles["likelihood"].floor
    assert floor is not None
    assert (floor.rounds, floor.half) == (2, 1)  # one probe seed against the other
    swapped = (top1(by_seed[0], by_seed[1]) + top1(by_seed[1], by_seed[0])) / 2
    assert floor.metrics["top1"].mean == pytest.approx(swapped.mean())
    centred = by_seed - by_seed.mean(axis=2, keepdims=True)
    one = float((centred[0] * centred[1]).sum() / np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    assert file.reliability["logo"].one_seed == pytest.approx(one) == floor.one_round
    assert set(file.reliability) == {"logo", "retrack"}
    assert file.oracles["likelihood"].methods["logo"].score_evals == len(logo.models()) * evals(run.recipe.likelihood)  # type: ignore[attr-defined]
    text = steps.likelihood_path(run, SET, "evaluation.md").read_text()
    assert "Oracle: LOGO by delta log p" in text
    assert "| retrack-logp |" in text
    assert f"over probe seeds, same models (Spearman-Brown): logo {one:.2f} for one, " in text


def test_a_broken_off_run_goes_on_and_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    other = copy_run(tmp_path / "other")
    small(other)
    with pytest.raises(KeyboardInterrupt):
        steps.likelihood(other, SET, Inline(stop_after=3), ["retrack"], **FEW)
    # one seed first, the methods in another order, the tasks backwards
    steps.likelihood(other, SET, Inline(), ["retrack"], seeds=1)

    def backwards(run: Run, tasks: list[Any], title: str) -> int:
        return Inline()(run, pending(run, tasks)[::-1], title)

    steps.likelihood(other, SET, backwards, ["retrack", "logo"], seeds=2)
    assert parts(other.root) == parts(run.root)
    mine, theirs = ({k: v for k, v in exact(r.root).items() if k.endswith(".parquet")} for r in (run, other))
    assert any("/likelihood/retrack" in k for k in mine)
    assert mine == theirs


def test_only_what_is_missing_is_solved(run: Run, tmp_path: Path) -> None:
    engine = Inline()
    steps.likelihood(run, SET, engine)
    assert engine.ran == []
    other = copy_run(tmp_path / "other")
    small(other)
    steps.likelihood(other, SET, engine := Inline(), ["retrack"], **FEW)
    assert len(engine.ran) == 4 * 2  # the model and three groups, two shards
    some = asked_queries(other, load_queries(other, SET))
    path = read_log_p(other, some, get_method(other, "retrack").sets()[0][0])  # type: ignore[attr-defined]
    assert (path.calls == 4 * 2 + 1).all()
    value = other.recipe.model_dump(mode="json")
    value["likelihood"]["seeds"] = 3
    other.update(Recipe.from_dict(value, "test"))
    tasks = method_tasks(get_method(other, "retrack"), some, set())  # type: ignore[arg-type]
    assert [t.args["seeds"] for t in tasks] == [[2]] * 8
    assert sum(t.cost for t in tasks) == 4 * 7 * (
        4 * 4 + 3
    )  # one seed: 2 forwards and a product a step, one at the end
    steps.likelihood(other, SET, engine := Inline(), ["retrack"], n=12, seeds=2)
    assert len(engine.ran) == 4 * 2  # the short shard is another one now, the whole one is kept
    file = read_likelihood(steps.likelihood_path(other, SET, "evaluation.json"))
    assert file.oracles == {}  # LOGO's log p was not asked for
    assert list(file.correlations) == ["retrack"]


def test_parts_of_other_weights_are_refused(run: Run, tmp_path: Path) -> None:
    other = copy_run(tmp_path / "other")
    steps.likelihood(other, SET, Inline(), ["retrack"], **FEW)
    path = sorted(other.root.glob(f"{likelihood_folder(other)}/*/**/s000.parquet"))[0]
    table = read_table(path)
    write_table(path, table.replace_schema_metadata((table.schema.metadata or {}) | {b"model": b"stranger"}))
    with pytest.raises(GudaError) as e:
        steps.likelihood(other, SET, Inline(), ["retrack"])
    assert e.value.code == "likelihoods-stale"


def test_other_settings_leave_no_stale_scores(run: Run, tmp_path: Path) -> None:
    other = copy_run(tmp_path / "other")
    steps.likelihood(other, SET, Inline(), **FEW)
    steps.likelihood(other, SET, Inline(), ["retrack"], steps=3)
    assert [p.stem for p in steps.likelihood_path(other, SET, "").glob("*.parquet")] == ["retrack"]
    assert json.loads((finished_root() / "scores" / SET / "evaluation.json").read_text())["n_queries"] == 12


def test_a_rule_has_a_likelihood_and_a_hybrid_has_none(tmp_path: Path) -> None:
    recipe = tiny(write_digits(tmp_path / "data")).model_dump(mode="json") | {
        "methods": {"posterior": {"components": 1}}, "likelihood": {"tolerance": 1e-2, "n": 2, "steps": 15},
    }  # fmt: skip
    run = steps.init(tmp_path / "run", Recipe.from_dict(recipe, "test"))
    engine = Inline()
    steps.fit(run, ["posterior"], engine)
    steps.sample(run, engine)
    steps.score(run, SET, ["posterior"], engine)
    file = steps.likelihood(run, SET, engine, solver="rk4")
    assert file.oracles == {}
    fixed = Scores.read(steps.likelihood_path(run, SET, "posterior.parquet"))
    assert np.abs(fixed.score).min() > 0
    adaptive = steps.likelihood(run, SET, engine, solver="adaptive", seeds=1)
    assert "dopri5 at tolerance 0.01" in adaptive.estimand
    found = Scores.read(steps.likelihood_path(run, SET, "posterior.parquet"))
    assert found.stderr is None
    assert (np.asarray(found.n_evals) > 2 * 3 * 20).all()
    assert np.corrcoef(found.score.ravel(), fixed.score.ravel())[0, 1] > 0.5
    with pytest.raises(GudaError, match="hybrid weighs models by timestep"):
        steps.likelihood(run, SET, engine, ["hybrid"])
