"""How cheap may unlearning be? Agreement with retraining against the cost of the fit.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/cost.py [--runs FOLDER] [--only cifar10 ...]     resumes

Operators of the recipe with fewer and fewer steps; the learning rate grows so that their product stays what the recipe
has, up to the rate at which the network was trained from scratch (of cifar10: its start); tangent has the training's
own rate throughout. Nothing else is changed, and nothing is chosen by these pictures. The runs are those of path.py,
with LOGO trained. Path divergence against the average picture, and ELBO differences. Of cifar10 also

retrack-lora-N                  N steps that train adapters of rank 4 alone, at the largest rate of the others
retrack-stop                    a fifth of the images is held out and says when to stop, after 200 steps at the latest;
                                its fit_ratio has the steps that were taken, and the measurements

Figures of benchmarks/results/cost.json; E: elbo, path-excess; intervals .lo, .hi

fit_ratio.M                     evaluation units of one retraining over those of one unlearning; posterior evaluates no
                                network: none
top1.E.M, of_ceiling.E.M        Top-1 with LOGO, and over that of two retrainings with one another
spearman.E.M, of_ceiling_spearman.E.M
reliability_top1.E              Top-1 of one retraining with the mean of the others
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from guda import steps
from guda.evaluation.ceiling import compare
from guda.evaluation.results import DatasetEntry, keep_entry
from guda.files import write_text
from guda.methods.base import get_method
from guda.methods.unlearned import Unlearned
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.fit import Engine
from path import Figures, agreement, tables

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/cost.py"
RESULTS = ROOT / "benchmarks" / "results"
DATASETS = ("digits", "fashion-small", "cifar10")
STEPS = {"retrack": (5, 10, 25, 50, 100, 200), "shift": (5, 10, 25, 50, 100, 200), "tangent": (10, 20, 40, 80, 160)}
FEWER = {
    "retrack": (5, 10, 25, 50, 200),
    "shift": (5, 10, 25, 100),
    "tangent": (20, 160),
}  # of natural images, whose network is slow
RATES = {"cifar10": 1e-3}  # of the start's training
LORA = (25, 100)
WITHOUT_STEPS = ("posterior", "similarity-pixel", "dtrak")
KINDS = {"path-excess": {"estimand": "path", "excess": True}, "elbo": {"estimand": "elbo", "excess": False}}
PLAN = {"plan": "stratified", "strata": 12, "rounds": 3}


def shortened(run: Run, operator: str, n: int, most: float) -> list[str]:
    """The settings of the recipe with `n` steps at a rate of at most `most`, as texts of --set."""
    kept = run.recipe.settings(operator)
    if operator == "tangent":
        return [f"steps={n}"]
    return [f"steps={n}", f"lr={min(kept['lr'] * kept['steps'] / n, most):.6g}"]


def asked_of(run: Run, name: str) -> dict[str, tuple[str, list[str]]]:
    """The operator and the settings of every label."""
    assert run.recipe.training is not None
    most = RATES.get(name, run.recipe.training.lr)
    found = {
        f"{operator}-{n}": (operator, shortened(run, operator, n, most))
        for operator, several in (FEWER if name == "cifar10" else STEPS).items()
        for n in several
    }
    if name == "cifar10":
        found |= {f"retrack-lora-{n}": ("retrack", [f"steps={n}", f"lr={most:g}", "store=lora:4"]) for n in LORA}
        found["retrack-stop"] = ("retrack", ["holdout=0.2"])
    return found


def spent(run: Run, operator: str) -> float:
    """Evaluation units of one unlearning; where held-out images may stop it, by the steps that were taken."""
    found = get_method(run, operator)
    if not found.config.holdout:
        return float(found.fit_evals())
    assert isinstance(found, Unlearned)
    notes = [json.loads(run.path(found.path(g)).with_suffix(".json").read_text()) for g in found.groups]
    settings = [found.settings.model_copy(update={"steps": note["steps"]}) for note in notes]
    return float(np.mean([found.operator.fit_evals(s) for s in settings]))


def measure(run: Run, name: str, engine: Engine) -> DatasetEntry:
    queries = steps.sample(run, engine)
    figures: Figures = {}
    retraining = get_method(run, "logo").fit_evals()
    for kind, settings in KINDS.items():
        asked = steps.override(run, scoring=PLAN | settings)
        found: dict[str, Scores] = tables(asked, queries, ["logo", *WITHOUT_STEPS], engine)
        gold = np.stack([s.score for m, s in found.items() if m.startswith("logo-s")])
        rows = {m: found[m].score for m in WITHOUT_STEPS}
        for label, (operator, changed) in asked_of(run, name).items():
            few = steps.override(run, scoring=PLAN | settings, methods=[operator], settings=changed)
            steps.fit(few, [operator], engine)
            rows[label] = steps.score(few, queries, [operator], engine)[operator].score
            figures[f"fit_ratio.{label}"] = retraining / spent(few, operator)
        figures["fit_ratio.dtrak"] = retraining / get_method(run, "dtrak").fit_evals()
        agreement(figures, kind, compare(gold, rows))
    return DatasetEntry(
        n_queries=len(found["logo"].queries), n_groups=len(found["logo"].groups),
        seeds=list(get_method(run, "logo").config.seeds), ceiling=None, methods={}, figures=figures,
        note="see benchmarks/cost.py",
    )  # fmt: skip


def markdown(datasets: dict[str, DatasetEntry]) -> str:
    def cell(f: Figures, name: str) -> str:
        return f"{f[name]:.2f} [{f[name + '.lo']:.2f}, {f[name + '.hi']:.2f}]" if name in f else ""

    lines = ["# Agreement against cost", "", "Written by `benchmarks/cost.py`, which explains the figures.", ""]
    head = ["data set", "method", "retraining costs", *(f"Top-1 / ceiling, {kind}" for kind in KINDS),
            *(f"Spearman / ceiling, {kind}" for kind in KINDS)]  # fmt: skip
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for data, entry in datasets.items():
        f = entry.figures
        for m in [k.removeprefix("of_ceiling.elbo.") for k in f if k.startswith("of_ceiling.elbo.")]:
            if not m.endswith((".lo", ".hi")):
                ratio = f.get(f"fit_ratio.{m}")
                row = [data, m, "" if ratio is None else f"{ratio:,.0f} x"]
                row += [
                    cell(f, f"{name}.{kind}.{m}") for name in ("of_ceiling", "of_ceiling_spearman") for kind in KINDS
                ]
                lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def picture(datasets: dict[str, DatasetEntry], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(datasets), figsize=(4.6 * len(datasets), 3.4), sharey=True, squeeze=False)
    for axis, (data, entry) in zip(axes[0], datasets.items(), strict=True):
        f = entry.figures
        for operator, colour in zip(STEPS, ("#0072B2", "#D55E00", "#009E73"), strict=True):
            for kind, line in zip(KINDS, ("-", ":"), strict=True):
                names = [m for n in range(1000) if f"fit_ratio.{(m := f'{operator}-{n}')}" in f]
                x, y = [f[f"fit_ratio.{m}"] for m in names], [f[f"of_ceiling.{kind}.{m}"] for m in names]
                reach = [[a - f[f"of_ceiling.{kind}.{m}.lo"] for a, m in zip(y, names, strict=True)],
                         [f[f"of_ceiling.{kind}.{m}.hi"] - a for a, m in zip(y, names, strict=True)]]  # fmt: skip
                axis.errorbar(x, y, reach, color=colour, linestyle=line, marker="o", markersize=3, capsize=2,
                              label=f"{operator}, {kind}")  # fmt: skip
        axis.axhline(f["of_ceiling.path-excess.posterior"], color="#555555", linewidth=0.8,
                     label="posterior (no network), path-excess")  # fmt: skip
        axis.set(xscale="log", title=data, xlabel="a retraining costs so many unlearnings")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("Top-1 with LOGO / between retrainings")
    axes[0][0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "path")
    parser.add_argument("--only", nargs="*", choices=DATASETS, default=DATASETS)
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    engine = steps.local_engine(given.workers)
    for name in given.only:
        run = Run.open(given.runs / name)
        steps.fit(run, ["logo", *WITHOUT_STEPS], engine)
        datasets = keep_entry(RESULTS / "cost.json", COMMAND, name, measure(run, name, engine), DATASETS)
        write_text(RESULTS / "cost.md", markdown(datasets))
        picture(datasets, RESULTS / "cost.svg")
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
