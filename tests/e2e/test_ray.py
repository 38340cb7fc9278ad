"""The same run on a Ray cluster of two nodes: the same bytes, whatever is killed on the way, and nothing done twice.

Compared are all files under models/, artifacts/, queries/, terms/, scores/ and data/ and pilot.json (`exact`). Not
compared: timings/ (wall times), progress/ (heartbeats), checkpoints/ (gone at the end), finished/, evaluation.json
(which tells seconds).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

import raycluster
from raycluster import Eventful, TwoNodes, kill_a_worker, published, repeated

from guda import steps
from guda.engine import ray as ray_module
from guda.engine.ray import RayOptions, RayWorkers, run_on_ray
from guda.errors import GudaError
from guda.run.run import Run
from guda.run.task import Task, pending
from guda.steps.fit import Engine
from programs import Programs
from waiting import wait_for

pytestmark = pytest.mark.e2e

tinyrun = __import__("tinyrun")  # found through raycluster
SET = tinyrun.SET


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    found = TwoNodes()
    yield found
    found.close()


@pytest.fixture(scope="module")
def pool(nodes: TwoNodes) -> RayWorkers:
    return RayWorkers(RayOptions(nodes.address))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return tinyrun.copy_run(tmp_path / "run")


def engine_of(pool: RayWorkers, ran: list[Task]) -> Engine:
    """Notes which tasks it was given to do."""

    def engine(run: Run, tasks: list[Task], title: str) -> int:
        ran.extend(pending(run, tasks))
        return run_on_ray(run, tasks, pool)

    return engine


def task(name: str, fn: str, needs: tuple[str, ...] = (), /, **args: object) -> Task:
    return Task(f"make {name}", "test", fn, args, (f"out/{name}",), tuple(f"out/{n}" for n in needs))


def guda(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "guda.cli.main", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_both_nodes_work_one_thread_each_and_never_too_many_at_once(run: Run, pool: RayWorkers) -> None:
    seen: list[tuple[int, int, float, list[str]]] = []
    tasks = [task(f"t{i}", "raytasks:where", name=f"t{i}", nodes=2) for i in range(12)]
    last = task("last", "raytasks:where", tuple(f"t{i}" for i in range(12)), name="last")
    assert run_on_ray(run, [last, *tasks], pool, lambda *a: seen.append(a)) == 13
    found = [json.loads(run.path("out", f"t{i}").read_text()) for i in range(12)]
    assert len({f["node"] for f in found}) == 2
    assert {f["torch"] for f in found} == {1}
    assert all(set(f["blas"]) <= {1} for f in found)
    assert max(len(names) for *_, names in seen) <= 3  # two that run and one that is ready to
    assert seen[-1] == (13, 13, 1.0, [])
    assert run_on_ray(run, tasks, pool, lambda *a: pytest.fail("nothing to watch")) == 0


def test_the_pipeline_ends_in_the_bytes_of_one_process_whatever_is_lost(tmp_path: Path, nodes: TwoNodes) -> None:
    run = steps.init(tmp_path / "run", tinyrun.tiny(tinyrun.digits_folder()))
    ran: list[Task] = []

    def lose_a_node() -> None:
        nodes.lose()
        nodes.add()

    def count(part: str, n: int):
        return lambda found: sum(p.startswith(part) for p in found) >= n

    events = [
        (count("artifacts/", 1), kill_a_worker),
        (count("artifacts/", 3), lose_a_node),
        (count("terms/", 2), kill_a_worker),
        (count("terms/", 12), lose_a_node),
    ]
    pool = Eventful(RayOptions(nodes.address), run.root, *events)
    seen = pool.amid(lambda: steps.pipeline(run, engine_of(pool, ran)))
    end = published(run.root)
    assert len(seen) == 4, "it was over before everything had happened"
    assert all(len(s) < len(end) for s in seen), "nothing was left to do when it happened"
    run.sweep()  # what the killed were writing: their place is this one, so it is known that they are dead
    assert tinyrun.exact(run.root) == tinyrun.exact(tinyrun.finished_root())
    assert [repeated(run, ran, before) for before in seen] == [[], [], [], []]
    assert all({p: end[p] for p in before} == before for before in seen)
    assert steps.status(run)["running"] == []
    idle = tinyrun.Inline()
    steps.pipeline(run, idle)
    assert idle.ran == []


def test_subset_models_shares_and_losses_are_those_of_one_process(tmp_path: Path, pool: RayWorkers) -> None:
    recipe = tinyrun.tiny(tinyrun.digits_folder(), methods={"posterior": {"components": 1}, "subsets": {"models": 8}})
    made: list[dict[str, bytes]] = []
    for engine in (tinyrun.Inline(), engine_of(pool, [])):
        run = steps.init(tmp_path / str(len(made)), recipe)
        steps.fit(run, ["posterior", "subsets"], engine)
        name = steps.sample(run, engine)
        for by in ("posterior", "subsets"):
            steps.shares(run, name, steps.ShareOptions(engine=by, pool=False), engine)
        steps.without(run, name, ["0"], "subsets", None, engine)
        files = (p for part in ("shares", "without") for p in run.path(part).rglob("*.json"))
        made.append(tinyrun.exact(run.root) | {p.relative_to(run.root).as_posix(): p.read_bytes() for p in files})
    assert any(name.startswith("shares/") for name in made[0])
    assert made[0] == made[1]


@pytest.mark.parametrize("after", [False, True])
def test_a_killed_worker_s_task_is_run_again_unless_it_was_done(run: Run, pool: RayWorkers, after: bool) -> None:
    dying = task("x", "raytasks:die_first", name="x", after=after)
    assert run_on_ray(run, [dying, task("y", "raytasks:where", ("x",), name="y")], pool) == 2
    assert len(run.path("out", "x.attempts").read_text().split()) == (1 if after else 2)
    assert [p.name for p in run.path("progress").glob("*")] == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [("plain", "group 'x' is too small; add images"), ("mismatch", "thing: found 'old', given 'new'; do this")],
)
def test_a_users_error_is_one_line_and_not_retried(run: Run, pool: RayWorkers, kind: str, message: str) -> None:
    with pytest.raises(GudaError) as error:
        run_on_ray(run, [task("x", "enginetasks:fail", kind=kind)], pool)
    assert str(error.value) == message
    assert type(error.value).__module__.startswith("guda")
    assert run_on_ray(run, [task("z", "raytasks:where", name="z")], pool) == 1  # the pool still works


def test_a_bug_shows_where_it_was(run: Run, pool: RayWorkers) -> None:
    with pytest.raises(ZeroDivisionError, match="enginetasks"):
        run_on_ray(run, [task("x", "enginetasks:fail", kind="bug")], pool)


def test_a_failure_ends_the_others(run: Run, pool: RayWorkers) -> None:
    endless = Task("endless", "test", "enginetasks:forever", {}, ("out/never",))
    with pytest.raises(GudaError, match="too small"):
        run_on_ray(run, [endless, task("x", "enginetasks:fail", kind="late")], pool)
    wait_for(lambda: not raycluster.busy_workers(), "the end of the endless task")


def test_a_race_on_ray_is_the_race_here(tmp_path: Path, pool: RayWorkers) -> None:
    one, two = (tinyrun.copy_run(tmp_path / name) for name in ("one", "two"))
    engines = tinyrun.Inline(), engine_of(pool, [])
    for run, engine in zip((one, two), engines, strict=True):
        steps.score(run, SET, ["retrack"], engine, stop="top1@0.95")
    found = tinyrun.exact(two.root)
    assert any("top1" in p for p in found)
    assert found == tinyrun.exact(one.root)


def test_a_run_in_a_bucket_whose_nodes_have_copies_of_their_own(
    tmp_path: Path, pool: RayWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from guda.run.remote import Mirror

    url = f"file://{tmp_path}/bucket/run"
    workers = Mirror(url).local  # under the cache that the nodes inherited
    monkeypatch.setenv("GUDA_CACHE", str(tmp_path / "driver"))
    monkeypatch.setattr("guda.run.remote._MIRRORS", {})
    try:
        run = steps.init(url, tinyrun.tiny(tinyrun.digits_folder()))
        engine = engine_of(pool, [])
        steps.fit(run, ["retrack"], engine)
        steps.sample(run, engine)
        steps.change_scoring(run, rounds=3)  # after the workers have seen the run
        steps.score(run, SET, ["retrack"], engine)
        assert run.root != workers
        assert workers.is_dir()
        found, whole = tinyrun.exact(run.root), tinyrun.exact(tinyrun.finished_root())
        same = {k for k in found if k.startswith(("models/", "artifacts/", "queries/"))}
        assert same
        assert {k: found[k] for k in same} == {k: whole[k] for k in same}
        assert len({k.rsplit("/", 1)[-1] for k in found if k.startswith("terms/")}) >= 3
    finally:
        for folder in workers.parent.glob(f"{workers.name}*"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_the_command_line_on_a_cluster_that_is_there(tmp_path: Path, nodes: TwoNodes) -> None:
    run = tinyrun.copy_run(tmp_path / "run")
    shutil.rmtree(run.path("scores"))
    shutil.rmtree(run.path("terms"))
    run.path("pilot.json").unlink(missing_ok=True)
    ray = ("--engine", "ray", "--address", nodes.address)
    answer = guda("score", run.root, "--json", *ray)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["queries"] == SET
    assert answer.stderr == "", "Ray is not quiet"
    whole = tinyrun.exact(tinyrun.finished_root())
    assert {k: v for k, v in tinyrun.exact(run.root).items() if k in whole} == whole
    damaged = next(p for p in run.path("artifacts").rglob("*.safetensors") if "retrack" in str(p))
    damaged.write_bytes(damaged.read_bytes()[:100])
    shutil.rmtree(run.path("terms"))
    answer = guda("score", run.root, "-m", "retrack", *ray)
    assert answer.returncode == 2
    lines = [line for line in answer.stderr.splitlines() if line.startswith("guda: ")]
    assert len(lines) == 1
    assert str(damaged) in lines[0]
    assert "Traceback" not in answer.stderr


@pytest.mark.slow
def test_several_gpus_train_one_model_together(
    tmp_path: Path, nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import load_file

    monkeypatch.setenv("GUDA_DEVICE", "cpu")  # the GPUs below are only said to be there
    nodes.lose()
    nodes.add(num_gpus=2)
    try:
        run = steps.init(tmp_path / "run", tinyrun.tiny(tinyrun.digits_folder()))
        pool = RayWorkers(RayOptions(nodes.address, gpus=2.0))
        steps.train(run, engine_of(pool, []))
        assert pool.n == 2
    finally:
        nodes.lose()
        nodes.add()
    files = sorted((run.root / "models").rglob("*.safetensors"))
    assert files
    for file in files:
        ours, alone = load_file(file), load_file(tinyrun.finished_root() / file.relative_to(run.root))
        for name, value in ours.items():
            torch.testing.assert_close(value, alone[name], rtol=1e-3, atol=1e-4)


def test_what_no_node_has_is_one_line(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(ray_module, "JOINING", 0.0)
    with pytest.raises(GudaError, match=r"^no node of the Ray cluster has 1 CPUs and 64 GPUs for a task; ask for less"):
        run_on_ray(run, [task("x", "raytasks:where", name="x")], RayOptions(nodes.address, gpus=64.0))


def listening(pids: set[int]) -> dict[str, set[str]]:
    """Addresses on which these processes listen, as /proc writes them, and the names of those that do."""
    open_sockets: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A":
                open_sockets[f"socket:[{parts[9]}]"] = parts[1].partition(":")[0]
    found: dict[str, set[str]] = {}
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                where = open_sockets.get(os.readlink(file))
            except OSError:
                continue
            if where is not None:
                found.setdefault(where, set()).add(name(pid))
    return found


# 127.0.0.1, and as an IPv6 address
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def training(tmp_path: Path, launch: Programs) -> tuple[Run, subprocess.Popen[str], dict[int, str]]:
    """A driver with a cluster of its own in the middle of a training, and the processes below it."""
    from test_engine_kill import children

    recipe = tinyrun.tiny(tinyrun.digits_folder(), training={"steps": 100_000, "checkpoint_every": 100_000})
    run = steps.init(tmp_path / "run", recipe)
    command = [sys.executable, "-m", "guda.cli.main", "train", str(run.root), "--engine", "ray", "--workers", "1"]
    inherited = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    process = launch(command, env={k: v for k, v in os.environ.items() if k not in inherited})
    wait_for(lambda: list(run.path("progress").glob("[!.]*.json")) or process.poll() is not None, "a heartbeat")
    assert process.poll() is None
    return run, process, {pid: name(pid) for pid in children(process.pid)}


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_behind(tmp_path: Path, launch: Programs) -> None:
    from test_engine_kill import alive

    run, process, family = training(tmp_path, launch)
    worker = {pid for pid, what in family.items() if what.startswith("ray::guda")}
    assert worker
    found = listening({process.pid, *alive(set(family))})
    assert found
    assert set(found) <= LOOPBACK, found
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not alive(worker), "the end of the worker")
    wait_for(lambda: not alive(set(family)), "the end of Ray's own helpers, which notice later that they are alone")
    assert steps.status(Run.open(run.root))["running"] == []


@pytest.mark.slow
def test_a_driver_whose_only_node_died_does_not_wait_for_ever(tmp_path: Path, launch: Programs) -> None:
    from test_engine_kill import alive

    _, process, family = training(tmp_path, launch)
    (node,) = (pid for pid, what in family.items() if "raylet/raylet" in what)
    os.kill(node, signal.SIGKILL)
    wait_for(lambda: process.poll() is not None, "the end of the driver")
    assert process.returncode == 2
    wait_for(lambda: not alive(set(family)), "the end of what it started")


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
    except OSError:
        return ""
