"""Makes tests/run/tinyrun.py and the helpers of this folder importable."""

import sys
from pathlib import Path

for _helpers in (str(Path(__file__).parents[1] / "run"), str(Path(__file__).parent)):
    if _helpers not in sys.path:
        sys.path.insert(0, _helpers)
