"""A recipe's cost from the recipe alone: the paper's numbers, and the same rows as the plan of a run made from it."""

from pathlib import Path

import pytest
from tinyrun import Inline, copy_run, digits_folder, tiny, write_queries

from guda import steps
from guda.run.recipe import Recipe, builtin_recipe
from guda.run.run import Run
from guda.run.task import Task, pending
from refusals import refused


def rows(value: dict) -> dict[str, float]:
    return {row["what"]: row["evals"] for row in value["rows"]}


def test_the_papers_recipe() -> None:
    """Its table of the architecture and training, and the sections on unlearning and baselines."""
    recipe = builtin_recipe("cifar10-paper")
    training, methods = recipe.training, recipe.methods
    assert training is not None
    assert training.steps * training.batch == 2_400 * 45_000  # epochs that leave one class of ten out
    assert (training.lr, training.weight_decay, training.warmup, training.clip) == (1e-4, 1e-4, 5_000, 1.0)
    assert (training.schedule, training.ema, training.flips, training.batch) == ("cosine", None, True, 256)
    assert recipe.model.options["dropout"] == 0.3
    retrack = methods["retrack"]
    assert [round(4_000 * t) for t in retrack["window"]] == [2_000, 3_900]
    assert (retrack["k_nearest"], retrack["lr"], retrack["lambda_forget"], retrack["kl_cap"]) == (10, 1e-5, 0.03, 1.0)
    assert retrack["steps"] == 20 * (5_000 // 128)
    assert (recipe.queries.n, recipe.queries.steps) == (2_048, None)
    assert recipe.scoring.estimand == "paper"


def test_the_papers_cost() -> None:
    value = steps.outline(builtin_recipe("cifar10-paper"))
    evals = rows(value)
    assert value["parameters"] / 1e6 == pytest.approx(49.1, abs=0.05)
    assert (value["groups"], value["evals_per_model_and_query"]) == (10, 399)  # t = 10, 20, .., 3990
    once = 3 * 421_875 * 256
    assert evals["train the full model"] == evals["train the conditional model of esd"] == once
    assert evals["fit logo"] == 10 * once
    assert evals["draw 2048 queries"] == 2_048 * 4_000
    assert evals["fit retrack"] == 10 * 780 * (3 * 256 + 128)  # student, and the teacher of the retain half
    assert evals["score 2048 queries by logo"] == evals["score 2048 queries by retrack"] == 2_048 * 11 * 399
    assert evals["fit trak"] == evals["fit dtrak"] == 50_000 * 10 * 3  # different gradients, nothing shared
    assert evals["fit das"] == 50_000 * (10 * 3 + 1_000)
    assert evals["score 2048 queries by das"] == 2_048 * 30
    disk = {row["what"]: row["disk"] for row in value["rows"]}
    assert disk["fit trak"] == 4 * 50_000 * 32_768 + 8 * 32_768**2
    assert "Not counted: clipa." in value["note"]


METHODS = {
    "logo": {"seeds": [1, 2]},
    "shift": {"steps": 7},
    "posterior": {},
    "trak": {"dim": 64},
    "relatif": {"dim": 64},
    "das": {"dim": 64, "aggregate": "max", "seeds": [0, 1]},
    "das-public": {"dim": 64},
}


def test_it_is_the_plan_of_the_run(tmp_path: Path) -> None:
    """All rows, what two methods share counted once in both; but for what `plan` has no row for."""
    recipe = Recipe.from_dict(
        {
            "name": "both",
            "data": {"source": "digits", "limit_per_group": 30},
            "model": {"net": "mlp", "options": {"width": 16, "depth": 1}, "scheduler": "squaredcos_cap_v2:50"},
            "training": {"steps": 11, "batch": 8},
            "methods": METHODS,
            "scoring": {"strata": 3, "rounds": 2, "block": 8},
        },
        "test",
    )
    run = steps.init(tmp_path / "run", recipe)
    planned, told = rows(steps.plan(run, list(METHODS), 40, workers=1)), rows(steps.outline(recipe, 40))
    assert told.pop("draw 40 queries") == 40 * 50
    assert (
        told.pop("score 40 queries by relatif") == told.pop("score 40 queries by das-public") == 0
    )  # trak's and das's
    assert set(told) < set(planned)
    for what, evals in told.items():
        assert 0 <= planned[what] - evals < 50, what  # the plan books each small task (a Gram matrix) as one evaluation
    assert told["fit relatif"] == 0
    assert told["fit das-public"] == 0


def test_what_is_not_known_is_said() -> None:
    small = builtin_recipe("cifar10-small")
    assert steps.outline(small)["of"] == 6
    with refused("data-size-unknown", match=r"the size of data source '\./pictures' is not known here"):
        steps.outline(small.model_copy(update={"data": small.data.model_copy(update={"source": "./pictures"})}))
    model = small.model.model_copy(update={"path": "some/model"})
    with refused("model-architecture-unknown", match="the architecture of some/model is not known"):
        steps.outline(small.model_copy(update={"model": model}))


class Counting(Inline):
    """What the tasks of each title cost."""

    def __call__(self, run: Run, tasks: list[Task], title: str) -> int:
        self.spent = getattr(self, "spent", {}) | {title: sum(t.cost for t in pending(run, tasks))}
        return super().__call__(run, tasks, title)


def test_the_plan_of_excess_counts_the_average_picture(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    value = run.recipe.model_dump(mode="json")
    value["queries"] |= {"seed": 9, "n": 70}  # not drawn yet
    value["scoring"] |= {"estimand": "path", "excess": True}
    run.update(Recipe.from_dict(value, "test"))
    draw, average, score = (
        "draw 70 samples for the average picture",
        "score the average picture by retrack",
        "score 6 queries by retrack",
    )
    found = rows(steps.plan(run, ["retrack", "similarity-pixel"], 6))
    assert "score the average picture by similarity-pixel" not in found
    each = 4 * 12 * 2  # models, pairs of strata, rounds
    assert (found[average], found[score]) == (70 * each, 6 * each)
    name, engine = steps.add_queries(run, write_queries(tmp_path / "pictures")), Counting()
    steps.score(run, name, ["retrack"], engine)
    assert engine.spent["sample the average picture"] == found[draw] > 0
    assert engine.spent[f"score {name}"] == found[average] + found[score]
    after = rows(steps.plan(run, ["retrack"], 6))
    assert (after[draw], after[average], after[score]) == (0, 0, 6 * each)
    steps.change_scoring(run, excess=False)
    assert not any("average" in what for what in rows(steps.plan(run, ["retrack"], 6)))


def test_work_on_the_average_picture_that_methods_share_counts_once(tmp_path: Path) -> None:
    recipe = tiny(digits_folder(), scoring={"estimand": "path", "excess": True}, methods={"posterior": {}, "shift": {}})
    run = steps.init(tmp_path / "run", recipe)
    found = rows(steps.plan(run, ["shift", "hybrid", "posterior"], 6))
    assert found["score the average picture by shift"] == 12 * 4 * 12 * 2
    assert found["score the average picture by hybrid"] == 0
    assert "score the average picture by posterior" not in found  # it evaluates no network


def test_an_outline_of_excess_counts_the_average_picture() -> None:
    value = builtin_recipe("digits").model_dump(mode="json")
    value["scoring"] |= {"estimand": "path", "excess": True}
    plain, found = (rows(steps.outline(Recipe.from_dict(v, "test"))) for v in (_without(value), value))
    n = value["queries"]["n"]
    assert found == plain | {
        what: plain[f"score {n} queries by {what.split()[-1]}"] for what in found.keys() - plain.keys()
    }
    assert any(what.startswith("score the average picture by") for what in found)


def _without(value: dict) -> dict:
    return value | {"scoring": value["scoring"] | {"excess": False}}


def test_what_is_scored_is_not_planned_again(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    n, methods = run.recipe.queries.n, list(run.recipe.methods)
    assert set(rows(steps.plan(run, methods, n)).values()) == {0}
    more = rows(steps.plan(run, methods, n + 1))  # a set that is not there
    assert more[f"score {n + 1} queries by retrack"] > 0
    parts = sorted(run.path("terms").rglob("*.parquet"))
    parts[-1].unlink()
    left = rows(steps.plan(run, methods, n))
    assert 0 < sum(left.values()) < more[f"score {n + 1} queries by retrack"]
