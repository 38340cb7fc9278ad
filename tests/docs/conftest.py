"""Makes the generators of the site and the tools importable."""

import sys
from pathlib import Path

_tools = Path(__file__).parents[2] / "tools"
for _folder in (str(_tools), str(_tools / "site")):
    if _folder not in sys.path:
        sys.path.insert(0, _folder)
