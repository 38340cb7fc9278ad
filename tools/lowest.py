"""Print the lower bounds of pyproject.toml as constraints: every direct dependency at the oldest version it allows.

    python tools/lowest.py > constraints-lowest.txt        # checked by tests/test_lowest.py; used by `make test-lowest`

torch stays at the version of constraints.txt: an older one from PyPI brings gigabytes of CUDA.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pins() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    found = {}
    for text in wanted:
        if match := re.match(r"([A-Za-z0-9_.-]+)(?:\[.*\])?(?:>=|==)([0-9.]+)", text):
            found[match[1].lower().replace("_", "-")] = match[2]
    newest = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert newest is not None
    found["torch"] = newest[1]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


if __name__ == "__main__":
    print("\n".join(pins()))
