"""Who writes under a temporary name: the dead of this place are swept at once, everybody else after a quiet day."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guda import files as writers
from guda.files import DAY, NAME, TEMPORARY, place, sweep, temporary


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def stray(folder: Path, place: str, pid: int, age: float = 0.0, inside: float | None = None) -> Path:
    """A temporary file of somebody's; with `inside` a folder that holds a file of that age."""
    path = folder / f"{TEMPORARY}{place}-{pid}-0123456789ab-x"
    folder.mkdir(parents=True, exist_ok=True)
    if inside is None:
        path.write_text("half")
    else:
        path.mkdir()
        (path / "weights").write_text("half")
        os.utime(path / "weights", (time.time() - inside,) * 2)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_name_tells_place_and_process_and_is_never_given_twice(tmp_path: Path) -> None:
    names = {temporary(tmp_path / "scores-1.parquet").name for _ in range(100)}
    assert len(names) == 100
    found = NAME.match(names.pop())
    assert found is not None
    assert (found["place"], int(found["pid"])) == (place(), os.getpid())


def test_the_dead_of_this_place_go_at_once_and_the_living_stay(tmp_path: Path) -> None:
    dead = stray(tmp_path / "a" / "b", place(), dead_pid())
    folder = stray(tmp_path / "c", place(), dead_pid(), inside=0.0)
    living = stray(tmp_path / "a" / "b", place(), os.getpid(), age=2 * DAY)
    sweep(tmp_path)
    assert not dead.exists()
    assert not folder.exists()
    assert living.exists()


def test_of_other_places_only_what_rested_for_a_day(tmp_path: Path) -> None:
    elsewhere, pid = "0" * 10, dead_pid()
    fresh = stray(tmp_path / "a", elsewhere, pid, age=DAY / 2)
    old = stray(tmp_path / "b", elsewhere, pid, age=2 * DAY)
    filling = stray(tmp_path / "c", elsewhere, pid, age=2 * DAY, inside=60.0)  # its folder is old, its files are not
    sweep(tmp_path)
    assert (fresh.exists(), old.exists(), filling.exists()) == (True, False, True)


def test_what_vanishes_while_it_is_looked_at_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = stray(tmp_path, "0" * 10, 1, age=2 * DAY)
    look = writers._touched

    def published_meanwhile(path: Path) -> float:
        path.rename(tmp_path / "published")
        return look(path)

    monkeypatch.setattr(writers, "_touched", published_meanwhile)
    sweep(tmp_path)
    assert not gone.exists()
    assert (tmp_path / "published").read_text() == "half"
