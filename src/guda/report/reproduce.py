"""One experiment of the paper, from nothing to its tables and figures: `guda reproduce NAME`.

What an experiment consists of is a file (recipes/reproduce/NAME.yaml): a recipe per scale, the methods beside the
recipe's own, and which of the paper's questions are asked of it. Every stage is an ordinary command that resumes and
redoes nothing, and so does the whole; the same finished runs give byte-identical tables and figures.

    RUN/            the experiment                      RUN/tables/    Markdown, CSV and LaTeX, one each per table
    RUN-noisy/      the same on a noisy partition       RUN/figures/   SVG, and PNG where there are pictures

`guda reproduce NAME --plan` says what it costs, part by part. After the recipe's own rows (steps/plan.py) come the
parts that only the experiment has: its pretrained start, placebos, the comparison under path divergence, the second
oracle, the noisy twin, pairs of groups, sweeps. Where the size of the data or the network are not known without their
files, trainings and fits are counted all the same, because they follow from the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from guda.config import Config, LikelihoodConfig, PartitionConfig, parse_config, read_config
from guda.diffusion.likelihood import evals
from guda.errors import GudaError
from guda.evaluation.results import DatasetEntry
from guda.methods.base import METHODS, Method, get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.regroup import pairs_of, placebos_of, takes_placebos
from guda.report.catalogue import write_figures, write_paper_tables
from guda.report.smoke import smoke_recipe
from guda.run.recipe import Recipe, read_recipe, recipes_folder
from guda.run.run import Run
from guda.run.sketch import ONE, Sketch, blank_data
from guda.run.task import Task
from guda.steps.ablate import EPOCHS, Ablation, ablate, read_ablation
from guda.steps.evaluate import OTHER, evaluate_by_path, path_methods, pipeline
from guda.steps.fit import Engine, base_tasks, train
from guda.steps.init import init
from guda.steps.likelihood import likelihood
from guda.steps.pairs import checked_pairs, pairs
from guda.steps.partition import partition
from guda.steps.plan import Budget, outline, sketch_recipe
from guda.steps.prompts import prompts_build
from guda.steps.queries import choose_queries

FULL = "full"

UNLOADABLE = ("encoder-unloadable", "package-missing")


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
    scoring: dict[str, Any] = Field(
        {}, description="Settings of `scoring` other than the recipe's. The estimand is the paper's ELBO difference."
    )
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
        scales, by_scale = list(value["scales"]), dict(value)
        for section in ("likelihood", "partition", "ablations"):
            settings = by_scale.pop(section, None)
            if isinstance(settings, dict) and settings and all(isinstance(v, dict | list) for v in settings.values()):
                if unknown := [s for s in settings if s not in scales]:
                    raise ValueError(f"{section}: no scale {unknown[0]!r}; there are: {', '.join(scales)}")
                by_scale[section] = settings
            elif settings:
                by_scale[section] = dict.fromkeys(scales, settings)
        return by_scale


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
    experiment: Reproduction = read_config(Reproduction, path, "experiment")

    def beside(recipe: str) -> str:
        return str(path.parent / recipe) if recipe.endswith((".yaml", ".yml")) else recipe

    scales = {scale: beside(recipe) for scale, recipe in experiment.scales.items()}
    return experiment.model_copy(update={"scales": scales, "before": experiment.before and beside(experiment.before)})


def scaled_recipe(experiment: Reproduction, scale: str = FULL, smoke: bool = False) -> Recipe:
    """The recipe of one scale with all the experiment's methods; a recipe's own settings of one come first."""
    if scale not in experiment.scales:
        raise GudaError("scale-unknown", f"no scale {scale!r}; there are: {', '.join(experiment.scales)}")
    name = experiment.scales[scale]
    value = read_recipe(name).model_dump(mode="json")
    value["methods"] |= {m: settings for m, settings in experiment.methods.items() if m not in value["methods"]}
    if value["scoring"]["estimand"] == "path":
        value["scoring"] |= {"estimand": "elbo", "excess": False}
    value["scoring"] |= experiment.scoring
    value["evaluation"]["calibration"] = 0  # the paper has no answer sets
    if scale in experiment.likelihood:
        value["likelihood"] = experiment.likelihood[scale].model_dump(mode="json")
    recipe = Recipe.from_dict(value, f"the experiment's recipe {name}")
    return smoke_recipe(recipe) if smoke else recipe


def reproduce(
    name: str,
    root: Path,
    engine: Engine,
    scale: str = FULL,
    ablations: bool = False,
    say: Callable[[str], None] = lambda text: None,
    smoke: bool = False,
) -> Reproduced:
    """Carry out an experiment, or what is left of it, and write its tables and figures."""
    experiment = read_reproduction(name)
    recipe = _with_weights(scaled_recipe(experiment, scale, smoke), smoke, say)
    if experiment.before is not None:
        before = smoke_recipe(read_recipe(experiment.before)) if smoke else read_recipe(experiment.before)
        say(f"{before.name}: the pretrained start")
        start = train(_initialised(root.parent / before.name, before), engine)
        recipe = _changed(recipe, "model", start=start)
    _check_pairs(init(root, recipe), experiment)
    say(f"{recipe.name}: train, retrain, fit, score")
    run, entry = _carried_out(root, recipe, engine)
    say(f"{recipe.name}: the same under path divergence")
    evaluate_by_path(run, choose_queries(run), engine)
    noisy: Run | None = None
    if scale in experiment.likelihood:
        say(f"{recipe.name}: log-likelihoods")
        # of the oracle alone: that is what methods are compared with, and each model more is as much again
        likelihood(run, choose_queries(run), engine, [run.recipe.evaluation.against])
    if scale in experiment.partition:
        say(f"{recipe.name}: the same on a noisy partition")
        moved = _changed(recipe, "data", partition=experiment.partition[scale].model_dump(mode="json"))
        noisy, _ = _carried_out(noisy_root(root), moved, engine)
        partition(run, noisy)
    if experiment.pairs:
        say(f"{recipe.name}: pairs of groups")
        pairs(run, choose_queries(run), experiment.pairs, experiment.pairs_by, engine)
    for sweep in experiment.ablations.get(scale, ()) if ablations else ():
        say(f"{recipe.name}: ablation {sweep}")
        ablate(run, read_ablation(sweep), engine)
    say(f"{recipe.name}: tables and figures")
    tables = write_paper_tables(run, experiment.published, noisy)
    return Reproduced(run, entry, tuple(tables), tuple(write_figures(run, engine)))


def _with_weights(recipe: Recipe, smoke: bool, say: Callable[[str], None]) -> Recipe:
    """The recipe, refused before hours of training where an encoder cannot be loaded. A smoke run goes without it."""
    missing = {}
    for name, settings in recipe.methods.items():
        cls = METHODS.find(name)
        try:
            cls.check_weights(parse_config(cls.Config, dict(settings), f"methods.{name}"))
        except GudaError as e:
            if not smoke or e.code not in UNLOADABLE:
                raise
            missing[name] = str(e)
    if not missing:
        return recipe
    for name, why in missing.items():
        say(f"left out of this smoke run: {name} ({why})")
    value = recipe.model_dump(mode="json")
    value["methods"] = {name: settings for name, settings in value["methods"].items() if name not in missing}
    if value["evaluation"]["reference"] in missing:
        value["evaluation"]["reference"] = None
    return Recipe.from_dict(value, f"recipe {recipe.name}")


def _check_pairs(run: Run, experiment: Reproduction) -> None:
    """A mistake in the file is reported before hours of training, not after them."""
    pairs = checked_pairs(run, experiment.pairs)
    for method in experiment.pairs_by if pairs else ():
        pairs_of(get_method(run, method), pairs)


def noisy_root(root: Path) -> Path:
    return root.with_name(f"{root.name}-noisy")


def _changed(recipe: Recipe, section: str, **values: Any) -> Recipe:
    value = recipe.model_dump(mode="json")
    value[section] |= values
    return Recipe.from_dict(value, f"recipe {recipe.name}")


def _initialised(root: Path, recipe: Recipe) -> Run:
    """The run with everything that training needs."""
    run = init(root, recipe)
    if recipe.prompts is not None:
        prompts_build(run)
    return run


def _carried_out(root: Path, recipe: Recipe, engine: Engine) -> tuple[Run, DatasetEntry]:
    run = _initialised(root, recipe)
    return run, pipeline(run, engine)


def plan_reproduction(
    experiment: Reproduction, scale: str = FULL, ablations: bool = False, smoke: bool = False
) -> dict[str, Any]:
    """Like `outline`, with a row for every part of the experiment; a cost that is not known is null."""
    recipe = scaled_recipe(experiment, scale, smoke)
    try:
        sketch, value = sketch_recipe(recipe), outline(recipe)
    except GudaError as e:
        sketch, value = _fits_alone(recipe, e)
    own, logo = value["rows"], _logo(sketch)
    rows = [] if experiment.before is None else [_start(experiment.before, smoke)]
    n = recipe.evaluation.placebos
    for method in [get_method(sketch, m) for m in recipe.methods] if n else []:
        if takes_placebos(method):
            rows.append(Budget(f"fit {n} placebos by {method.method_id}", _cost(placebos_of(method, n).fit())))
    if value["queries"] is not None:
        rows.append(_beside(sketch_recipe(_changed(recipe, "scoring", **OTHER | {"excess": False})), value["queries"]))
    if scale in experiment.likelihood:
        config, models = recipe.likelihood, len(logo.models())
        n = min(config.n, value["queries"] or config.n)
        what = f"log p of {n} queries by {models} models of logo"
        rows.append(Budget(what, float(n * models * evals(config)), disk=n * models * config.seeds * 20))
    if scale in experiment.partition:
        disk = [r["disk"] for r in own]
        trained = sum(t.trains for t in [*base_tasks(sketch), *logo.fit()])
        what = f"the same on a noisy partition ({trained} trainings)"
        rows.append(Budget(what, sum(r["evals"] or 0 for r in own), disk=None if None in disk else sum(disk)))
    if experiment.pairs:
        methods = [logo, *(m for name in experiment.pairs_by if (m := get_method(sketch, name)).unlearns)]
        # any pairs do: which groups they name costs nothing, and a sketch need not know the names
        pairs = list(islice(combinations(sketch.data.groups.names, 2), len(experiment.pairs)))
        rows += [_pairs(method, pairs, value["queries"]) for method in methods]
    sweeps = experiment.ablations.get(scale, ())
    left = f" Only with --ablations: {', '.join(sweeps)}." if sweeps and not ablations else ""
    rows += [_sweep(read_ablation(name), name, sketch, value) for name in (sweeps if ablations else ())]
    return value | {"rows": own + [asdict(r) for r in rows], "note": value["note"] + left}


def _cost(tasks: Sequence[Task]) -> float:
    return float(sum(t.cost for t in tasks))


def _beside(sketch: Sketch, n_queries: int) -> Budget:
    """Scoring under the other estimand; the pictures of the average are the queries themselves."""
    planned: set[str] = set()
    methods = [get_method(sketch, m) for m in path_methods(sketch)]
    return Budget("the same under path divergence", n_queries * sum(_cost(m.score(ONE, planned)) for m in methods))


def _logo(sketch: Sketch) -> ElboMethod:
    logo = get_method(sketch, "logo")
    assert has_counterfactuals(logo)
    return logo


def _start(name: str, smoke: bool) -> Budget:
    recipe = smoke_recipe(read_recipe(name)) if smoke else read_recipe(name)
    tasks = base_tasks(Sketch(recipe, blank_data(("a", "b"), 1), None))
    return Budget(f"train the pretrained start, {recipe.name}", _cost(tasks))


def _fits_alone(recipe: Recipe, why: GudaError) -> tuple[Sketch, dict[str, Any]]:
    """Rows of trainings and fits, of a recipe whose data or network are not known without their files."""
    groups = recipe.scoring.groups or recipe.data.groups or ()
    if not groups:
        raise why
    sketch = Sketch(recipe, blank_data(groups, 1), None)
    fits = _logo(sketch).fit()
    rows = [Budget("train the full model", _cost(base_tasks(sketch)))]
    rows.append(Budget(f"fit logo ({len(fits)} trainings)", _cost(fits)))
    methods = [get_method(sketch, m) for m in recipe.methods]
    operators = [m for m in methods if m.unlearns]
    rows += [Budget(f"fit {m.method_id}", _cost([t for t in m.fit() if not t.trains])) for m in operators]
    others = [m.method_id for m in methods if m not in operators and m.method_id != "logo"]
    uncounted = f" Not counted: scoring; {', '.join(others)}." if others else " Not counted: scoring."
    return sketch, {
        "recipe": recipe.name, "groups": len(groups), "of": len(recipe.data.groups or groups), "queries": None,
        "parameters": None, "evals_per_model_and_query": None, "rows": [asdict(r) for r in rows], "bank": {},
        "note": f"Trainings and fits alone: {why}.{uncounted}",
    }  # fmt: skip


def _with_scoring(method: Method, n_queries: int | None) -> float:
    """Fits, and their scoring where it is known; the full models are evaluated anyway."""
    fits = _cost([t for t in method.fit() if t.stage == f"fit/{method.method_id}"])
    if n_queries is None:
        return fits
    assert has_counterfactuals(method)
    return fits + n_queries * _cost(method.score(ONE, {full.key for full, _ in method.sets()}))


def _pairs(method: Method, pairs: Sequence[tuple[str, str]], n_queries: int | None) -> Budget:
    paired = pairs_of(method, pairs)
    trained = sum(t.trains for t in paired.fit())
    what = f"{len(pairs)} pairs by {method.method_id}" + (f" ({trained} trainings)" if trained else "")
    return Budget(what, _with_scoring(paired, n_queries))


def _sweep(sweep: Ablation, name: str, sketch: Sketch, value: dict[str, Any]) -> Budget:
    """Fits of all settings and groups, with their scoring; null of methods that fit no model per group."""
    cells = [(axis.axis, v) for axis in sweep.axes for _, v in axis.labelled()]
    what = f"ablation {name} ({len(cells)} settings of {sweep.method})"
    cls = METHODS[sweep.method]
    if not cls.unlearns:
        return Budget(what, None)
    base = sketch.recipe.methods.get(sweep.method, {}) if sweep.base == "recipe" else sweep.base
    base = base | sweep.settings
    total = 0.0
    for axis, v in cells:
        if axis == EPOCHS and EPOCHS not in cls.Config.model_fields:
            batch = parse_config(cls.Config, base, sweep.method).batch_forget
            axis, v = "steps", max(1, round(v * value.get("per_group", 0) / batch))
        method = cls(sketch, sweep.method, parse_config(cls.Config, base | {axis: v}, sweep.method))
        total += _with_scoring(method, value["queries"])
    return Budget(what, total)
