"""The recipe: all settings of a run, as one YAML file.

Sections `data`, `prompts`, `model` and `training` are locked once a run exists, as every artifact depends on them;
`methods`, `queries`, `scoring`, `likelihood` and `evaluation` may be edited later: what they make is stored under names
derived from their values, so nothing stale is ever used. Field descriptions are the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from guda import parsing
from guda.config import (
    Config,
    DataConfig,
    EvaluationConfig,
    LikelihoodConfig,
    ModelConfig,
    PromptsConfig,
    QueriesConfig,
    ScoringConfig,
    TrainingConfig,
    check_numbers,
    complaint,
)
from guda.errors import GudaError

LOCKED = ("data", "prompts", "model", "training")


class Recipe(Config):
    name: str = Field(description="What this experiment is called.")
    data: DataConfig = Field(description="The training images and their groups.")
    prompts: PromptsConfig | None = Field(None, description="Prompts of a text-to-image model: who describes styles.")
    model: ModelConfig = Field(ModelConfig(), description="The model to explain, given or trained here.")  # type: ignore[call-arg]
    training: TrainingConfig | None = Field(None, description="How the full and LOGO models are trained.")
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Method id -> its settings.")
    defaults: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Settings of methods that `methods` does not name, for when they are asked."
    )
    queries: QueriesConfig = Field(QueriesConfig(), description="Pictures `guda sample` draws.")  # type: ignore[call-arg]
    scoring: ScoringConfig = Field(ScoringConfig(), description="How the ELBO is estimated.")  # type: ignore[call-arg]
    likelihood: LikelihoodConfig = Field(LikelihoodConfig(), description="How log p is computed.")  # type: ignore[call-arg]
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="How methods are compared.")  # type: ignore[call-arg]

    @classmethod
    def from_dict(cls, value: Any, where: str) -> Recipe:
        check_numbers(value, where)
        try:
            return cls.model_validate(value)
        except ValidationError as e:
            unknown, text = complaint(e, "the recipe")
            raise GudaError("recipe-unknown-key" if unknown else "recipe-invalid-value", f"{where}: {text}") from None

    @classmethod
    def read(cls, path: Path) -> Recipe:
        try:
            value = parsing.read_yaml(path)
        except (FileNotFoundError, IsADirectoryError):
            raise GudaError("recipe-missing", f"recipe {path} does not exist") from None
        except parsing.ParseError as e:
            raise GudaError("recipe-not-yaml", f"recipe {path} is not valid YAML: {e}") from None
        return cls.from_dict(value, str(path))

    def settings(self, method: str) -> dict[str, Any]:
        """The settings of a method: its entry in `methods`, else in `defaults`, else none (the method's defaults)."""
        return self.methods.get(method, self.defaults.get(method, {}))

    def changed(self, changes: Mapping[str, Mapping[str, Any]], where: str = "the changed recipe") -> Recipe:
        """With other values in some sections; those of a method are added to the settings it has."""
        value = self.model_dump(mode="json")
        for section, fields in changes.items():
            if section == "methods":
                value["methods"] |= {m: self.settings(m) | dict(settings) for m, settings in fields.items()}
            elif isinstance(value.get(section), dict):
                value[section] |= fields
            else:
                value[section] = fields
        return self.from_dict(value, where)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def locked(self) -> dict[str, Any]:
        value = self.model_dump(mode="json")
        if self.training is not None:  # what it comes to, so that null and the value it stands for are one recipe
            value["training"]["exposure_matched"] = self.training.matched(self.model.fine_tuned)
        return {key: value[key] for key in LOCKED}


def merge(*several: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as one; of two values of a key the later counts."""
    found: dict[str, Any] = {}
    for value in several:
        for key, sub in value.items():
            both = isinstance(sub, Mapping) and isinstance(found.get(key), Mapping)
            found[key] = merge(found[key], sub) if both else sub
    return found


def recipes_folder() -> Path:
    """What is shipped with the package: recipes/NAME.yaml, and sweeps in recipes/ablations/."""
    here = Path(__file__).parents[1] / "recipes"  # in a wheel
    return here if here.is_dir() else Path(__file__).parents[3] / "recipes"  # in a checkout


def builtin_recipe(name: str) -> Recipe:
    """A recipe shipped with the package (recipes/NAME.yaml)."""
    folder = recipes_folder()
    if not (folder / f"{name}.yaml").is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise GudaError("recipe-unknown", f"no recipe {name!r}; shipped recipes: {known}")
    return Recipe.read(folder / f"{name}.yaml")


def read_recipe(name: str) -> Recipe:
    """A file ending in .yaml, or the name of a recipe shipped with the package."""
    return Recipe.read(Path(name)) if name.endswith((".yaml", ".yml")) else builtin_recipe(name)


def preset(text_to_image: bool, adapted: bool = False) -> Recipe:
    """What a model of this kind is unlearned and scored with where nothing else is said: the recipe that `guda init`
    writes into a run, and the settings of `guda.unlearn` and `guda.attribute`. Of a base with a LoRA (`adapted`) the
    changed LoRA itself is stored, in place of another one on top."""
    found = builtin_recipe("own-style" if text_to_image else "own-data")
    if not adapted:
        return found
    value = found.model_dump(mode="json")
    for settings in [*value["methods"].values(), *value["defaults"].values()]:
        if str(settings.get("store", "")).startswith("lora:"):
            settings["store"] = "fp32"
    return Recipe.from_dict(value, found.name)
