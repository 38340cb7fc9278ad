"""How few evaluations give the same answer, and whether the error bars hold: benchmarks/results/scoring.{json,md,svg}.

    make bench-scoring        # hours from nothing on 2 cores, mostly training; every piece is kept and resumed

Data sets: digits and fashion-mnist with LOGO retrainings as counterfactuals, and digits with unlearned models
(`digits-retrack`). Truth is the converged score of the SAME models and estimand, so LOGO here is not an oracle but a
harder set of models to tell apart.

A(n)       Top-1 agreement with the converged score at n evaluations per query (counterfactuals and full model),
           mean over 20 seeds and 300 queries; `uniform` = strata of equal width, one draw, no pairs
ratio      n_uniform / n_plan at A = 0.75 and 0.90, log-linear interpolation, bootstrap over queries
coverage   of the recipe's plan: 95 % intervals against sums over every t with 64 draws, 100 fresh seeds, all groups
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guda import steps
from guda.cli.display import Display
from guda.data.groups import natural
from guda.diffusion.denoiser import Denoiser
from guda.evaluation.results import DatasetEntry, write_results
from guda.files import read_json, write_json, write_text
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.recipe import Recipe, builtin_recipe
from guda.run.run import Run
from guda.scoring.estimate import difference
from guda.scoring.pilot import measure_density
from guda.scoring.plan import Plan, importance, stratified, uniform
from guda.scoring.race import Race, StopRule
from guda.scoring.terms import kl, make_draws, squared_errors
from guda.unlearning.bank import Counterfactual, Workbench

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "runs" / "bench-scoring"
SEEDS, QUERIES, BLOCK = 20, 300, 256
COVERAGE_SEEDS, COVERAGE_QUERIES, TRUTH_PAIRS = 100, 18, 32
ENOUGH = 0.9  # a curve is followed until here
MOST = {"fashion-mnist": 256}  # strata, where a network is slow; a curve that ends below 0.9 gives a lower bound
STRATA = {
    "uniform": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    "stratified": (1, 4, 16, 64),
    "importance-plain": (1, 4, 16),
    "importance": (1, 2, 3, 4, 6, 8, 12, 16),
}
RACE_STRATA, BUDGETS = 2, (44, 68, 84, 96, 120, 160, 240)  # per round; evaluations per query
DATASETS = ("digits", "fashion-mnist")
UNLEARNED = ("digits",)  # where unlearned models are measured beside the retrained ones


# ---- models --------------------------------------------------------------------------------------------------------


def make_run(name: str) -> Run:
    """The recipe with one LOGO seed, fitted and sampled."""
    value = builtin_recipe(name).model_dump(mode="json")
    value["methods"]["logo"]["seeds"] = [1]
    value["queries"]["n"] = QUERIES
    run = steps.init(ROOT / "runs" / f"bench-scoring-{name}", Recipe.from_dict(value, name))
    with Display() as display:
        engine = steps.local_engine(watch=display.watch)
        steps.fit(run, ["logo", "retrack"], engine)
        steps.sample(run, engine)
    return run


class Models:
    """The full model and the counterfactuals of one method, ready to evaluate."""

    def __init__(self, run: Run, method: str) -> None:
        found = get_method(run, method)
        assert isinstance(found, ElboMethod)
        full, groups = found.sets()[0]
        self.base = load_model(run, full.base)
        self.bench = Workbench(self.base, self.base.digest())
        self.items = [Counterfactual.load(run.path(str(g.counterfactual))) for g in groups.values()]
        self.queries = load_queries(run, steps.choose_queries(run))
        self.x0 = self.base.encode(self.queries.images)
        data = load_data(run)
        pilot = measure_density(self.base, data, BLOCK)
        self.density, self.pilot_evals = pilot.density, pilot.evals

    def plan(self, kind: str, strata: int, seed: int) -> Plan:
        schedule = self.base.schedule
        if kind == "uniform":
            return uniform(schedule, strata, seed)
        if kind == "stratified":
            return stratified(schedule, strata, seed)
        return importance(schedule, self.density, strata, seed, antithetic=kind == "importance")

    def contributions(
        self, plan: Plan, queries: Sequence[int], round_: int, wanted: np.ndarray | None = None
    ) -> np.ndarray:
        """Paired nats [q, G, S] of one round; NaN where `wanted` [q, G] is False."""
        index = np.asarray(queries)
        ids = [self.queries.ids[i] for i in index]
        draws = make_draws(self.base, self.x0[torch.from_numpy(index)], ids, plan, round_)
        weights = self.base.schedule.weights

        def nats(model: Denoiser, rows: np.ndarray) -> np.ndarray:
            some = draws if len(rows) == len(index) else draws.of(rows)
            return kl(plan, weights, some.t, squared_errors(model, some, BLOCK))

        wanted = np.ones((len(index), len(self.items)), bool) if wanted is None else wanted
        out = np.full((*wanted.shape, plan.n_strata), np.nan)
        rows = np.flatnonzero(wanted.any(axis=1))
        base = np.full((len(index), plan.n_strata), np.nan)
        base[rows] = nats(self.base, rows)
        for g, item in enumerate(self.items):
            rows = np.flatnonzero(wanted[:, g])
            if len(rows):
                out[rows, g] = nats(self.bench.use(item), rows) - base[rows]
        return out


@cache
def models(root: str, method: str) -> Models:
    torch.set_num_threads(1)
    return Models(Run.open(root), method)


# ---- pieces: each is one JSON file, computed once ------------------------------------------------------------------


def _converged(root: str, method: str, queries: list[int], pairs: int) -> list[list[float]]:
    """Sum over every t, `pairs` antithetic draws each: [q][G]."""
    found = models(root, method)
    plan = uniform(found.base.schedule, found.base.schedule.t_max, 999, antithetic=True)
    total = np.zeros((len(queries), len(found.items)))
    for i in range(0, len(queries), 4):
        for r in range(pairs):
            total[i : i + 4] += found.contributions(plan, queries[i : i + 4], r).sum(axis=-1)
    return (total / pairs).tolist()


def _winners(root: str, method: str, kind: str, strata: int, seed: int) -> list[int]:
    """First group of every query by one round of a plan."""
    found = models(root, method)
    d = found.contributions(found.plan(kind, strata, seed), range(QUERIES), 0)
    return d.sum(axis=-1).argmax(axis=1).tolist()


def _race(root: str, method: str, rule: str, strata: int, seed: int, queries: list[int]) -> dict[str, Any]:
    found = models(root, method)
    plan = found.plan("importance", strata, seed)
    race = Race(len(queries), len(found.items), plan.evals_per_round, StopRule.parse(rule), 64)
    while (wanted := race.wanted()).any():
        race.publish(found.contributions(plan, queries, len(race.rounds), wanted))
    result = race.result()
    finite = np.where(np.isfinite(result.lo), result.lo, -1e30), np.where(np.isfinite(result.hi), result.hi, 1e30)
    return {"winner": result.winner().tolist(), "evals": result.evals.tolist(), "settled": result.settled.tolist(),
            "lo": finite[0].tolist(), "hi": finite[1].tolist(), "score": result.score.tolist(),
            "stderr": np.where(np.isfinite(result.stderr), result.stderr, 1e30).tolist()}  # fmt: skip


def _intervals(root: str, method: str, strata: int, rounds: int, seed: int, queries: list[int]) -> dict[str, Any]:
    """Scores and interval ends of the fixed plan: [q][G]."""
    found = models(root, method)
    plan = found.plan("importance", strata, seed)
    d = np.stack([found.contributions(plan, queries, r) for r in range(rounds)])
    estimates = [difference(d[:, :, g]) for g in range(d.shape[2])]
    return {f: np.stack([getattr(e, f) for e in estimates], axis=1).tolist() for f in ("score", "lo", "hi", "stderr")}


def piece(name: str, jobs: list[tuple[Any, ...]], function: Callable[..., Any], pool: ProcessPoolExecutor) -> list[Any]:
    """Results of independent jobs, kept under `name`; only those not there yet are run."""
    folder = KEPT / name
    missing = [i for i in range(len(jobs)) if not (folder / f"{i:04d}.json").is_file()]
    started = time.monotonic()
    futures = {i: pool.submit(function, *jobs[i]) for i in missing}
    for i, future in futures.items():
        write_json(folder / f"{i:04d}.json", future.result())
    if missing:
        print(f"{name}: {len(missing)} jobs, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return [read_json(folder / f"{i:04d}.json") for i in range(len(jobs))]


# ---- figures -------------------------------------------------------------------------------------------------------


def crossing(n: np.ndarray, agreement: np.ndarray, target: float) -> float:
    """Evaluations at which A reaches the target, log-linear between measured points; the end where it is outside."""
    rising = np.maximum.accumulate(agreement)
    if rising[0] >= target or rising[-1] < target:
        return float(n[0] if rising[0] >= target else n[-1])
    return float(np.exp(np.interp(target, rising, np.log(n))))


def ratio(curves: dict[str, tuple[np.ndarray, np.ndarray]], plan: str, target: float) -> tuple[float, float, float]:
    """n_uniform / n_plan with a bootstrap interval over queries; curves: (n, correct [points, seeds, Q])."""

    def once(rows: np.ndarray) -> float:
        at = {k: crossing(n, ok[:, :, rows].mean(axis=(1, 2)), target) for k, (n, ok) in curves.items()}
        return at["uniform"] / at[plan]

    rng = np.random.default_rng(0)
    q = curves["uniform"][1].shape[2]
    samples = [once(rng.integers(0, q, q)) for _ in range(500)]
    return once(np.arange(q)), float(np.quantile(samples, 0.025)), float(np.quantile(samples, 0.975))


def coverage_figures(truth: np.ndarray, found: list[dict[str, Any]]) -> tuple[float, float, float]:
    """(share of intervals that hold the truth, its standard error over queries, mean half-width)."""
    lo, hi = (np.array([f[k] for f in found]) for k in ("lo", "hi"))
    inside = ((lo <= truth) & (truth <= hi)).mean(axis=(0, 2))  # per query
    return float(inside.mean()), float(inside.std(ddof=1) / np.sqrt(len(inside))), float(np.median((hi - lo) / 2))


def measure_set(name: str, run: Run, method: str, pool: ProcessPoolExecutor, coverage: bool) -> DatasetEntry:
    root, label = str(run.root), f"{name}-{method}"
    found = models(root, method)
    size = len(found.items) + 1
    halves = [list(range(QUERIES))[i::2] for i in range(2)]
    gold = np.empty((QUERIES, size - 1))
    for rows, values in zip(
        halves, piece(f"{label}/converged", [(root, method, h, 1) for h in halves], _converged, pool), strict=True
    ):
        gold[rows] = values
    top = gold.argmax(axis=1)
    gap = np.sort(gold, axis=1)
    figures: dict[str, float] = {"median_gap_nats": float(np.median(gap[:, -1] - gap[:, -2]))}

    curves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for kind, strata in STRATA.items():
        right, evals = [], []
        for s in [s for s in strata if s <= MOST.get(name, max(strata))]:
            jobs = [(root, method, kind, s, seed) for seed in range(1, SEEDS + 1)]
            right.append(np.array(piece(f"{label}/{kind}-{s}", jobs, _winners, pool)) == top)
            evals.append(float(found.plan(kind, s, 0).evals_per_round * size))
            if right[-1].mean() >= ENOUGH:
                break
        n, ok = np.array(evals), np.stack(right)
        curves[kind] = (n, ok)
        if kind == "importance":  # the family begins with one unpaired draw, the cheapest estimate there is
            single_n, single_ok = curves["importance-plain"]
            n, ok = np.append(single_n[0], n), np.concatenate([single_ok[:1], ok])
            curves[kind], curves["importance+pilot"] = (n, ok), (n + found.pilot_evals / QUERIES, ok)
    everyone = list(range(QUERIES))
    jobs = [(root, method, f"budget={b}", RACE_STRATA, s, everyone) for b in BUDGETS for s in range(1, SEEDS + 1)]
    raced = piece(f"{label}/race-{RACE_STRATA}", jobs, _race, pool)
    ok = np.array([r["winner"] for r in raced]).reshape(len(BUDGETS), SEEDS, QUERIES) == top
    n = np.array([np.mean(r["evals"]) for r in raced]).reshape(len(BUDGETS), SEEDS).mean(axis=1)
    curves["racing"], curves["racing+pilot"] = (n, ok), (n + found.pilot_evals / QUERIES, ok)

    for kind, (n, ok) in curves.items():
        for evals, agreement in zip(n, ok.mean(axis=(1, 2)), strict=True):
            figures[f"A.{kind}.n{evals:g}"] = float(agreement)
    for kind in ("stratified", "importance-plain", "importance", "importance+pilot", "racing", "racing+pilot"):
        for target in (0.75, 0.9):
            value, lo, hi = ratio(curves, kind, target)
            key = f"evals_ratio_{kind}@{target:.2f}"
            figures |= {key: value, f"{key}.lo": lo, f"{key}.hi": hi}
    figures["evals_ratio_importance"] = min(figures[f"evals_ratio_importance+pilot@{a}"] for a in ("0.75", "0.90"))
    figures["evals_ratio_racing"] = figures["evals_ratio_racing+pilot@0.90"]
    figures["uniform_reaches_0.90"] = float(curves["uniform"][1].mean(axis=(1, 2)).max() >= 0.9)
    figures["pilot_evals"] = float(found.pilot_evals)
    if coverage:
        figures |= measure_coverage(label, run, method, pool)
    return DatasetEntry(n_queries=QUERIES, seeds=[1] if method == "logo" else [], ceiling=None, methods={},
                        figures=figures, n_groups=size - 1, estimand=found.plan("uniform", 1, 0).estimand)  # fmt: skip


def measure_coverage(label: str, run: Run, method: str, pool: ProcessPoolExecutor) -> dict[str, float]:
    root, config = str(run.root), run.recipe.scoring
    rows = list(range(0, QUERIES, QUERIES // COVERAGE_QUERIES))[:COVERAGE_QUERIES]
    parts = [rows[i::6] for i in range(6)]
    truth = np.empty((len(rows), len(models(root, method).items)))
    values = piece(f"{label}/truth", [(root, method, p, TRUTH_PAIRS) for p in parts], _converged, pool)
    for i, value in enumerate(values):
        truth[i::6] = value
    seeds = range(1000, 1000 + COVERAGE_SEEDS)
    jobs = [(root, method, config.strata, config.rounds, s, rows) for s in seeds]
    fixed = piece(f"{label}/intervals-{config.strata}x{config.rounds}", jobs, _intervals, pool)
    share, error, width = coverage_figures(truth, fixed)
    raced = piece(
        f"{label}/confident-{config.strata}",
        [(root, method, "top1@0.95", config.strata, s, rows) for s in seeds],
        _race,
        pool,
    )
    raced_share, raced_error, raced_width = coverage_figures(truth, raced)
    winner = np.array([r["winner"] for r in raced]) == truth.argmax(axis=1)
    settled = np.array([r["settled"] for r in raced])
    return {
        "coverage": share, "coverage_se": error, "half_width_nats": width, "coverage_strata": float(config.strata),
        "coverage_rounds": float(config.rounds), "coverage_racing": raced_share, "coverage_racing_se": raced_error,
        "width_ratio_racing": raced_width / width, "winner_right_when_settled": float(winner[settled].mean()),
        "settled_share": float(settled.mean()), "racing_evals_mean": float(np.mean([r["evals"] for r in raced])),
    }  # fmt: skip


# ---- wall time -----------------------------------------------------------------------------------------------------


def overhead() -> dict[str, float]:
    """Wall time per evaluation of a round against the bare forward, on a UNet of over 50 ms per block; interleaved."""
    from diffusers import DDPMScheduler, UNet2DModel

    torch.set_num_threads(2)
    net = UNet2DModel(
        sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(64, 128),
        norm_num_groups=8, down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    base = Denoiser.from_module(net, DDPMScheduler())
    bench = Workbench(base, base.digest())
    noise = {k: 1e-3 * torch.randn_like(v) for k, v in base.weights().items()}
    changes = [Counterfactual("delta", str(g), base.digest(), "noise", noise) for g in range(3)]
    plan, block = stratified(base.schedule, 16, 0, antithetic=True), 16
    x0 = torch.zeros(4, *base.shape)
    x, t = torch.randn(block, *base.shape), torch.full((block,), 500)
    ratios, blocks = [], []
    for attempt in range(6):
        started = time.perf_counter()
        draws = make_draws(base, x0, [f"q{i}" for i in range(4)], plan, 0)
        for change in changes:
            squared_errors(bench.use(change), draws, block)
        ours = (time.perf_counter() - started) / (len(changes) * 4 * plan.evals_per_round)
        with torch.inference_mode():
            started = time.perf_counter()
            for _ in range(24):
                base.raw(x, t)
            bare = (time.perf_counter() - started) / 24
        if attempt:  # the first warms up
            ratios.append(ours / (bare / block))
            blocks.append(bare)
    torch.set_num_threads(1)
    return {"overhead_ratio": float(np.median(ratios)), "overhead_block_ms": float(np.median(blocks)) * 1000}


def naive(run: Run, n_uniform: float, n_importance: float) -> dict[str, float]:
    """Wall time to A = 0.90: a naive loop (uniform grid, one timestep per forward, models reloaded per batch of 64)
    against this engine, and the engine's own overhead per evaluation on this small network."""
    method = get_method(run, "logo")
    assert isinstance(method, ElboMethod)
    found = models(str(run.root), "logo")
    files = [run.path(str(g.counterfactual)) for g in method.sets()[0][1].values()]
    size = len(files) + 1
    grid = np.linspace(1, found.base.schedule.t_max, max(1, round(n_uniform / size))).round().astype(int)
    strata = max(1, round(n_importance / size / 2))
    rows = list(range(64))
    times: dict[str, list[float]] = {"naive": [], "ours": []}
    for attempt in range(4):
        started = time.perf_counter()
        x0, generator = found.x0[:64], torch.Generator().manual_seed(attempt)
        for file in [None, *files]:
            model = found.base.clone() if file is None else Counterfactual.load(file).apply(found.base)
            with torch.inference_mode():
                for t in grid:
                    eps = torch.randn(x0.shape, generator=generator)
                    ts = torch.full((64,), int(t))
                    (model.eps(model.schedule.add_noise(x0, eps, ts), ts) - eps).square().flatten(1).sum(1)
        middle = time.perf_counter()
        found.contributions(found.plan("importance", strata, attempt), rows, 0)
        if attempt:
            times["naive"].append(middle - started)
            times["ours"].append(time.perf_counter() - middle)
    naive_s, ours_s = (float(np.median(times[k])) / 64 for k in ("naive", "ours"))
    bare = time.perf_counter()
    with torch.inference_mode():
        x, t = torch.randn(BLOCK, *found.base.shape), torch.full((BLOCK,), 500)
        for _ in range(20):
            found.base.raw(x, t)
    bare = (time.perf_counter() - bare) / 20 / BLOCK
    return {"naive_ratio": naive_s / ours_s, "naive_seconds_per_query": naive_s, "our_seconds_per_query": ours_s,
            "overhead_ratio_small_network": ours_s / (size * strata * 2) / bare}  # fmt: skip


def growth(run: Run) -> dict[str, float]:
    """Seconds per query as groups (by repeating counterfactuals) and queries grow, at 4 strata of pairs."""
    found = models(str(run.root), "retrack")
    one = found.items
    figures = {}
    for groups in (10, 30, 100):
        found.items = (one * 10)[:groups]
        started = time.perf_counter()
        found.contributions(found.plan("importance", 4, 0), range(32), 0)
        seconds = (time.perf_counter() - started) / 32
        figures |= {
            f"growth.groups{groups}.seconds_per_query": seconds,
            f"growth.groups{groups}.evals": 8.0 * (groups + 1),
        }
    found.items = one
    for queries in (10, 100, 1000):
        started = time.perf_counter()
        for i in range(0, queries, 100):
            found.contributions(
                found.plan("importance", 4, 0), [j % QUERIES for j in range(i, min(i + 100, queries))], 0
            )
        figures[f"growth.queries{queries}.seconds_per_query"] = (time.perf_counter() - started) / queries
    return figures


def table(entries: dict[str, DatasetEntry]) -> str:
    keys = ["evals_ratio_importance+pilot@0.75", "evals_ratio_importance+pilot@0.90", "evals_ratio_racing+pilot@0.90",
            "coverage", "coverage_racing", "winner_right_when_settled", "overhead_ratio", "naive_ratio"]  # fmt: skip
    lines = ["| | " + " | ".join(entries) + " |", "|---|" + "---:|" * len(entries)]
    for key in keys:
        cells = []
        for entry in entries.values():
            f = entry.figures
            text = "–" if key not in f else f"{f[key]:.3g}"
            if f"{key}.lo" in f:
                text += f" [{f[f'{key}.lo']:.3g}, {f[f'{key}.hi']:.3g}]"
            cells.append(text)
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    lines += ["", "Seconds and evaluations per query as groups and queries grow (4 strata of pairs):", ""]
    lines += ["| | " + " | ".join(entries) + " |", "|---|" + "---:|" * len(entries)]
    for key in sorted({k for e in entries.values() for k in e.figures if k.startswith("growth.")}, key=natural):
        cells = [f"{e.figures[key]:.3g}" if key in e.figures else "–" for e in entries.values()]
        lines.append(f"| {key.removeprefix('growth.')} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot_growth(entries: dict[str, DatasetEntry]) -> None:
    """Seconds per query against the number of groups and of queries, as an SVG next to the results."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2))
    for axis, what in zip(axes, ("groups", "queries"), strict=True):
        for name, entry in entries.items():
            found = [(int(k.split(".")[1].removeprefix(what)), v) for k, v in entry.figures.items()
                     if k.startswith(f"growth.{what}") and k.endswith("seconds_per_query")]  # fmt: skip
            if found:
                axis.plot(*zip(*sorted(found), strict=True), marker=".", label=name)
        axis.set(xscale="log", yscale="log", xlabel=what, ylabel="seconds per query")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "guda"
    figure.savefig(ROOT / "benchmarks" / "results" / "scoring-growth.svg", metadata={"Date": None})


def plot(entries: dict[str, DatasetEntry]) -> None:
    """A(n) as an SVG next to the results."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(entries), figsize=(4 * len(entries), 3.4), sharey=True, squeeze=False)
    for axis, (name, entry) in zip(axes[0], entries.items(), strict=True):
        for kind in ("uniform", "stratified", "importance-plain", "importance+pilot", "racing+pilot"):
            points = [(float(k.rsplit(".n", 1)[1]), v) for k, v in entry.figures.items() if k.startswith(f"A.{kind}.n")]
            axis.plot(*zip(*sorted(points), strict=True), marker=".", label=kind)
        axis.set(xscale="log", title=name, xlabel="network evaluations per query")
        axis.axhline(0.9, color="0.8", lw=0.8)
    axes[0][0].set_ylabel("Top-1 agreement with the converged score")
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "guda"
    figure.savefig(ROOT / "benchmarks" / "results" / "scoring.svg", metadata={"Date": None})


def main() -> None:
    chosen = sys.argv[1:] or list(DATASETS)
    entries: dict[str, DatasetEntry] = {}
    runs = {name: make_run(name) for name in chosen}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for name, run in runs.items():
            entries[name] = measure_set(name, run, "logo", pool, coverage=True)
            if name in UNLEARNED:
                entries[f"{name}-retrack"] = measure_set(name, run, "retrack", pool, coverage=False)
    for name, run in runs.items():
        figures = dict(entries[name].figures)
        n = {k: figures[f"evals_ratio_{k}@0.90"] for k in ("importance",)}
        curve = sorted((float(k.rsplit(".n", 1)[1]), v) for k, v in figures.items() if k.startswith("A.uniform.n"))
        n_uniform = crossing(np.array([c[0] for c in curve]), np.array([c[1] for c in curve]), 0.9)
        timing = naive(run, n_uniform, n_uniform / n["importance"]) | overhead() | growth(run)
        entries[name] = entries[name].model_copy(update={"figures": figures | timing})
    results = ROOT / "benchmarks" / "results"
    write_results(results / "scoring.json", "make bench-scoring", entries)
    write_text(results / "scoring.md", table(entries))
    plot(entries)
    plot_growth(entries)
    print(table(entries))


if __name__ == "__main__":
    main()
