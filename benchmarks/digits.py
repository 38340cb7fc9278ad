"""The digits experiment at full size: 1,000 queries, three LOGO seeds. Writes benchmarks/results/digits.{json,md}.

    .venv/bin/python benchmarks/digits.py            # about 10 minutes on 2 cores; resumes after an interruption

Same recipe as `guda demo`, with more queries and one more oracle seed; nothing is tuned here. The retrack settings
of the recipe were chosen on queries of sampling seed 0, the queries reported here have seed 1.
"""

from __future__ import annotations

from pathlib import Path

from guda import verbs
from guda.cli.show import Display
from guda.evaluation.results import write_results
from guda.evaluation.tables import markdown
from guda.runs.recipe import Recipe, builtin_recipe
from guda.runs.store import write_text

ROOT = Path(__file__).parents[1]


def main() -> None:
    value = builtin_recipe("digits").model_dump(mode="json")
    value["methods"]["logo"]["seeds"] = [1, 2, 3]
    value["queries"]["n"] = 1000
    run = verbs.init(ROOT / "runs" / "bench-digits", Recipe.from_dict(value, "digits benchmark"))
    with Display() as display:
        entry = verbs.pipeline(run, verbs.local_engine(watch=display.watch))
    results = ROOT / "benchmarks" / "results"
    write_results(results / "digits.json", "python benchmarks/digits.py", {"digits": entry})
    write_text(results / "digits.md", markdown("digits", entry))
    print(markdown("digits", entry))


if __name__ == "__main__":
    main()
