"""The loop over a pool: never more than there is room for, in the order of needs, and what others did is not redone."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from tinyrun import copy_run

from guda.engine.loop import run_in
from guda.errors import GudaError
from guda.run.run import Run
from guda.run.task import Task
from refusals import refused


def task(name: str, *needs: str) -> Task:
    return Task(name, "test", "no:where", {}, (f"out/{name}",), tuple(f"out/{n}" for n in needs))


class Pretended:
    """Ends a task as soon as it is full, the last first; a task's file appears to others only when asked for."""

    def __init__(self, run: Run, n: int, shows: bool = True) -> None:
        self.run, self.n, self.shows = run, n, shows
        self.held: list[tuple[Task, Future[float]]] = []
        self.order: list[str] = []
        self.most = self.closed = 0

    def submit(self, root: str, task: Task) -> Future[float]:
        future: Future[float] = Future()
        self.held.append((task, future))
        self.order.append(task.name)
        self.most = max(self.most, len(self.held))
        if len(self.held) == self.n or not self.shows:
            done, ended = self.held.pop()
            self._make(done)
            ended.set_result(0.0)
        return future

    def _make(self, task: Task) -> None:
        if self.shows:
            self.run.path("out").mkdir(exist_ok=True)
            self.run.path(task.makes[0]).write_text("")

    def collect(self, run: Run, task: Task, future: Future[float]) -> None:
        future.result()
        for other, waiting in self.held:
            self._make(other)
            waiting.set_result(0.0)
        self.held.clear()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def test_no_more_than_there_is_room_for(run: Run) -> None:
    pool = Pretended(run, 3)
    assert run_in(pool, run, [task(f"t{i:03}") for i in range(99)]) == 99
    assert pool.most == 3
    assert pool.order == [f"t{i:03}" for i in range(99)]
    assert pool.closed == 0


def test_needs_are_believed_made_where_the_disk_does_not_show_them_yet(run: Run) -> None:
    pool = Pretended(run, 2, shows=False)
    assert run_in(pool, run, [task("b", "a"), task("a"), task("c", "b", "a")]) == 3
    assert pool.order == ["a", "b", "c"]


def test_what_another_driver_finished_meanwhile_is_not_submitted(run: Run) -> None:
    pool = Pretended(run, 1)
    tasks = [task("a"), task("b", "a")]
    run_in(pool, run, tasks[:1])
    run.path("out", "a").unlink()

    class Other(Pretended):
        def collect(self, run: Run, task: Task, future: Future[float]) -> None:
            super().collect(run, task, future)
            run.path("out", "b").write_text("by somebody else")

    other = Other(run, 1)
    assert run_in(other, run, tasks) == 2
    assert other.order == ["a"]


def test_a_failure_closes_the_pool(run: Run) -> None:
    class Failing(Pretended):
        def collect(self, run: Run, task: Task, future: Future[float]) -> None:
            raise GudaError("group-too-small", "too small")

    pool = Failing(run, 1)
    with refused("group-too-small"):
        run_in(pool, run, [task("a")])
    assert pool.closed == 1
