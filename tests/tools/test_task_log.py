"""What tools/kill.py and tools/kill_server.py count as a finished task that ran again."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "run")]

from task_log import Again, noting, written_again  # noqa: E402
from tinyrun import digits_folder, tiny  # noqa: E402

from guda import steps  # noqa: E402
from guda.engine.loop import run_inline  # noqa: E402
from guda.run.run import Run  # noqa: E402
from guda.run.task import Task  # noqa: E402

BOTH = {"terms/a": (1, 1), "terms/b": (2, 2)}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    tasks = [
        {"name": "round", "makes": ["terms/a", "terms/b"], "timing": "timings/round"},
        {"name": "train", "makes": ["models/m"], "timing": "timings/train"},
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


def test_a_task_that_lacked_a_file_may_write_the_others_again(log: Path) -> None:
    found = written_again(log, {"terms/a": (1, 1)}, {"terms/a": (9, 9), "terms/b": (9, 8)})
    assert found == Again(unfinished=["terms/a"])


@pytest.mark.parametrize("changed", [{"terms/a": (9, 9)}, {"terms/b": (9, 9)}, {"terms/a": (1, 9)}])
def test_a_task_with_all_files_that_writes_one_again_is_redone(log: Path, changed: dict[str, tuple[int, int]]) -> None:
    assert written_again(log, BOTH, BOTH | changed) == Again(tasks=["round"])


def test_a_finished_task_whose_file_is_gone_is_redone(log: Path) -> None:
    assert written_again(log, BOTH, {"terms/a": (1, 1)}) == Again(tasks=["round"])


def test_a_timing_that_is_written_again_is_a_task_redone(log: Path) -> None:
    before = {"models/m": (1, 1), "timings/train": (1, 2)}
    assert written_again(log, before, before | {"timings/train": (5, 5)}) == Again(tasks=["train"])


def test_files_that_no_task_makes_are_counted_apart(log: Path) -> None:
    assert written_again(log, {"scores/x": (1, 1)}, {"scores/x": (2, 2)}) == Again(others=["scores/x"])


def test_nothing_is_redone_where_nothing_has_changed(log: Path) -> None:
    assert written_again(log, BOTH, BOTH | {"models/m": (3, 3)}) == Again()


def touch(run: Run, name: str) -> None:
    run.path(name).write_text("")


def test_the_log_names_the_files_that_tasks_leave(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", tiny(digits_folder()))
    tasks = [
        Task(f"make {'long ' * 20}a/b", "score/x/y", f"{__name__}:touch", {"name": "out"}, ("out",)),
        Task("make again", "score/x/y", f"{__name__}:touch", {"name": "out"}, ("out",)),
    ]
    with noting(tmp_path / "log"):
        run_inline(run, tasks)
        run_inline(run, tasks)  # nothing is left
    run_inline(run, [Task("make more", "x", f"{__name__}:touch", {"name": "more"}, ("more",))])
    (noted,) = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert noted["makes"] == ["out"]
    assert run.has(noted["timing"])
