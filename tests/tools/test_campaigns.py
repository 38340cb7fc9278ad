"""The campaigns that anyone can run (tools/fuzz.py, tools/kill.py), short; docs/reliability.md has the long ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import hardening  # noqa: E402


def figures(*command: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, *command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.stdout.strip(), done.stderr
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def test_generated_bad_inputs_are_refused_in_one_line_and_write_nothing() -> None:
    found = figures("tools/fuzz.py", "--corpus", "--inputs", "40", "--jobs", "2")
    assert found["fuzz_inputs"] >= 40
    assert found["fuzz_refused"] >= 20
    faults = ("tracebacks", "hangs", "wrong_success", "partial", "untidy")
    assert {name: found[f"fuzz_{name}"] for name in faults} == dict.fromkeys(faults, 0)


@pytest.mark.slow
def test_killed_commands_end_in_the_same_bytes_and_redo_nothing() -> None:
    found = figures("tools/kill.py", "--kills", "16", "--pairs", "4", "--full", "8")
    assert found["kills_after_publish"] >= 8
    assert found["kill_differences"] == found["redone_tasks"] == found["kill_orphans"] == 0
    assert found["driver_differences"] == found["full_tracebacks"] == found["full_differences"] == 0


def test_the_page_on_reliability_shows_the_last_figures() -> None:
    text = hardening.PAGE.read_text()
    assert len(hardening.SHOWN.findall(text)) >= 16
    assert hardening.page(text) == text
