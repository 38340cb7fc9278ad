"""`guda reproduce` on the tiny run: every question asked, nothing done twice, the same tables from the same run."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from textrun import tiny_text
from tinyrun import SET, Inline, copy_run, digits_folder, tiny

from guda import steps
from guda.errors import GudaError
from guda.evaluation.paper_tables import estimands_table
from guda.evaluation.published import published
from guda.evaluation.results import read_entry
from guda.methods.base import METHODS
from guda.report.catalogue import write_paper_tables
from guda.report.reproduce import read_reproduction, reproduce, reproductions, scaled_recipe
from guda.run.recipe import builtin_recipe
from guda.run.run import Run
from guda.scoring.reading import LOG_UNIT, PATH_SIGN
from guda.steps.evaluate import evaluate_by_path, path_evaluation

EMOJI = Path(__file__).parents[2] / "benchmarks" / "recipes" / "reproduce" / "emoji.yaml"


def experiment(folder: Path, **changes: Any) -> str:
    recipe = folder / "tiny.yaml"
    recipe.write_text(tiny(digits_folder()).to_yaml())
    value = {
        "about": "a tiny experiment", "scales": {"full": str(recipe)}, "published": "cifar10",
        "methods": {"dtrak": {"dim": 16, "timesteps": 2}, "retrack": {"steps": 1}},
        "likelihood": {"n": 4, "steps": 3, "seeds": 1}, "partition": {"fraction": 0.2, "seed": 1},
        "pairs": [["1", "0"]], "pairs_by": ["retrack"],
    } | changes  # fmt: skip
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(value))
    return str(path)


def test_an_experiment_from_nothing_to_its_tables_and_nothing_twice(tmp_path: Path) -> None:
    name, root = experiment(tmp_path), tmp_path / "run"
    said: list[str] = []
    first = Inline()
    done = reproduce(name, root, first, say=said.append)
    assert [text.partition(": ")[2] for text in said] == [
        "train, retrain, fit, score", "the same under path divergence", "log-likelihoods",
        "the same on a noisy partition", "pairs of groups", "tables and figures",
    ]  # fmt: skip
    keys = {"main", "timing", "elbo-likelihood", "oracles", "noisy", "path-excess"}
    files = {p.name for p in done.tables}
    assert {f"{k}.{end}" for k in keys for end in ("md", "csv", "tex")} <= files
    assert (root / "pairs.md").is_file()
    drawn = {p.name for p in done.figures}
    assert drawn == {
        "cost-fidelity.svg", "timing.svg", "scores-logo.svg", "exemplars.png", "same-noise-logo.png",
        "same-noise-retrack.png", "elbo-likelihood.svg",
    } | {n for n in drawn if n.startswith("scores-")}  # fmt: skip
    assert Run.open(tmp_path / "run-noisy").recipe.data.partition is not None
    main = (root / "tables" / "main.md").read_text()
    for row in ("LOGO, one retraining (ceiling)", "retrack", "dtrak", "similarity-pixel", "random ranking", "GUDA"):
        assert row in main
    assert Run.open(root).recipe.methods["retrack"]["steps"] == 5  # the recipe's own settings come first

    before = {p.name: p.read_bytes() for p in (root / "tables").iterdir()}
    again = Inline()
    reproduce(name, root, again)
    assert again.ran == []
    assert {p.name: p.read_bytes() for p in (root / "tables").iterdir()} == before
    for path in (root / "tables").iterdir():
        path.unlink()
    write_paper_tables(Run.open(root), "cifar10", Run.open(tmp_path / "run-noisy"))
    assert {p.name: p.read_bytes() for p in (root / "tables").iterdir()} == before


@pytest.mark.slow
def test_an_interrupted_experiment_goes_on(tmp_path: Path) -> None:
    name, root = experiment(tmp_path, likelihood=None, partition=None, pairs=[]), tmp_path / "run"
    ran: list[str] = []
    for _ in range(100):
        engine = Inline(stop_after=7)
        try:
            reproduce(name, root, engine)
            break
        except KeyboardInterrupt:
            pass
        finally:
            ran += engine.ran
    assert len(ran) == len(set(ran))
    assert (root / "tables" / "main.tex").is_file()


def test_the_other_estimand_stands_beside_the_papers_and_changes_nothing_of_it(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    recipe, evaluation = (run.path(n).read_bytes() for n in ("recipe.yaml", "evaluation.json"))
    scores = {p.name: p.read_bytes() for p in run.path("scores", SET).glob("*.parquet")}
    with pytest.raises(KeyboardInterrupt):
        evaluate_by_path(run, SET, Inline(stop_after=2))
    assert run.path("recipe.yaml").read_bytes() == recipe  # restored, whatever happens
    other = evaluate_by_path(run, SET, Inline())
    assert run.path("recipe.yaml").read_bytes() == recipe
    assert run.path("evaluation.json").read_bytes() == evaluation
    assert {p.name: p.read_bytes() for p in run.path("scores", SET).glob("*.parquet")} == scores
    assert set(other.methods) == {"logo", "retrack"}
    assert (other.unit, other.sign) == (LOG_UNIT, PATH_SIGN)
    assert read_entry(path_evaluation(run, SET)) == other
    entry = read_entry(run.path("evaluation.json"))
    rows = {row.cells[0]: row.cells for row in estimands_table("tiny", entry, other).rows}
    assert list(rows)[1:-1] == ["retrack"]
    assert rows["retrack"][1].value == entry.methods["retrack"].metrics["top1"].mean
    assert rows["retrack"][2].value == other.methods["retrack"].metrics["top1"].mean


def test_the_shipped_experiments_are_complete() -> None:
    assert reproductions() == ["cifar10", "digits", "fashion-mnist", "unlearncanvas"]
    for name in (*reproductions(), str(EMOJI)):
        wanted = read_reproduction(name)
        for scale in wanted.scales:
            recipe = scaled_recipe(wanted, scale)
            assert set(wanted.methods) <= set(recipe.methods) <= set(METHODS)
            assert "logo" in recipe.methods
            for sweep in wanted.ablations.get(scale, ()):
                assert steps.read_ablation(sweep).name == sweep


def test_the_papers_sweeps_and_likelihoods_are_those_of_the_paper_at_full_scale() -> None:
    wanted = read_reproduction("cifar10")
    full, small = (scaled_recipe(wanted, s).likelihood for s in ("full", "small"))
    assert (full.n, full.seeds, full.solver, full.tolerance) == (2048, 5, "adaptive", 1e-5)
    assert (small.n, small.seeds, small.solver) == (100, 2, "heun")
    retrack = builtin_recipe("cifar10-paper").methods["retrack"]
    for sweep, axis in (("paper-lambda", "lambda_forget"), ("paper-k", "k_nearest"), ("paper-lr", "lr")):
        (found,) = steps.read_ablation(sweep).axes
        assert sweep in wanted.ablations["full"]
        assert sweep not in wanted.ablations["small"]
        assert found.axis == axis
        rows = published().table(f"retrack.{axis}").rows
        assert sorted(map(float, rows)) == [float(v) for _, v in found.labelled()]
        assert retrack[axis] in [v for _, v in found.labelled()]
    (epochs,) = steps.read_ablation("paper-epochs").axes
    assert epochs.axis == "epochs"
    assert [label for label, _ in epochs.labelled()] == list(published().table("retrack.epochs").rows)
    counts = {label: round(value * 5_000 / 128) for label, value in epochs.labelled()}
    assert counts == {str(n): n * 39 for n in (10, 20, 30, 40, 50)}
    assert counts["20"] == retrack["steps"]


def test_settings_by_scale_name_a_scale_that_there_is(tmp_path: Path) -> None:
    with pytest.raises(GudaError, match="no scale 'smal'; there are: full"):
        read_reproduction(experiment(tmp_path, likelihood={"smal": {"n": 4}}))


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("mnist", "full", "no experiment 'mnist' to reproduce; there are: cifar10, digits"),
        ("digits", "small", "no scale 'small'; there are: full"),
        ("nothing.yaml", "full", r"experiment nothing\.yaml does not exist"),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path: Path, name: str, scale: str, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        reproduce(name, tmp_path / "run", Inline(), scale)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": [["0", "7"]]}, "unknown group '7'"),
        ({"pairs": [["0", "0"]]}, "two different groups"),
        ({"pairs_by": ["similarity-pixel"]}, "similarity-pixel takes groups out"),
    ],
)
def test_a_mistake_in_the_pairs_is_told_before_anything_is_trained(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    engine = Inline()
    with pytest.raises(GudaError, match=message):
        reproduce(experiment(tmp_path, **changes), tmp_path / "run", engine)
    assert engine.ran == []


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GudaError, match="published"):
        read_reproduction(experiment(tmp_path, published="mnist"))


@pytest.mark.slow
def test_a_text_to_image_experiment_builds_its_prompts_and_has_the_table_of_anchors(tmp_path: Path) -> None:
    recipe = tmp_path / "text.yaml"
    recipe.write_text(tiny_text().to_yaml())
    name = experiment(
        tmp_path, scales={"full": str(recipe)}, published="unlearncanvas", methods={}, likelihood=None,
        partition=None, pairs=[],
    )  # fmt: skip
    done = reproduce(name, tmp_path / "run", Inline())
    assert "anchors.md" in {p.name for p in done.tables}
    assert "anchors-uniform" in (tmp_path / "run" / "tables" / "anchors.md").read_text()
    assert (tmp_path / "run" / "figures" / "same-noise-anchors-uniform.png").is_file()


def test_a_pretrained_start_that_reads_prompts_has_them_before_it_is_trained(tmp_path: Path) -> None:
    recipe, start = tmp_path / "text.yaml", tmp_path / "start.yaml"
    recipe.write_text(tiny_text().to_yaml())
    start.write_text(tiny_text().model_copy(update={"name": "start", "methods": {}}).to_yaml())
    changes = {"scales": {"full": str(recipe)}, "before": str(start), "published": "unlearncanvas", "methods": {}}
    name = experiment(tmp_path, **changes, likelihood=None, partition=None, pairs=[])
    with pytest.raises(KeyboardInterrupt):
        reproduce(name, tmp_path / "run", Inline(stop_after=0))  # the first task: nothing is missing for it
    assert (tmp_path / "start" / "prompts").is_dir()
