"""What a run would cost on a cluster: worker-hours, storage and price for N groups, Q queries and W workers, and the
schedule of its tasks, simulated (engine/simulate.py).

The tasks are those that `guda fit` and `guda score` hand to an engine: trainings, then one unlearning (or retraining)
per group, then one task per shard of queries. A task takes (its network evaluations) x (seconds per evaluation), the
latter from the run's recorded times stage by stage, or measured now where nothing is recorded, or given. What a cluster
adds to every task is assumed, not measured: `overhead`, `start`, `submit`, `failures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

from pydantic import Field, PositiveInt

from guda.config import Config
from guda.engine.simulate import Cluster, Schedule, Work, simulate
from guda.errors import GudaError
from guda.evaluation.timing import rate
from guda.methods.base import get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import terms_folder
from guda.run.data import load_data
from guda.run.models import architecture
from guda.run.plan import run_settings
from guda.run.run import Run
from guda.run.sketch import ONE, Sketch, blank_data
from guda.run.task import Task
from guda.scoring.plan import seconds_per_block
from guda.steps.fit import base_tasks
from guda.steps.plan import disk

MOST = 300_000  # tasks that are simulated

ADVICE = {
    "workers": "more workers help",
    "training": "the full model is trained by one worker while the others wait: train it on several devices",
    "chain": "tasks that wait for each other take as long as everything: make the longest of them shorter",
    "driver": "the driver hands out tasks too slowly: make them larger (shard)",
    "grain": "too few tasks for so many workers, the last ones wait for each other: make them smaller (shard)",
    "failures": "workers fail before long tasks end: make them smaller (shard)",
}


class ClusterConfig(Config):
    workers: tuple[PositiveInt, ...] = Field(
        (10, 30, 100, 300, 1000), min_length=1, description="Workers (GPUs, or cores) to plan for."
    )
    groups: int | None = Field(None, gt=1, description="Groups to plan for; default: the run's.")
    queries: int | None = Field(None, gt=0, description="Queries to plan for; default: the recipe's.")
    shard: int | None = Field(None, gt=0, description="Queries of one scoring task; default: the recipe's.")
    per_second: float | None = Field(
        None, gt=0, description="Network evaluations per second of one worker there; default: as measured here."
    )
    price: float | None = Field(None, ge=0, description="Of one worker for an hour, in your currency.")
    overhead: float = Field(2.0, ge=0, description="Seconds of a task besides its work: start, load, publish.")
    start: float = Field(10.0, ge=0, description="Seconds until a worker takes its first task.")
    submit: float = Field(0.005, ge=0, description="Seconds of the driver to hand out one task.")
    failures: float = Field(0.0, ge=0, description="Failures of one worker in 1,000 hours.")


@dataclass(frozen=True)
class Part:
    """One row: a stage of one method, all its tasks together."""

    what: str
    tasks: int
    evals: float
    seconds: float  # of one worker doing all of it
    disk: int  # bytes


@dataclass(frozen=True)
class Load:
    works: list[Work]
    parts: list[Part]
    rates: dict[str, float]  # seconds per evaluation
    measured: dict[str, bool]  # whether the run had recorded it


class _Rates:
    """Seconds per evaluation, stage by stage."""

    def __init__(self, run: Run, per_second: float | None) -> None:
        self.run, self.per_second = run, per_second
        self.known: dict[str, float] = {}
        self.recorded: dict[str, bool] = {}

    def __call__(self, kind: str, stages: Sequence[str]) -> float:
        if kind not in self.known:
            times = [time for stage in dict.fromkeys(stages) for time in self.run.timings(stage)]
            done = [(seconds, evals) for seconds, evals in times if evals is not None and evals > 1]
            self.recorded[kind] = bool(done) and self.per_second is None
            if self.per_second is not None:
                self.known[kind] = 1 / self.per_second
            else:
                self.known[kind] = rate(done)[0] if done else self._measured
        return self.known[kind]

    @cached_property
    def _measured(self) -> float:
        settings = run_settings(self.run)
        return seconds_per_block(architecture(self.run).clone(), settings) / settings.block


GROUPS = ("a group", "another group", "a third group")  # costs are linear in the number of groups


class _Method:
    """What one method costs for any number of groups: its tasks for two groups and for three, extended."""

    def __init__(self, run: Run, name: str) -> None:
        whole = run.recipe.model_copy(update={"scoring": run.recipe.scoring.model_copy(update={"groups": None})})
        self.network = architecture(run).module
        two, three = (
            get_method(Sketch(whole, blank_data(GROUPS[:n], 1), architecture(run)), name) for n in (2, len(GROUPS))
        )
        fit = [t for t in two.fit() if t.cost]
        self.once = [t for t in fit if t.args.get("group") not in GROUPS]
        self.each = [t for t in fit if t.args.get("group") == GROUPS[0]]  # seeds of LOGO, halves of a hybrid
        self._score = [method.score(ONE, set()) for method in (two, three)]

    def _extended(self, groups: int, amount: Callable[[list[Task]], float]) -> float:
        two, three = map(amount, self._score)
        return two + (three - two) * (groups - 2)

    def query_evals(self, groups: int) -> float:
        return self._extended(groups, lambda tasks: sum(t.cost for t in tasks))

    def query_disk(self, groups: int) -> int:
        return round(self._extended(groups, lambda tasks: disk(tasks, self.network)))


def workload(run: Run, methods: Sequence[str], config: ClusterConfig, n_queries: int) -> Load:
    """The tasks of training, fitting and scoring from nothing, whatever the run has done already."""
    chosen = [get_method(run, name) for name in methods]
    refused = [m.method_id for m in chosen if not m.counterfactuals]
    if refused or not chosen:
        raise GudaError(
            "cluster-method-unsupported",
            f"a cluster is planned for methods with a counterfactual per group, not {', '.join(refused) or 'none'}; "
            "name one with --method",
        )
    network = architecture(run).module
    shard = config.shard or run.recipe.scoring.shard
    rates = _Rates(run, config.per_second)
    works: dict[str, Work] = {}
    parts: list[Part] = []
    makers: dict[str, str] = {}  # file -> the task that makes it

    def add(what: str, tasks: list[Task], each_eval: float, stage: str) -> None:
        fresh = [t for t in tasks if t.name not in works]
        for t in fresh:
            needs = tuple(dict.fromkeys(makers[need] for need in t.needs if need in makers))
            works[t.name] = Work(t.name, t.cost * each_eval, needs, stage)
            makers.update((file, t.name) for file in t.makes)
        if fresh:
            evals = sum(t.cost for t in fresh)
            parts.append(Part(what, len(fresh), evals, evals * each_eval, disk(fresh, network)))

    def train(what: str, tasks: list[Task]) -> None:
        if tasks:
            add(what, tasks, rates("train", ["train"]), "train")

    train("train the full model", base_tasks(run))
    for method in chosen:
        assert has_counterfactuals(method)
        name, groups = method.method_id, config.groups or len(method.groups)
        cost = _Method(run, name)
        train(f"train for {name}", [t for t in cost.once if t.stage not in method.fit_stages()])
        # of a tree, those above the leaves: as many as this run has, because how they grow is the tree's affair
        leaves = load_data(run).groups.leaf_names
        above = [t for t in method.fit() if t.cost and t.args.get("group", leaves[0]) not in leaves]
        shards = ceil(n_queries / shard)
        tasks = len(works) + groups * len(cost.each) + len(above) + shards
        if tasks > MOST:
            raise GudaError(
                "cluster-tasks-too-many",
                f"{tasks:,} tasks are more than are simulated ({MOST:,}); give a larger shard (--set shard=N)",
            )
        fits = [replace(t, name=f"{t.name} {g}", makes=()) for t in cost.each for g in range(groups)] + above
        shared = [t for t in cost.once if t.stage in method.fit_stages() and "groups" in t.args]  # one pass for all
        fits += [replace(t, copies=groups, makes=()) for t in shared]
        if fits:
            add(f"fit {name}", fits, rates(f"fit {name}", method.fit_stages()), "fit")
        before = (t.name for t in [*base_tasks(run), *cost.once, *fits] if t.name in works)
        works[f"fitted {name}"] = Work(f"fitted {name}", None, tuple(dict.fromkeys(before)))
        stages = [s for q in run.query_sets() for s in method.score_stages(q, terms_folder(run).removeprefix("terms/"))]
        each_eval, per_query = rates(f"score {name}", stages), cost.query_evals(groups)
        for k in range(shards):
            seconds = per_query * min(shard, n_queries - k * shard) * each_eval
            works[f"score {name} {k}"] = Work(f"score {name} {k}", seconds, (f"fitted {name}",), "score")
        evals = per_query * n_queries
        parts.append(Part(f"score {name}", shards, evals, evals * each_eval, cost.query_disk(groups) * n_queries))
    return Load(list(works.values()), parts, rates.known, rates.recorded)


def plan_cluster(
    run: Run,
    methods: Sequence[str],
    config: ClusterConfig,
    n_queries: int,
    draw: Callable[[list[Schedule]], None] | None = None,
) -> dict[str, Any]:
    """Rows of `Part`, and one simulated schedule for each number of workers; `draw` is called with those."""
    n_queries = config.queries or n_queries
    load = workload(run, methods, config, n_queries)
    cluster = Cluster(1, config.overhead, config.start, config.submit, config.failures / 1000)
    found = [simulate(load.works, replace(cluster, workers=w)) for w in sorted(set(config.workers))]
    stage = {w.name: w.stage for w in load.works}
    if draw is not None:
        draw(found)
    return {
        "run": str(run.root),
        "methods": list(methods),
        "groups": config.groups or len(get_method(run, methods[0]).groups),  # type: ignore[attr-defined]
        "queries": n_queries,
        "settings": config.model_dump(mode="json"),
        "seconds_per_evaluation": load.rates,
        "recorded": load.measured,
        "parts": [vars(p) for p in load.parts],
        "evals": sum(p.evals for p in load.parts),
        "worker_hours": sum(p.seconds for p in load.parts) / 3600,
        "disk": sum(p.disk for p in load.parts),
        "schedules": [row(s, config.price, stage) for s in found],
    }


def row(schedule: Schedule, price: float | None, stage: dict[str, str]) -> dict[str, Any]:
    """One schedule as JSON: paid hours are those of all workers from the first task to the last, idle or not."""
    hours = schedule.makespan * schedule.cluster.workers / 3600
    cause = schedule.bottleneck
    if cause == "chain" and schedule.chain and stage.get(schedule.chain[0]) == "train":
        first = schedule.spans[0]
        cause = "training" if first[2] - first[1] > schedule.path / 2 else cause
    return {
        "workers": schedule.cluster.workers,
        "tasks": schedule.tasks,
        "makespan": schedule.makespan,
        "utilisation": schedule.utilisation,
        "paid_hours": hours,
        "cost": None if price is None else hours * price,
        "longest_chain": schedule.path,
        "chain": list(schedule.chain),
        "longest_task": schedule.longest,
        "failed": schedule.failed,
        "bounds": schedule.bounds,
        "bottleneck": cause,
        "advice": ADVICE[cause],
    }
