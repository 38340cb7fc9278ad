"""One function per verb of the command line, for Python and for `cli/` alike. Each resumes and redoes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.data.sources import load_source
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.models import (
    build,
    full_name,
    full_tasks,
    load_data,
    load_model,
    need_training,
    run_schedule,
)
from guda.diffusion.queries import collect_samples, sample_tasks, set_name
from guda.engine.local import Watcher, run_tasks
from guda.engine.tasks import Task, pending
from guda.errors import GudaError, Mismatch
from guda.evaluation.ceiling import compare
from guda.evaluation.results import Cost, DatasetEntry, dataset_entry
from guda.methods.base import Method, get_method, known_methods
from guda.methods.logo import Logo
from guda.runs import progress
from guda.runs.recipe import Recipe, parse_config
from guda.runs.run import Run, writable
from guda.runs.store import write_json
from guda.scoring.plan import make_plan
from guda.scoring.scores import Scores
from guda.scoring.terms import load_queries

Engine = Callable[[Run, list[Task], str], int]


def local_engine(workers: int | None = None, watch: Callable[[str], Watcher] | None = None) -> Engine:
    """Tasks in worker processes here; `watch(title)` makes something that shows their progress."""

    def engine(run: Run, tasks: list[Task], title: str) -> int:
        return run_tasks(run, tasks, workers, watch(title) if watch else None)

    return engine


def init(root: str | Path, recipe: Recipe) -> Run:
    """Make a run folder, or reopen the same one. Checks everything first: on an error nothing is written."""
    root = Path(root)
    for name in recipe.methods:
        if name not in known_methods():
            raise GudaError(f"the recipe names an unknown method {name!r}; known: {', '.join(sorted(known_methods()))}")
        parse_config(known_methods()[name].Config, recipe.methods[name], f"methods.{name}")
    if root.exists() and not root.is_dir():
        raise GudaError(f"{root} is a file; choose another name for the run folder")
    if Run.exists(root):
        Run.open(root).check(recipe)  # the cheap refusal first
    elif root.exists() and any(p.name not in ("data", "recipe.yaml") and p.name[0] != "." for p in root.iterdir()):
        raise GudaError(f"{root} exists and is not a run folder; choose another name")
    writable(root)
    options = recipe.data.model_dump()
    data = load_source(options.pop("source"), **options)
    model = _check_model(recipe, data)
    lock = {"data_digest": data.digest, "groups": dict(zip(data.groups.names, data.groups.sizes, strict=True)),
            "model": None if model is None else model.digest()}  # fmt: skip
    make_plan((model or build(recipe.model, data.shape)).schedule, recipe.scoring)
    if Run.exists(root):
        run = Run.open(root)
        run.check_lock(lock)
        run.update(recipe)
        return run
    data.save(root / "data")
    return Run.create(root, recipe, lock)


def _check_model(recipe: Recipe, data: ImageData) -> Denoiser | None:
    if recipe.model.path is None:
        if recipe.training is None:
            raise GudaError("no model: give --model FOLDER, or a recipe with a `training` section for `guda train`")
        _try(build(recipe.model, data.shape), "model.options")
        return None
    model = Denoiser.from_pretrained(recipe.model.path, recipe.model.scheduler)
    if model.shape != data.shape:
        (c, h, w), (dc, dh, dw) = model.shape, data.shape
        fix = f"give --size {h}" if (dh, dw) != (h, w) else f"the model wants {c} channel(s), the images have {dc}"
        raise GudaError(f"the model takes {w}x{h} images of {c} channel(s), the data are {dw}x{dh} of {dc}; {fix}")
    _try(model, str(recipe.model.path))
    return model


def _try(model: Denoiser, where: str) -> None:
    """One image through the network: a U-Net cannot halve every size as often as it has levels."""
    import torch

    if model.conditional:
        return
    try:
        with torch.inference_mode():
            model.raw(torch.zeros(1, *model.shape), torch.zeros(1, dtype=torch.long))
    except RuntimeError as e:
        size = "x".join(str(n) for n in model.shape[1:])
        reason = str(e).splitlines()[0]
        raise GudaError(f"{where}: the network cannot run on {size} images ({reason}); give another --size") from None


def _base_tasks(run: Run) -> list[Task]:
    return [] if run.recipe.model.path else full_tasks(run, need_training(run).seed)


def train(run: Run, engine: Engine) -> str:
    """Train the run's full model; returns its folder."""
    if run.recipe.model.path:
        raise GudaError(f"{run.root} has a model already ({run.recipe.model.path}); there is nothing to train")
    engine(run, _base_tasks(run), "train")
    return str(run.path("models", full_name(need_training(run).seed)))


def fit_tasks(run: Run, methods: Sequence[str]) -> list[Task]:
    tasks = _base_tasks(run)
    for name in methods:
        tasks += get_method(run, name).fit()
    return tasks


def fit(run: Run, methods: Sequence[str], engine: Engine) -> int:
    return engine(run, fit_tasks(run, methods), f"fit {', '.join(methods)}")


def sample(run: Run, engine: Engine) -> str:
    """Draw the recipe's query set from the run's model; returns its name."""
    engine(run, _base_tasks(run) + sample_tasks(run, run.recipe.queries), "sample")
    return collect_samples(run, run.recipe.queries)


def add_queries(run: Run, folder: str | Path, name: str | None = None) -> str:
    """Take a folder of pictures into the run; returns the set's name."""
    data = load_data(run)
    config = run.recipe.data
    mode = {1: "L", 3: "RGB"}[data.shape[0]]
    queries = Queries.from_folder(folder, size=config.size, mode=mode)
    queries.check_shape(data.shape)
    load_model(run, "base").condition(queries.prompts)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name or queries.name).lstrip(".") or "queries"
    if name is not None and name != plain:
        raise GudaError(f"--name {name!r}: letters, digits, dot, dash and underscore only, e.g. {plain!r}")
    name = plain
    target = run.path("queries", name)
    if (target / "index.json").is_file():
        known = Queries.load(target)
        if known.digest != queries.digest:
            raise Mismatch(f"query set {name!r} of the run has other pictures", known.digest[:12], queries.digest[:12],
                           "give this one another --name")  # fmt: skip
        return name
    Queries(queries.ids, queries.images, queries.prompts, name).save(target)
    return name


def choose_queries(run: Run, queries: str | None = None) -> str:
    """A set of the run by name; default: the recipe's samples, else the only set there is."""
    sets = run.query_sets()
    if queries is None:
        own = set_name(run.recipe.queries)
        if own in sets or len(sets) == 1:
            return own if own in sets else sets[0]
        if not sets:
            raise GudaError(
                f"{run.root} has no queries; give --queries FOLDER, or draw some with: guda sample {run.root}"
            )
        raise GudaError(f"{run.root} has several query sets; choose one with --queries: {', '.join(sets)}")
    if queries in sets:
        return queries
    raise GudaError(f"no query set {queries!r} in {run.root} and no such folder; sets: {', '.join(sets) or 'none'}")


def fitted_methods(run: Run) -> list[str]:
    """Methods with a finished artifact: the recipe's, then others."""
    names = [*run.recipe.methods, *(m for m in known_methods() if m not in run.recipe.methods)]
    return [m for m in names if (m != "logo" or run.recipe.training) and get_method(run, m).fitted()]


def check_fitted(run: Run, methods: Sequence[str]) -> None:
    for name in methods:
        if not get_method(run, name).fitted():
            raise GudaError(f"{name} is not fitted in {run.root}; run: guda fit {run.root} --method {name}")


def score(run: Run, name: str, methods: Sequence[str], engine: Engine) -> dict[str, Scores]:
    """Scores of one query set by each method, also written to scores/<set>/<method>.parquet."""
    queries = load_queries(run, name)
    tasks: list[Task] = []
    planned: set[str] = set()
    check_fitted(run, methods)
    chosen = [get_method(run, m) for m in methods]
    for found in chosen:
        tasks += found.score(queries, planned)
    engine(run, tasks, f"score {name}")
    return {found.method_id: _publish(run, queries, found) for found in chosen}


def _publish(run: Run, queries: Queries, found: Method) -> Scores:
    """Scores from finished terms, by the run's present settings."""
    scores = found.scores(queries)
    scores.write(scores_path(run, queries.name, found.method_id))
    if isinstance(found, Logo):
        for seed in found.config.seeds:
            found.seed_scores(queries, seed).write(scores_path(run, queries.name, f"logo-s{seed}"))
    return scores


def scores_path(run: Run, queries: str, method: str) -> Path:
    return run.path("scores", queries, f"{method}.parquet")


def scored_methods(run: Run, queries: str) -> list[str]:
    """Methods with scores of this set, recipe order first; LOGO's single seeds are not methods."""
    found = {p.stem for p in run.path("scores", queries).glob("*.parquet")}
    names = [*run.recipe.methods, *sorted(found)]
    return [m for m in dict.fromkeys(names) if m in found and m in known_methods()]


def evaluate(run: Run, name: str) -> DatasetEntry:
    """Every scored method against the oracle, with intervals and ceiling; written to evaluation.json."""
    config = run.recipe.evaluation
    oracle = get_method(run, config.against)
    if not isinstance(oracle, Logo):
        raise GudaError(f"evaluation.against = {config.against!r}: only logo is an oracle with retrainings to compare")
    if config.reference is not None and config.reference not in known_methods():
        raise GudaError(
            f"evaluation.reference = {config.reference!r} is no method; known: {', '.join(known_methods())}"
        )
    methods = [m for m in scored_methods(run, name) if m != config.against]
    queries = load_queries(run, name)
    seeds = oracle.config.seeds
    scores = {}
    for m in [config.against, *methods]:
        # settings may have been edited since: only terms under the present settings' names count
        method = get_method(run, m)
        if not method.fitted() or pending(run, method.score(queries, set())):
            raise GudaError(
                f"no {m} scores of {name!r} by the recipe's present settings; run: guda fit {run.root} --method {m}, "
                f"then guda score {run.root} --queries {name} --method {m}"
            )
        scores[m] = _publish(run, queries, method)
    gold = np.stack([oracle.seed_scores(queries, s).score for s in seeds])
    found = compare(
        gold, {m: scores[m].score for m in methods},
        reference=config.reference if config.reference in methods else None, n=config.resamples, seed=config.seed,
    )  # fmt: skip
    costs, figures = {}, {}
    for m in [*methods, config.against]:
        method = get_method(run, m)
        costs[m] = Cost(
            fit_evals=method.fit_evals(), fit_seconds=run.seconds(f"fit/{m}"),
            score_evals=method.score_evals(queries), score_seconds=run.seconds(f"score/{name}/{m}"),
        )  # fmt: skip
        if m != config.against and method.fit_evals() > 0:
            figures[f"evals_ratio_vs_logo.{m}"] = oracle.fit_evals() / method.fit_evals()
            if steps := getattr(method.config, "steps", None):
                figures[f"steps_ratio_vs_logo.{m}"] = need_training(run).steps / steps
    plan = make_plan(run_schedule(run), run.recipe.scoring)
    entry = dataset_entry(found, list(seeds), plan.estimand, costs, figures)
    write_json(run.path("scores", name, "evaluation.json"), entry.model_dump(mode="json"))
    write_json(run.path("evaluation.json"), entry.model_dump(mode="json"))
    return entry


def status(run: Run) -> dict[str, Any]:
    """What is done and what is left, as plain JSON."""
    data = load_data(run)
    names = [m for m in run.recipe.methods if m != "logo" or run.recipe.training]
    methods = {}
    for name in names:
        tasks = [t for t in get_method(run, name).fit() if t.stage != "train"]
        methods[name] = {"fitted": sum(t.done(run) for t in tasks), "of": len(tasks)}
    running = [r for p in sorted(run.path("progress").glob("[!.]*.json")) if (r := progress.read(p)) is not None]
    base = run.recipe.model.path or full_name(need_training(run).seed)
    return {
        "run": str(run.root),
        "recipe": run.recipe.name,
        "images": data.n,
        "groups": dict(zip(data.groups.names, data.groups.sizes, strict=True)),
        "model": {"name": base, "ready": all(t.done(run) for t in _base_tasks(run))},
        "methods": methods,
        "queries": {s: {"n": load_queries(run, s).n, "scored": scored_methods(run, s)} for s in run.query_sets()},
        "running": [f"{r['done']}/{r['total']}" for r in running],
        "evaluated": run.has("evaluation.json"),
        "report": str(run.path("report.html")) if run.has("report.html") else None,
        "versions": run.info["versions"],
    }


def pipeline(run: Run, engine: Engine) -> DatasetEntry:
    """Everything a recipe asks for: train, fit, sample, score, evaluate."""
    methods = list(run.recipe.methods)
    engine(run, fit_tasks(run, methods) + sample_tasks(run, run.recipe.queries), "train, fit and sample")
    name = collect_samples(run, run.recipe.queries)
    score(run, name, methods, engine)
    return evaluate(run, name)


def choose_or_add_queries(run: Run, queries: str | None, name: str | None = None) -> str:
    """A set by name, or a folder that becomes one; a folder of a set's name must still hold the same pictures."""
    if queries is not None and Path(queries).is_dir():
        return add_queries(run, queries, name)
    if name is not None:
        raise GudaError("--name names a new query set: give its folder with --queries")
    return choose_queries(run, queries)


def change_settings(run: Run, methods: Sequence[str], settings: Sequence[str]) -> None:
    """`key=value` settings of one method, kept in the run's recipe; what it makes gets a name of its own."""
    if len(methods) != 1:
        raise GudaError("--set changes one method: give exactly one --method")
    import yaml

    changes: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise GudaError(f"--set {text!r}: write key=value")
        try:
            changes[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise GudaError(f"--set {text!r}: the value is not valid YAML") from None
    recipe = run.recipe.model_dump(mode="json")
    recipe["methods"][methods[0]] = run.recipe.methods.get(methods[0], {}) | changes
    _update(run, recipe, methods[0])


def change_queries(run: Run, n: int | None, seed: int | None) -> None:
    changes = {k: v for k, v in (("n", n), ("seed", seed)) if v is not None}
    if changes:
        value = run.recipe.model_dump(mode="json")
        value["queries"] |= changes
        _update(run, value)


def _update(run: Run, value: dict[str, Any], method: str | None = None) -> None:
    recipe = Recipe.from_dict(value, "the changed recipe")
    if method is not None:
        trial = Run(run.root, run.info)
        trial.__dict__["recipe"] = recipe
        get_method(trial, method)  # refuses an unknown method or setting before anything is written
    run.update(recipe)
