"""The recipe: nothing unknown is accepted, and every field explains itself."""

from pathlib import Path

import numpy as np
import pydantic
import pytest
import yaml
from tinyrun import Inline, tiny

from guda import steps
from guda.config import Config, parse_config
from guda.data.digits import load_digits_data
from guda.data.images import ImageData
from guda.errors import GudaError
from guda.files import read_json
from guda.methods.base import METHODS
from guda.run.data import load_data
from guda.run.recipe import LOCKED, Recipe, builtin_recipe

SHIPPED = sorted(p.stem for p in (Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def configs(cls: type[Config]) -> list[type[Config]]:
    found = [cls]
    for field in cls.model_fields.values():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, Config):
                found += configs(kind)
    return found


def test_every_field_is_described() -> None:
    """The descriptions are the documentation."""
    every = configs(Recipe) + [m.Config for m in METHODS.values()]
    assert len(every) >= 9
    bare = [f"{c.__name__}.{n}" for c in every for n, f in c.model_fields.items() if not (f.description or "").strip()]
    assert bare == []
    assert all(c.model_config["frozen"] and c.model_config["extra"] == "forbid" for c in every)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_parse_and_survive_yaml(name: str, tmp_path: Path) -> None:
    recipe = builtin_recipe(name)
    for method, settings in recipe.methods.items():
        parse_config(METHODS[method].Config, settings, method)
    (tmp_path / "r.yaml").write_text(recipe.to_yaml())
    again = Recipe.read(tmp_path / "r.yaml")
    assert again == recipe
    assert again.to_yaml() == recipe.to_yaml()
    assert set(recipe.locked()) == set(LOCKED)


def test_digits_and_own_data_are_shipped() -> None:
    assert {"digits", "own-data"} <= set(SHIPPED)
    with pytest.raises(GudaError, match=r"no recipe 'digit'; shipped recipes: .*digits"):
        builtin_recipe("digit")


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("trainig",), {"steps": 3}, "trainig"),
        (("data", "sorce"), "x", r"data\.sorce"),
        (("training", "step"), 5, r"training\.step"),
        (("training",), {"stepz": 5}, r"training\.stepz"),  # and not that `steps` is missing
        (("training", "steps"), 0, r"training\.steps"),
        (("training", "steps"), "many", r"training\.steps"),
        (("scoring", "estimand"), "elb", r"scoring\.estimand"),
        (("scoring", "rounds"), -1, r"scoring\.rounds"),
        (("methods", "retrack"), 3, r"methods\.retrack"),
    ],
)
def test_a_typo_is_refused_naming_the_field(tmp_path: Path, where: tuple[str, ...], value: object, message: str):
    recipe = yaml.safe_load(tiny("digits").to_yaml())
    place = recipe
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(recipe))
    with pytest.raises(GudaError, match=message) as error:
        Recipe.read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "\tx: 1", "name: only"])
def test_what_is_no_recipe_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(GudaError) as error:
        Recipe.read(path)
    assert "\n" not in str(error.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(GudaError, match="not valid YAML"):
        Recipe.read(path)


def test_method_settings_name_the_field_and_what_there_is() -> None:
    logo = METHODS["logo"].Config
    with pytest.raises(GudaError, match=r"methods\.logo: seed: .*settings: seeds, coupled, aligned, own_full"):
        parse_config(logo, {"seed": 1}, "methods.logo")
    for seeds in ([], [1, 1], [-1]):
        with pytest.raises(GudaError, match="seeds"):
            parse_config(logo, {"seeds": seeds}, "methods.logo")


def test_recipes_are_frozen() -> None:
    with pytest.raises(pydantic.ValidationError):
        tiny("digits").name = "other"  # type: ignore[misc]


def test_training_validates_on_the_test_split_where_the_source_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halves(split: str | None = None) -> ImageData:
        """Odd digits of the data set are its test split."""
        data = load_digits_data()
        return data.take(np.arange(int(split == "test"), data.n, 2))

    monkeypatch.setattr("guda.data.sources._find", lambda name: halves)
    for split, validated in ((None, True), ("test", False)):
        recipe = tiny("halves", data={"split": split, "groups": ["0", "1"]}, training={"steps": 20})
        run = steps.init(tmp_path / str(split), recipe)
        steps.train(run, Inline())
        found = read_json(run.path("models", "full-s0", "guda.json")).get("validation")
        assert (found is not None) is validated
        if found is not None:
            assert len(found) == 20
            test = ImageData.load(run.path("data", "test"))
            assert not set(test.ids) & set(load_data(run).ids)
            assert test.groups.names == ("0", "1")
