"""Makes tests/runs/tinyrun.py importable."""

import sys
from pathlib import Path

_helpers = str(Path(__file__).parents[1] / "runs")
if _helpers not in sys.path:
    sys.path.insert(0, _helpers)
