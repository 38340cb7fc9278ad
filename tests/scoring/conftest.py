"""Makes tests/runs/tinyrun.py and the helpers of this folder importable."""

import sys
from pathlib import Path

for _helpers in (str(Path(__file__).parents[1] / "runs"), str(Path(__file__).parent)):
    if _helpers not in sys.path:
        sys.path.insert(0, _helpers)
