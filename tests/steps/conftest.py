"""Makes tests/run/tinyrun.py and tools/inline_cli.py importable."""

import sys
from pathlib import Path

_root = Path(__file__).parents[2]
for _folder in (str(_root / "tools"), str(_root / "tests" / "run")):
    if _folder not in sys.path:
        sys.path.insert(0, _folder)
