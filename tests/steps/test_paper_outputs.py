"""What stands beside the paper's figures as the same data; figures of a run that has LOGO alone."""

from pathlib import Path
from typing import Any

import pytest
from tinyrun import SET, Inline, copy_run

from guda.files import read_json, write_json
from guda.report.catalogue import whole_data, write_figures
from guda.run.recipe import Recipe, builtin_recipe


def changed(name: str, **data: Any) -> Recipe:
    value = builtin_recipe(name).model_dump(mode="json")
    return Recipe.from_dict(value | {"data": value["data"] | data}, "test")


@pytest.mark.parametrize(
    ("recipe", "found"),
    [
        (builtin_recipe("cifar10-paper"), "cifar10"),
        (builtin_recipe("unlearncanvas-paper"), "unlearncanvas"),
        (builtin_recipe("cifar10-small"), None),
        (builtin_recipe("digits"), None),
        (changed("cifar10-paper", size=32, source="cifar10:somewhere"), "cifar10"),
        (changed("cifar10-paper", size=16), None),
        (changed("cifar10-paper", split="test"), None),
        (changed("cifar10-paper", partition={"fraction": 0.05, "seed": 42}), None),
        (changed("unlearncanvas-paper", size=256), None),
    ],
)
def test_only_the_whole_of_the_papers_data_is_the_same_data(recipe: Recipe, found: str | None) -> None:
    assert whole_data(recipe) == found


def test_logo_alone_has_figures_without_methods(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    path = run.path("scores", SET, "evaluation.json")
    value = read_json(path)
    write_json(path, value | {"methods": {"logo": value["methods"]["logo"]}, "pairs": None})
    drawn = {p.name for p in write_figures(run, Inline())}
    assert drawn == {"timing.svg", "scores-logo.svg", "exemplars.png", "same-noise-logo.png"}
