"""What work will cost, before it is done: network evaluations, time and disk.

Every plan is a sum over tasks, grouped into stages: of a run (`plan`), of a recipe without its data
(`outline`), on a cluster (steps/cluster.py), of an experiment of the paper (report/reproduce.py).
The tasks are those that `guda train`, `fit` and `score` would run, listed for a sketch of the run (run/sketch.py).

From the recipe alone, before its data set and its model are on this machine, the sketch is made of the known size of
the data set and of the network built without weights. Then times are not known: make the run on the machine it is for,
then `guda plan RUN`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import nn

from guda.data.queries import Queries
from guda.data.sources import known_size
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import build_network, make_scheduler
from guda.diffusion.sampling import BLOCK
from guda.diffusion.schedule import Schedule
from guda.engine.processes import default_workers
from guda.errors import GudaError, choices
from guda.files import read_json
from guda.methods.base import get_method
from guda.methods.origin import comes_free, draws_samples, origins_asked, own_samples, term_tasks
from guda.methods.terms import load_queries
from guda.run.data import load_data, scored_groups
from guda.run.models import architecture
from guda.run.plan import needs_pilot, pilot_file, run_settings
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.run.samples import has_samples, query_count, sample_tasks, set_name
from guda.run.sketch import ONE, Sketch, blank_data
from guda.run.task import Task, pending
from guda.scoring.plan import seconds_per_block
from guda.scoring.scores import Scores
from guda.steps.fit import base_tasks
from guda.steps.score import scored_methods, scores_path
from guda.unlearning.bank import bank_fraction, full_bytes

FACTORS = (0.25, 0.5, 1, 2, 4, 8)  # alternatives, as multiples of the recipe's rounds


@dataclass(frozen=True)
class Budget:
    """One row of a plan; None: not known."""

    what: str
    evals: float | None  # evaluation units: forward of one image = 1, forward and backward = 3
    seconds: float | None = None  # on this machine, all workers busy
    disk: int | None = None  # bytes


@dataclass(frozen=True)
class Stage:
    """Tasks that make one row; those of scoring are listed for a single query, `times` is how many there are."""

    what: str
    tasks: list[Task]
    times: int = 1

    @property
    def evals(self) -> float:
        return self.times * sum(t.cost for t in self.tasks)

    def disk(self, network: nn.Module) -> int:
        return self.times * disk(self.tasks, network)

    def budget(self, network: nn.Module, seconds: float | None = None) -> Budget:
        return Budget(self.what, self.evals, seconds, self.disk(network))


def disk(tasks: Iterable[Task], network: nn.Module) -> int:
    """Bytes that these tasks leave; only the shapes of the network count."""
    tasks = list(tasks)
    stores: Counter[str] = Counter()
    for t in tasks:
        if t.store is not None:
            stores[t.store] += t.copies
    copies = sum(n * bank_fraction(network, store) for store, n in stores.items())
    return round(full_bytes(network) * copies) + sum(t.bytes for t in tasks)


def stages(sketch: Sketch, methods: Sequence[str], n_queries: int) -> list[Stage]:
    """What is left to do. Work that several methods share (the halves of a hybrid, gradients of the same network)
    counts where it is needed first; evaluations of the full model count for every method."""
    made: set[str] = set()
    scored: set[str] = set()  # the same of a query set that is there
    averaged: set[str] = set()  # and of the average picture, whose parts are listed as those of a query

    def new(tasks: list[Task], made: set[str] = made) -> list[Task]:
        found = [t for t in pending(sketch, tasks) if not made.issuperset(t.makes)]
        made.update(file for t in tasks for file in t.makes)
        return found

    rows = [Stage("train the full model", new(base_tasks(sketch)))]
    for name in methods:
        method = get_method(sketch, name)
        fit = new(method.fit())
        twin = [t for t in fit if t.stage == "train/conditional"]
        rows += [Stage(f"train the conditional model of {name}", twin)] if twin else []
        rows.append(Stage(f"fit {name}", [t for t in fit if t not in twin]))
        score = method.score(ONE, set())
        if not method.scored or not any(t.cost for t in score):
            continue
        if sketch.excess and method.by_terms:  # where the queries are the samples themselves, it costs nothing
            known = _average_tasks(sketch, name)
            tasks, times = (score, _samples(sketch, n_queries)) if known is None else (known, 1)
            rows.append(Stage(f"score the average picture by {name}", new(tasks, averaged), times))
        left = _left_to_score(sketch, name, n_queries)
        what = f"score {n_queries} queries by {name}"
        rows.append(Stage(what, new(score), n_queries) if left is None else Stage(what, new(left, scored)))
    rows += _origin_stages(sketch, methods, n_queries)
    drawn_for = "the average picture" if sketch.excess else "comparison with the queries"
    wanted = sketch.excess or (origins_asked(sketch) and draws_samples(sketch))
    if wanted and sketch.of is not None:  # of a recipe alone, the samples are the queries that are drawn anyway
        drawn = new(sample_tasks(sketch, sketch.recipe.queries))
        if drawn or sketch.excess:
            rows.insert(1, Stage(f"draw {_samples(sketch, n_queries)} samples for {drawn_for}", drawn))
    return rows


def _origin_stages(sketch: Sketch, methods: Sequence[str], n_queries: int) -> list[Stage]:
    """The full model on the queries and on the run's own samples, where scoring does not leave that anyway."""
    if not origins_asked(sketch) or not (sketch.excess or draws_samples(sketch) or own_samples(sketch)):
        return []
    if comes_free(sketch, [get_method(sketch, name) for name in methods]):
        return []
    queries = _drawn(sketch, n_queries)
    what = f"check where {n_queries} queries come from"
    rows = [Stage(what, term_tasks(sketch, ONE), n_queries)]
    if queries is not None and sketch.of is not None:
        rows = [Stage(what, pending(sketch.of, term_tasks(sketch.of, queries)))]
    if sketch.of is None:  # the queries are the samples
        return rows
    own = own_samples(sketch.of)
    left = pending(sketch, term_tasks(sketch, ONE if own is None else own))
    times = _samples(sketch, n_queries) if own is None else 1
    return [*rows, *([Stage("full model on the samples compared with", left, times)] if left else [])]


def _drawn(sketch: Sketch, n_queries: int) -> Queries | None:
    """The recipe's query set, where it is drawn and is what is planned for."""
    run = sketch.of
    if run is None or needs_pilot(run) or (name := set_name(run, run.recipe.queries)) not in run.query_sets():
        return None
    found = load_queries(run, name)
    return found if found.n == n_queries else None


def _left_to_score(sketch: Sketch, name: str, n_queries: int) -> list[Task] | None:
    """What is left of scoring that query set by a method; None where it is not drawn or the models are not there."""
    queries, run = _drawn(sketch, n_queries), sketch.of
    if queries is None or run is None:
        return None
    method = get_method(run, name)
    return pending(run, method.score(queries, set())) if method.fitted() else None


def _samples(sketch: Sketch, n_queries: int) -> int:
    """How many samples the average picture is made of."""
    known = sketch.of is not None or sketch.recipe.prompts is None
    return query_count(sketch, sketch.recipe.queries) if known else n_queries


def _average_tasks(sketch: Sketch, name: str) -> list[Task] | None:
    """What is left of scoring a run's average picture by a method; None where its samples or models are not there."""
    run = sketch.of
    if run is None or needs_pilot(run) or not has_samples(run, run.recipe.queries):
        return None
    method = get_method(run, name)
    return pending(run, method.average_tasks(set())) if method.fitted() else None


def sketch_run(run: Run) -> Sketch:
    return Sketch(run.recipe, load_data(run), architecture(run), run)


def seconds_per_evaluation(run: Run, training: bool = False) -> tuple[float, int]:
    """(seconds of one evaluation in one thread, workers there are), measured now; for `training` as recorded by the
    run, if it has trained."""
    recorded = [(s, n) for s, n in run.timings("train") if n] if training else []
    if recorded:
        return sum(s for s, _ in recorded) / sum(n or 0.0 for _, n in recorded), default_workers()
    import torch

    settings, threads = run_settings(run), torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker has
    try:
        return seconds_per_block(architecture(run).clone(), settings) / settings.block, default_workers()
    finally:
        torch.set_num_threads(threads)


def plan(run: Run, methods: Sequence[str], n_queries: int, workers: int | None = None) -> dict[str, Any]:
    """Rows of `Budget`, and alternatives: evaluations per query against the expected width of an interval."""
    sketch, settings = sketch_run(run), run_settings(run)
    model = sketch.model
    per_eval, cores = seconds_per_evaluation(run)
    rates = {False: per_eval, True: seconds_per_evaluation(run, training=True)[0] if run.timings("train") else per_eval}
    workers = workers or cores

    def budget(stage: Stage) -> Budget:
        at_once = workers if stage.times > 1 else max(1, min(workers, len(stage.tasks)))
        return stage.budget(model.module, stage.times * sum(t.cost * rates[t.trains] for t in stage.tasks) / at_once)

    found = {name: get_method(sketch, name) for name in methods}
    per_query = {name: m.score_evals() for name, m in found.items() if m.counterfactuals}
    return {
        "run": str(run.root),
        "seconds_per_evaluation": per_eval,
        "settings": settings.key,
        "workers": workers,
        "groups": len(scored_groups(run)),
        "parameters": model.n_parameters(),
        "rows": [asdict(budget(stage)) for stage in stages(sketch, methods, n_queries)],
        "alternatives": _alternatives(run, per_query, per_eval),
        "note": _note(run),
    }


def _alternatives(run: Run, per_query: dict[str, float], per_eval: float) -> list[dict[str, Any]]:
    """For each method: rounds, evaluations and seconds per query, expected half-width of a 95 % interval in nats."""
    rounds = run.recipe.scoring.rounds
    table = []
    for name, evals in per_query.items():
        stderr = _expected_stderr(run, name)
        for factor in FACTORS:
            wanted = rounds * factor
            if wanted < 1 or wanted != int(wanted):
                continue
            width = None if stderr is None else 1.96 * stderr / np.sqrt(factor)
            table.append({"method": name, "rounds": int(wanted), "evals_per_query": evals * factor,
                          "seconds_per_query": evals * factor * per_eval, "half_width": width})  # fmt: skip
    return table


def _expected_stderr(run: Run, method: str) -> float | None:
    """Median standard error: as measured on a scored set, else a guess from the pilot, else unknown."""
    for name in run.query_sets():
        if method in scored_methods(run, name):
            stderr = Scores.read(scores_path(run, name, method)).stderr
            if stderr is not None and np.isfinite(stderr).any():
                return float(np.nanmedian(stderr))
    if run.has(pilot_file(run)):
        # a draw of stratum s varies by at most its root mean square: (M/S)^2 each for S strata of equal mass M/S
        pilot = read_json(run.path(pilot_file(run)))
        if not pilot["size"]:
            return None
        every = np.arange(1, len(pilot["density"]) + 1)
        mass = float(np.exp(np.interp(every, pilot["t"], np.log(np.maximum(pilot["size"], 1e-12)))).sum())
        return mass / float(np.sqrt(run.recipe.scoring.strata * run.recipe.scoring.rounds))
    return None


def _note(run: Run) -> str:
    if any(scored_methods(run, s) for s in run.query_sets()):
        return "Expected widths from the standard errors of a scored set of this run."
    if needs_pilot(run) or not run.has(pilot_file(run)):
        return "Expected widths are unknown until the first scoring has made its pilot."
    return "Expected widths are guesses from the pilot, which has seen none of the methods; nothing is scored yet."


STORES = ("fp32", "bf16", "lowrank:16", "lora:16", "lora:4", "lora:4:bf16")

STARTS = ("runwayml/stable-diffusion-v1-5",)


def _network(recipe: Recipe, shape: tuple[int, int, int]) -> Denoiser:
    """Without weights."""
    import torch
    from diffusers import DDPMScheduler, UNet2DConditionModel

    path = recipe.model.start or recipe.model.path
    if path is None and recipe.model.scheduler is not None:
        with torch.device("meta"):
            module, _ = build_network(recipe.model, shape)
        return Denoiser(module, Schedule.from_scheduler(make_scheduler(recipe.model.scheduler)), shape)
    if path not in STARTS:
        raise GudaError(
            "model-architecture-unknown",
            f"the architecture of {path or 'the model'} is not known without its files; make the run, then "
            f"guda plan RUN (known: {choices(STARTS)})",
        )
    with torch.device("meta"):
        module = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    betas = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    return Denoiser(module, Schedule.from_scheduler(betas), (4, 64, 64))


def sketch_recipe(recipe: Recipe) -> Sketch:
    data = known_size(recipe.data)
    named = recipe.data.groups or recipe.scoring.groups or ()
    names = [*named, *(f"group {i}" for i in range(data.groups - len(named)))]  # how they are called costs nothing
    return Sketch(recipe, blank_data(names, data.per_group, data.shape[0]), _network(recipe, data.shape))


def outline(recipe: Recipe, n_queries: int | None = None) -> dict[str, Any]:
    """Like `plan`, without times: rows of `Budget`, and the bank of one operator in every form it can be kept in."""
    data, sketch = known_size(recipe.data), sketch_recipe(recipe)
    module, groups = sketch.model.module, len(scored_groups(sketch))
    prompted = recipe.prompts is not None and data.objects is not None
    n = n_queries or (groups * (recipe.queries.objects or data.objects or 1) if prompted else recipe.queries.n)
    methods = {name: get_method(sketch, name) for name in recipe.methods}
    # methods that evaluate another network, or none
    silent = [name for name, m in methods.items() if not m.fit_evals() and not m.score_evals()]
    rows = [stage.budget(module) for stage in stages(sketch, [m for m in methods if m not in silent], n)]
    if not prompted:
        each = sample_tasks(sketch, recipe.queries)[0].cost / BLOCK
        pixels = data.shape[0] * data.shape[1] ** 2
        rows.insert(1, Budget(f"draw {n} queries", n * each, disk=n * pixels))
    whole = full_bytes(module) * groups
    note = "From the recipe alone; for times make the run on the machine it is for, then: guda plan RUN."
    return {
        "recipe": recipe.name,
        "groups": groups,
        "of": data.groups,
        "per_group": data.per_group,
        "queries": n,
        "parameters": sketch.model.n_parameters(),
        "t_max": sketch.model.schedule.t_max,
        "evals_per_model_and_query": sketch.plan.evals_per_round * recipe.scoring.rounds,
        "rows": [asdict(r) for r in rows],
        "bank": {"full copies": whole} | {store: round(whole * bank_fraction(module, store)) for store in STORES},
        "note": note + (f" Not counted: {', '.join(silent)}." if silent else ""),
    }
