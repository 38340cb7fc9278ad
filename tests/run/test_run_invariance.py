"""Order, interruption and block shape do not reach a result."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run, digits_folder, exact, finished_root, interrupted, tiny, write_queries

from guda import steps
from guda.data.queries import Queries
from guda.files import read_json, read_table, write_json
from guda.methods.terms import load_queries
from guda.run.plan import run_plan
from guda.scoring.scores import Scores


def test_an_interrupted_and_resumed_run_is_byte_identical(tmp_path: Path) -> None:
    root = tmp_path / "run"
    run = steps.init(root, tiny(digits_folder()))
    ran = interrupted(root)
    assert exact(root) == exact(finished_root())
    assert len(ran) == len(set(ran)), "something was done twice"
    again = Inline()
    steps.pipeline(run, again)
    assert again.ran == []


def test_tasks_in_another_order_give_the_same_bytes(tmp_path: Path) -> None:
    class Shuffled(Inline):
        def __call__(self, run, tasks, title):
            left, rng = list(tasks), random.Random(1)
            while left:
                ready = [t for t in left if t.ready(run)]
                task = rng.choice(ready)
                left.remove(task)
                super().__call__(run, [task], title)
            return len(tasks)

    run = steps.init(tmp_path / "run", tiny(digits_folder()))
    steps.pipeline(run, Shuffled())
    assert exact(run.root) == exact(finished_root())


def test_scoring_one_method_at_a_time_gives_the_same_scores(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    shutil.rmtree(run.path("terms"))
    shutil.rmtree(run.path("scores"))
    for name in ("similarity-pixel", "retrack", "logo"):
        steps.score(run, SET, [name], Inline())
    assert exact(run.root) == exact(finished_root())


def test_the_order_queries_are_given_in_does_not_matter(tmp_path: Path) -> None:
    tables = {}
    sets = {"forward": write_queries(tmp_path / "forward"), "backward": write_queries(tmp_path / "backward", order=-1)}
    for name, folder in sets.items():
        run = copy_run(tmp_path / f"run-{name}")
        assert steps.add_queries(run, folder) == name
        engine = Inline()
        steps.score(run, name, ["retrack", "logo"], engine)
        assert engine.ran
        tables[name] = {m: steps.scores_path(run, name, m).read_bytes() for m in ("retrack", "logo", "logo-s1")}
    assert tables["forward"] == tables["backward"]

    run = copy_run(tmp_path / "run-arrays")
    given = Queries.from_folder(sets["forward"])
    order = np.random.default_rng(3).permutation(given.n)
    assert order.tolist() != list(range(given.n))
    shuffled = Queries.from_arrays(given.images[order], [given.ids[i] for i in order], name="arrays")
    shuffled.save(run.path("queries", "arrays"))
    steps.score(run, "arrays", ["retrack", "logo"], Inline())
    found = {m: steps.scores_path(run, "arrays", m).read_bytes() for m in ("retrack", "logo", "logo-s1")}
    assert found == tables["forward"]


def test_the_same_pictures_in_another_set_share_their_terms(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    known = load_queries(run, SET)
    Queries(known.ids, known.images, None, "twin").save(run.path("queries", "twin"))
    engine = Inline()
    steps.score(run, "twin", ["logo", "retrack"], engine)
    assert engine.ran == []
    for m in ("logo", "retrack"):
        assert steps.scores_path(run, "twin", m).read_bytes() == steps.scores_path(run, SET, m).read_bytes()


@pytest.mark.parametrize("block", [1, 7, 64])
def test_another_block_size_agrees_to_1e_4(tmp_path: Path, block: int) -> None:
    run = copy_run(tmp_path / "run")
    before = {p.parent.name for p in run.path("terms").glob("*/*")}
    run.update(tiny(digits_folder(), scoring={"block": block}))
    engine = Inline()
    steps.score(run, SET, ["retrack"], engine)
    assert engine.ran
    (old,) = before
    new = old.replace("-b16", f"-b{block}")
    compared = 0
    for path in run.path("terms", new).rglob("*.parquet"):
        one, two = read_table(path), read_table(Path(str(path).replace(new, old)))
        assert one["query"].to_pylist() == two["query"].to_pylist()
        np.testing.assert_array_equal(one["t"].to_numpy(), two["t"].to_numpy())
        np.testing.assert_allclose(one["error"].to_numpy(), two["error"].to_numpy(), rtol=1e-4)
        compared += 1
    assert compared == 3 * 2 * 4  # shards, rounds, base and three groups


def test_another_round_keeps_those_drawn(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    before = exact(run.root)
    run.update(tiny(digits_folder(), scoring={"rounds": 3}))
    steps.score(run, SET, ["retrack"], Inline())
    after = exact(run.root)
    terms = {k for k in before if k.startswith("terms/")}
    assert {k: after[k] for k in terms} == {k: before[k] for k in terms}
    assert {k.rsplit("/", 1)[1] for k in after.keys() - before.keys()} == {"r002.parquet"}
    scores = Scores.read(steps.scores_path(run, SET, "retrack"))
    assert (scores.n_evals == 2 * 2 * 6 * 3).all()  # two models, pairs of noise, strata, rounds
    assert (scores.stderr > 0).all()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run with three methods fitted and nothing scored."""
    run = copy_run(tmp_path_factory.mktemp("orders") / "run")
    known = tiny(digits_folder())
    more = {"shift": {"steps": 3, "batch_forget": 8, "batch_retain": 8}, "posterior": {"components": 1}, "hybrid": {}}
    run.update(known.model_copy(update={"methods": {**known.methods, **more}}))
    steps.fit(run, ["hybrid"], Inline())
    for name in ("terms", "scores"):
        shutil.rmtree(run.path(name))
    run.path("pilot.json").unlink()
    return run.root


ORDERS = {
    "hybrid first": [["hybrid"], ["retrack"], ["logo"]],
    "retrack first": [["retrack"], ["logo"], ["hybrid"]],
    "logo first": [["logo"], ["hybrid"], ["retrack"]],
    "together": [["retrack", "hybrid", "logo"]],
    "together, reversed": [["logo", "hybrid", "retrack"]],
    "alone, then two": [["similarity-pixel"], ["retrack"], ["logo", "hybrid"]],
}


@pytest.mark.parametrize("plan", ["importance", "stratified"])
@pytest.mark.parametrize("estimand", ["elbo", "path"])
def test_the_order_in_which_methods_are_scored_does_not_matter(
    fitted: Path, tmp_path: Path, plan: str, estimand: str
) -> None:
    found = {}
    for i, (name, order) in enumerate(ORDERS.items()):
        run = copy_run(tmp_path / f"run-{i}", fitted)
        steps.change_scoring(run, plan=plan, estimand=estimand, rounds=2, strata=4, seed=i % 2)  # seed: the last counts
        steps.change_scoring(run, seed=0)
        for methods in order:
            steps.score(run, SET, methods, Inline())
        found[name] = {m: steps.scores_path(run, SET, m).read_bytes() for m in ("retrack", "hybrid", "logo", "logo-s1")}
    for name, tables in found.items():
        assert tables == found["together"], name


def test_the_pilot_is_the_same_whatever_was_asked_before(fitted: Path, tmp_path: Path) -> None:
    """Of other methods, groups, seeds, settings or blocks."""
    pilots = {}
    for name, changes, method in (
        ("plain", {}, "retrack"), ("seed", {"seed": 7}, "logo"), ("block", {"block": 5}, "posterior"),
        ("groups", {"groups": ("0", "2")}, "retrack"),
    ):  # fmt: skip
        run = copy_run(tmp_path / name, fitted)
        steps.change_scoring(run, **changes)
        steps.score(run, SET, [method], Inline())
        pilots[name] = run.path("pilot.json").read_bytes()
    assert len(set(pilots.values())) == 1, pilots


def test_a_pilot_that_is_there_is_kept(fitted: Path, tmp_path: Path) -> None:
    """Runs scored before it was canonical go on with theirs."""
    run = copy_run(tmp_path / "run", fitted)
    steps.score(run, SET, ["retrack"], Inline())
    stored = read_json(run.path("pilot.json"))
    old = {k: v for k, v in stored.items() if k not in ("by", "groups")} | {"models": ["artifacts/retrack/a"]}
    old["density"] = stored["density"][::-1]
    write_json(run.path("pilot.json"), old)
    shutil.rmtree(run.path("scores"))
    steps.score(run, SET, ["hybrid"], Inline())
    assert read_json(run.path("pilot.json")) == old
    assert run_plan(run).density == tuple(old["density"])
