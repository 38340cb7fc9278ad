"""A Ray cluster of two nodes on this machine, one CPU each, and what befalls clusters."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, Queue
from typing import Any

TESTS = Path(__file__).parents[1]
HELPERS = [str(TESTS), str(TESTS / "run"), str(TESTS / "engine"), str(Path(__file__).parent)]
sys.path[:0] = [p for p in HELPERS if p not in sys.path]
# workers import the tests' tasks by name
os.environ["PYTHONPATH"] = os.pathsep.join([*HELPERS, *filter(None, [os.environ.get("PYTHONPATH")])])

from guda.engine.ray import RayOptions, RayWorkers, import_ray  # noqa: E402
from guda.files import TEMPORARY  # noqa: E402
from guda.run.run import Run  # noqa: E402
from guda.run.task import Task  # noqa: E402
from waiting import wait_for  # noqa: E402

Moment = Callable[[dict[str, int]], bool]  # of what is published
Event = Callable[[], bool | None]  # False: it did not happen
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 1024**2}
WATCHFUL = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}  # a lost node is missed in seconds


class TwoNodes:
    """The driver's own node and another one, which can be lost."""

    def __init__(self) -> None:
        import_ray()  # with what it sets in the environment, which the nodes inherit
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True, head_node_args=SMALL | {"include_dashboard": False, "_system_config": WATCHFUL}
        )
        self.other: Any = None
        self.add()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **more: Any) -> Any:
        self.other = self.cluster.add_node(**SMALL | more)
        self.cluster.wait_for_nodes()
        return self.other

    def lose(self) -> None:
        """The whole node at once, as a machine loses power."""
        self.cluster.remove_node(self.other, allow_graceful=False)
        self.other = None

    def close(self) -> None:
        import_ray().shutdown()
        self.cluster.shutdown()


def busy_workers() -> list[int]:
    """Processes of Ray that run a task of guda's right now."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"ray::guda"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill_a_worker() -> bool:
    """kill -9 in the middle of a task; False if it was over already: then the next task is as good."""
    found = busy_workers()
    if found:
        os.kill(found[0], signal.SIGKILL)
    return bool(found)


def published(root: Path) -> dict[str, int]:
    """Finished files and when they appeared."""
    found = {}
    for part in ("models", "artifacts", "terms", "queries"):
        for folder, _, files in os.walk(root / part):  # ignores a folder that vanishes
            for path in (Path(folder, name) for name in files if TEMPORARY not in f"{folder}/{name}"):
                try:
                    found[str(path.relative_to(root))] = path.stat().st_mtime_ns
                except OSError:
                    continue  # published under another name meanwhile
    return found


def repeated(run: Run, tasks: list[Task], before: dict[str, int]) -> list[str]:
    """Tasks that were finished when `before` was taken and whose files were written again since."""
    now = published(run.root)
    done = [t for t in tasks if all(p in before for p in t.makes)]
    return [t.name for t in done if any(now.get(p) != before[p] for p in t.makes)]


class Eventful(RayWorkers):
    """Ray's workers, and what befalls them: each event in turn, once its moment has come and while a task runs.

    The driver waits meanwhile, so however fast the machine is, the work cannot be over before. Events happen in the
    thread that calls `amid`: Ray adds nodes in the main one only.
    """

    def __init__(self, options: RayOptions, root: Path, *events: tuple[Moment, Event]) -> None:
        super().__init__(options)
        self.root, self.events = root, list(events)
        self.seen: list[dict[str, int]] = []  # what was published just before each event
        self.due: Queue[Event] = Queue()

    def submit(self, root: str, task: Task) -> Future[float]:
        future = super().submit(root, task)
        if self.events and self.events[0][0](found := published(self.root)):
            wait_for(lambda: busy_workers() or future.done(), f"{task.name} to begin", pause=0.001)
            if not busy_workers():
                return future  # too short to be caught in the act: at the next task, then
            self.seen.append(found)
            self.due.put(self.events[0][1])
            self.due.join()
        return future

    def amid(self, work: Callable[[], object]) -> list[dict[str, int]]:
        """Carry out `work`, whose engine these workers are; returns `seen`."""
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(work)
            while not future.done():
                try:
                    event = self.due.get(timeout=0.05)
                except Empty:
                    continue
                try:
                    if event() is False:
                        self.seen.pop()
                    else:
                        self.events.pop(0)
                except BaseException:
                    self.events.clear()  # the work goes on to its end, and then this is told
                    raise
                finally:
                    self.due.task_done()
            future.result()
        return self.seen
