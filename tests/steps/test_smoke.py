"""`guda reproduce --smoke`: the same experiment with every budget cut, under names that cannot be mistaken."""

from pathlib import Path

import pytest
import yaml
from tinyrun import Inline, digits_folder, tiny

from guda.config import parse_config
from guda.errors import GudaError
from guda.methods.base import METHODS
from guda.report.reproduce import _with_weights, read_reproduction, reproduce, reproductions, scaled_recipe
from guda.report.smoke import SUFFIX, smoke_recipe, smoke_root
from guda.run.recipe import Recipe
from guda.run.run import Run
from refusals import refused


@pytest.mark.parametrize("name", [*reproductions(), "benchmarks/recipes/reproduce/emoji.yaml"])
def test_every_experiment_is_shrunk_and_asks_the_same_questions(name: str) -> None:
    wanted = read_reproduction(name if "/" not in name else str(Path(__file__).parents[2] / name))
    for scale in wanted.scales:
        full, small = (scaled_recipe(wanted, scale, smoke) for smoke in (False, True))
        assert small.name == full.name + SUFFIX
        assert set(small.methods) == set(full.methods)
        assert (small.scoring.estimand, small.scoring.excess) == (full.scoring.estimand, full.scoring.excess)
        assert full.training is not None
        assert small.training is not None
        assert small.training.steps * small.training.batch < 100 < full.training.steps * full.training.batch
        assert small.data.limit_per_group is not None
        assert len(small.methods["logo"]["seeds"]) == 2
        for method, settings in small.methods.items():
            config = parse_config(METHODS[method].Config, settings, method)
            assert getattr(config, "steps", 0) <= 2
            assert getattr(config, "dim", 0) <= 32
        assert smoke_recipe(small) == small


def test_an_encoder_that_cannot_be_loaded_is_noticed_before_training(tmp_path: Path) -> None:
    """The experiment is refused; its smoke run goes without that method and says so."""
    value = tiny(digits_folder()).model_dump(mode="json")
    value["methods"] |= {"clipa": {"model": str(tmp_path / "nowhere")}}
    value["evaluation"]["reference"] = "clipa"
    recipe, said = Recipe.from_dict(value, "test"), list[str]()
    with refused("encoder-unloadable"):
        _with_weights(recipe, False, said.append)
    found = _with_weights(recipe, True, said.append)
    assert set(found.methods) == set(recipe.methods) - {"clipa"}
    assert found.evaluation.reference is None
    assert len(said) == 1
    assert "clipa" in said[0]


@pytest.mark.slow
def test_a_smoke_run_is_carried_out_under_its_own_name(tmp_path: Path) -> None:
    recipe, path = tmp_path / "tiny.yaml", tmp_path / "experiment.yaml"
    recipe.write_text(tiny(digits_folder()).to_yaml())
    path.write_text(yaml.safe_dump({"about": "tiny", "scales": {"full": str(recipe)}, "published": "cifar10"}))
    root = smoke_root(tmp_path / "run")
    assert root.name == "run-smoke"
    assert smoke_root(root) == root
    done = reproduce(str(path), root, Inline(), smoke=True)
    assert done.run.recipe == smoke_recipe(done.run.recipe)
    assert "tiny-smoke" in (root / "tables" / "main.md").read_text()
    with pytest.raises(GudaError) as e:  # the real experiment never continues in the folder of a smoke run
        reproduce(str(path), root, Inline())
    assert e.value.code == "run-recipe-differs"
    assert Run.open(root).recipe.name.endswith(SUFFIX)
