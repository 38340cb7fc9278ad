"""Text-to-image attribution for real, at 16x16 pixels: eight drawing styles of the same 300 emoji.

    .venv/bin/python benchmarks/emoji.py [--runs FOLDER] [--seeds N] [--workers N]        # resumes

A small UNet2DConditionModel is pretrained on two styles that are no groups (recipe emoji-start) and fine-tuned on the
eight (full model, LOGO with three seeds). Its pictures of 30 objects in every style are attributed: GUDA-C with the
three anchors, continuation, tangent, short retrainings, blends and stacks of them, D-TRAK, DAS, the similarity
baselines and `prompt`, each against LOGO, with intervals and ceiling, under both estimands (figures:
benchmarks/conditional.py).

Settings of the unlearning were chosen on queries of seed 7 (other noise, 8 of 10 objects others), for anchors-
weighted; uniform and removed share them. The queries reported have seed 42. Weights of blends are chosen on pictures
of seed 2042, of stacks on pictures of seed 4042, all of other objects. Continuation and short have the training's own
settings and 80 steps, tangent 160; nothing was tuned here.

`--runs` may hold runs that path.py made (emoji-start, emoji): what is trained is kept, missing LOGO seeds are added.

Writes benchmarks/results/emoji.{json,md}, emoji-figure.png and emoji.recipe.yaml. Needs npm, or GUDA_EMOJI.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import conditional
from guda import steps
from guda.cli.display import Display
from guda.evaluation.ceiling import compare
from guda.evaluation.results import DatasetEntry, write_results
from guda.evaluation.tables import comparison
from guda.files import write_text
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.recipe import Recipe, builtin_recipe
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.fit import Engine
from guda.steps.plan import outline

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RECIPES = ROOT / "benchmarks" / "recipes"
TWINS = ("fluent-emoji", "fluent-emoji-flat")
PAIRS = (
    ("anchors-weighted", "anchors-uniform"),
    ("anchors-weighted", "anchors-removed"),
    ("anchors-weighted", "similarity-efficientnet-style"),
    ("anchors-weighted", "similarity-pixel"),
)


ATTENTION = r"attn2\.to_[kv]"  # the weights that gradient methods look at, as in the paper's experiment
FURTHER: dict[str, dict[str, object]] = {
    "continuation": {},
    "short": {},
    "tangent": {},
    "dtrak": {"weights": ATTENTION},
    "das": {"weights": ATTENTION},
    "trak": {"weights": ATTENTION},
    "blend": {"methods": ["anchors-weighted", "continuation", "short"]},
}
VARIANTS: conditional.Variants = {
    "blend-anchors-continuation": ("blend", {"methods": ["anchors-weighted", "continuation"]}),
    "blend-anchors-short": ("blend", {"methods": ["anchors-weighted", "short"]}),
    "blend-continuation-short": ("blend", {"methods": ["continuation", "short"]}),
    "stack-anchors-dtrak": ("stack", {"methods": ["anchors-weighted", "dtrak"]}),
    "stack-continuation-prompt": ("stack", {"methods": ["continuation", "prompt"]}),
    "stack-tangent-prompt": ("stack", {"methods": ["tangent", "prompt"]}),
    "stack-short-prompt": ("stack", {"methods": ["short", "prompt"]}),
    "stack-all": ("stack", {"methods": ["anchors-weighted", "continuation", "short", "dtrak", "prompt"]}),
    "dtrak-norm": ("dtrak", {"weights": ATTENTION, "lam": 1.0, "lam_scale": "norm", "aggregate": "removal"}),
}


def prepared(root: Path, recipe: Recipe) -> Run:
    run = steps.init(root, recipe)
    steps.prompts_build(run)
    return run


def measure(root: Path, seeds: int, engine: Engine) -> tuple[Run, DatasetEntry]:
    if (root / "emoji" / "run.json").is_file():
        run = Run.open(root / "emoji")
    else:
        start = prepared(root / "emoji-start", Recipe.read(RECIPES / "emoji-start.yaml"))
        steps.train(start, engine)
        value = Recipe.read(RECIPES / "emoji.yaml").model_dump(mode="json")
        value["model"]["start"] = str(root / "emoji-start" / "models" / "full-s0")
        run = prepared(root / "emoji", Recipe.from_dict(value, "emoji benchmark"))
    steps.update_settings(run, "logo", {"seeds": list(range(1, seeds + 1))})
    for name, settings in FURTHER.items():
        steps.update_settings(run, name, settings)
    entry = steps.pipeline(run, engine)
    steps.score(run, steps.choose_queries(run), ["pretrained"], engine)
    return run, entry


def figures(run: Run, entry: DatasetEntry) -> dict[str, float]:
    queries = steps.choose_queries(run)
    found = differences(run, queries) | twins(run, queries, list(entry.methods))
    for m, e in entry.methods.items():
        if m != "logo" and e.ratio_to_ceiling:
            ratio = e.ratio_to_ceiling["top1"]
            found |= {f"ratio_to_ceiling.{m}": ratio.mean, f"ratio_to_ceiling_lo.{m}": ratio.lo,
                      f"ratio_to_ceiling_hi.{m}": ratio.hi}  # fmt: skip
    for band, row in steps.evaluate_bands(run, queries).items():
        found |= {f"bands.{band}.{m}": x for m, x in row.items()}
    paper = outline(builtin_recipe("unlearncanvas-paper"))
    found |= {f"unlearncanvas.evals.{r['what']}": float(r["evals"]) for r in paper["rows"]}
    found |= {f"unlearncanvas.bank_gb.{store}": size / 1e9 for store, size in paper["bank"].items()}
    row = Scores.read(steps.scores_path(run, queries, "pretrained")).score[:, 0]
    return found | {"pretrained_nats_median": float(np.median(row)), "pretrained_positive": float((row > 0).mean())}


def differences(run: Run, queries: str) -> dict[str, float]:
    """Paired differences of Top-1 and of the mean reciprocal rank."""
    data, oracle = load_queries(run, queries), get_method(run, "logo")
    logo = oracle.all_scores(data)  # type: ignore[attr-defined]
    gold = np.stack([logo[f"logo-s{s}"].score for s in oracle.config.seeds])
    scores = {m: get_method(run, m).scores(data).score for m in {m for pair in PAIRS for m in pair}}
    found = {}
    for one, two in PAIRS:
        pair = (
            compare(gold, {one: scores[one], two: scores[two]}, reference=two, n=2000, seed=0).methods[one].difference
        )
        for metric in ("top1", "mrr", "spearman"):
            name, value = f"{metric}.{one}_minus_{two}", pair[metric]
            found |= {name: value.mean, f"{name}.lo": value.lo, f"{name}.hi": value.hi}
    return found


def twins(run: Run, queries: str, methods: list[str]) -> dict[str, float]:
    """How often a picture drawn by the prompt of one fluent set is given to that set, to its twin, to neither."""
    found = {}
    for m in methods:
        scores = Scores.read(steps.scores_path(run, queries, m))
        first = np.array(scores.groups)[scores.score.argmax(axis=1)]
        asked = np.array([q.split("/")[0] for q in scores.queries])
        found[f"prompted_style_first.{m}"] = float((first == asked).mean())
        mine = np.isin(asked, TWINS)
        other = np.where(asked == TWINS[0], TWINS[1], TWINS[0])
        found |= {f"twins.itself.{m}": float((first == asked)[mine].mean()),
                  f"twins.twin.{m}": float((first == other)[mine].mean())}  # fmt: skip
    return found


def grid(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(run: Run, entry: DatasetEntry) -> str:
    f = entry.figures
    rows = []
    for one, two in PAIRS:
        row = [f"{one} - {two}"]
        for metric in ("top1", "mrr", "spearman"):
            mean, lo, hi = (f[f"{metric}.{one}_minus_{two}{end}"] for end in ("", ".lo", ".hi"))
            row.append(f"{mean:+.3f} [{lo:+.3f}, {hi:+.3f}]" + (" (not separated)" if lo <= 0 <= hi else ""))
        rows.append(row)
    bands = list(dict.fromkeys(k.split(".")[1] for k in f if k.startswith("bands.")))
    named = list(dict.fromkeys(k.split(".", 2)[2] for k in f if k.startswith("bands.")))
    twin = [[m, f"{f[f'prompted_style_first.{m}']:.2f}", f"{f[f'twins.itself.{m}']:.2f}", f"{f[f'twins.twin.{m}']:.2f}"]
            for m in entry.methods]  # fmt: skip
    return "\n\n".join([
        comparison("emoji", entry).markdown(),
        "Paired differences, 95 % intervals over queries:",
        grid(["", "Top-1", "MRR", "Spearman"], rows),
        "Top-1 by noise band, each band against its own oracle:",
        grid(["t in", *bands], [[m, *(f"{f[f'bands.{b}.{m}']:.2f}" for b in bands)] for m in named]),
        "Which style comes first: that of the prompt; for the two fluent sets, itself or its twin:",
        grid(["method", "prompted style first", "fluent sets: itself", "its twin"], twin),
    ])  # fmt: skip


def credits_() -> str:
    """The sets' licences ask for it."""
    from guda_sources.emoji import licences

    sets = [
        f"{name} ({v.get('author', '?')}, {v.get('licence', v.get('license', '?'))})" for name, v in licences().items()
    ]
    return "Pictures in the figure: " + "; ".join(sets) + "; scaled to 16x16 pixels."


def prompt_tables(run: Run) -> list[str]:
    """Like the paper's last two tables."""
    shown = steps.prompts_show(run)["examples"]
    anchors = [(style, a) for style in load_data(run).groups.names
               for a in steps.prompts_show(run, forget=style)["anchors"] if a["strategy"] == "weighted"]  # fmt: skip
    return [
        "Training and evaluation prompts, one object of every style:",
        grid(["style", "object", "training prompt", "evaluation prompt"],
             [[r["style"], r["object"], r["training"], r["evaluation"]] for r in shown]),
        "Forget prompts and a weighted anchor of each, with the three likeliest styles:",
        grid(["forget style", "forget prompt", "anchor prompt", "pi"],
             [[style, a["forget"], a["anchor"],
               ", ".join(f"{s} {p:.2f}" for s, p in sorted(a["probabilities"].items(), key=lambda kv: -kv[1])[:3])]
              for style, a in anchors]),
    ]  # fmt: skip


METHODS = ("logo", "anchors-weighted", "anchors-uniform", "anchors-removed", "similarity-efficientnet-style")


def picture(run: Run, path: Path) -> None:
    """One query of every style, never chosen by hand (of the i-th style the i-th object): each method's top three with
    the training picture of that object in that group; green frames the oracle's first, orange its second and third."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    name, data = steps.choose_queries(run), load_data(run)
    queries = load_queries(run, name)
    assert data.contents is not None
    styles = [q.split("/")[0] for q in queries.ids]
    chosen = [[i for i, s in enumerate(styles) if s == style][k] for k, style in enumerate(dict.fromkeys(styles))]
    scores = {m: Scores.read(steps.scores_path(run, name, m)) for m in METHODS}
    figure, axes = plt.subplots(
        len(chosen), 1 + 3 * len(METHODS), figsize=(2.2 + 2.05 * len(METHODS), 1.02 * len(chosen))
    )

    def show(axis, image, title="", colour=None) -> None:  # type: ignore[no-untyped-def]
        axis.imshow(image.transpose(1, 2, 0), interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_title(title, fontsize=5, pad=2)
        for spine in axis.spines.values():
            spine.set(color=colour or "#cccccc", linewidth=2.2 if colour else 0.5)

    for row, q in zip(axes, chosen, strict=True):
        style, _, thing = queries.ids[q].partition("/")
        show(row[0], queries.images[q], f"{style}\n{thing}"[:40])
        oracle = np.argsort(-scores["logo"].score[q], kind="stable")[:3]
        for m, method in enumerate(METHODS):
            order = np.argsort(-scores[method].score[q], kind="stable")[:3]
            for rank, g in enumerate(order):
                members = data.groups.members(data.groups.index(scores[method].groups[g]))
                same = [i for i in members if data.contents[i].replace(" ", "-") == thing]
                colour = "#009E73" if g == oracle[0] else "#E69F00" if g in oracle else None
                show(row[1 + 3 * m + rank], data.images[(same or members)[0]], scores[method].groups[g][:16], colour)
    for m, method in enumerate(METHODS):
        first = axes[0][1 + 3 * m]
        first.annotate(method, (0, 1.5), xycoords="axes fraction", fontsize=7, weight="bold")
    axes[0][0].annotate("query", (0, 1.62), xycoords="axes fraction", fontsize=7, weight="bold")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.01, wspace=0.08, hspace=0.42)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--seeds", type=int, default=3, help="LOGO seeds")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    with Display() as display:
        engine = steps.local_engine(given.workers, watch=display.watch)
        run, entry = measure(given.runs, given.seeds, engine)
        methods = [m for m in run.recipe.methods if m not in ("logo", "pretrained")]
        told = conditional.measure(run, steps.choose_queries(run), methods, engine, VARIANTS)
    entry = entry.model_copy(update={"figures": entry.figures | figures(run, entry) | told.figures})
    above = steps.evaluate(run, steps.choose_queries(run), band="100:1000")
    write_results(RESULTS / "emoji.json", "python benchmarks/emoji.py", {"emoji": entry, "emoji-t100": above})
    text = [
        tables(run, entry),
        comparison("emoji, counting t >= 100 only (another estimand, another oracle)", above).markdown(),
        conditional.markdown("emoji", entry),
    ]
    write_text(RESULTS / "emoji.md", "\n\n".join([*text, *prompt_tables(run), credits_()]) + "\n")
    write_text(RESULTS / "emoji.recipe.yaml", run.recipe.to_yaml())
    picture(run, RESULTS / "emoji-figure.png")
    print(tables(run, entry))


if __name__ == "__main__":
    main()
