"""Refactoring does not change results: three tiny runs end in the files that were recorded (record.py), byte for byte
on the machine of the record, in the same values elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

from goldenfiles import differences, machine
from record import RECORD

SHOWN = 40


def test_runs_end_in_the_recorded_files(tmp_path: Path) -> None:
    old = json.loads(Path(os.environ.get("GUDA_GOLDEN", RECORD)).read_text())
    file = tmp_path / "now.json"
    # a process of its own: threads, caches and registered test methods of other tests must not matter
    program = [sys.executable, str(Path(__file__).with_name("record.py")), "--out", str(file)]
    done = subprocess.run(program, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    new = json.loads(file.read_text())
    exact = old["machine"] == machine()
    assert old["runs"].keys() == new["runs"].keys()
    lines = [
        f"{name}/{line}" for name, run in old["runs"].items() for line in differences(run, new["runs"][name], exact)
    ]
    lines = [line for line in lines if not of_a_library(line, old["machine"])]
    kind = "bytes" if exact else f"values (recorded on another machine: {old['machine']})"
    more = [f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    assert not lines, "\n".join([f"{len(lines)} differ, comparing {kind}:", *lines[:SHOWN], *more])


def of_a_library(line: str, recorded: dict[str, str]) -> bool:
    """Whether a difference comes from another version of what makes the inputs: diffusers writes its version into
    configs, and the weights of the text run's pipeline are random numbers that transformers and diffusers draw."""
    other = {name for name, version in machine().items() if recorded.get(name) != version}
    if "diffusers" in other and line.endswith("config.json: other texts"):
        return True
    return line.startswith("text/") and not other.isdisjoint({"diffusers", "transformers"})
