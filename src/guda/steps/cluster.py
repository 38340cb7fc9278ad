"""What a run would cost on a cluster: worker-hours, storage and price for N groups, Q queries and W workers, and the
schedule of its tasks, simulated (engine/simulate.py).

The tasks are those that `guda fit` and `guda score` hand to an engine: trainings, then one unlearning (or retraining)
per group, then one task per shard of queries. A task takes (its network evaluations) x (seconds per evaluation), the
latter from the run's recorded times stage by stage, or measured now where nothing is recorded, or told. What a cluster
adds to every task is assumed, not measured: `overhead`, `start`, `submit`, `failures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from guda.run.models import architecture
from guda.run.run import Run
from guda.run.settings import run_settings
from guda.run.task import Task
from guda.scoring.plan import make_plan, prior_density
from guda.scoring.settings import seconds_per_block
from guda.steps.fit import base_tasks
from guda.steps.plan import BYTES_PER_TERM

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

    def __init__(self, run: Run, told: float | None) -> None:
        self.run, self.told = run, told
        self.found: dict[str, float] = {}
        self.recorded: dict[str, bool] = {}
        self._now: float | None = None

    def __call__(self, kind: str, stages: Sequence[str]) -> float:
        if self.told is not None:
            self.found[kind], self.recorded[kind] = 1 / self.told, False
        if kind not in self.found:
            times = [time for stage in dict.fromkeys(stages) for time in self.run.timings(stage)]
            done = [(seconds, evals) for seconds, evals in times if evals is not None and evals > 1]
            self.found[kind] = rate(done)[0] if done else self._measure()
            self.recorded[kind] = bool(done)
        return self.found[kind]

    def _measure(self) -> float:
        if self._now is None:
            settings = run_settings(self.run)
            self._now = seconds_per_block(architecture(self.run).clone(), settings) / settings.block
        return self._now


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
    model, scoring = architecture(run), run.recipe.scoring
    timesteps = make_plan(model.schedule, scoring, prior_density(model.schedule))
    draws = timesteps.evals_per_round * scoring.rounds
    shard = config.shard or scoring.shard
    rates = _Rates(run, config.per_second)
    weights = sum(p.numel() * p.element_size() for p in model.module.state_dict().values())
    works: dict[str, Work] = {}
    parts: list[Part] = []

    def add(what: str, new: list[tuple[Work, float]], disk: int) -> None:
        fresh = [(w, e) for w, e in new if w.name not in works]
        works.update((w.name, w) for w, _ in fresh)
        if fresh:
            evals, seconds = sum(e for _, e in fresh), sum(w.seconds or 0.0 for w, _ in fresh)
            parts.append(Part(what, len(fresh), evals, seconds, disk if len(fresh) == len(new) else 0))

    def shared(tasks: Sequence[Task]) -> list[tuple[Work, float]]:
        """Trainings that are not of one group."""
        made = {file: t.name for t in tasks for file in t.makes}
        each = rates("train", ["train"]) if tasks else 0.0
        return [(Work(t.name, t.cost * each, _known(t, made), "train"), t.cost) for t in tasks]

    base = base_tasks(run)
    add("train the full model", shared(base), weights * len(base))
    for found in chosen:
        assert has_counterfactuals(found)
        name, fit = found.method_id, found.fit()
        groups = config.groups or len(found.groups)
        own = [t for t in fit if t.stage in found.fit_stages() and t.cost > 1]  # of one group each
        others = [t for t in fit if t not in own and t.cost > 1]
        add(f"train for {name}", shared(others), weights * len(others))
        before = tuple(dict.fromkeys(t.name for t in [*base, *others]))
        above = [t for t in own if t.args.get("group", found.groups[0]) not in found.groups]  # of a tree
        leaves = [t for t in own if t not in above]
        per_group = leaves[:: len(found.groups)]  # one of each kind: seeds of LOGO, halves of a hybrid
        tasks = len(works) + groups * len(per_group) + len(above) + ceil(n_queries / shard)
        if tasks > MOST:
            raise GudaError(
                "cluster-tasks-too-many",
                f"{tasks:,} tasks are more than are simulated ({MOST:,}); give a larger shard (--set shard=N)",
            )
        fits = []
        for task in per_group:
            seconds = task.cost * rates(f"fit {name}", found.fit_stages())
            kind = f"{task.stage}, seed {task.args.get('seed', 0)}, group"
            fits += [(Work(f"{kind} {g}", seconds, before, "fit"), task.cost) for g in range(groups)]
        for task in above:  # as many as this run has: how they grow with the groups is the tree's affair
            seconds = task.cost * rates(f"fit {name}", found.fit_stages())
            fits.append((Work(task.name, seconds, before, "fit"), task.cost))
        kept_models = [t for t in per_group for _ in range(groups)] + above
        add(f"fit {name}", fits, found.disk(kept_models, model))
        works[f"fitted {name}"] = Work(f"fitted {name}", None, (*before, *(w.name for w, _ in fits)))
        once, each = found.networks()
        networks = once + each * groups
        stages = [s for q in run.query_sets() for s in found.score_stages(q, terms_folder(run).removeprefix("terms/"))]
        each_eval = rates(f"score {name}", stages)
        shards = []
        for k in range(ceil(n_queries / shard)):
            evals = float(networks * min(shard, n_queries - k * shard) * draws)
            shards.append((Work(f"score {name} {k}", evals * each_eval, (f"fitted {name}",), "score"), evals))
        fulls = len({full for full, _ in found.sets()})
        kept = fulls + (len(found.models()) - fulls) // len(found.groups) * groups
        add(f"score {name}", shards, kept * n_queries * timesteps.n_strata * scoring.rounds * BYTES_PER_TERM)
    return Load(list(works.values()), parts, rates.found, rates.recorded)


def _known(task: Task, made: dict[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(made[need] for need in task.needs if need in made))


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
