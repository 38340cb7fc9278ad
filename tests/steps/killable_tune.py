"""A study as a program of its own, which stops in its third trial: python killable_tune.py RUN TRIALS SEARCH."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "run"))

from tinyrun import Inline

from guda import steps
from guda.run.run import Run
from waiting import stop_before_publishing

if __name__ == "__main__":
    root, trials, search = sys.argv[1:]
    traces = Path(root, "tune")
    stop_before_publishing(
        Path(root),
        "artifacts/*",
        lambda: any(len(t.read_text().splitlines()) >= 2 for t in traces.rglob("trace.jsonl")),
    )
    steps.tune(Run.open(root), "retrack", int(trials), Inline(), n=5, space=steps.parse_space(search))
