"""Every baseline against the LOGO oracle, beside GUDA, on digits and Fashion-MNIST; and how fast the featuriser is.

    .venv/bin/python benchmarks/baselines.py                   # resumes; takes the LOGO models of operators.py
    .venv/bin/python benchmarks/baselines.py fashion-mnist      # one data set

Writes benchmarks/results/baselines.{json,md}. A baseline is worth comparing with only at its best, so what its
authors chose for CIFAR-10 (rows "as published") is given beside settings chosen here: ridge and aggregation, or step
size, by Top-1 and then MRR on queries of sampling seed 0, written to results/tune/baselines-<data>.json. The queries
reported have seed 1.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import sketch as sketching
from guda import steps
from guda.cli.display import Display
from guda.config import QueriesConfig
from guda.errors import NotFinite
from guda.evaluation.ceiling import compare
from guda.evaluation.results import DatasetEntry, Figure, MethodEntry, read_results, write_results
from guda.evaluation.tables import comparison, figure
from guda.files import write_json, write_text
from guda.methods.base import Method
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.run.samples import collect_samples, sample_tasks
from guda.scoring.scores import Scores
from guda.steps.fit import Engine
from guda.steps.setting_trial import Trials
from guda.table import Cell, Table, count, human_time
from operators import SIZES
from operators import recipe_of as operators_recipe

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TUNING = 200  # queries of seed 0
FEW = {"synthesized": 48}  # of them for what takes seconds per query
PUBLISHED: dict[str, dict[str, Any]] = {"synthesized": {"scale": "n", "lr": 0.1}}  # where a preset is not the default

RIDGED = ("trak", "dtrak", "das", "das-public", "relatif")
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # in units of the mean eigenvalue
AGGREGATES = ("sum", "mean", "max", "median", "top10", "removal")
# what is tried, one after the other, each around the best so far; all in units that do not depend on the data set
SEARCH: dict[str, list[tuple[str, list[Any]]]] = {
    **{m: [("lam", list(RIDGES)), ("aggregate", list(AGGREGATES))] for m in RIDGED},
    "relatif": [("lam", list(RIDGES)), ("aggregate", [a for a in AGGREGATES if a != "removal"])],
    "tracin": [("divide", ["none", "gradient"]), ("aggregate", ["sum", "max", "median", "top10"])],
    "kfac": [("damping", [1e-3, 1e-2, 1e-1, 1.0, 10.0]), ("aggregate", ["sum", "max", "median", "top10"])],
    "nda": [
        ("t", [[0.1, 0.3, 0.5], [0.1], [0.3], [0.5]]),
        ("patch", [7, "whole"]),
        ("aggregate", ["sum", "max", "top10"]),
    ],
    "synthesized": [
        ("scale", ["length", "n"]),
        ("lr", [3e-3, 1e-2, 3e-2, 1e-1]),
        ("at", [10, 25, 50, 100]),
        ("aggregate", ["sum", "max", "top10"]),
    ],
    "similarity-pixel": [("rule", ["mean", "cosines", "max", "median", "top10"])],
}
START: dict[str, dict[str, Any]] = {m: {"lam_scale": "trace", "solver": "eigen"} for m in RIDGED}
SMALL = ("kfac",)  # digits only: whitening 10,000 gradients of 2 M numbers is most of an hour for each damping
# elsewhere: what digits chose, at the checkpoint from which it no longer changed, and only the aggregation searched
CHEAPER: dict[str, dict[str, Any]] = {"synthesized": {"lr": 0.03, "steps": 25}}
REFERENCE = "retrack"
SHOWN = ("hybrid", "shift", "retrack", "esd")  # GUDA and ESD, for comparison


def taken(name: str) -> list[str]:
    """The baselines that are measured on a data set; K-FAC where its library is installed."""
    absent = ["kfac"] if find_spec("curvlinops") is None else []
    return [m for m in SEARCH if m not in absent and (m not in SMALL or name == "digits")]


def recipe_of(name: str, settings: dict[str, dict[str, Any]]) -> Recipe:
    value = operators_recipe(name).model_dump(mode="json")
    value["methods"] |= {m: {} for m in taken(name)} | settings
    return Recipe.from_dict(value, "baselines benchmark")


def choose(run: Run, name: str, engine: Engine) -> dict[str, dict[str, Any]]:
    """Each baseline's settings, chosen on queries that are not reported."""
    sets = {n: _tuning_set(run, n, engine) for n in (TUNING, *FEW.values())}
    chosen, tried = {}, []
    for method, axes in SEARCH.items():
        trials, settings = sets[FEW.get(method, TUNING)], dict(START.get(method, {}))
        if method in CHEAPER and name != "digits":
            settings, axes = dict(CHEAPER[method]), axes[-1:]
        if method not in taken(name):
            continue
        for axis, values in axes:
            found: dict[str, tuple[Method, Any]] = {}
            for value in values:
                # an exact removal has its own leverage
                extra = {"leverage": 0, "square": False} if value == "removal" else {}
                one = trials.method(method, settings | {axis: value} | extra, f"{method}, {axis} = {value}")
                try:
                    trials.carry_out(one, engine)
                    one.scores(trials.queries)
                    found[str(value)] = (one, value)
                except NotFinite as e:
                    tried.append({"method": method, "axis": axis, "value": value, "failed": str(e)})
            compared = trials.compare({k: m for k, (m, _) in found.items()})
            rows = {k: compared.methods[k].intervals for k in found}
            for k, row in rows.items():
                tried.append({"method": method, "axis": axis, "value": found[k][1], "settings": settings,
                              "top1": row["top1"].mean, "mrr": row["mrr"].mean})  # fmt: skip
            if not rows:
                continue
            best = max(rows, key=lambda k: (rows[k]["top1"].mean, rows[k]["mrr"].mean))
            settings[axis] = found[best][1]
            if settings.get("aggregate") == "removal":
                settings["leverage"] = 0
        chosen[method] = settings
        print(name, method, settings, flush=True)
    write_json(
        RESULTS / "tune" / f"baselines-{name}.json",
        {"queries": {m: sets[FEW.get(m, TUNING)].queries.name for m in chosen}, "chosen": chosen, "tried": tried},
    )
    return chosen


def _tuning_set(run: Run, n: int, engine: Engine) -> Trials:
    config = QueriesConfig(n=n, seed=0)
    engine(run, sample_tasks(run, config), "sample tuning queries")
    trials = Trials(run, collect_samples(run, config))
    trials.prepare(engine)
    return trials


def as_published(run: Run, name: str, queries: str, engine: Engine) -> dict[str, MethodEntry]:
    """The presets with their authors' ridge, aggregation and step size."""
    trials = Trials(run, queries)
    methods = {
        m: trials.method(m, PUBLISHED.get(m, {}), m) for m in (*RIDGED, *(PUBLISHED if name == "digits" else ()))
    }
    done: dict[str, Method] = {}
    for m, found in methods.items():
        try:
            trials.carry_out(found, engine)
            found.scores(trials.queries)
            done[f"{m}, as published"] = found
        except NotFinite as e:
            print(f"{m}, as published: {e}")
    compared = trials.compare(done)
    rows = {}
    for label, found in done.items():
        figures = trials.figures(found, compared, label) | trials.seconds(found)
        rows[label] = MethodEntry.model_validate({k: v for k, v in figures.items() if k in MethodEntry.model_fields})
    return rows


def measure(name: str) -> DatasetEntry:
    run = steps.init(ROOT / "runs" / f"operators-{name}", recipe_of(name, {}))
    with Display() as display:
        engine = steps.local_engine(watch=display.watch)
        chosen = choose(run, name, engine)
        run = steps.init(ROOT / "runs" / f"operators-{name}", recipe_of(name, chosen))
        entry = steps.pipeline(run, engine)
        published = as_published(run, name, steps.choose_queries(run), engine)
    kept = {m: e for m, e in entry.methods.items() if m in SEARCH or m in SHOWN or m == "logo"}
    n, seeds = SIZES[name]
    assert (entry.n_queries, entry.seeds) == (n, seeds)
    found = differences(run, steps.choose_queries(run), [m for m in kept if m != "logo"])
    return entry.model_copy(update={"methods": kept | published, "figures": found})


def differences(run: Run, queries: str, methods: list[str]) -> dict[str, float]:
    """Top-1 of each method minus that of retrack, paired over queries and LOGO seeds."""
    names = [f"logo-s{s}" for s in run.recipe.methods["logo"]["seeds"]]
    score = {m: Scores.read(steps.scores_path(run, queries, m)).score for m in [*names, *methods]}
    gold = np.stack([score.pop(n) for n in names])
    found = compare(gold, score, reference=REFERENCE, n=2000, seed=0).methods
    ends = {m: found[m].difference["top1"] for m in methods if m != REFERENCE}
    return {f"{m}_minus_{REFERENCE}.{end}": getattr(d, end) for m, d in ends.items() for end in ("mean", "lo", "hi")}


def summary(entries: dict[str, DatasetEntry]) -> str:
    """Like the first table of the paper: Top-1, its share of the ceiling, preprocessing and cost of a query."""
    header: list[str] = ["method"]
    for name in entries:
        header += [f"{name} Top-1", "of ceiling", "fit evals/group", "fit time", "per query"]

    def cells(e: MethodEntry, top1: Figure | None, ratio: Cell) -> list[Cell]:
        return [figure(top1), ratio, count(e.fit_evals), human_time(e.fit_seconds), count(e.score_evals)]

    first: list[Cell] = ["LOGO, one retraining (ceiling)"]
    for e in entries.values():
        first += cells(e.methods["logo"], (e.ceiling or {}).get("top1"), "1")
    rows = [first]
    for m in dict.fromkeys(m for e in entries.values() for m in e.methods if m != "logo"):
        row: list[Cell] = [m]
        for e in entries.values():
            found = e.methods.get(m)
            ratio = None if found is None else figure((found.ratio_to_ceiling or {}).get("top1"))
            row += [None] * 5 if found is None else cells(found, found.metrics["top1"], ratio)
        rows.append(row)
    return Table.of("", header, rows).markdown_lines()


def beside(entries: dict[str, DatasetEntry]) -> str:
    """Each method less retrack, Top-1; "not separated" where the interval covers 0."""
    every = dict.fromkeys(k.partition("_minus_")[0] for e in entries.values() for k in e.figures if "_minus_" in k)
    rows = []
    for m in every:
        row = [f"{m} - {REFERENCE}"]
        for e in entries.values():
            ends = [e.figures.get(f"{m}_minus_{REFERENCE}.{end}") for end in ("mean", "lo", "hi")]
            if None in ends:
                row.append("–")
            else:
                mean, lo, hi = (float(x or 0) for x in ends)
                row.append(f"{mean:+.3f} [{lo:+.3f}, {hi:+.3f}]" + (", not separated" if lo <= 0 <= hi else ""))
        rows.append(row)
    lines = [["Top-1, paired", *entries], ["---"] + ["---:"] * len(entries), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    path = RESULTS / "baselines.json"
    entries = dict(read_results(path).datasets) if path.is_file() else {}
    for name in sys.argv[1:] or SIZES:
        before = entries[name].figures if name in entries else {}
        entry = measure(name)
        entries[name] = entry.model_copy(update={"figures": before | entry.figures})
        write_results(path, "python benchmarks/baselines.py", entries)
    if not any("sketch_speedup" in e.figures for e in entries.values()):
        first = next(iter(entries))
        entries[first] = entries[first].model_copy(update={"figures": entries[first].figures | sketching.measure()})
        write_results(path, "python benchmarks/baselines.py", entries)
    tables = [summary(entries), beside(entries), *(comparison(n, e).markdown() for n, e in entries.items())]
    write_text(RESULTS / "baselines.md", "\n\n".join(tables) + "\n")
    print(summary(entries))


if __name__ == "__main__":
    main()
