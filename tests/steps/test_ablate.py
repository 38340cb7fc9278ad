"""`guda ablate`: every row is what evaluating that setting says."""

from pathlib import Path

import pytest
import yaml
from tinyrun import SET, Inline, copy_run, exact, tree, write_queries

from guda import steps
from guda.errors import GudaError
from guda.evaluation.sweep import markdown, read_sweep, text
from guda.methods.base import METHODS
from guda.report.reproduce import read_reproduction, scaled_recipe
from guda.run.recipe import Recipe, builtin_recipe, recipes_folder
from guda.run.run import Run
from guda.steps.ablate import Ablation, _cells, epochs_to_steps
from guda.steps.setting_trial import Trials
from refusals import refused

EMOJI = Path(__file__).parents[2] / "benchmarks" / "recipes" / "emoji.yaml"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def sweep(**changes: object) -> Ablation:
    value = {"name": "some", "method": "retrack", "axis": "steps", "values": [2, 9]} | changes
    return Ablation.model_validate({k: v for k, v in value.items() if v is not None})


def test_rows_are_what_evaluate_says(run: Run, tmp_path: Path) -> None:
    before = run.seconds("fit/retrack"), (run.root / "recipe.yaml").read_text(), exact(run.root)
    table = steps.ablate(run, sweep(), Inline())
    assert (run.seconds("fit/retrack"), (run.root / "recipe.yaml").read_text()) == before[:2]
    assert {k: v for k, v in exact(run.root).items() if k in before[2]} == before[2]
    assert [(r.label, r.own, r.settings["steps"]) for r in table.rows] == [
        ("2", False, 2),
        ("5", True, 5),
        ("9", False, 9),
    ]
    other = copy_run(tmp_path / "other")
    for row in table.rows:
        steps.change_settings(other, ["retrack"], [f"steps={row.settings['steps']}"])
        steps.fit(other, ["retrack"], Inline())
        steps.score(other, SET, ["retrack"], Inline())
        entry = steps.evaluate(other, SET)
        direct = entry.methods["retrack"]
        assert (row.metrics, row.ratio_to_ceiling) == (direct.metrics, direct.ratio_to_ceiling)
        assert (row.fit_evals, row.score_evals) == (direct.fit_evals, direct.score_evals)
        assert row.evals_ratio_vs_logo == entry.figures["evals_ratio_vs_logo.retrack"]
        assert row.fit_seconds > 0
        assert table.oracle.ceiling == entry.ceiling
        assert table.oracle.methods["logo"] == steps.evaluate(run, SET).methods["logo"]
    two, own, _ = table.rows
    assert own.difference is None
    gap = two.metrics["mrr"].mean - own.metrics["mrr"].mean
    assert two.difference["mrr"].mean == pytest.approx(gap, abs=1e-12)
    assert two.metrics != own.metrics


def test_a_second_call_does_nothing_and_writes_the_same(run: Run) -> None:
    table = steps.ablate(run, sweep(), Inline())
    files = [run.path("ablations", f"some.{kind}") for kind in ("json", "md")]
    written = [f.read_bytes() for f in files]
    idle = Inline()
    assert steps.ablate(run, sweep(), idle) == table
    assert idle.ran == []
    assert [f.read_bytes() for f in files] == written
    assert read_sweep(files[0]) == table
    lines = markdown(table).splitlines()
    assert any(line.startswith("| LOGO, one retraining (ceiling) | 0.") for line in lines)
    assert any(line.startswith("| **steps = 5 (recipe)** | 0.") for line in lines)
    assert "reported, not selected on" in lines[-1]
    assert "steps = 5 (recipe)" in text(table)
    files[0].write_text(files[0].read_text().replace('"own": true', '"own": "perhaps"'))
    with refused("ablation-table-invalid", match=r"some.json .*\(rows.1.own"):
        read_sweep(files[0])


def test_it_stops_and_goes_on(run: Run, tmp_path: Path) -> None:
    other = copy_run(tmp_path / "other")
    ran: list[str] = []
    while True:
        engine = Inline(stop_after=4)
        try:
            found = steps.ablate(other, sweep(), engine)
            break
        except KeyboardInterrupt:
            assert len(engine.ran) == 4
        finally:
            ran += engine.ran
    assert len(ran) == len(set(ran)) == 2 * (3 + 3)  # two settings: three groups to fit, three shards to score
    whole = steps.ablate(run, sweep(), Inline())
    assert [r.metrics for r in found.rows] == [r.metrics for r in whole.rows]


def test_an_epoch_is_one_pass_over_the_forget_set(run: Run) -> None:
    assert epochs_to_steps(run, 3, 8) == 6  # 16 images in batches of 8
    assert epochs_to_steps(run, 0.1, 8) == 1
    table = steps.ablate(run, sweep(axis="epochs", values=[1, 2.5]), Inline())
    assert [(r.label, r.settings["steps"], r.own) for r in table.rows] == [
        ("1 (2 steps)", 2, False),
        ("2.5 (5 steps)", 5, True),
    ]
    steps.change_settings(run, ["retrack"], ["batch_forget=16", "steps=5"])
    base, cells = _cells(Trials(run, SET), sweep(axis="epochs", values=[3, 9]))
    assert [(c.label, c.method.config.steps) for c in cells] == [
        ("3 (3 steps)", 3),
        ("5 (5 steps)", 5),
        ("9 (9 steps)", 9),
    ]
    assert base["batch_forget"] == 16


def test_several_axes_each_around_the_base(run: Run) -> None:
    axes = [{"axis": "lr", "values": [1e-4, 1e-3]}, {"axis": "k_nearest", "values": {"3": 3, "all": None}}]
    _, cells = _cells(Trials(run, SET), sweep(axis=None, values=None, axes=axes))
    assert [(c.axis, c.label, c.method.config.lr, c.method.config.k_nearest) for c in cells] == [
        ("lr", "0.0001", 1e-4, None),
        ("lr", "0.001", 1e-3, None),  # the recipe's own, as is the last
        ("k_nearest", "3", 1e-3, 3),
        ("k_nearest", "all", 1e-3, None),
    ]


def test_settings_that_stand_on_their_own(run: Run) -> None:
    base = {"steps": 2, "batch_forget": 4, "batch_retain": 4}
    _, cells = _cells(Trials(run, SET), sweep(method="shift", base=base, axis="lr", values=[1e-4]))
    assert [(c.label, c.method.config.steps) for c in cells] == [("0.0001", 2)]
    with refused("ablation-settings-missing", match="starts from the recipe's settings of shift"):
        _cells(Trials(run, SET), sweep(method="shift"))


def test_a_setting_that_blows_up_is_a_row_that_says_so(run: Run) -> None:
    table = steps.ablate(run, sweep(axis="lr", values=[1e38]), Inline())
    own, bad = table.rows
    assert own.own
    assert not own.failed
    assert "NaN" in bad.failed
    assert bad.metrics == {}
    assert "failed: " in markdown(table)
    assert read_sweep(run.path("ablations", "some.json")) == table


def test_another_query_set_is_another_table(run: Run, tmp_path: Path) -> None:
    steps.add_queries(run, write_queries(tmp_path / "mine"))
    steps.ablate(run, sweep(values=[2]), Inline(), "mine")
    assert sorted(p.name for p in run.path("ablations").iterdir()) == ["some-mine.json", "some-mine.md"]


def test_the_shipped_sweeps_fit_the_digits(run: Run) -> None:
    """Each has a name that is its file's, and settings that its method takes."""
    # the paper's own values go with its own recipe (test_reproduce)
    files = [f for f in sorted((recipes_folder() / "ablations").glob("*.yaml")) if not f.stem.startswith("paper-")]
    assert [f.stem for f in files] == [
        "bandwidth", "das-aggregate", "das-ridge", "dtrak-ridge", "epochs", "eta", "hybrid", "k", "lambda", "lr",
        "posterior", "shift-lr", "tau", "trak-ridge", "window",
    ]  # fmt: skip
    digits = builtin_recipe("digits")
    recipe = run.recipe.model_dump(mode="json")
    recipe["methods"] |= {m: digits.methods[m] for m in ("retrack", "posterior", "hybrid")}
    recipe["methods"] |= {m: {} for m in ("trak", "dtrak", "das")}  # as `guda reproduce` adds them
    recipe["methods"]["anchors-weighted"] = Recipe.read(EMOJI).methods["anchors-weighted"]
    run.update(type(digits).model_validate(recipe))
    trials = Trials(run, SET)
    for file in files:
        ablation = steps.read_ablation(file.stem)
        assert ablation == steps.read_ablation(str(file))
        assert ablation.name == file.stem
        _, cells = _cells(trials, ablation)
        assert len(cells) == sum(len(a.values) for a in ablation.axes)
        own = [trials.own(c.method) for c in cells]
        assert sum(own) == (len(ablation.axes) if ablation.base == "recipe" and not ablation.settings else 0)
        others = {trials.label(c.method) for c, mine in zip(cells, own, strict=True) if not mine}
        assert len(others) == len(cells) - sum(own)
    with refused(
        "recipe-unknown", match=r"shipped recipes: cifar10-paper, cifar10-small, digits, .*, unlearncanvas-paper$"
    ):
        builtin_recipe("nothing")  # sweeps are no recipes


def test_a_sweep_of_the_paper_s_recipe_keeps_its_settings() -> None:
    """A sweep around defaults would call something else DAS than the table beside it does."""
    wanted = read_reproduction("cifar10")
    recipe = scaled_recipe(wanted)
    for name in wanted.ablations["full"]:
        ablation = steps.read_ablation(name)
        assert ablation.base == "recipe", name
        swept = {axis.axis for axis in ablation.axes} - {"epochs"}
        config = METHODS.find(ablation.method).Config
        own = config.model_validate(recipe.methods[ablation.method]).model_dump()
        base = config.model_validate(recipe.methods[ablation.method] | ablation.settings).model_dump()
        assert {k for k in own if own[k] != base[k]} <= {"solver", "lam_scale"} | swept, name


def test_recipes_that_train_with_flips_unlearn_with_them() -> None:
    found = 0
    for file in recipes_folder().glob("*.yaml"):
        recipe = builtin_recipe(file.stem)
        for name, settings in recipe.methods.items():
            if (
                recipe.training is not None
                and recipe.training.flips
                and "flips" in METHODS.find(name).Config.model_fields
            ):
                assert settings.get("flips") is True, (file.stem, name)
                found += 1
    assert found >= 5


def test_what_the_paper_s_recipes_say() -> None:
    """The paper retrained once and has one full model; Fisher information over all images."""
    for name in ("cifar10", "unlearncanvas"):
        recipe = scaled_recipe(read_reproduction(name))
        assert recipe.methods["logo"]["own_full"] is False
    assert recipe.methods["synthesized"]["fisher_images"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": "stepz"}, r"ablation some, stepz = 2: stepz: .*settings: steps"),
        ({"values": ["x"]}, r"ablation some, steps = x: steps: .*integer"),
        ({"method": "retrak"}, "did you mean 'retrack'"),
        ({"method": "logo"}, "logo is the oracle"),
        ({"base": {"stepz": 1}}, "ablation some, base: stepz"),
        ({"axis": "epochs", "values": [0]}, "epochs = 0 is not a positive number"),
        ({"method": "similarity-pixel", "axis": "epochs"}, "has no steps and batch_forget"),
    ],
)
def test_bad_sweeps_write_nothing(run: Run, change: dict, message: str) -> None:
    before = tree(run.root)
    with pytest.raises(GudaError, match=message):
        steps.ablate(run, sweep(**change), Inline())
    assert tree(run.root) == before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"method": "retrack", "axis": "lr", "values": [1]}, "name: Field required"),
        ({"name": "a/b", "method": "retrack", "axis": "lr", "values": [1]}, "name: String should match"),
        ({"name": "a", "method": "retrack"}, "axes: Field required"),
        ({"name": "a", "method": "retrack", "axis": "lr"}, "axes.0.values: Field required"),
        ({"name": "a", "method": "retrack", "axis": "lr", "values": [1], "base": "other"}, "base"),
        ([1], "valid dictionary"),
    ],
)
def test_bad_files(tmp_path: Path, value: object, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(value))
    with pytest.raises(GudaError, match=message):
        steps.read_ablation(str(path))


def test_a_combination_of_methods_costs_what_they_cost(run: Run) -> None:
    steps.change_settings(run, ["shift"], ["steps=2", "batch_forget=8", "batch_retain=8"])
    table = steps.ablate(run, sweep(method="hybrid", base={}, axis="share", values=[0.1, 0.6]), Inline())
    fit = [run.seconds(f"fit/{m}") for m in ("shift", "posterior")]
    assert [r.fit_seconds for r in table.rows] == [sum(fit)] * 2  # type: ignore[arg-type]
    assert all(r.score_seconds for r in table.rows)


def test_a_network_that_overflows_is_a_row_and_not_the_end(run: Run) -> None:
    """Finite weights may still answer with infinity."""
    base = {"steps": 1, "batch_forget": 4, "batch_retain": 4}
    table = steps.ablate(run, sweep(base=base, axis="lr", values=[1e-4, 1e30]), Inline())
    assert ["returned NaN" in (r.failed or "") for r in table.rows] == [False, True]
