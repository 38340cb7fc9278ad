"""Every unlearning operator against the LOGO oracle, on digits and Fashion-MNIST: fidelity, noise bands, cost, storage.

    .venv/bin/python benchmarks/operators.py                    # hours from nothing (LOGO: 33 + 23 trainings); resumes
    .venv/bin/python benchmarks/operators.py fashion-mnist      # one data set

Writes benchmarks/results/operators.{json,md}. Settings were chosen on queries of sampling seed 0 (SETTINGS below says
how); the queries reported have seed 1. Timesteps are placed without a pilot (`stratified`), because a pilot measured on
one operator would favour it. LOGO's cost is that of the shortest honest budget (benchmarks/logo_budget.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from guda import steps
from guda.cli.display import Display
from guda.evaluation.ceiling import compare
from guda.evaluation.results import DatasetEntry, Figure, read_results, write_results
from guda.evaluation.tables import comparison
from guda.files import read_json, write_text
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.run.models import need_training
from guda.run.recipe import Recipe, builtin_recipe
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.fit import Engine
from guda.steps.setting_trial import Trials
from guda.unlearning.bank import bank_fraction

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SIZES = {"digits": (1000, [1, 2, 3]), "fashion-mnist": (500, [1, 2])}

# retrack, shift, posterior, hybrid: the recipe's own settings, chosen by hand on 300 queries of seed 0 and all groups.
# The others have retrack's steps and batches; forget weight and learning rate are from `guda tune --trials 8 -n 150
# --queries-seed 0 --groups 5 --search "lambda_forget=0.03..10,lr=3e-5..1e-3"` (traces in benchmarks/results/tune/).
OTHERS = ("retrack-zero", "esd", "siss", "erasediff", "ascent", "retain")
STORES = ("fp32", "bf16", "lowrank:4", "lowrank:16", "lora:4", "lora:16")
STORED = "shift"


def recipe_of(name: str) -> Recipe:
    value = builtin_recipe(name).model_dump(mode="json")
    n, seeds = SIZES[name]
    own = value["methods"]
    shared = ("steps", "lr", "decay", "batch_forget", "batch_retain")
    same = {k: own["retrack"][k] for k in shared if k in own["retrack"]}
    own["logo"]["seeds"] = seeds
    own |= {m: same | SETTINGS.get((name, m), {}) for m in OTHERS}
    value["queries"] = {"n": n, "seed": 1}
    value["scoring"] = {"plan": "stratified", "strata": 24, "rounds": 3, "block": 256, "shard": 64}
    value["evaluation"] = {"against": "logo", "reference": "similarity-pixel"}
    return Recipe.from_dict(value, "operators benchmark")


SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "esd"): {"lambda_forget": 1.58, "lr": 1.96e-4},
    ("digits", "siss"): {"lambda_forget": 1.84, "lr": 3.78e-4},
    ("digits", "erasediff"): {"lambda_forget": 0.229, "lr": 1.78e-4},
    ("digits", "ascent"): {"lambda_forget": 1.84, "lr": 3.78e-4},
    ("digits", "retrack-zero"): {"lambda_forget": 0.248, "lr": 2.91e-4},
    ("fashion-mnist", "esd"): {"lambda_forget": 0.248, "lr": 2.91e-4},  # 6 trials
    # not tuned here: the forget weights chosen on digits, retrack's learning rate
    ("fashion-mnist", "siss"): {"lambda_forget": 1.84},
    ("fashion-mnist", "erasediff"): {"lambda_forget": 0.229},
    ("fashion-mnist", "ascent"): {"lambda_forget": 1.84},
    ("fashion-mnist", "retrack-zero"): {"lambda_forget": 0.248},
}


def logo_evals(run: Run, name: str) -> float:
    """Evaluation units of one retraining at the shortest budget that is long enough."""
    training = need_training(run)
    stored = read_json(RESULTS / "logo-budget.json")
    assert isinstance(stored, dict)
    steps = stored["shortest"].get(name) or training.steps
    return 3.0 * training.batch * min(steps, training.steps)


def figures(run: Run, name: str, entry: DatasetEntry, engine: Engine) -> dict[str, float]:
    found: dict[str, float] = {}
    budget = logo_evals(run, name)
    for m, e in entry.methods.items():
        if m == "logo":
            continue
        if e.ratio_to_ceiling:
            found[f"ratio_to_ceiling.{m}"] = e.ratio_to_ceiling["top1"].mean
            found[f"ratio_to_ceiling_lo.{m}"] = e.ratio_to_ceiling["top1"].lo
            found[f"ratio_to_ceiling_hi.{m}"] = e.ratio_to_ceiling["top1"].hi
        if e.fit_evals:
            found[f"evals_ratio_vs_logo.{m}"] = budget / e.fit_evals
            found[f"evals_ratio_vs_logo_as_trained.{m}"] = 3.0 * need_training(run).steps * 128 / e.fit_evals
    queries = steps.choose_queries(run)
    for band, row in steps.evaluate_bands(run, queries).items():
        found |= {f"bands.{band}.{m}": x for m, x in row.items()}
    found |= {f"retrack_minus_esd.{k}": v for k, v in _difference(run, queries, "retrack", "esd").items()}
    return found | scales(run, queries, entry.methods) | _stores(run, queries, engine)


def scales(run: Run, queries: str, methods: Iterable[str]) -> dict[str, float]:
    """How large a method's scores are beside LOGO's, and how well they follow: root mean square of the scores centred
    over groups, as a ratio, and their correlation. A ratio of 1 means nats that can be read as LOGO's."""
    import numpy as np

    def centred(method: str) -> np.ndarray:
        score = Scores.read(steps.scores_path(run, queries, method)).score
        return score - score.mean(axis=1, keepdims=True)

    logo, found = centred("logo"), {}
    for m in methods:
        if m != "logo" and not m.startswith("similarity"):
            mine = centred(m)
            found[f"scale.{m}"] = float(np.sqrt((mine**2).mean() / (logo**2).mean()))
            found[f"correlation.{m}"] = float(np.corrcoef(mine.ravel(), logo.ravel())[0, 1])
    return found


def _difference(run: Run, queries: str, one: str, two: str) -> dict[str, float]:
    """Paired difference of Top-1."""
    import numpy as np

    data, oracle = load_queries(run, queries), get_method(run, "logo")
    logo = oracle.all_scores(data)  # type: ignore[attr-defined]
    gold = np.stack([logo[f"logo-s{s}"].score for s in oracle.config.seeds])
    scores = {m: get_method(run, m).scores(data).score for m in (one, two)}
    found = compare(gold, scores, reference=two, n=2000, seed=0).methods[one].difference["top1"]
    return {"mean": found.mean, "lo": found.lo, "hi": found.hi}


def _stores(run: Run, queries: str, engine: Engine) -> dict[str, float]:
    """What a smaller bank costs in fidelity: the same operator, stored in other ways."""
    import torch
    from diffusers import UNet2DModel

    with torch.device("meta"):
        paper = UNet2DModel(
            sample_size=32, in_channels=3, out_channels=3, layers_per_block=3, block_out_channels=(128, 256, 256, 256),
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"), dropout=0.3,
        )  # fmt: skip
    found = {"bank_fraction": bank_fraction(paper, "lora:4")}
    trials = Trials(run, queries)
    trials.prepare(engine)
    base = run.recipe.methods[STORED]
    methods = {}
    for store in STORES:
        # an adapter starts from zero and moves less per step, so its rate is ten times larger; nothing was tuned
        extra = {"lr": 10 * base["lr"]} if store.startswith("lora") else {}
        methods[store] = trials.method(STORED, base | extra | {"store": store}, "operators benchmark")
        trials.carry_out(methods[store], engine)
    compared = trials.compare(methods)
    for store in STORES:
        found[f"bank_fraction.{store}"] = bank_fraction(paper, store)
        ratio = compared.methods[store].ratio_to_ceiling["top1"]
        found |= {f"bank_ratio_to_ceiling.{store}": ratio.mean, f"bank_ratio_to_ceiling_lo.{store}": ratio.lo,
                  f"bank_ratio_to_ceiling_hi.{store}": ratio.hi}  # fmt: skip
    return found


def measure(name: str) -> DatasetEntry:
    run = steps.init(ROOT / "runs" / f"operators-{name}", recipe_of(name))
    with Display() as display:
        engine = steps.local_engine(watch=display.watch)
        entry = steps.pipeline(run, engine)
        return entry.model_copy(update={"figures": entry.figures | figures(run, name, entry, engine)})


def _grid(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(figure: Figure | None) -> str:
    return "–" if figure is None else f"{figure.mean:.2f} [{figure.lo:.2f}, {figure.hi:.2f}]"


def summary(entries: dict[str, DatasetEntry]) -> str:
    """Top-1, share of the ceiling and cost of every method, side by side."""
    header = ["method"]
    for name in entries:
        header += [f"{name} Top-1", "of ceiling", "LOGO/fit"]
    rows = [["LOGO, one retraining (ceiling)"]]
    for e in entries.values():
        rows[0] += [_interval((e.ceiling or {}).get("top1")), "1", "1"]
    for m in dict.fromkeys(m for e in entries.values() for m in e.methods if m != "logo"):
        row = [m]
        for e in entries.values():
            found, ratio = e.methods.get(m), e.figures.get(f"evals_ratio_vs_logo.{m}")
            row += [_interval(found.metrics["top1"] if found else None),
                    _interval((found.ratio_to_ceiling or {}).get("top1") if found else None),
                    "no fit" if ratio is None else f"{ratio:.0f}x"]  # fmt: skip
        rows.append(row)
    return _grid(header, rows)


def bands_table(name: str, entry: DatasetEntry) -> str:
    """Top-1 in each noise band; the band's own ceiling first."""
    found = [k.split(".", 2)[1:] for k in entry.figures if k.startswith("bands.")]
    bands, methods = (list(dict.fromkeys(column)) for column in zip(*found, strict=True))
    rows = [[m, *(f"{entry.figures[f'bands.{b}.{m}']:.2f}" for b in bands)] for m in methods]
    return _grid([f"{name}, t in", *bands], rows)


def storage_table(entries: dict[str, DatasetEntry]) -> str:
    """What a counterfactual takes at the paper's 49.1 M UNet, and what it costs in agreement."""
    header = [f"{STORED}, stored as", "share of a full copy", *(f"{n}, of ceiling" for n in entries)]
    rows = []
    for store in STORES:
        row = [store, f"{100 * next(iter(entries.values())).figures[f'bank_fraction.{store}']:.1f} %"]
        for e in entries.values():
            mean, lo, hi = (e.figures[f"bank_ratio_to_ceiling{end}.{store}"] for end in ("", "_lo", "_hi"))
            row.append(f"{mean:.2f} [{lo:.2f}, {hi:.2f}]")
        rows.append(row)
    return _grid(header, rows)


def scale_table(entries: dict[str, DatasetEntry]) -> str:
    header = ["nats beside LOGO's", *(f"{n}: {what}" for n in entries for what in ("size", "correlation"))]
    first = next(iter(entries.values()))
    rows = []
    for m in (k.removeprefix("scale.") for k in first.figures if k.startswith("scale.")):
        rows.append([m, *(f"{e.figures[f'{w}.{m}']:.2f}" for e in entries.values() for w in ("scale", "correlation"))])
    return _grid(header, rows)


def plot(entries: dict[str, DatasetEntry]) -> None:
    """Top-1 in each noise band, against that band's own ceiling."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(entries), figsize=(4.6 * len(entries), 3.4), sharey=True, squeeze=False)
    for axis, (name, entry) in zip(axes[0], entries.items(), strict=True):
        bands = list(dict.fromkeys(k.split(".")[1] for k in entry.figures if k.startswith("bands.")))
        for m, style in PLOTTED.items():
            axis.plot([entry.figures[f"bands.{b}.{m}"] for b in bands], label=m, **style)
        axis.set(title=f"{name}, {entry.n_queries:,} queries", xlabel="timesteps t (noise grows to the right)")
        axis.set_xticks(range(len(bands)), [b.replace(":", "-") for b in bands], fontsize=7)
    axes[0][0].set_ylabel("Top-1 agreement with LOGO")
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "guda"
    figure.savefig(RESULTS / "operators-bands.svg", metadata={"Date": None})


PLOTTED: dict[str, dict[str, Any]] = {  # colours told apart by colour-blind readers too (Okabe and Ito)
    "ceiling": {"color": "black", "ls": "--"},
    "hybrid": {"color": "#0072B2", "marker": "o"},
    "posterior": {"color": "#56B4E9", "marker": "v"},
    "shift": {"color": "#009E73", "marker": "s"},
    "retrack": {"color": "#D55E00", "marker": "^"},
    "esd": {"color": "#CC79A7", "marker": "D"},
}


def main() -> None:
    path = RESULTS / "operators.json"
    entries = dict(read_results(path).datasets) if path.is_file() else {}
    for name in sys.argv[1:] or SIZES:
        entries[name] = measure(name)
        write_results(path, "python benchmarks/operators.py", entries)
    tables = [summary(entries), *(bands_table(n, e) for n, e in entries.items())]
    tables += [scale_table(entries), storage_table(entries)]
    tables += [comparison(n, e).markdown() for n, e in entries.items()]
    write_text(RESULTS / "operators.md", "\n\n".join(tables) + "\n")
    plot(entries)
    print(summary(entries))


if __name__ == "__main__":
    main()
