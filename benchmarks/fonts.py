"""Sixty font families, a real set of many groups: benchmarks/results/fonts.json.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/fonts.py     # two hours on 2 cores from nothing; resumes, runs/fonts

benchmarks/recipes/fonts.yaml, all methods, settings chosen beforehand. Two sets of pictures:

held-out    four pictures of every family that were not trained on: other shifts and sizes of the same characters. The
            family is known, so the question has an answer, though not the oracle's: a picture in a family's hand
            should point to it. `top1_<method>`: the family is first of 60; `top10_...`; `kin_...`: it, or a family
            that is nearly the same (guda_sources/fonts.py, NEAR), is first. Guessing: 1/60.
fonts-12    200 samples of the model, against LOGO for a dozen families (two seeds): the usual evaluation. And the
            held-out pictures of that dozen by LOGO: `top1_of_12_<method>`.

Screening: `recall_at_10`: retrack's first of 60 is among posterior's first ten; `evals_per_query`: posterior, and a
race among its ten, against `evals_per_query_all`; `same_first`: both end at the same family. Shares have 95 %
Clopper-Pearson intervals, ..._lo and ..._hi.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from guda import steps
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.evaluation.intervals import clopper_pearson
from guda.evaluation.results import DatasetEntry, write_results
from guda.methods.base import get_method
from guda.run.data import load_data
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.scoring.screen import caught
from guda_sources.fonts import CHARACTERS, load_fonts

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fonts.json"
METHODS = ("posterior", "shift", "retrack", "similarity-pixel", "dtrak")
DOZEN = ("Arimo", "Liberation Sans", "Cousine", "Liberation Mono", "DejaVu Sans Mono", "Hack", "Cherry Bomb",
         "Dancing Script", "Old Standard TT", "Lato", "Gamaliel", "Roboto Slab")  # fmt: skip
HELD, EACH, TRAINED = "held-out", 4, 4
STOP, SCREEN = "top1@0.9,budget=4000", "posterior:10"


def held_out(run: Run) -> tuple[str, list[str]]:
    """The set, and the family of every picture."""
    data, every = load_data(run), load_fonts(None, 16, 2 * TRAINED)
    seen = {data.images[i].tobytes() for i in range(data.n)}
    chosen: dict[str, int] = {}
    for family in data.groups.names:
        fresh = [i for i, name in enumerate(every.ids) if name.startswith(f"{family}/") and _variant(name) >= TRAINED]
        fresh = [i for i in fresh if every.images[i].tobytes() not in seen]
        for i in generator("held-out", family).permutation(fresh)[:EACH]:
            letter = CHARACTERS.index(every.ids[i].rpartition("/")[2][0])
            chosen[f"{family} {letter:02d} {_variant(every.ids[i])}"] = int(i)
    ids = tuple(sorted(chosen))
    queries = Queries(ids, every.images[[chosen[name] for name in ids]], None, HELD)
    if not run.has(f"queries/{HELD}/index.json"):
        queries.save(run.path("queries", HELD))
    return HELD, [name.rsplit(" ", 2)[0] for name in ids]


def _variant(name: str) -> int:
    return int(name.rpartition("-")[2])


def share(name: str, hits: np.ndarray) -> dict[str, float]:
    lo, hi = clopper_pearson(int(hits.sum()), len(hits))
    return {name: float(hits.mean()), f"{name}_lo": lo, f"{name}_hi": hi}


def known_answers(scores: dict[str, Scores], families: list[str], near: list[list[str]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, table in scores.items():
        truth = np.array([table.groups.index(family) for family in families])
        rank = table.rank[np.arange(len(truth)), truth]
        kin = [{family, *(b if a == family else a for a, b in near if family in (a, b))} for family in families]
        first = [table.groups[g] for g in table.rank.argmin(axis=1)]
        found |= share(f"top1_{name}", rank == 1) | share(f"top10_{name}", rank <= 10)
        found |= share(f"kin_{name}", np.array([f in k for f, k in zip(first, kin, strict=True)]))
    return found


def main() -> None:
    run = steps.init(
        ROOT / "runs" / "fonts", Recipe.read(ROOT / "benchmarks" / "recipes" / "fonts.yaml"), keep_edits=True
    )
    engine = steps.local_engine()
    steps.change_groups(run, "all")
    steps.fit(run, METHODS, engine)
    samples = steps.sample(run, engine)
    held, families = held_out(run)
    near = [pair[:2] for pair in load_data(run).meta["near"]]
    scores = {name: steps.score(run, name, METHODS, engine) for name in (held, samples)}
    figures = known_answers(scores[held], families, near)
    for name, tables in scores.items():
        first = tables["retrack"].rank.argmin(axis=1)
        raced = steps.score(run, name, ["retrack"], engine, stop=STOP, screen=SCREEN)["retrack"]
        kind = name.partition("-")[0]
        figures |= share(f"recall_at_10_{kind}", caught({"posterior": tables["posterior"]}, tables["retrack"], 10))
        figures |= share(f"same_first_{kind}", raced.rank.argmin(axis=1) == first)
        evals = steps.evals_per_picture(run, raced) + get_method(run, "posterior").score_evals()
        figures |= {f"evals_per_query_{kind}": float(evals)}
    figures |= {"evals_per_query_all": float(get_method(run, "retrack").score_evals())}
    figures |= {f"fit_seconds_per_group_{m}": (run.seconds(f"fit/{m}") or 0.0) / 60 for m in ("shift", "retrack")}

    steps.change_groups(run, ",".join(DOZEN))
    steps.fit(run, ["logo"], engine)
    ours = np.array([family in DOZEN for family in families])
    for name, table in steps.score(run, held, ["logo", *METHODS], engine).items():
        truth = np.array([table.groups.index(f) if f in DOZEN else -1 for f in families])
        figures |= share(f"top1_of_12_{name}", (table.rank.argmin(axis=1) == truth)[ours])
    steps.score(run, samples, ["logo", *METHODS], engine)
    entry = steps.evaluate(run, samples)
    steps.change_groups(run, "all")
    print("\n".join(f"{name:<36}{value:,.4g}" for name, value in figures.items() if not name.endswith(("_lo", "_hi"))))
    held_entry = DatasetEntry(
        n_queries=len(families), n_groups=60, seeds=[0], ceiling=None, methods={}, figures=figures,
        note="pictures of known families that were not trained on; the answer is the family, not a retraining",
    )  # fmt: skip
    write_results(RESULTS, "python benchmarks/fonts.py", {"held-out": held_entry, "fonts-12": entry})


if __name__ == "__main__":
    main()
