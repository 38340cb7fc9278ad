"""Makes tests/run/tinyrun.py importable."""

import sys
from pathlib import Path

_helpers = str(Path(__file__).parents[1] / "run")
if _helpers not in sys.path:
    sys.path.insert(0, _helpers)

import pytest  # noqa: E402
from commandline import Guda  # noqa: E402


@pytest.fixture
def guda(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Guda:
    return Guda(monkeypatch, capfd)
