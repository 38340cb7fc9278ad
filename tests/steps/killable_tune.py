"""A study as a program of its own: python killable_tune.py RUN TRIALS SEARCH."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))

from tinyrun import Inline

from guda import steps
from guda.run.run import Run

if __name__ == "__main__":
    root, trials, search = sys.argv[1:]
    steps.tune(Run.open(root), "retrack", int(trials), Inline(), n=5, space=steps.parse_space(search))
