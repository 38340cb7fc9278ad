"""benchmarks/results/hardening.json, which tools/fuzz.py, kill.py and flood.py fill, each with its own figures."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "hardening.json"
COMMAND = "python tools/fuzz.py --corpus --inputs 2000 --write; python tools/kill.py --kills 100 --write"


def record(entry: str, figures: dict[str, float], note: str) -> None:
    """Replace one entry ("fuzz", "kill", "flood") and keep the others."""
    from guda.evaluation.results import DatasetEntry, read_results, write_results

    kept = read_results(RESULTS).datasets if RESULTS.is_file() else {}
    made = DatasetEntry(n_queries=1, seeds=[], ceiling=None, methods={}, figures=figures, note=note)
    write_results(RESULTS, COMMAND, dict(sorted((kept | {entry: made}).items())))
