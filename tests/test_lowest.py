"""`make test-lowest` installs the lower bounds that pyproject.toml promises."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_lowest_constraints_are_the_lower_bounds() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "lowest.py"))["pins"]()
    assert (ROOT / "constraints-lowest.txt").read_text().splitlines() == made  # python tools/lowest.py writes it
    assert len(made) > 20
