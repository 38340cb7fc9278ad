"""Commands that repeat work under changed conditions: tune, ablate, pairs, reproduce."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guda.cli.options import ENGINE, Json, Method, RunFolder, StoredSet, command, say
from guda.errors import GudaError

if TYPE_CHECKING:
    from guda.data.groups import Groups
    from guda.evaluation.sweep import SweepFile
    from guda.steps.tune import Tuned

SHOWN = 8  # best trials to print


@command
def tune(
    run: RunFolder,
    method: Annotated[str, typer.Option("--method", "-m", help="Method id.", show_default=False)],
    trials: Annotated[int, typer.Option(help="Settings to try, including those of earlier calls.", min=1)] = 20,
    queries_seed: Annotated[
        int | None,
        typer.Option(help="Seed of the tuning queries; must differ from the recipe's. Default: 0, or 1.", min=0),
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Tuning queries.", min=2)] = 200,
    groups: Annotated[
        list[str] | None,
        typer.Option(help="How many groups to compare (default 5), or their names separated by commas."),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help='Where to search, e.g. "lr=1e-5..1e-3,steps=50|100|200".', show_default=False)
    ] = None,
    space: Annotated[Path | None, typer.Option(help="The same as a YAML file of settings.", show_default=False)] = None,
    by: Annotated[
        str, typer.Option(help="rank: first groups; function: cosines of changes, which need far fewer pictures.")
    ] = "rank",
    apply: Annotated[bool, typer.Option("--apply", help="Write the best settings into the run's recipe.")] = False,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Choose a method's settings by agreement with LOGO, on a held-out set of queries."""
    from guda import steps
    from guda.run.data import load_data
    from guda.run.run import Run

    if search is not None and space is not None:
        raise GudaError("search-options-conflict", "give either --search or --space")
    folder = Run.open(run)
    where = steps.parse_space(search) if search is not None else None if space is None else steps.read_space(space)
    found = steps.tune(
        folder, method, trials, engine, queries_seed=queries_seed, n=n,
        groups=_groups(groups, load_data(folder).groups), space=where, apply=apply, by=by,
    )  # fmt: skip
    say(_tuned_json(found, apply), tuned_text(found, apply), as_json)


def _groups(given: list[str] | None, known: Groups) -> int | list[str] | None:
    """A single whole number is how many: one group alone has no ranking, so it cannot be a name."""
    if not given:
        return None
    if len(given) == 1 and given[0].strip().isdecimal():
        return int(given[0])
    return [name for text in given for name in known.listed(text)]


def _tuned_json(found: Tuned, applied: bool) -> dict[str, Any]:
    lead = found.lead
    return {
        "folder": str(found.folder),
        "chosen": found.chosen,
        "recipe": str(found.recipe),
        "applied": applied,
        "queries": found.queries,
        "groups": list(found.groups),
        "trials": len(found.trials),
        "new_trials": found.ran,
        "best": found.ranking[0].model_dump(mode="json"),
        "ceiling_top1": found.ceiling,
        "lead_top1": None if lead is None else {"mean": lead.mean, "lo": lead.lo, "hi": lead.hi},
        "separated": found.separated,
    }


def tuned_text(found: Tuned, applied: bool) -> str:
    from guda.steps.tune import lead_text
    from guda.table import human_count

    by_function = "cos_first" in found.ranking[0].metrics
    shown = ("cos_first", "cos_other", "top1") if by_function else ("top1", "mrr", "spearman")
    ceiling = "" if found.ceiling is None else f"; one LOGO retraining (ceiling) has top1 {found.ceiling:.3f}"
    lines = [
        f"{found.method}: {len(found.trials)} trials ({found.ran} new) against LOGO on {found.queries}, "
        f"groups {', '.join(found.groups)}{ceiling}",
        f"  by {found.objective}; 95 % intervals over queries",
        f"  {'trial':>5}  " + "".join(f"{m:<24}" for m in shown) + f"{'fit evals':>10}{'LOGO/fit':>10}  settings",
    ]
    for t in found.ranking[:SHOWN]:
        cells = "".join(f"{f'{m.mean:.3f} [{m.lo:.3f}, {m.hi:.3f}]':<24}" for m in (t.metrics[name] for name in shown))
        cheaper = "" if t.evals_ratio_vs_logo is None else f"{t.evals_ratio_vs_logo:.3g}x"
        settings = ", ".join(f"{k} {t.settings[k]}" for k in found.chosen)
        lines.append(f"  {t.number:>5}  {cells}{human_count(t.fit_evals):>10}{cheaper:>10}  {settings}")
    failed = sum(1 for t in found.trials if t.failed)
    lines += [f"  {failed} trials failed (weights or scores not finite)"] if failed else []
    lines.append(f"The best is {lead_text(found)}.")
    lines.append(f"Recipe: {found.recipe}" + ("; applied to the run's recipe" if applied else ""))
    return "\n".join(lines)


@command
def ablate(
    run: RunFolder,
    files: Annotated[list[str], typer.Argument(help="Ablation files, or names of shipped ones.", show_default=False)],
    queries: StoredSet = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Sweep a method's settings one at a time, and compare each with LOGO and its ceiling."""
    from guda import steps
    from guda.evaluation.sweep import REPORTED, text
    from guda.run.run import Run
    from guda.steps.ablate import table_path

    folder = Run.open(run)
    asked = [steps.read_ablation(f) for f in files]  # all of them before the first is carried out
    if twice := {a.name for i, a in enumerate(asked) if a.name in {b.name for b in asked[:i]}}:
        raise GudaError(
            "ablation-name-duplicate",
            f"two ablations are called {sorted(twice)[0]!r}; one table would replace the other",
        )
    tables: list[SweepFile] = []
    for ablation in asked:
        tables.append(steps.ablate(folder, ablation, engine, queries))
        if not as_json:
            print(text(tables[-1]))
            path = table_path(folder, tables[-1])
            print(f"Tables: {path}, {path.with_suffix('.md')}\n")
    value = {t.name: {"path": str(table_path(folder, t)), **t.model_dump(mode="json")} for t in tables}
    say(value, REPORTED, as_json)


@command
def pairs(
    run: RunFolder,
    pair: Annotated[
        list[str],
        typer.Option(
            "--pair",
            help="Two groups separated by a comma, e.g. cat,dog; repeat for several pairs.",
            show_default=False,
        ),
    ],
    method: Method = None,
    queries: StoredSet = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Leave two groups out together (LOGO and unlearned) and check whether scores add up."""
    from guda import steps
    from guda.run.run import Run
    from guda.steps.pairs import pairs_table

    folder = Run.open(run)
    asked = steps.parse_pairs(folder, pair)
    found = steps.pairs(folder, steps.choose_queries(folder, queries), asked, method, engine)
    table = pairs_table(found)
    lines = [table.title]
    for row in table.texts():
        lines.append(f"  {row[0]}")
        lines += [f"    {name:<20}{cell}" for name, cell in zip(table.header[1:], row[1:], strict=True)]
    lines += [found.sign, f"Tables: {folder.path('pairs.json')}, {folder.path('pairs.md')}"]
    say({"path": str(folder.path("pairs.json")), **found.model_dump(mode="json")}, "\n".join(lines), as_json)


@command
def reproduce(
    name: Annotated[
        str, typer.Argument(help="digits, fashion-mnist, cifar10, unlearncanvas, or a file ending in .yaml.")
    ],
    run: Annotated[
        Path | None, typer.Option(help="Run folder; default: runs/reproduce-NAME[-SCALE], of a smoke run with -smoke.")
    ] = None,
    scale: Annotated[str, typer.Option(help="full, or a smaller scale of the experiment, e.g. small.")] = "full",
    ablations: Annotated[bool, typer.Option("--ablations", help="Also run the paper's sweeps.")] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Everything once with tiny budgets, in minutes; its figures mean nothing.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only estimate the cost.")] = False,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Run an experiment of the paper: training, methods, oracles, tables (Markdown, CSV, LaTeX). Can be resumed."""
    from guda.cli.display import outline_text
    from guda.report.reproduce import plan_reproduction, read_reproduction, reproduce
    from guda.report.smoke import WARNING, smoke_root

    if smoke and ablations:
        raise GudaError("smoke-ablations", "--smoke shrinks the recipe, not sweeps; leave out --ablations or --smoke")
    wanted = read_reproduction(name)
    if plan:
        found = plan_reproduction(wanted, scale, ablations, smoke)
        return say(found, outline_text(found), as_json)
    stem = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    root = run or Path("runs") / (f"reproduce-{stem}" if scale == "full" else f"reproduce-{stem}-{scale}")
    root = smoke_root(root) if smoke else root

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if smoke:
        tell(WARNING)
    done = reproduce(name, root, engine, scale, ablations, tell, smoke)
    tables = done.run.path("tables", "tables.md")
    lines = [f"Tables:  {tables} (one file each beside it, also .csv and .tex)", f"Figures: {done.run.path('figures')}"]
    lines += [WARNING] if smoke else []
    value = {
        "run": str(done.run.root), "smoke": smoke,
        "tables": list(map(str, done.tables)), "figures": list(map(str, done.figures)),
    }  # fmt: skip
    say(value, "\n".join(lines), as_json)
