"""`guda ...` in this process, and as a program."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).with_name("guda"))


@dataclass
class Answer:
    code: int
    out: str
    err: str


class Guda:
    """Calls the command line's own main()."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capfd = monkeypatch, capfd

    def __call__(self, *args: object) -> Answer:
        from guda.cli.main import main

        self.monkeypatch.setattr(sys, "argv", ["guda", *map(str, args)])
        self.capfd.readouterr()
        code = 0
        try:
            main()
        except SystemExit as e:
            code = int(e.code or 0)
        out, err = self.capfd.readouterr()
        return Answer(code, out, err)


def program(*args: object, cwd: Path | None = None) -> Answer:
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=600)
    return Answer(done.returncode, done.stdout, done.stderr)


def refused(answer: Answer, *parts: str) -> None:
    """Exactly one line on stderr, exit code 2, nothing on stdout."""
    assert answer.code == 2, answer
    assert answer.out == ""
    assert answer.err.startswith("guda: "), answer.err
    assert answer.err.count("\n") == 1, answer.err
    assert answer.err.endswith("\n")
    assert "Traceback" not in answer.err
    for part in parts:
        assert part in answer.err, (part, answer.err)
