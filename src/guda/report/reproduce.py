"""One experiment of the paper, from nothing to its tables and figures: `guda reproduce NAME`.

What an experiment consists of is a file (recipes/reproduce/NAME.yaml): a recipe per scale, the methods beside the
recipe's own, and which of the paper's questions are asked of it. Every stage is an ordinary verb that resumes and
redoes nothing, so the whole does; tables and figures are arithmetic on finished runs and come out the same bytes.

    RUN/            the experiment                      RUN/tables/    Markdown, CSV and LaTeX, one each per table
    RUN-noisy/      the same on a noisy partition       RUN/figures/   SVG, and PNG where there are pictures
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from guda.config import Config, LikelihoodConfig, PartitionConfig, read_config
from guda.errors import GudaError
from guda.evaluation.results import DatasetEntry
from guda.methods.base import get_method
from guda.methods.regroup import pairs_of
from guda.report.paper_outputs import write_figures, write_paper_tables
from guda.run.recipe import Recipe, read_recipe, recipes_folder
from guda.run.run import Run
from guda.steps.ablate import ablate, read_ablation
from guda.steps.evaluate import pipeline
from guda.steps.fit import Engine, train
from guda.steps.init import init
from guda.steps.likelihood import likelihood
from guda.steps.pairs import checked_pairs, pairs
from guda.steps.partition import partition
from guda.steps.prompts import prompts_build
from guda.steps.queries import choose_queries

FULL = "full"


class Reproduction(Config):
    """A file of recipes/reproduce/."""

    about: str = Field(description="One sentence.")
    scales: dict[str, str] = Field(
        min_length=1, description="Scale: its recipe (a name, or a file beside this one). Default: `full`."
    )
    published: Literal["cifar10", "unlearncanvas"] = Field(
        description="Which of the paper's data sets stands beside it."
    )
    before: str | None = Field(None, description="Recipe of the pretrained start, trained first.")
    methods: dict[str, dict[str, Any]] = Field({}, description="Methods beside the recipe's own, with their settings.")
    likelihood: dict[str, LikelihoodConfig] = Field(
        {}, description="Log-likelihoods as a second oracle: settings, or scale: settings."
    )
    partition: dict[str, PartitionConfig] = Field(
        {}, description="The same experiment on a noisy partition: settings, or scale: settings."
    )
    pairs: tuple[tuple[str, str], ...] = Field((), description="Pairs of groups to leave out together.")
    pairs_by: tuple[str, ...] = Field((), description="Unlearned methods that pairs are also asked of.")
    ablations: dict[str, tuple[str, ...]] = Field(
        {}, description="Sweeps, carried out on demand: a list, or scale: list."
    )

    @model_validator(mode="before")
    @classmethod
    def _by_scale(cls, value: Any) -> Any:
        """What is written once holds for every scale; what is written by scale names scales that there are."""
        if not isinstance(value, dict) or not isinstance(value.get("scales"), dict):
            return value
        scales, found = list(value["scales"]), dict(value)
        for section in ("likelihood", "partition", "ablations"):
            given = found.pop(section, None)
            if isinstance(given, dict) and given and all(isinstance(v, dict | list) for v in given.values()):
                if unknown := [s for s in given if s not in scales]:
                    raise ValueError(f"{section}: no scale {unknown[0]!r}; there are: {', '.join(scales)}")
                found[section] = given
            elif given:
                found[section] = dict.fromkeys(scales, given)
        return found


@dataclass(frozen=True)
class Reproduced:
    run: Run
    entry: DatasetEntry
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]


def reproductions() -> list[str]:
    return sorted(p.stem for p in (recipes_folder() / "reproduce").glob("*.yaml"))


def read_reproduction(name: str) -> Reproduction:
    """A file, or by its plain name one that is shipped."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in reproductions():
            raise GudaError(
                "experiment-unknown", f"no experiment {name!r} to reproduce; there are: {', '.join(reproductions())}"
            )
        path = recipes_folder() / "reproduce" / f"{name}.yaml"
    found: Reproduction = read_config(Reproduction, path, "experiment")

    def beside(recipe: str) -> str:
        return str(path.parent / recipe) if recipe.endswith((".yaml", ".yml")) else recipe

    scales = {scale: beside(recipe) for scale, recipe in found.scales.items()}
    return found.model_copy(update={"scales": scales, "before": found.before and beside(found.before)})


def scaled_recipe(wanted: Reproduction, scale: str = FULL) -> Recipe:
    """The recipe of one scale with all the experiment's methods; a recipe's own settings of one come first."""
    if scale not in wanted.scales:
        raise GudaError("scale-unknown", f"no scale {scale!r}; there are: {', '.join(wanted.scales)}")
    name = wanted.scales[scale]
    value = read_recipe(name).model_dump(mode="json")
    value["methods"] |= {m: settings for m, settings in wanted.methods.items() if m not in value["methods"]}
    if scale in wanted.likelihood:
        value["likelihood"] = wanted.likelihood[scale].model_dump(mode="json")
    return Recipe.from_dict(value, f"the experiment's recipe {name}")


def reproduce(
    name: str,
    root: Path,
    engine: Engine,
    scale: str = FULL,
    ablations: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Reproduced:
    """Carry out an experiment, or what is left of it, and write its tables and figures."""
    wanted = read_reproduction(name)
    recipe = scaled_recipe(wanted, scale)
    if wanted.before is not None:
        before = read_recipe(wanted.before)
        say(f"{before.name}: the pretrained start")
        start = train(init(root.parent / before.name, before), engine)
        recipe = _changed(recipe, "model", start=start)
    _check_pairs(init(root, recipe), wanted)
    say(f"{recipe.name}: train, retrain, fit, score")
    run, entry = _carried_out(root, recipe, engine)
    noisy: Run | None = None
    if scale in wanted.likelihood:
        say(f"{recipe.name}: log-likelihoods")
        # of the oracle alone: that is what methods are held against, and each model more is as much again
        likelihood(run, choose_queries(run), engine, [run.recipe.evaluation.against])
    if scale in wanted.partition:
        say(f"{recipe.name}: the same on a noisy partition")
        moved = _changed(recipe, "data", partition=wanted.partition[scale].model_dump(mode="json"))
        noisy, _ = _carried_out(noisy_root(root), moved, engine)
        partition(run, noisy)
    if wanted.pairs:
        say(f"{recipe.name}: pairs of groups")
        pairs(run, choose_queries(run), wanted.pairs, wanted.pairs_by, engine)
    for sweep in wanted.ablations.get(scale, ()) if ablations else ():
        say(f"{recipe.name}: ablation {sweep}")
        ablate(run, read_ablation(sweep), engine)
    say(f"{recipe.name}: tables and figures")
    tables = write_paper_tables(run, wanted.published, noisy)
    return Reproduced(run, entry, tuple(tables), tuple(write_figures(run, engine)))


def _check_pairs(run: Run, wanted: Reproduction) -> None:
    """A mistake in the file is told before hours of training, not after them."""
    asked = checked_pairs(run, wanted.pairs)
    for method in wanted.pairs_by if asked else ():
        pairs_of(get_method(run, method), asked)


def noisy_root(root: Path) -> Path:
    return root.with_name(f"{root.name}-noisy")


def _changed(recipe: Recipe, section: str, **values: Any) -> Recipe:
    value = recipe.model_dump(mode="json")
    value[section] |= values
    return Recipe.from_dict(value, f"recipe {recipe.name}")


def _carried_out(root: Path, recipe: Recipe, engine: Engine) -> tuple[Run, DatasetEntry]:
    run = init(root, recipe)
    if recipe.prompts is not None:
        prompts_build(run)
    return run, pipeline(run, engine)
