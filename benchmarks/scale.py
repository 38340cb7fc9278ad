"""The same run on one machine and on a Ray cluster of two nodes: benchmarks/results/scale.json.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/scale.py          # about ten minutes on 2 idle cores
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/scale.py --tiny   # does it work at all: a minute, writes nothing

The digits demo with shorter trainings and fewer queries, from an empty folder each time:

tasks_per_minute_{1,2}         on Ray with one and with two workers, one thread each; `local_...`: in processes here
overhead_ms_{ray,local}        seconds per task of tasks that do nothing, one worker
identical                      1 where every file of every run below equals that of one local worker, byte for byte
repeated_tasks_after_kill      tasks that had finished when a worker, then a whole node, was killed in the middle of fit
                               and again of score, and whose files were written again
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))  # a cluster, and what befalls it

from raycluster import Eventful, TwoNodes, kill_a_worker, published, repeated  # noqa: E402

from guda import steps  # noqa: E402
from guda.engine.processes import Workers, run_tasks  # noqa: E402
from guda.engine.ray import RayOptions, RayWorkers, run_on_ray  # noqa: E402
from guda.evaluation.results import DatasetEntry, read_results, write_results  # noqa: E402
from guda.run.recipe import Recipe, builtin_recipe  # noqa: E402
from guda.run.run import Run  # noqa: E402
from guda.run.task import Task, pending  # noqa: E402
from guda.steps.fit import Engine  # noqa: E402
from many_groups import COMMAND  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
EXACT = ("models", "artifacts", "queries", "terms", "scores")  # not: timings, heartbeats
IDLE = 200


def recipe(tiny: bool) -> Recipe:
    value = builtin_recipe("digits").model_dump(mode="json")
    value["training"] |= {"steps": 20 if tiny else 400, "warmup": 5}
    value["methods"] = {k: value["methods"][k] for k in ("logo", "retrack", "similarity-pixel")}
    value["methods"]["logo"]["seeds"] = [1]
    value["methods"]["retrack"]["steps"] = 5 if tiny else 50
    value["queries"]["n"] = 8 if tiny else 120
    value["scoring"] |= {"strata": 2 if tiny else 12, "rounds": 1 if tiny else 3, "shard": 4 if tiny else 20}
    value["evaluation"] |= {"placebos": 0, "health": False}
    return Recipe.from_dict(value, "digits")


def digests(root: Path) -> dict[str, str]:
    files = (p for part in EXACT for p in sorted((root / part).rglob("*")) if p.suffix in (".parquet", ".safetensors"))
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def idle_tasks(run: Run, name: str, n: int) -> list[Task]:
    return [Task(f"{name} {i}", "idle", "raytasks:nothing", {"name": f"{name}-{i}"}, (f"out/{name}-{i}",))
            for i in range(n)]  # fmt: skip


class Noting:
    """An engine of either kind that counts tasks and remembers them."""

    def __init__(self, pool: Workers | RayWorkers) -> None:
        self.pool = pool
        self.tasks: list[Task] = []

    def __call__(self, run: Run, tasks: list[Task], title: str) -> int:
        self.tasks += pending(run, tasks)
        work = run_on_ray if isinstance(self.pool, RayWorkers) else run_tasks
        return work(run, tasks, self.pool)  # type: ignore[arg-type]


def timed(name: str, where: Path, made: Recipe, pool: Workers | RayWorkers) -> tuple[float, Run]:
    """Tasks per minute of the whole pipeline; workers are warm, as they are in a long run."""
    run, engine = steps.init(where / name, made), Noting(pool)
    engine(run, idle_tasks(run, "warm", 8), "warm")
    engine.tasks.clear()
    started = time.monotonic()
    steps.pipeline(run, engine)
    found = 60 * len(engine.tasks) / (time.monotonic() - started)
    print(f"{name}: {len(engine.tasks)} tasks, {found:.1f} per minute", flush=True)
    return found, run


def overhead(run: Run, name: str, engine: Engine, n: int) -> float:
    """Milliseconds per task that does nothing."""
    started = time.monotonic()
    engine(run, idle_tasks(run, name, n), name)
    return 1000 * (time.monotonic() - started) / n


def disasters(where: Path, made: Recipe, nodes: TwoNodes, total: dict[str, int]) -> tuple[list[str], Run]:
    """A worker and a node lost in the middle of fit and of score; returns tasks that were done twice."""
    run = steps.init(where / "lost", made)

    def lose_a_node() -> None:
        nodes.lose()
        nodes.add()

    def part(name: str, share: float):  # type: ignore[no-untyped-def]
        return lambda found: sum(p.startswith(name) for p in found) >= share * total[name]

    events = [(part("artifacts/", 0.2), kill_a_worker), (part("artifacts/", 0.4), lose_a_node),
              (part("terms/", 0.2), kill_a_worker), (part("terms/", 0.4), lose_a_node)]  # fmt: skip
    engine = Noting(pool := Eventful(RayOptions(nodes.address), run.root, *events))
    seen = pool.amid(lambda: steps.pipeline(run, engine))
    if len(seen) < len(events):
        raise SystemExit("the run was over before everything had been killed; nothing is measured")
    return sorted({name for before in seen for name in repeated(run, engine.tasks, before)}), run


def main() -> None:
    tiny = "--tiny" in sys.argv[1:]
    made, figures = recipe(tiny), {}
    where = Path(tempfile.mkdtemp(prefix="guda-scale-"))
    nodes = TwoNodes()
    try:
        runs: dict[str, Run] = {}
        for n in (1, 2):
            here, there = Workers(n), RayWorkers(RayOptions(nodes.address, workers=n))
            figures[f"local_tasks_per_minute_{n}"], runs[f"local-{n}"] = timed(f"local-{n}", where, made, here)
            figures[f"tasks_per_minute_{n}"], runs[f"ray-{n}"] = timed(f"ray-{n}", where, made, there)
            if n == 1:
                count = 20 if tiny else IDLE
                figures["overhead_ms_local"] = overhead(runs["local-1"], "idle", Noting(here), count)
                figures["overhead_ms_ray"] = overhead(runs["ray-1"], "idle", Noting(there), count)
            here.close()
        found = published(runs["local-1"].root)
        total = {part: sum(p.startswith(part) for p in found) for part in ("artifacts/", "terms/")}
        twice, runs["lost"] = disasters(where, made, nodes, total)
        truth = digests(runs["local-1"].root)
        differing = {name: [p for p, d in digests(run.root).items() if truth.get(p) != d] for name, run in runs.items()}
        same = all(digests(run.root) == truth for run in runs.values())
        figures |= {
            "identical": float(same),
            "repeated_tasks_after_kill": float(len(twice)),
            "files": float(len(truth)),
        }
        print({k: round(v, 2) for k, v in figures.items()}, twice, {k: v[:3] for k, v in differing.items() if v})
    finally:
        nodes.close()
        shutil.rmtree(where, ignore_errors=True)
    if tiny:
        return
    before = read_results(RESULTS).datasets if RESULTS.exists() else {}
    n_queries = made.queries.n
    entry = before.get("digits") or DatasetEntry(n_queries=n_queries, seeds=[1], ceiling=None, methods={})
    entry = entry.model_copy(update={"figures": entry.figures | figures})
    write_results(RESULTS, COMMAND, before | {"digits": entry})


if __name__ == "__main__":
    main()
