"""Processes of one launch: trainings are shared, the rest is rank 0's, and no failure leaves anybody waiting."""

from pathlib import Path

import pytest
from processes import finish, start
from tinyrun import digits_folder, tiny

from guda import steps
from guda.diffusion import distributed
from guda.run.run import Run

PROGRAM = str(Path(__file__).with_name("launchedtasks.py"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = steps.init(tmp_path / "run", tiny(digits_folder()))
    found.path("out").mkdir()
    return found


def launch(run: Run, *tasks: str) -> list[tuple[int, str, str]]:
    return finish(start([PROGRAM, str(run.root), *tasks]), timeout=300)


def test_shared_tasks_are_everybodys_and_others_are_done_by_rank_0(run: Run) -> None:
    assert [code for code, _, _ in launch(run, "after", "shared", "single", "single")] == [0, 0]
    assert run.path("out", "shared").read_text() == "3.0"  # 1 + 2: both were there
    assert run.path("out", "single").read_text().split()[0] == "0"
    assert run.path("out", "after").read_text().split()[0] == "0"
    assert run.path("out", "rank0").read_text() == "3 0 True"  # each product once, and nothing the second time
    assert run.path("out", "rank1").read_text() == "3 0 False"  # only rank 0 shows progress
    assert len(list(run.path("timings", "test").glob("*.json"))) == 3
    assert not list(run.path("progress").glob("*"))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("all_wrong", ["GudaError: lower training.lr", "GudaError: lower training.lr"]),
        ("leader_wrong", ["GudaError: group 'x' is too small", "GudaError: GudaError: group 'x' is too small"]),
        ("one_wrong", ["GudaError: another process of this launch ended", "OneProcess: process 1 of 2: disk is full"]),
        ("one_killed", ["GudaError: another process of this launch ended", ""]),
    ],
)
def test_a_failure_ends_every_process(run: Run, kind: str, said: list[str]) -> None:
    """The command line prints rank 0's GudaError and any OneProcess: one line for one mistake."""
    found = launch(run, kind, "single")
    assert [code for code, _, _ in found] == [2, -9 if kind == "one_killed" else 2]
    for (_, _, err), expected in zip(found, said, strict=True):
        lines = [line for line in err.splitlines() if "Error" in line or "OneProcess" in line]
        assert [line[: len(expected)] for line in lines] == ([expected] if expected else []), err
    assert not run.has("out/single")


def test_who_we_are_is_what_the_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    assert (distributed.world_size(), distributed.rank(), distributed.is_main()) == (
        1,
        0,
        True,
    )  # some schedulers set only this one
    monkeypatch.setenv("RANK", "3")
    assert (distributed.world_size(), distributed.rank(), distributed.is_main()) == (4, 3, False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert distributed.on_cpu()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "False")
    monkeypatch.delenv("GUDA_DEVICE", raising=False)
    assert not distributed.on_cpu()
