"""Run folders in a store: two machines, one run."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tinyrun import SET, Inline, digits_folder, exact, finished_root, tiny

from guda import steps
from guda.errors import Mismatch
from guda.run.remote import Mirror, mirror, whole
from guda.run.run import Run
from refusals import refused

SKIPPED = ("progress", "checkpoints")


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}/run" if request.param == "memory" else f"file://{tmp_path}/bucket/run"


def files(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def machine(url: str, root: Path) -> Mirror:
    return Mirror(url, root)


def test_a_run_arrives_whole_on_another_machine(url: str, tmp_path: Path) -> None:
    one = machine(url, finished_root())
    assert one.push() > 10
    assert one.push() == 0
    two = machine(url, tmp_path / "two")
    assert two.pull() > 10
    assert two.pull() == 0
    assert exact(tmp_path / "two") == exact(finished_root())
    assert two.push() == 0


def test_what_says_done_is_published_after_what_it_speaks_of(url: str, tmp_path: Path) -> None:
    """A push that dies in the middle: another machine sees a prefix of the order in which files were made."""
    root = tmp_path / "one"
    names = ["artifacts/z.safetensors", "artifacts/b/notes.json", "artifacts/a.done"]
    for at, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
        os.utime(root / name, (at + 1, at + 1))
    one = machine(url, root)
    write, order = one._write, []

    def dying(name: str, path: Path) -> None:
        if len(order) == 2:
            raise KeyboardInterrupt
        order.append(name)
        write(name, path)

    one._write = dying  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        one.push()
    assert order == names[:2]
    two = machine(url, tmp_path / "two")
    two.pull()
    assert sorted(files(tmp_path / "two")) == sorted(names[:2])
    one._write = write  # type: ignore[method-assign]
    assert one.push() == 1


def test_heartbeats_checkpoints_and_temporary_files_stay_where_they_are(url: str, tmp_path: Path) -> None:
    root = tmp_path / "one"
    for name in ("progress/a.json", "checkpoints/x.safetensors", "terms/.tmp-1-x.parquet", "terms/x.parquet"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    assert machine(url, root).push() == 1
    machine(url, tmp_path / "two").pull()
    assert sorted(files(tmp_path / "two")) == ["terms/x.parquet"]


def test_two_drivers_may_both_make_a_file(url: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "terms").mkdir(parents=True)
        (tmp_path / name / "terms" / "x.parquet").write_text("the same bytes")
    assert machine(url, tmp_path / "one").push() == 1
    assert machine(url, tmp_path / "two").push() == 0


def test_a_changed_recipe_travels_and_two_changes_are_refused(url: str, tmp_path: Path) -> None:
    roots = tmp_path / "one", tmp_path / "two"
    roots[0].mkdir()
    (roots[0] / "recipe.yaml").write_text("rounds: 2\n")
    one, two = (machine(url, root) for root in roots)
    one.push()
    two.pull()
    (roots[1] / "recipe.yaml").write_text("rounds: 4\n")
    assert two.push() == 1
    assert one.pull() == 1
    assert (roots[0] / "recipe.yaml").read_text() == "rounds: 4\n"
    (roots[0] / "recipe.yaml").write_text("rounds: 8\n")
    (roots[1] / "recipe.yaml").write_text("rounds: 16\n")
    one.push()
    with refused("remote-file-conflict", kind=Mismatch, match="rounds: 8.*rounds: 16"):
        two.push()
    assert two.pull() == 0  # ours is kept until somebody decides
    with refused("remote-file-conflict", kind=Mismatch):
        two.push()


def test_of_two_drivers_that_race_on_the_recipe_one_is_refused(url: str, tmp_path: Path) -> None:
    """Both have looked before either has written."""
    roots = [tmp_path / name for name in ("zero", "one", "two")]
    zero, *racers = (machine(url, root) for root in roots)
    roots[0].mkdir()
    (roots[0] / "recipe.yaml").write_text("rounds: 2\n")
    zero.push()
    both = threading.Barrier(2)
    for number, racer in enumerate(racers):
        racer.pull()
        (racer.local / "recipe.yaml").write_text(f"rounds: {4 + number}\n")

        def looked(look: Callable[[], Any] = racer._remote) -> Any:
            found = look()
            both.wait()
            return found

        racer._remote = looked  # type: ignore[method-assign]

    def outcome(racer: Mirror) -> int | str:
        try:
            return racer.push()
        except Mismatch as e:
            return e.code

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(outcome, racers))
    assert sorted(map(str, results)) == ["1", "remote-file-conflict"]
    winner = racers[results.index(1)]
    assert zero.pull() == 1
    assert (roots[0] / "recipe.yaml").read_text() == (winner.local / "recipe.yaml").read_text()
    assert not [name for name in zero.fs.find(zero.root) if "lease" in name]


def test_the_lease_of_a_killed_driver_is_taken(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine(url, tmp_path / "one")
    one.local.mkdir()
    (one.local / "recipe.yaml").write_text("rounds: 2\n")
    killed = one._lease("recipe.yaml")
    killed.__enter__()
    monkeypatch.setattr("guda.run.remote.LEASE", 0.0)
    monkeypatch.setattr("guda.run.remote.LOOK", 0.0)
    assert one.push() == 1
    killed.__exit__(None, None, None)  # it comes back: nothing of anybody's is removed
    assert machine(url, tmp_path / "two").pull() == 1


def test_a_newer_table_replaces_an_older_one(url: str, tmp_path: Path) -> None:
    roots = tmp_path / "one", tmp_path / "two"
    one, two = (machine(url, root) for root in roots)
    (roots[0] / "scores").mkdir(parents=True)
    (roots[0] / "scores" / "retrack.parquet").write_text("two rounds")
    one.push()
    two.pull()
    (roots[1] / "scores" / "retrack.parquet").write_text("four rounds")
    assert two.push() == 1
    os.utime(roots[0] / "scores" / "retrack.parquet", (1, 1))
    assert one.pull() == 1
    assert (roots[0] / "scores" / "retrack.parquet").read_text() == "four rounds"


@pytest.mark.parametrize("url", ["s3://bucket/a/run", "gs://b/run", "memory://x/run", "file:///tmp/x/run"])
def test_an_address_survives_being_a_path(url: str) -> None:
    assert whole(str(Path(url))) == url == whole(url)


def test_verbs_work_on_a_run_in_a_store_and_another_machine_finds_all_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, methods = f"file://{tmp_path}/bucket/run", ["retrack", "similarity-pixel"]
    recipe = tiny(digits_folder())

    def as_machine(name: str) -> None:
        monkeypatch.setenv("GUDA_CACHE", str(tmp_path / name))
        monkeypatch.setattr("guda.run.remote._MIRRORS", {})

    as_machine("one")
    run = steps.init(Path(url), recipe)
    assert run.root.is_relative_to(tmp_path / "one")
    engine = Inline()
    steps.fit(run, methods, engine)
    steps.sample(run, engine)
    steps.score(run, SET, methods, engine)
    mirror(url).push()
    as_machine("two")
    other, again = Run.open(url), Inline()
    assert other.root.is_relative_to(tmp_path / "two")
    steps.fit(other, methods, again)
    steps.sample(other, again)
    steps.score(other, SET, methods, again)
    assert again.ran == []
    assert exact(other.root) == exact(run.root)
    assert sorted(p.name for p in (tmp_path / "bucket" / "run").rglob(".tmp-*")) == []


def two_machines(url: str, tmp_path: Path, **made: str) -> tuple[Mirror, Mirror]:
    """Both hold the same files."""
    for name, text in made.items():
        path = tmp_path / "one" / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    one, two = (machine(url, tmp_path / name) for name in ("one", "two"))
    one.push()
    two.pull()
    return one, two


def test_a_worker_that_was_long_at_it_does_not_bring_back_an_old_table(url: str, tmp_path: Path) -> None:
    """Whatever the clocks say: the worker's copy is newest by its own, and it did not change the table."""
    driver, worker = two_machines(url, tmp_path, scores__retrack_parquet="old")
    table = "scores/retrack.parquet"
    (driver.local / table).write_text("new")
    os.utime(driver.local / table, (1, 1))
    assert driver.push() == 1
    os.utime(worker.local / table)
    (worker.local / "terms").mkdir()
    (worker.local / "terms" / "x.parquet").write_text("a task's")
    assert worker.push() == 1  # the task's alone
    assert driver.pull() == 1
    assert worker.pull() == 1
    assert (driver.local / table).read_text() == (worker.local / table).read_text() == "new"
    assert worker.push() == driver.push() == 0


def test_a_recipe_changed_elsewhere_does_not_stop_a_worker(url: str, tmp_path: Path) -> None:
    driver, worker = two_machines(url, tmp_path, recipe_yaml="rounds: 2")
    (driver.local / "recipe.yaml").write_text("rounds: 4")
    driver.push()
    (worker.local / "terms").mkdir()
    (worker.local / "terms" / "x.parquet").write_text("x")
    assert worker.push() == 1
    (worker.local / "terms" / "y.parquet").write_text("y")
    (worker.local / "recipe.yaml").write_text("rounds: 8")
    os.utime(worker.local / "recipe.yaml", (1, 1))  # first in the order
    with refused("remote-file-conflict", kind=Mismatch):
        worker.push()
    assert driver.pull() == 2  # what tasks made is there all the same


def test_a_table_that_is_removed_stays_away(url: str, tmp_path: Path) -> None:
    one, two = two_machines(url, tmp_path, scores__null_parquet="wrong", scores__good_parquet="right")
    one.remove("scores/null.parquet")
    one.remove("scores/null.parquet")
    assert one.pull() == one.push() == 0
    assert two.push() == 0  # before it has heard of it
    two.pull()
    for found in (one, two):
        assert sorted(files(found.local)) == ["scores/good.parquet"]
    (two.local / "scores" / "good.parquet").unlink()  # by hand, in the copy alone
    assert two.pull() == 1


def test_a_copy_of_a_run_that_is_gone_or_another_is_refused(url: str, tmp_path: Path) -> None:
    one, two = two_machines(url, tmp_path, run_json='{"locked": {"steps": 10}, "versions": 1}')
    (one.local / "run.json").write_text('{"locked": {"steps": 10}, "versions": 2, "noted": "later"}')
    assert one.push() == 1
    assert two.pull() == 1
    one.fs.rm(one.root, recursive=True)
    with refused("remote-run-missing"):
        two.pull()
    shutil.rmtree(one.local)
    shutil.rmtree(one._base(""))
    one.local.mkdir()
    (one.local / "run.json").write_text('{"locked": {"steps": 20}, "versions": 2}')
    one.push()
    with refused("remote-run-differs", kind=Mismatch):
        two.pull()


def test_a_driver_that_will_not_is_one_line(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    (bucket / "run").mkdir(parents=True)
    found = machine(f"file://{bucket}/run", tmp_path / "one")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "x.json").write_text("x")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("403\nForbidden")

    found.fs = type("Fs", (), {"invalidate_cache": lambda self: None, "find": lambda self, *a, **k: {},
                               "makedirs": refuse, "put_file": refuse})()  # fmt: skip
    with refused("remote-failed", match=r"^file://.*/run cannot be written: 403 Forbidden$"):
        found.push()


def test_tasks_find_what_the_driver_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers elsewhere have copies of their own: before a task begins, the bucket knows of a changed recipe."""
    from guda.engine.loop import run_in
    from guda.run.task import Task

    monkeypatch.setenv("GUDA_CACHE", str(tmp_path / "driver"))
    monkeypatch.setattr("guda.run.remote._MIRRORS", {})
    url = f"file://{tmp_path}/bucket/run"
    run = steps.init(url, tiny(digits_folder()))
    steps.change_scoring(run, rounds=5)
    seen = []

    class Elsewhere:
        n = 1

        def submit(self, address: str, task: Task) -> Future[float]:
            copy = Mirror(address, tmp_path / "worker")
            copy.pull()
            seen.append(Run.open(copy.local).recipe.scoring.rounds)
            (copy.local / "out").mkdir()
            (copy.local / "out" / "x").write_text("x")
            copy.push()
            future: Future[float] = Future()
            future.set_result(0.0)
            return future

        def collect(self, run: Run, task: Task, future: Future[float]) -> None:
            run.refresh()

        def close(self) -> None: ...

    assert run_in(Elsewhere(), run, [Task("x", "test", "none:none", {}, ("out/x",))]) == 1
    assert seen == [5]
    assert run.has("out/x")


@pytest.mark.parametrize("url", ["nonsense://bucket/run", "github://x/y"])
def test_an_unknown_protocol_is_refused(url: str) -> None:
    with refused("remote-not-opened"):
        Mirror(url)
