"""kill -9 at any moment: no orphan, nothing finished is redone, and the end is the same to the byte."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tinyrun import Inline, digits_folder, exact, finished_root, tiny

from guda import steps
from guda.files import TEMPORARY
from guda.run.run import Run

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


def start(root: Path, workers: int = 1) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, PROGRAM, str(root), str(workers)], stderr=subprocess.PIPE, text=True)


def kill_when(process: subprocess.Popen[str], moment: Callable[[], bool]) -> set[int]:
    deadline = time.monotonic() + 60
    while not moment() and process.poll() is None:
        assert time.monotonic() < deadline, "the moment to kill never came"
        time.sleep(0.002)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    return workers


def products(root: Path) -> dict[str, int]:
    """Finished files and when they were published."""
    return {
        str(p.relative_to(root)): p.stat().st_mtime_ns
        for part in ("models", "artifacts", "terms", "queries")
        for p in (root / part).rglob("*")
        if p.is_file() and TEMPORARY not in str(p)
    }


def count(root: Path, pattern: str) -> int:
    return sum(TEMPORARY not in str(p) for p in root.glob(pattern))


def test_killed_at_three_moments_it_ends_in_the_same_bytes(tmp_path: Path) -> None:
    root = tmp_path / "run"
    steps.init(root, tiny(digits_folder()))
    rng = random.Random(7)
    some_fits, some_parts = rng.randint(2, 7), rng.randint(10, 40)
    moments = [
        lambda: count(root, "checkpoints/*/step-*") + count(root, "models/*") > 0,  # in the middle of training
        lambda: count(root, "artifacts/*/s*/*.safetensors") >= some_fits,
        lambda: count(root, "terms/**/*.parquet") >= some_parts,
    ]
    kept: dict[str, int] = {}
    for moment, n in zip(moments, (1, 2, 1), strict=True):
        workers = kill_when(start(root, n), moment)
        assert workers, "it was killed before it had workers"
        deadline = time.monotonic() + 5
        while alive(workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive(workers) == set(), "orphans"
        after = products(root)
        assert {k: after[k] for k in kept} == kept, "finished work was redone"
        kept = after
    assert kept
    assert exact(root) != exact(finished_root())
    last = start(root)
    assert last.wait(timeout=60) == 0, last.communicate()[1]
    last.communicate()
    after = products(root)
    assert {k: after[k] for k in kept} == kept, "finished work was redone"
    whole = exact(finished_root())
    assert {k: v for k, v in exact(root).items() if TEMPORARY not in k} == whole
    assert steps.status(Run.open(root))["running"] == []
    again = Inline()
    steps.pipeline(Run.open(root), again)
    assert again.ran == []
    assert products(root) == after


def test_terminating_the_driver_ends_its_workers_too(tmp_path: Path) -> None:
    root = tmp_path / "run"
    steps.init(root, tiny(digits_folder(), training={"steps": 100_000, "checkpoint_every": 100_000}))
    process = start(root)
    deadline = time.monotonic() + 60
    while not list((root / "progress").glob("*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert steps.status(Run.open(root))["running"]
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate()
    deadline = time.monotonic() + 5
    while alive(workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(workers) == set()
    assert steps.status(Run.open(root))["running"] == []
