"""What an experiment of the paper costs, part by part: `guda reproduce NAME --plan`.

After the recipe's own rows (steps/estimate_recipe.py) come the parts that only the experiment has: its pretrained
start, placebos, the second oracle, the noisy twin, pairs of groups, sweeps. Where the size of the data or the network
are not known without their files, trainings and fits are counted all the same, because they follow from the recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations, islice
from typing import Any

from guda.config import parse_config
from guda.diffusion.likelihood import evals
from guda.errors import GudaError
from guda.methods.base import METHODS, Method, get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.regroup import pairs_of, placebos_of, takes_placebos
from guda.report.reproduce import FULL, Reproduction, scaled_recipe
from guda.run.recipe import Recipe, read_recipe
from guda.run.sketch import ONE, Sketch, blank_data
from guda.run.task import Task
from guda.steps.ablate import EPOCHS, Ablation, read_ablation
from guda.steps.estimate_recipe import outline, sketch_recipe
from guda.steps.fit import base_tasks
from guda.steps.plan import Budget


def plan_reproduction(wanted: Reproduction, scale: str = FULL, ablations: bool = False) -> dict[str, Any]:
    """Like `outline`, with a row for every part of the experiment; a cost that is not known is null."""
    recipe = scaled_recipe(wanted, scale)
    try:
        sketch, value = sketch_recipe(recipe), outline(recipe)
    except GudaError as e:
        sketch, value = _fits_alone(recipe, e)
    own, logo = value["rows"], _logo(sketch)
    rows = [] if wanted.before is None else [_start(wanted.before)]
    n = recipe.evaluation.placebos
    for method in [get_method(sketch, m) for m in recipe.methods] if n else []:
        if takes_placebos(method):
            rows.append(Budget(f"fit {n} placebos by {method.method_id}", _cost(placebos_of(method, n).fit())))
    if scale in wanted.likelihood:
        config, models = wanted.likelihood[scale], len(logo.models())
        n = min(config.n, value["queries"] or config.n)
        what = f"log p of {n} queries by {models} models of logo"
        rows.append(Budget(what, float(n * models * evals(config)), disk=n * models * config.seeds * 20))
    if scale in wanted.partition:
        disk = [r["disk"] for r in own]
        trained = sum(t.trains for t in [*base_tasks(sketch), *logo.fit()])
        what = f"the same on a noisy partition ({trained} trainings)"
        rows.append(Budget(what, sum(r["evals"] or 0 for r in own), disk=None if None in disk else sum(disk)))
    if wanted.pairs:
        found = [logo, *(m for name in wanted.pairs_by if (m := get_method(sketch, name)).unlearns)]
        # any pairs do: which groups they name costs nothing, and a sketch need not know the names
        pairs = list(islice(combinations(sketch.data.groups.names, 2), len(wanted.pairs)))
        rows += [_pairs(method, pairs, value["queries"]) for method in found]
    sweeps = wanted.ablations.get(scale, ())
    left = f" Only with --ablations: {', '.join(sweeps)}." if sweeps and not ablations else ""
    rows += [_sweep(read_ablation(name), name, sketch, value) for name in (sweeps if ablations else ())]
    return value | {"rows": own + [asdict(r) for r in rows], "note": value["note"] + left}


def _cost(tasks: Sequence[Task]) -> float:
    return float(sum(t.cost for t in tasks))


def _logo(sketch: Sketch) -> ElboMethod:
    logo = get_method(sketch, "logo")
    assert has_counterfactuals(logo)
    return logo


def _start(name: str) -> Budget:
    recipe = read_recipe(name)
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
    found = pairs_of(method, pairs)
    trained = sum(t.trains for t in found.fit())
    what = f"{len(pairs)} pairs by {method.method_id}" + (f" ({trained} trainings)" if trained else "")
    return Budget(what, _with_scoring(found, n_queries))


def _sweep(sweep: Ablation, name: str, sketch: Sketch, value: dict[str, Any]) -> Budget:
    """Fits of all settings and groups, with their scoring; null of methods that fit no model per group."""
    cells = [(axis.axis, v) for axis in sweep.axes for _, v in axis.labelled()]
    what = f"ablation {name} ({len(cells)} settings of {sweep.method})"
    cls = METHODS[sweep.method]
    if not cls.unlearns:
        return Budget(what, None)
    base = sketch.recipe.methods.get(sweep.method, {}) if sweep.base == "recipe" else sweep.base
    total = 0.0
    for axis, v in cells:
        if axis == EPOCHS and EPOCHS not in cls.Config.model_fields:
            batch = parse_config(cls.Config, base, sweep.method).batch_forget
            axis, v = "steps", max(1, round(v * value.get("per_group", 0) / batch))
        method = cls(sketch, sweep.method, parse_config(cls.Config, base | {axis: v}, sweep.method))
        total += _with_scoring(method, value["queries"])
    return Budget(what, total)
