"""Simulates the schedule of a list of tasks on a given number of workers, event by event.

The rule is that of the engines: whenever a worker is free it gets the first task of the list whose needs are met; the
driver hands out one task at a time. Then, without failures and with a driver that costs nothing,

    max(P, S / W)  <=  makespan  <=  S / W + (1 - 1/W) P        (Graham, for any order of the list)

S the seconds of all tasks, P those of the longest chain of needs, W the workers. Which of these, or the driver, or the
grain of the tasks the makespan is nearest to is what to change: `bottleneck`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log

from guda.errors import GudaError

ATTEMPTS = 1000

NEAR = 0.85  # of the makespan: a bound as large as this is what holds the schedule up


@dataclass(frozen=True)
class Work:
    """One task as a scheduler sees it. Without seconds it is a milestone: done when its needs are, by no worker."""

    name: str
    seconds: float | None
    needs: tuple[str, ...] = ()
    stage: str = ""


@dataclass(frozen=True)
class Cluster:
    workers: int
    overhead: float = 0.0  # seconds of every task besides its work: start, load the model, publish
    start: float = 0.0  # seconds until a worker takes its first task, also after a failure
    submit: float = 0.0  # seconds of the driver per task
    failures: float = 0.0  # per worker and hour; what was running there is done again from the start
    seed: int = 0


@dataclass(frozen=True)
class Schedule:
    cluster: Cluster
    makespan: float  # seconds
    tasks: int
    work: float  # seconds of all tasks with their overheads, each once
    path: float  # seconds of the longest chain
    chain: tuple[str, ...]  # its tasks
    longest: float  # seconds of the longest task
    waited: float = 0.0  # idle worker-seconds while one task ran and the others could not start without it
    failed: int = 0
    lost: float = 0.0  # seconds of work that failures ended
    spans: list[tuple[str, float, float]] = field(default_factory=list, repr=False)  # (stage, start, end) of each run

    @property
    def utilisation(self) -> float:
        """Share of the workers' time that went into finished tasks."""
        return self.work / (self.makespan * self.cluster.workers) if self.makespan else 1.0

    @property
    def bounds(self) -> dict[str, float]:
        """What the makespan cannot be less than, by cause."""
        found = {
            "workers": self.work / self.cluster.workers,
            "chain": self.path,
            "driver": self.tasks * self.cluster.submit,
        }
        return {cause: self.cluster.start + seconds for cause, seconds in found.items()}

    @property
    def bottleneck(self) -> str:
        """workers: more of them help. chain: one task after the other. driver: it hands out too slowly. grain: the
        tasks are too few or too unequal for so many workers. failures: what is done again."""
        cause, most = max(self.bounds.items(), key=lambda pair: pair[1])
        if most >= NEAR * self.makespan or not self.makespan:
            return cause
        whole = self.makespan * self.cluster.workers
        if self.lost > (1 - NEAR) * whole:
            return "failures"
        return "chain" if self.waited > (whole - self.work) / 2 else "grain"


class _Graph:
    """Needs as numbers; refuses what can never be met."""

    def __init__(self, works: Sequence[Work]) -> None:
        number = {work.name: i for i, work in enumerate(works)}
        if len(number) < len(works):
            raise GudaError("task-name-duplicate", "two tasks have the same name; a schedule needs them told apart")
        self.after: list[list[int]] = [[] for _ in works]
        self.unmet = [0] * len(works)
        for i, work in enumerate(works):
            for need in dict.fromkeys(work.needs):
                if need not in number:
                    raise GudaError("task-input-missing", f"{work.name} needs {need}, which nothing makes")
                self.after[number[need]].append(i)
                self.unmet[i] += 1

    def longest_chain(self, works: Sequence[Work], each: float) -> tuple[float, tuple[str, ...]]:
        """(seconds, names) with `each` second more for every task; milestones are passed through."""
        unmet, todo = list(self.unmet), [i for i, n in enumerate(self.unmet) if not n]
        ends, before = [0.0] * len(works), [-1] * len(works)
        seen = 0
        for i in todo:  # grows while it is walked
            seen += 1
            seconds = works[i].seconds
            ends[i] += 0.0 if seconds is None else seconds + each
            for j in self.after[i]:
                if ends[i] >= ends[j]:
                    ends[j], before[j] = ends[i], i
                unmet[j] -= 1
                if not unmet[j]:
                    todo.append(j)
        if seen < len(works):
            raise GudaError("task-cycle", "the tasks need each other in a circle")
        if not works:
            return 0.0, ()
        at = last = max(range(len(works)), key=ends.__getitem__)
        chain = list[str]()
        while at >= 0:
            chain += [] if works[at].seconds is None else [works[at].name]
            at = before[at]
        return ends[last], tuple(reversed(chain))


def simulate(works: Sequence[Work], cluster: Cluster) -> Schedule:
    """The schedule of these tasks on this cluster; a function of its arguments, failures too (by seed and task)."""
    if cluster.workers < 1:
        raise GudaError("cluster-without-workers", f"a cluster has at least one worker, got {cluster.workers}")
    graph, rate = _Graph(works), cluster.failures / 3600
    each = cluster.overhead + cluster.submit
    path, chain = graph.longest_chain(works, each)
    unmet, ready = list(graph.unmet), list[int]()
    events: list[tuple[float, int, str]] = []  # (when, task, what): a worker ends a task, or comes back
    spans: list[tuple[str, float, float]] = []
    attempts = [0] * len(works)
    free, now, driver, failed, lost = cluster.workers, cluster.start, cluster.start, 0, 0.0
    left, waited = sum(w.seconds is not None for w in works), 0.0

    def met(numbers: Iterable[int]) -> None:
        """Real tasks wait for a worker; what a milestone held back is met at once."""
        todo = list(numbers)
        while todo:
            i = todo.pop()
            if works[i].seconds is None:
                todo += done(i)
            else:
                heappush(ready, i)

    def done(i: int) -> list[int]:
        for j in graph.after[i]:
            unmet[j] -= 1
        return [j for j in graph.after[i] if not unmet[j]]

    met([i for i, n in enumerate(graph.unmet) if not n])
    while ready or events:
        while ready and free:
            i = heappop(ready)
            free, left = free - 1, left - (not attempts[i])
            driver = max(driver, now) + cluster.submit
            seconds = (works[i].seconds or 0.0) + cluster.overhead
            until = _breaks(rate, cluster.seed, works[i].name, attempts[i])
            attempts[i] += 1
            if attempts[i] > ATTEMPTS:
                raise GudaError(
                    "task-too-long",
                    f"{works[i].name} takes {seconds:.0f} s, and a worker fails before that; make tasks smaller",
                )
            spans.append((works[i].stage, driver, driver + min(until, seconds)))
            if until < seconds:
                failed, lost = failed + 1, lost + until
                heappush(events, (driver + until, i, "failed"))
            else:
                heappush(events, (driver + seconds, i, "done"))
        if left and free == cluster.workers - 1:
            waited += free * (events[0][0] - now)
        now = events[0][0]
        while events and events[0][0] == now:
            _, i, what = heappop(events)
            if what == "done":
                free += 1
                met(done(i))
            elif what == "back":
                free += 1
            else:
                heappush(ready, i)
                heappush(events, (now + cluster.start, i, "back"))
    real = [w.seconds for w in works if w.seconds is not None]
    return Schedule(
        cluster=cluster, makespan=max((end for _, _, end in spans), default=0.0), tasks=len(real),
        work=sum(real) + cluster.overhead * len(real), path=path, chain=chain, longest=max(real, default=0.0),
        waited=waited, failed=failed, lost=lost, spans=spans,
    )  # fmt: skip


def _breaks(rate: float, seed: int, name: str, attempt: int) -> float:
    """Seconds until the worker fails: exponential, keyed."""
    if rate <= 0:
        return float("inf")
    return -log(1.0 - random.Random(f"{seed}/{name}/{attempt}").random()) / rate


def staged(train: float, fits: int, fit: float, shards: int, score: float) -> list[Work]:
    """The shape of every run, made up: a training, a task per group, then a task per shard; seconds of one of each."""
    groups = [Work(f"fit {k}", fit, ("train",), "fit") for k in range(fits)]
    scored = [Work(f"score {k}", score, ("fitted",), "score") for k in range(shards)]
    fitted = Work("fitted", None, ("train", *(w.name for w in groups)))
    return [Work("train", train, stage="train"), *groups, fitted, *scored]


def busy(spans: Iterable[tuple[str, float, float]], points: int, end: float) -> dict[str, list[float]]:
    """Workers at work over time by stage: the mean of each of `points` equal pieces of 0..end."""
    found: dict[str, list[float]] = {}
    if end <= 0:
        return found
    width = end / points
    for stage, start, stop in spans:
        curve = found.setdefault(stage, [0.0] * points)
        for k in range(min(int(start / width), points - 1), min(int(stop / width), points - 1) + 1):
            curve[k] += max(0.0, min(stop, (k + 1) * width) - max(start, k * width)) / width
    return found
