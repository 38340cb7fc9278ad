"""Figures of measured numbers: fidelity against cost, scores as a heat map, one picture's ranking, ELBO against
likelihood, time against queries. Each takes what the tables take and writes one file; units and signs are on the
axes.

Colours can be told apart by colour-blind readers (Okabe and Ito); the same numbers give the same bytes. Matplotlib is
optional and imported when a figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from guda.engine.simulate import Schedule, busy
from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING
from guda.evaluation.metrics import LABELS
from guda.evaluation.results import Cost, DatasetEntry, MethodEntry
from guda.evaluation.tables import CEILING_NAME
from guda.evaluation.timing import Timing, crossing, one_retraining
from guda.files import atomic_path
from guda.scoring.bars import draw_bars
from guda.scoring.reading import axis_label
from guda.scoring.scores import Scores
from guda.table import human_count

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")  # grey for their yellow

MARKERS = ("o", "s", "^", "D", "v", "P", "X")

DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))

INK, FAINT = "#222222", "#BBBBBB"

DIVERGING = "RdBu_r"  # blue below 0, white at 0, red above

SETTINGS: Any = {
    "svg.hashsalt": "guda", "svg.fonttype": "path", "pdf.fonttype": 42, "font.family": "DejaVu Sans", "font.size": 8.5,
    "axes.titlesize": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK, "legend.frameon": False,
    "legend.fontsize": 7.5, "lines.linewidth": 1.3, "figure.dpi": 100, "savefig.dpi": 150, "path.simplify": True,
}  # fmt: skip

METADATA: dict[str, dict[str, Any]] = {  # no dates: the same numbers give the same bytes
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


def look(number: int) -> dict[str, Any]:
    """Colour and marker of the number-th series; 49 of them differ."""
    shift = number // len(OKABE_ITO)
    return {"color": OKABE_ITO[number % len(OKABE_ITO)], "marker": MARKERS[(number + shift) % len(MARKERS)]}


def dashes(number: int) -> Any:
    return DASHES[(number // len(OKABE_ITO)) % len(DASHES)]


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator[Any]:
    """A matplotlib Figure (inches) that is saved to `path` (.svg, .pdf, .png) when the block ends well."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise GudaError(
            "package-missing", 'figures need matplotlib; install it with: pip install "guda[figures]"'
        ) from None
    kind = path.suffix.removeprefix(".")
    if kind not in METADATA:
        raise GudaError("figure-type-unsupported", f"figures are written as .svg, .pdf or .png, not as {path.name}")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's matplotlibrc says, the file is the same
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with atomic_path(path) as tmp:
            figure.savefig(tmp, format=kind, metadata=METADATA[kind])


APART = (0.015, 0.03)  # of the axes: points closer than this in both are drawn side by side


# ---- fidelity against cost ----------------------------------------------------------------------------------------
def cost_fidelity(
    name: str, entry: DatasetEntry, path: Path, metric: str = "top1", timings: Sequence[Timing] = ()
) -> Path:
    """Agreement with LOGO against network evaluations: of fitting all groups (left), and of fitting and scoring all
    queries (right). Methods without an evaluation of the diffusion network stand at 0, whatever else they compute.
    Points of about equal cost are drawn side by side. `timings`: LOGO's line has the cost of one of its seeds."""
    groups, queries = entry.n_groups or 1, entry.n_queries
    shown = {m: e for m, e in entry.methods.items() if m != CEILING and metric in e.metrics and e.fit_evals is not None}
    if not shown:
        raise GudaError(
            "figure-costs-missing", f"{name}: no method has both {LABELS[metric]} and a cost; evaluate the run first"
        )
    logo, looks = entry.methods.get(CEILING), {m: look(i) for i, m in enumerate(shown)}
    ceiling = (entry.ceiling or {}).get(metric)

    def fit(e: Cost) -> float:
        return groups * (e.fit_evals or 0.0)

    def total(e: Cost) -> float:
        return fit(e) + queries * (e.score_evals or 0.0)

    with drawing(path, 10.4, 3.6 + 0.05 * len(shown)) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, cost, what in (
            (axes[0], fit, f"evaluations to fit {groups} groups"),
            (axes[1], total, f"evaluations to fit {groups} groups and score {queries:,} queries"),
        ):
            own = None
            if logo is not None and logo.fit_evals:
                own = cost(one_retraining(entry, timings))
            costs, width = _log_axis(axis, {m: cost(e) for m, e in shown.items()}, own)
            places = _swarm(costs, {m: e.metrics[metric].mean for m, e in shown.items()}, width)
            for m, e in shown.items():
                f = e.metrics[metric]
                axis.errorbar(
                    places[m], f.mean, yerr=[[f.mean - f.lo], [f.hi - f.mean]], **looks[m], ms=6, lw=0, elinewidth=0.9,
                    mec="white", mew=0.5, zorder=3,
                )  # fmt: skip
            if ceiling is not None:
                axis.axhspan(ceiling.lo, ceiling.hi, color=INK, alpha=0.07, lw=0)
                axis.axhline(ceiling.mean, color=INK, ls="--", lw=1)
                if own:
                    axis.plot(math.log10(own), ceiling.mean, marker="*", color=INK, ms=10, ls="", zorder=4)
            axis.set_xlabel(f"{what}\n(of the diffusion network alone; forward 1, forward and backward 3)")
            axis.grid(axis="y", color=FAINT, lw=0.4)
        axes[0].set_ylabel(f"{LABELS[metric]} agreement with LOGO (95 % intervals)")
        figure.suptitle(
            f"{name}: fidelity against cost (points of about equal cost are drawn side by side)", fontsize=9.5
        )
        _cost_legend(figure, shown, looks, metric, ceiling is not None)
    return path


def _cost_legend(figure: Any, shown: Mapping[str, MethodEntry], looks: Mapping[str, Any], metric: str, c: bool) -> None:
    from matplotlib.lines import Line2D

    order = sorted(shown, key=lambda m: -shown[m].metrics[metric].mean)
    handles = [Line2D([], [], ls="--", marker="*", color=INK, label=CEILING_NAME)] if c else []
    handles += [Line2D([], [], ls="", ms=5, label=m, **looks[m]) for m in order]
    figure.legend(handles=handles, loc="outside right center", title="best first", alignment="left")


def _log_axis(axis: Any, costs: Mapping[str, float], logo: float | None) -> tuple[dict[str, float], float]:
    """(places on an axis of powers of ten, its length); 0 stands apart at the left."""
    positive = [c for c in [*costs.values(), logo] if c]
    low = math.floor(min(map(math.log10, positive), default=0.0))
    high = math.ceil(max(map(math.log10, positive), default=1.0))
    high = max(high, low + 1)
    zero = low - 0.12 * (high - low)
    ticks: dict[float, str] = {zero: "0"} if any(c == 0 for c in costs.values()) else {}
    ticks |= {p: f"$10^{{{p}}}$" for p in range(low, high + 1)}
    if zero in ticks:
        axis.axvline((zero + low) / 2, color=FAINT, lw=0.8, ls=":")
    axis.set_xticks(list(ticks), list(ticks.values()))
    minor = [p + math.log10(k) for p in range(low, high) for k in range(2, 10)]
    axis.set_xticks(minor, minor=True)
    margin = 0.06 * (high - min(ticks))
    axis.set_xlim(min(ticks) - margin, high + margin)
    return {m: math.log10(c) if c > 0 else zero for m, c in costs.items()}, high - min(ticks) + 2 * margin


def _swarm(places: Mapping[str, float], heights: Mapping[str, float], width: float) -> dict[str, float]:
    """Each at its place, or as near to it as no other point is in the way; in order of place and name."""
    gap = APART[0] * width
    tall = APART[1] * ((max(heights.values()) - min(heights.values())) or 1.0)
    placed: dict[str, float] = {}
    for m in sorted(places, key=lambda m: (places[m], m)):
        near = [x for other, x in placed.items() if abs(heights[other] - heights[m]) < tall]
        for k in range(2 * len(near) + 1):  # 0, 1, -1, 2, -2, ...: one of so many is free
            at = places[m] + (k + 1) // 2 * (1 if k % 2 else -1) * gap
            if all(abs(at - x) > 0.99 * gap for x in near):
                break
        placed[m] = at
    return placed


# ---- scores -------------------------------------------------------------------------------------------------------
def heatmap(scores: Scores, path: Path) -> Path:
    """Queries x groups; queries under the group with the highest score, the strongest first. White is 0."""
    top = scores.score.argmax(axis=1)
    order = np.lexsort((-scores.score.max(axis=1), top))
    limit = float(np.quantile(np.abs(scores.score), 0.99)) or 1.0
    n_groups = len(scores.groups)
    letters = max(map(len, scores.groups))
    names = 0.075 * letters  # inches that they take beside and below
    with drawing(path, min(12.0, 3.2 + 0.32 * n_groups) + names, 5.2 + (names if letters > 3 else 0.2)) as figure:
        axis = figure.subplots()
        image = axis.imshow(
            scores.score[order], aspect="auto", cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="nearest"
        )
        sizes = np.bincount(top, minlength=n_groups)
        ends = np.cumsum(sizes)
        for end in ends[:-1]:
            axis.axhline(end - 0.5, color=INK, lw=0.4)
        # a block too thin for its name goes without
        named = [k for k in range(n_groups) if sizes[k] >= len(order) / 45]
        axis.set_yticks([ends[k] - sizes[k] / 2 - 0.5 for k in named], [scores.groups[k] for k in named])
        axis.set_xticks(range(n_groups), scores.groups, rotation=90 if letters > 3 else 0)
        axis.tick_params(length=0)
        axis.set(xlabel="group left out", ylabel=f"{len(order):,} queries, under the group with the highest score")
        axis.set_title(f"{scores.method}: {scores.estimand}", loc="left", wrap=True)
        bar = figure.colorbar(image, ax=axis, extend="both", pad=0.02, aspect=40)
        unit = axis_label(scores.unit, scores.sign)
        bar.set_label(f"score ({unit}; {scores.sign})\ncolours end at the 99th percentile of its size")
        bar.outline.set_visible(False)
    return path


def ranking(scores: Scores, query: str, image: np.ndarray, path: Path, oracle: str | None = None) -> Path:
    """One picture (uint8 [C, H, W]) and its groups as bars, best first, with 95 % intervals. Full colour: the interval
    is clear of zero. `oracle`: the group that retraining puts first."""
    ranked = scores[query].ranked
    names = 0.075 * max(len(g.group) for g in ranked)
    verdict = scores[query].verdict()
    with drawing(path, 6.2 + names, max(2.2, 0.9 + 0.24 * len(ranked))) as figure:
        left, axis = figure.subplots(1, 2, width_ratios=(1, 2.6 + 0.5 * names))
        left.imshow(image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0), interpolation="nearest",
                    cmap="gray", vmin=0, vmax=255)  # fmt: skip
        left.set_axis_off()
        left.set_anchor("N")
        left.set_title(query, fontsize=7.5, wrap=True)
        draw_bars(axis, ranked, scores.sign, oracle)
        if oracle:
            axis.set_xlabel(f"{axis.get_xlabel()}\n◆ first by retraining")
        axis.set_title(f"{scores.method}: {verdict.headline}", loc="left", wrap=True)
    return path


# ---- ELBO against likelihood --------------------------------------------------------------------------------------
def elbo_vs_likelihood(
    name: str, elbo: np.ndarray, log_p: np.ndarray, path: Path, figures: Mapping[str, float] | None = None
) -> Path:
    """Delta ELBO against delta log p of the same queries and groups, [Q, G] nats; `figures`: what to print, by name."""
    if elbo.shape != log_p.shape or elbo.ndim != 2:
        raise GudaError(
            "scores-shape-mismatch",
            f"delta ELBO {elbo.shape} and delta log p {log_p.shape} must both be [queries, groups]",
        )
    first = np.zeros(elbo.shape, bool)
    first[np.arange(len(elbo)), elbo.argmax(axis=1)] = True
    with drawing(path, 4.9, 4.6) as figure:
        axis = figure.subplots()
        low, high = min(elbo.min(), log_p.min()), max(elbo.max(), log_p.max())
        axis.plot([low, high], [low, high], color=INK, lw=0.8, ls="--", label="equal", zorder=1)
        axis.axhline(0, color=FAINT, lw=0.6, zorder=0)
        axis.axvline(0, color=FAINT, lw=0.6, zorder=0)
        for mask, colour, label in (
            (~first, OKABE_ITO[0], "other groups"), (first, OKABE_ITO[1], "the query's top group by delta ELBO"),
        ):  # fmt: skip
            axis.scatter(elbo[mask], log_p[mask], s=7, color=colour, alpha=0.45, lw=0, label=label, rasterized=True)
        printed = figures or {"Pearson": float(np.corrcoef(elbo.ravel(), log_p.ravel())[0, 1])}
        text = "\n".join(f"{k} {v:.3f}" for k, v in printed.items())
        paper = {"facecolor": "white", "alpha": 0.8, "lw": 0}
        axis.text(0.98, 0.03, text, transform=axis.transAxes, ha="right", va="bottom", bbox=paper)
        axis.set(xlabel="delta ELBO (nats; positive = the group mattered)",
                 ylabel="delta log p (nats; positive = the group mattered)")  # fmt: skip
        axis.set_title(f"{name}: {elbo.shape[0]:,} queries, {elbo.shape[1]} groups", loc="left")
        legend = figure.legend(loc="outside lower center", ncols=3, markerscale=1.8)
        for handle in legend.legend_handles:
            handle.set_alpha(1)
    return path


# ---- time against queries -----------------------------------------------------------------------------------------
def timing(name: str, timings: Sequence[Timing], path: Path, reference: str = CEILING) -> Path:
    """T_total = T_fit + Q t_query against Q; a dot where a line meets that of `reference`."""
    shown = [t for t in timings if t.total(1) is not None]
    if not shown:
        raise GudaError("figure-times-missing", f"{name}: no method has recorded times of both fitting and scoring")
    untimed = [t.method for t in timings if t.total(1) is None]
    logo = next((t for t in shown if t.method == reference), None)
    n = shown[0].n_queries
    q = np.logspace(0, math.ceil(math.log10(n)) + 2, 200)
    with drawing(path, 8.4, 3.6 + 0.04 * len(shown)) as figure:
        axis = figure.subplots()
        lines, others = [], [t for t in shown if t is not logo]
        for t in sorted(shown, key=lambda t: -(t.total(n) or 0.0)):
            y = (t.fit_seconds or 0.0) + q * (t.query_seconds or 0.0)
            meets = None if logo is None or t is logo else crossing(t, logo)
            meets = meets if meets is not None and q[0] <= meets <= q[-1] else None
            where = f" (meets {reference} at Q = {human_count(meets)})" if meets else ""
            number = 0 if t is logo else others.index(t)
            style = {"color": INK, "lw": 2.2} if t is logo else {"color": look(number)["color"], "ls": dashes(number)}
            lines += axis.plot(q, y, label=f"{t.method}{where}", **style)
            if meets:
                axis.plot(meets, t.total(meets), "o", ms=4, color=INK, mfc="white", zorder=5)
        axis.axvline(n, color=FAINT, lw=0.8, ls=":")
        axis.annotate(f"{n:,} queries scored", (n, 1), xycoords=("data", "axes fraction"), xytext=(-3, -2),
                      textcoords="offset points", ha="right", va="top", fontsize=7)  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="number of queries Q", ylabel="T_fit + Q t_query (worker seconds)")
        axis.grid(color=FAINT, lw=0.3)
        axis.set_title(f"{name}: time of attribution, without training the full model", loc="left")
        figure.legend(handles=lines, loc="outside right center", title=f"dearest at {n:,} queries first",
                      alignment="left", handlelength=3)  # fmt: skip
        if untimed:
            figure.supxlabel(f"not timed: {', '.join(untimed)}", fontsize=7, x=0.02, ha="left")
    return path


def cluster_schedules(schedules: Sequence[Schedule], path: Path) -> None:
    """Left: time against workers, with what it cannot be less than. Right: who is busy when, for a few of them."""
    shown = [schedules[i] for i in sorted({0, len(schedules) // 2, len(schedules) - 1})]
    colours = dict(zip(("train", "fit", "score"), OKABE_ITO, strict=False))
    with drawing(path, 8.4, 3.4) as figure:
        grid = figure.add_gridspec(len(shown), 2, width_ratios=(1, 1.3))
        left = figure.add_subplot(grid[:, 0])
        workers = [s.cluster.workers for s in schedules]
        left.loglog(workers, [s.makespan / 3600 for s in schedules], "o-", color=INK, label="simulated")
        for cause, dash in (("workers", "--"), ("chain", ":"), ("driver", "-.")):
            bound = [s.bounds[cause] / 3600 for s in schedules]
            if max(bound) > 0:
                left.loglog(workers, bound, dash, color=OKABE_ITO[6], label=f"not less, by {cause}")
        left.set(xlabel="workers", ylabel="hours")
        left.legend()
        for k, schedule in enumerate(shown):
            axes = figure.add_subplot(grid[k, 1])
            curves = busy(schedule.spans, 240, schedule.makespan)
            hours = [(i + 0.5) * schedule.makespan / 240 / 3600 for i in range(240)]
            axes.stackplot(hours, *curves.values(), colors=[colours.get(c, INK) for c in curves], labels=list(curves))
            axes.set(ylim=(0, schedule.cluster.workers), ylabel=f"{schedule.cluster.workers}")
            axes.set_yticks([])
            if k == 0:
                axes.set_title("busy workers over time")
                axes.legend(loc="upper right", frameon=True, framealpha=1, ncols=3)
        axes.set_xlabel("hours")
