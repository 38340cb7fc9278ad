"""benchmarks/results/hardening.json and the figures of docs/reliability.md, which are taken from it.

python tools/fuzz.py ... --write               each campaign writes its own entry and brings the page up to date
python tools/flood.py | python tools/hardening.py flood      an entry from a line of JSON
python tools/hardening.py                      only the page
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "hardening.json"
PAGE = ROOT / "docs" / "reliability.md"
COMMAND = "make bench-hardening"
SHOWN = re.compile(r"`([a-z_]+(?:\.[a-z]+)?)` = (?:n/a|[-+\d.,e]*\d)")


def record(entry: str, figures: dict[str, float], note: str) -> None:
    """Replace one entry (fuzz, kill, kill-ray, flood, invariance) and keep the others."""
    from guda.evaluation.results import DatasetEntry, keep_entry

    made = DatasetEntry(n_queries=1, seeds=[], ceiling=None, methods={}, figures=figures, note=note)
    keep_entry(RESULTS, COMMAND, entry, made, ("flood", "fuzz", "invariance"))
    if PAGE.is_file():
        PAGE.write_text(page(PAGE.read_text()))


def measured() -> dict[str, float]:
    """Every figure by its name; those of Ray's kills as NAME.ray."""
    datasets = json.loads(RESULTS.read_text())["datasets"]
    return {
        f"{name}.ray" if entry == "kill-ray" else name: value
        for entry, found in datasets.items()
        for name, value in found["figures"].items()
    }


def page(text: str) -> str:
    """The page with the figures that were measured last, wherever it has `name` = number; n/a: not measured."""
    known = measured()

    def show(found: re.Match[str]) -> str:
        if (value := known.get(found[1])) is None:
            return f"`{found[1]}` = n/a"
        return f"`{found[1]}` = {value:,.0f}" if value == int(value) else f"`{found[1]}` = {value:.2g}"

    return SHOWN.sub(show, text)


def main() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    if len(sys.argv) > 1:
        found = json.loads(sys.stdin.read().splitlines()[-1])
        figures = {k: float(v) for k, v in found.items() if isinstance(v, int | float)}
        record(sys.argv[1], figures, f"python tools/{sys.argv[1]}.py")
    else:
        PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
