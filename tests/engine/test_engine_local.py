"""The local engine only schedules: order by needs, each product once, and every failure is told in one line."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tinyrun import Inline, copy_run, digits_folder, exact, finished_root, tiny

from guda import steps
from guda.engine.processes import Workers, run_tasks
from guda.errors import GudaError
from guda.files import TEMPORARY, alive, place
from guda.run import task as task_module
from guda.run.run import Run
from guda.run.task import Task, execute, fraction, pending, report_to, tick
from waiting import wait_for


def task(name: str, fn: str = "touch", needs: tuple[str, ...] = (), cost: float = 1.0, **args: object) -> Task:
    args = args or {"name": name}
    return Task(
        f"make {name}", "test", f"enginetasks:{fn}", args, (f"out/{name}",), tuple(f"out/{n}" for n in needs), cost
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def log(run: Run) -> list[str]:
    return [json.loads(line)["name"] for line in run.path("out", "log.jsonl").read_text().splitlines()]


def heartbeats(run: Run) -> list[str]:
    """Published ones: a worker that is ended while it writes one leaves a temporary file, which the next command
    removes."""
    return [p.name for p in run.path("progress").glob("[!.]*")] if run.has("progress") else []


def test_order_products_progress_and_heartbeats(run: Run) -> None:
    tasks = [
        task("c", needs=("b", "a"), cost=10.0),
        task("b", "slow", needs=("a",), cost=30.0),
        task("a", cost=70.0),
        task("a", cost=70.0),  # the same product again
        task("d", "slow", cost=0.0),
    ]
    run.path(tasks[1].heartbeat).parent.mkdir(exist_ok=True)
    stale = {"done": 9, "total": 10, "pid": os.getpid(), "host": socket.gethostname()}
    run.path(tasks[1].heartbeat).write_text(json.dumps(stale))  # as kill -9 leaves it
    seen: list[tuple[int, int, float, list[str]]] = []
    run.path("out").mkdir()

    def watch(done: int, total: int, fraction: float, names: list[str]) -> None:
        seen.append((done, total, fraction, names))
        if "make d" in names:
            run.path("out", "d.seen").touch()
        if "make b" in names and fraction > 0.7:  # a is 0.64 of it all: half of b is seen too
            run.path("out", "b.seen").touch()

    assert run_tasks(run, tasks, 2, watch) == 4
    order = log(run)
    assert sorted(order) == ["a", "b", "c", "d"]
    assert order.index("a") < order.index("b") < order.index("c")
    fractions = [s[2] for s in seen]
    assert fractions == sorted(fractions)
    assert seen[-1] == (4, 4, 1.0, [])
    assert all(0 <= f <= 1 and total == 4 for _, total, f, _ in seen)
    assert any("make b" in names for *_, names in seen)
    assert any(0.7 < f < 0.99 for f in fractions)
    assert heartbeats(run) == []
    assert run.seconds("test") > 200  # the two slow ones knew of 100 seconds each
    assert run_tasks(run, tasks, 2, lambda *a: pytest.fail("nothing to watch")) == 0
    assert len(log(run)) == 4


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("plain", "group 'x' is too small; add images"),
        ("mismatch", "thing: found 'old', given 'new'; do this"),
    ],
)
def test_a_users_error_reaches_the_driver_intact(run: Run, kind: str, message: str) -> None:
    with pytest.raises(GudaError) as error:
        run_tasks(run, [task("x", "fail", kind=kind)], 1)
    assert str(error.value) == message
    assert heartbeats(run) == []


def test_one_failure_stops_the_rest_and_leaves_no_heartbeat(run: Run) -> None:
    tasks = [Task("endless", "test", "enginetasks:forever", {}, ("out/never",)), task("x", "fail", kind="late")]
    before = dict(os.environ)
    with pytest.raises(GudaError, match="too small"):
        run_tasks(run, tasks, 2)
    assert not run.has("out/never")
    assert heartbeats(run) == []
    assert dict(os.environ) == before


def test_a_bug_keeps_its_traceback(run: Run) -> None:
    with pytest.raises(ZeroDivisionError):
        run_tasks(run, [task("x", "fail", kind="bug")], 1)


def test_a_dead_worker_is_one_line_and_the_run_goes_on_later(run: Run) -> None:
    tasks = [task("a"), Task("killed", "test", "enginetasks:die", {}, ("out/z",), ("out/a",))]
    with pytest.raises(
        GudaError, match=r"^a worker process died .*nothing finished is lost: run the same command again$"
    ):
        run_tasks(run, tasks, 1)
    assert [t.name for t in pending(run, tasks)] == ["killed"]


def test_needs_that_nothing_makes_are_an_error(run: Run) -> None:
    with pytest.raises(GudaError, match="make b needs out/a, which nothing makes; run the earlier steps first"):
        run_tasks(run, [task("b", needs=("a",))], 1)


def test_two_workers_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", tiny(digits_folder()))
    steps.pipeline(run, steps.local_engine(2))
    assert exact(run.root) == exact(finished_root())
    again = Inline()
    steps.pipeline(run, again)
    assert again.ran == []


# --- tasks and heartbeats, in this process --------------------------------------------------------


def test_pending_is_what_is_missing_each_product_once(run: Run) -> None:
    tasks = [task("a"), task("b"), task("a")]
    assert [t.name for t in pending(run, tasks)] == ["make a", "make b"]
    execute(str(run.root), tasks[0])
    assert [t.name for t in pending(run, tasks)] == ["make b"]
    assert len({task("a").heartbeat, task("b").heartbeat}) == 2


def test_a_heartbeat_of_a_dead_process_counts_for_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "time", SimpleNamespace(monotonic=lambda: 1e6))  # a clock that stands still
    file = run.path("progress", "x.json")
    assert fraction(file) == 0.0
    report_to(file)
    tick(3, 4)
    tick(4, 4)  # too soon after the first to be written
    report_to(None)
    tick(1, 1)  # to nobody
    assert fraction(file) == 0.75
    assert steps.status(run)["running"] == ["3/4"]
    value = json.loads(file.read_text())
    file.write_text(json.dumps(value | {"pid": 2**22 + 1}))
    assert steps.status(run)["running"] == []
    file.write_text(json.dumps(value)[:10])
    assert steps.status(run)["running"] == []
    assert fraction(file) == 0.0
    file.write_text(json.dumps(value | {"pid": 2**22 + 1, "host": "elsewhere"}))  # cannot be known from here
    assert steps.status(run)["running"] == ["3/4"]


# --- workers that stay ----------------------------------------------------------------------------


def pids(run: Run) -> dict[str, int]:
    lines = run.path("out", "log.jsonl").read_text().splitlines()
    return {found["name"]: found["pid"] for found in map(json.loads, lines)}


@pytest.mark.parametrize("kind", ["plain", "die"])
def test_workers_stay_between_calls_and_a_failure_ends_them_but_not_the_next_call(run: Run, kind: str) -> None:
    pool = Workers(1)
    try:
        assert run_tasks(run, [task("a")], pool) == 1
        assert run_tasks(run, [task("b"), task("c")], pool) == 2
        found = pids(run)
        assert found["a"] == found["b"] == found["c"] != os.getpid()
        bad = task("x", "fail", kind="plain") if kind == "plain" else Task("k", "t", "enginetasks:die", {}, ("out/z",))
        with pytest.raises(GudaError, match="too small" if kind == "plain" else "a worker process died"):
            run_tasks(run, [bad], pool)
        wait_for(lambda: not alive(found["a"]), "the end of the worker")
        assert run_tasks(run, [task("d")], pool) == 1
        assert pids(run)["d"] != found["a"]
    finally:
        pool.close()
    wait_for(lambda: not alive(pids(run)["d"]), "the end of the worker")


def test_workers_of_one_call_end_with_it(run: Run) -> None:
    assert run_tasks(run, [task("a")], 1) == 1
    wait_for(lambda: not alive(pids(run)["a"]), "the end of the worker")


def test_a_finished_run_is_cleared_of_what_a_killed_driver_left(run: Run) -> None:
    """The driver writes too, after its last task; the same command finds nothing to do."""
    assert run_tasks(run, [task("a")], workers=1) == 1
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    stray = run.path("scores", f"{TEMPORARY}{place()}-{int(child.stdout)}-0123456789ab-retrack.parquet")
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("half")
    again = Run.open(shutil.copytree(run.root, run.root.parent / "later"))
    left = again.path("scores", stray.name)
    assert run_tasks(again, [task("a")], workers=1) == 0
    assert not left.exists()
