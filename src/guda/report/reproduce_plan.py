"""What an experiment of the paper costs, part by part: `guda reproduce NAME --plan`.

Beside the recipe's own rows (outline.py) stand the parts that only the experiment has: its pretrained start, the second
oracle, the noisy twin, pairs of groups, sweeps. Where data or network are not known without their files, trainings and
fits are counted all the same: they follow from the recipe.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from guda.config import parse_config
from guda.diffusion.likelihood import evals
from guda.errors import GudaError
from guda.methods.base import known_methods
from guda.report.reproduce import FULL, Reproduction, scaled_recipe
from guda.run.recipe import Recipe, read_recipe
from guda.steps.ablate import EPOCHS, read_ablation
from guda.steps.estimate_recipe import outline
from guda.steps.plan import Budget
from guda.unlearning.unlearn import OPERATORS


def plan_reproduction(wanted: Reproduction, scale: str = FULL, ablations: bool = False) -> dict[str, Any]:
    """Like `outline`, with a row for every part of the experiment; a cost that is not known is null."""
    recipe = scaled_recipe(wanted, scale)
    try:
        value = outline(recipe)
    except GudaError as e:
        value = _fits_alone(recipe, e)
    own = value["rows"]
    rows = [*_start(wanted), *_placebos(recipe), *_likelihood(wanted, scale, recipe, value)]
    if scale in wanted.partition:
        disk = [r["disk"] for r in own]
        rows.append(
            Budget(
                f"the same on a noisy partition ({trainings(recipe, value['groups'])} trainings)",
                sum(r["evals"] or 0 for r in own), None, None if None in disk else sum(disk),
            )
        )  # fmt: skip
    rows += _pairs(wanted, recipe, value)
    sweeps = wanted.ablations.get(scale, ())
    left = f" Only with --ablations: {', '.join(sweeps)}." if sweeps and not ablations else ""
    rows += [_sweep(name, recipe, value) for name in (sweeps if ablations else ())]
    return value | {"rows": own + [asdict(r) for r in rows], "note": value["note"] + left}


def trainings(recipe: Recipe, groups: int) -> int:
    """Models trained from the start: the full one, and LOGO's."""
    logo = recipe.methods.get("logo", {})
    return 1 + len(logo.get("seeds", (1,))) * (groups + bool(logo.get("own_full", True)))


def _training_evals(recipe: Recipe) -> float:
    return 0.0 if recipe.training is None else 3.0 * recipe.training.steps * recipe.training.batch


def _fit_evals(method: str, settings: dict[str, Any]) -> float:
    return float(OPERATORS[method].fit_evals(parse_config(OPERATORS[method].Config, settings, f"methods.{method}")))


def _fits_alone(recipe: Recipe, why: GudaError) -> dict[str, Any]:
    """Rows of trainings and fits, of a recipe whose data or network are not known without their files."""
    groups = len(recipe.scoring.groups or recipe.data.groups or ())
    if not groups:
        raise why
    models = trainings(recipe, groups)
    rows = [Budget("train the full model", _training_evals(recipe), None, None)]
    rows.append(Budget(f"fit logo ({models - 1} trainings)", (models - 1) * _training_evals(recipe), None, None))
    for name in [m for m in recipe.methods if m in OPERATORS]:
        rows.append(Budget(f"fit {name}", groups * _fit_evals(name, recipe.methods[name]), None, None))
    others = [m for m in recipe.methods if m not in OPERATORS and m != "logo"]
    told = f" Not counted: scoring; {', '.join(others)}." if others else " Not counted: scoring."
    return {
        "recipe": recipe.name, "groups": groups, "of": len(recipe.data.groups or ()) or groups, "queries": None,
        "parameters": None, "evals_per_model_and_query": None, "rows": [asdict(r) for r in rows], "bank": {},
        "note": f"Trainings and fits alone: {why}.{told}",
    }  # fmt: skip


def _start(wanted: Reproduction) -> list[Budget]:
    if wanted.before is None:
        return []
    before = read_recipe(wanted.before)
    return [Budget(f"train the pretrained start, {before.name}", _training_evals(before), None, None)]


def _placebos(recipe: Recipe) -> list[Budget]:
    n = recipe.evaluation.placebos
    chosen = [m for m in recipe.methods if m in OPERATORS and OPERATORS[m].regroupable] if n else []
    return [Budget(f"fit {n} placebos by {m}", n * _fit_evals(m, recipe.methods[m]), None, None) for m in chosen]


def _likelihood(wanted: Reproduction, scale: str, recipe: Recipe, value: dict[str, Any]) -> list[Budget]:
    if scale not in wanted.likelihood:
        return []
    config = wanted.likelihood[scale]
    n = min(config.n, value["queries"] or config.n)
    logo = recipe.methods.get("logo", {})
    models = trainings(recipe, value["groups"]) - bool(logo.get("own_full", True))
    what = f"log p of {n} queries by {models} models of logo"
    return [Budget(what, float(n * models * evals(config)), None, n * models * config.seeds * 20)]


def _pairs(wanted: Reproduction, recipe: Recipe, value: dict[str, Any]) -> list[Budget]:
    p = len(wanted.pairs)
    if not p:
        return []
    each = None if value["queries"] is None else value["queries"] * value["evals_per_model_and_query"]
    models = p * len(recipe.methods.get("logo", {}).get("seeds", (1,)))

    def score(networks: int) -> float:
        return 0.0 if each is None else float(networks * each)

    rows = [Budget(f"{p} pairs by logo ({models} trainings)", models * _training_evals(recipe) + score(models),
                   None, None)]  # fmt: skip
    for m in wanted.pairs_by:
        if m in OPERATORS:
            rows.append(Budget(f"{p} pairs by {m}", p * _fit_evals(m, recipe.methods[m]) + score(p), None, None))
    return rows


def _sweep(name: str, recipe: Recipe, value: dict[str, Any]) -> Budget:
    """Fits of all settings and groups, with their scoring; null of methods whose fits are not counted so."""
    sweep = read_ablation(name)
    cells = [(axis.axis, v) for axis in sweep.axes for _, v in axis.labelled()]
    what = f"ablation {name} ({len(cells)} settings of {sweep.method})"
    if sweep.method not in OPERATORS:
        return Budget(what, None, None, None)
    base = recipe.methods.get(sweep.method, {}) if sweep.base == "recipe" else sweep.base
    fields, groups, total = known_methods()[sweep.method].Config.model_fields, value["groups"], 0.0
    for axis, v in cells:
        if axis == EPOCHS and EPOCHS not in fields:
            config = parse_config(OPERATORS[sweep.method].Config, base, sweep.method)
            axis, v = "steps", max(1, round(v * value.get("per_group", 0) / config.batch_forget))
        total += groups * _fit_evals(sweep.method, base | {axis: v})
    if value["queries"] is not None:
        total += len(cells) * groups * value["queries"] * value["evals_per_model_and_query"]
    return Budget(what, total, None, None)
