"""kill -9 at any moment: no orphan, nothing finished is redone, and the end is the same to the byte."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tinyrun import Inline, digits_folder, exact, finished_root, tiny

from guda import steps
from guda.files import TEMPORARY
from guda.run.run import Run
from programs import Programs
from waiting import LIMIT, stopped, wait_for

PROGRAM = str(Path(__file__).with_name("killable.py"))


def children(pid: int) -> set[int]:
    """The process tree below `pid`, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def alive(pids: set[int]) -> set[int]:
    def running(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return {p for p in pids if running(p)}


def start(launch: Programs, root: Path, workers: int = 1, *moment: str) -> subprocess.Popen[str]:
    return launch([sys.executable, PROGRAM, str(root), str(workers), *moment], stderr=subprocess.PIPE)


def kill_at(launch: Programs, root: Path, workers: int, pattern: str, count: int) -> set[int]:
    """Start it, and kill it when a worker is about to publish such a file beside `count` others."""
    stopped(root).unlink(missing_ok=True)
    process = start(launch, root, workers, pattern, str(count))
    wait_for(lambda: stopped(root).exists() or process.poll() is not None, "the moment to kill")
    family = children(process.pid)
    process.kill()
    _, err = process.communicate()
    assert stopped(root).exists(), err
    return family


def products(root: Path) -> dict[str, int]:
    """Finished files and when they were published."""
    return {
        str(p.relative_to(root)): p.stat().st_mtime_ns
        for part in ("models", "artifacts", "terms", "queries")
        for p in (root / part).rglob("*")
        if p.is_file() and TEMPORARY not in str(p)
    }


@pytest.mark.slow
def test_killed_at_three_moments_it_ends_in_the_same_bytes(tmp_path: Path, launch: Programs) -> None:
    root = tmp_path / "run"
    steps.init(root, tiny(digits_folder()))
    rng = random.Random(7)
    some_fits, some_parts = rng.randint(2, 7), rng.randint(10, 40)
    moments = [
        (1, "checkpoints/*/step-*", 1),  # in the middle of training: the second checkpoint
        (2, "artifacts/*.safetensors", some_fits),
        (1, "terms/*.parquet", some_parts),
    ]
    kept: dict[str, int] = {}
    for n, pattern, count in moments:
        workers = kill_at(launch, root, n, pattern, count)
        assert workers, "it was killed before it had workers"
        wait_for(lambda workers=workers: not alive(workers), "the end of orphans")
        after = products(root)
        assert {k: after[k] for k in kept} == kept, "finished work was redone"
        kept = after
    assert kept
    assert exact(root) != exact(finished_root())
    last = start(launch, root)
    _, err = last.communicate(timeout=LIMIT)
    assert last.returncode == 0, err
    after = products(root)
    assert {k: after[k] for k in kept} == kept, "finished work was redone"
    whole = exact(finished_root())
    assert {k: v for k, v in exact(root).items() if TEMPORARY not in k} == whole
    assert steps.status(Run.open(root))["running"] == []
    again = Inline()
    steps.pipeline(Run.open(root), again)
    assert again.ran == []
    assert products(root) == after


def test_terminating_the_driver_ends_its_workers_too(tmp_path: Path, launch: Programs) -> None:
    root = tmp_path / "run"
    steps.init(root, tiny(digits_folder(), training={"steps": 100_000, "checkpoint_every": 100_000}))
    process = start(launch, root)
    wait_for(lambda: steps.status(Run.open(root))["running"] or process.poll() is not None, "a heartbeat")
    assert process.poll() is None
    workers = children(process.pid)
    assert workers
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=LIMIT)
    wait_for(lambda: not alive(workers), "the end of the workers")
    assert steps.status(Run.open(root))["running"] == []


def test_a_test_that_fails_leaves_no_process(tmp_path: Path) -> None:
    """A driver and the worker that it started, both in the middle of their work, are gone once the fixture ends; and
    they are if the tests are killed, which no fixture survives."""
    loop = "import signal; print('here', flush=True); signal.pause()"
    driver = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {loop!r}]).wait()"
    programs = Programs()
    process = programs([sys.executable, "-c", driver], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    family = {process.pid} | children(process.pid)
    assert len(family) == 2
    programs.end()
    wait_for(lambda: not alive(family), "the end of a test's processes")

    tests = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from programs import start
import subprocess
process = start([sys.executable, "-c", {loop!r}], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
process.wait()
"""
    outer = programs([sys.executable, "-c", tests], stdout=subprocess.PIPE)
    assert outer.stdout is not None
    orphan = int(outer.stdout.readline())
    os.kill(outer.pid, signal.SIGKILL)
    wait_for(lambda: not alive({orphan}), "the end of an orphan")
    programs.end()
