"""Makes the generators of the site importable."""

import sys
from pathlib import Path

_site = str(Path(__file__).parents[2] / "tools" / "site")
if _site not in sys.path:
    sys.path.insert(0, _site)
