"""The tiny pipeline as a program of its own: python killable.py RUN WORKERS [PATTERN COUNT].

With a pattern, whoever is about to publish such a file while COUNT of them are there stops (see tests/waiting.py).
"""

import sys
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from guda import steps
from guda.files import TEMPORARY
from guda.run.run import Run
from waiting import stop_before_publishing


def published(root: Path, pattern: str) -> int:
    names = (p.relative_to(root).as_posix() for p in root.rglob("*"))
    return sum(fnmatch(name, pattern) and TEMPORARY not in name for name in names)


if len(sys.argv) > 3:  # in the workers too, which import this file
    _root, _pattern, _count = Path(sys.argv[1]), sys.argv[3], int(sys.argv[4])
    stop_before_publishing(_root, _pattern, lambda: published(_root, _pattern) >= _count)

if __name__ == "__main__":
    steps.pipeline(Run.open(sys.argv[1]), steps.local_engine(int(sys.argv[2])))
