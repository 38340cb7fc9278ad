"""One training by two processes: the weights of one, each file written once, and killed it goes on where it was."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import finish, free_port, start
from tinyrun import Inline, digits_folder, tiny

from guda import steps
from guda.files import TEMPORARY, read_json
from guda.run.models import load_model
from guda.run.run import Run
from guda.unlearning.bank import Counterfactual
from waiting import stopped, wait_for

PROGRAM = str(Path(__file__).with_name("launchedrun.py"))


def make(root: Path, **training: Any) -> Run:
    options: dict[str, Any] = {"steps": 24, "batch": 9, "checkpoint_every": 6} | training
    return steps.init(root, tiny(digits_folder(), training=options, methods={"logo": {"seeds": [1]}}))


def launch(run: Run, *arguments: str, log: Path | None = None) -> list[subprocess.Popen[str]]:
    return start([PROGRAM, str(log or run.root / "log"), *arguments])


def published(run: Run) -> dict[str, dict[str, torch.Tensor]]:
    """Weights of every model that was trained, by file."""
    found = {"full": load_model(run, "full-s0").weights()}
    for path in sorted(run.path("artifacts").rglob("*.safetensors")):
        found[path.name] = Counterfactual.load(path).tensors
    return found


@pytest.mark.slow
def test_two_processes_end_in_the_weights_of_one_and_go_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, both, log = make(tmp_path / "alone"), make(tmp_path / "both"), tmp_path / "log"
    steps.fit(alone, ["logo"], Inline())

    with monkeypatch.context() as patch:
        patch.setenv("STOPS_IN", str(both.root))
        processes = launch(both, "fit", str(both.root), "--method", "logo", log=log)
    try:
        over = lambda: stopped(both.root).exists() or any(p.poll() is not None for p in processes)  # noqa: E731
        wait_for(over, "the second checkpoint")
    finally:
        for p in processes:
            p.kill()
        told = finish(processes)
    assert {code for code, _, _ in told} == {-9}, told
    assert not both.has("models/full-s0")

    log.unlink(missing_ok=True)
    found = finish(launch(both, "fit", str(both.root), "--method", "logo", log=log), timeout=900)
    assert [code for code, _, _ in found] == [0, 0], found
    assert found[0][1].startswith("Fitted logo")
    assert found[1][1] == "", "results are told once"
    one, two = published(alone), published(both)
    assert one.keys() == two.keys()
    assert len(one) == 4
    for name, weights in one.items():
        for key, value in weights.items():
            torch.testing.assert_close(two[name][key], value, rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(two["full"][k], v) for k, v in one["full"].items())  # rounding: it was shared
    losses = [read_json(run.path("models", "full-s0", "guda.json"))["losses"] for run in (alone, both)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)

    lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
    targets = [target for _, target in lines if TEMPORARY not in target]
    assert len(set(targets)) == len(targets), "a file was written twice"
    assert {rank for rank, _ in lines} == {"0"}
    assert not list(both.path("checkpoints").glob("*/*"))
    assert sum("models/full-s0" in t for t in targets) == 1


@pytest.mark.slow
def test_a_mistake_that_all_meet_is_one_line_and_other_verbs_are_the_work_of_one(tmp_path: Path) -> None:
    run = make(tmp_path / "run", batch=1)
    found = finish(launch(run, "train", str(run.root), log=tmp_path / "log"), timeout=900)
    assert [code for code, _, _ in found] == [2, 2]
    said = [line for _, _, err in found for line in err.splitlines() if line.startswith("guda:")]
    assert len(said) == 1
    assert "training.batch = 1 cannot be shared by 2 processes in 1 pieces each" in said[0]
    found = finish(launch(run, "status", str(run.root), log=tmp_path / "log"), timeout=900)
    assert [code for code, _, _ in found] == [2, 2]
    assert "guda status runs in one process; use a launcher only for guda train and guda fit" in found[0][2]
    assert found[1][2] == ""


@pytest.mark.slow
def test_the_launcher_of_accelerate_starts_it(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines",
        "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port()),
        "-m", "guda", "train", str(run.root),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Trained model: {run.path('models', 'full-s0')}\n"
    alone = make(tmp_path / "alone")
    steps.train(alone, Inline())
    for key, value in load_model(alone, "full-s0").weights().items():
        torch.testing.assert_close(load_model(run, "full-s0").weights()[key], value, rtol=1e-4, atol=1e-5)
