"""Makes tests/run/tinyrun.py importable."""

import sys
from pathlib import Path

_helpers = str(Path(__file__).parents[1] / "run")
if _helpers not in sys.path:
    sys.path.insert(0, _helpers)
