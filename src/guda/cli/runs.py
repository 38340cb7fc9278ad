"""Commands that create a run and prepare it for scoring (demo, init, train, fit, sample) or inspect it (plan, status,
methods)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guda.cli.options import (
    ENGINE,
    Changes,
    Groups,
    Json,
    Method,
    QuerySet,
    RunFolder,
    Workers,
    command,
    fields,
    finite,
    say,
)
from guda.cli.scores import show_evaluation
from guda.config import DataConfig, ModelConfig, QueriesConfig
from guda.errors import GudaError, choices

if TYPE_CHECKING:
    from guda.data.images import ImageData
    from guda.run.recipe import Recipe
    from guda.run.run import Run


@command
def demo(
    run: Annotated[Path, typer.Argument(help="Where to put the run.")] = Path("runs/demo"),
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Digits, end to end: train, unlearn, retrain (the oracle), sample, score, evaluate, report."""
    from guda.evaluation.results import read_entry
    from guda.run.recipe import builtin_recipe
    from guda.run.run import Run

    recipe = builtin_recipe("digits")
    folder = None
    if Run.exists(run):
        folder = Run.open(run)
        folder.check(recipe)
        if folder.finished("demo"):  # before anything heavy is imported
            page, entry = folder.path("report.html"), read_entry(folder.path("evaluation.json"))
            return show_evaluation(folder.recipe.name, entry, as_json, str(page))
    from guda import steps

    folder = folder or steps.init(run, recipe)
    name, entry, page = _run_all(folder, engine, examples=True)
    assert entry is not None
    scored = [f"scores/{name}/{m}.parquet" for m in folder.recipe.methods]
    folder.finish("demo", ["evaluation.json", "report.html", *scored])
    show_evaluation(folder.recipe.name, entry, as_json, str(page))


def _run_all(
    run: Run, engine: Any, methods: list[str] | None = None, queries: str | None = None, examples: bool = False
) -> tuple[str, Any, Path]:
    """(query set, comparison with the oracle if there is one, the report); with `examples`, evidence for its first
    pictures and some of them as files, too."""
    from guda import steps
    from guda.report.page import write_report
    from guda.report.same_noise import draw_missing

    name, entry = steps.run_all(run, engine, methods, queries)
    draw_missing(run, steps.scored_methods(run, name), engine)
    if examples:
        from guda.report import picture_cards
        from guda.report.card_evidence import gather_examples
        from guda.report.content import Content
        from guda.report.pictures import write_samples

        content = Content.read(run, name)
        gather_examples(content, picture_cards.examples(content.view), engine)
        write_samples(run, name)
    return name, entry, write_report(run, name)


LONG = 600.0  # seconds; a command that takes longer is asked about first


@command
def run_(
    run: RunFolder,
    queries: QuerySet = None,
    method: Method = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, however long it takes.")] = False,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Do everything that is missing, up to the report: train, fit, sample, score, evaluate, report. Says what it will
    cost first; if it is interrupted, the same command resumes."""
    import sys

    from guda import steps
    from guda.methods.base import get_method
    from guda.run.run import Run

    folder = Run.open(run)
    names = steps.run_methods(folder, method)
    if not names:
        raise GudaError("methods-none", f"the recipe of {run} names no method; give --method")
    steps.fit_tasks(folder, names)  # refuses what cannot be fitted, before anything is asked
    budget = _cost(folder, names, queries)
    if not as_json:
        print("\n".join(budget["lines"]), file=sys.stderr, flush=True)
    if budget["seconds"] > LONG and not yes:
        if as_json or not sys.stdin.isatty():
            raise GudaError(
                "run-unconfirmed", f"{budget['lines'][-1]}; give --yes to start, or fewer methods (--method)"
            )
        typer.confirm("Start?", abort=True, err=True)
    chosen = None if queries is None else steps.choose_or_add_queries(folder, queries)
    name, entry, page = _run_all(folder, engine, names, chosen)
    warnings = steps.warnings(folder, names)
    scored = [m for m in names if get_method(folder, m).scored]
    text = [f"Query set {name}, scored by {', '.join(scored)}.", *(f"Warning: {line}" for line in warnings)]
    if entry is None:
        text.append("Not compared with retraining: no oracle among the methods (docs/trust.md).")
    value = {"queries": name, "methods": names, "evaluated": entry is not None, "report": str(page)}
    if entry is not None and not as_json:
        show_evaluation(folder.recipe.name, entry, False)
    say(value | {"warnings": warnings}, "\n".join([*text, f"Report: {page}"]), as_json)


def _cost(run: Run, methods: list[str], queries: str | None) -> dict[str, Any]:
    """What is left to do, as lines for people, and its seconds on this machine."""
    from guda import steps
    from guda.data.folder import image_files
    from guda.methods.terms import load_queries
    from guda.table import Table, count, human_time, seconds, size

    n = steps.query_count(run, run.recipe.queries)
    if queries is not None:
        folder = Path(queries).is_dir()
        n = len(image_files(Path(queries))) if folder else load_queries(run, steps.choose_queries(run, queries)).n
    value = steps.plan(run, methods, n)
    rows = [r for r in value["rows"] if r["evals"]]
    total = sum(r["seconds"] or 0.0 for r in rows)
    if not rows:
        return {"seconds": 0.0, "lines": ["Everything is there; writing the report."]}
    table = Table.of(
        "", ("left to do", "evaluations", "time", "disk"),
        [(r["what"], count(r["evals"]), seconds(r["seconds"]), size(r["disk"])) for r in rows],
    )  # fmt: skip
    told = f"About {human_time(total)} on this machine with {value['workers']} workers"
    return {"seconds": total, "lines": [table.plain(), told]}


@command
def check(
    folder: Annotated[Path, typer.Argument(help="Folder of training images, or of pictures to ask about.")],
    data: Changes = fields(DataConfig, "group_by", "content_by", "size"),
    as_json: Json = False,
) -> None:
    """List every problem of an image folder at once; exit code 1 if `guda init` would refuse it."""
    from guda.cli.display import Display
    from guda.data.check import inspect_folder, problem_lines

    with Display(as_json).count("decode") as tick:
        found = inspect_folder(folder, tick=tick, **data)
    say(found.to_json(), "\n".join(problem_lines(found)), as_json)
    if found.refused:
        raise typer.Exit(1)


@command
def init(
    run: RunFolder,
    data: Changes = fields(DataConfig, "source as --data", "group_by", "content_by", "size", "skip_bad"),
    model: Changes = fields(ModelConfig, "path as --model", "scheduler", "lora"),
    recipe: Annotated[
        str | None, typer.Option(help="Recipe file, or the name of a shipped one; options here override it.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help="Without a model: train about this long on this machine; default: 1.", callback=finite),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a run folder from grouped images and a model (or a recipe to train one)."""
    from guda import steps
    from guda.cli.display import Display
    from guda.data.decoded import watched
    from guda.run.data import load_data
    from guda.run.models import run_classes

    if hours is not None and hours <= 0:
        raise GudaError("hours-invalid", f"--hours {hours:g}: give a positive number")
    chosen, first = _recipe(run, recipe, data, model)
    steps.check_hours(chosen, hours)
    measured: dict[str, float] = {}

    def resize(planned: Recipe, images: ImageData) -> Recipe:
        measured["steps_per_second"] = steps.steps_per_second(planned, images)
        return steps.sized(planned, measured["steps_per_second"], hours)

    unsized = first and chosen.model.path is None and chosen.model.start is None and chosen.training is not None
    sizing = resize if unsized or hours is not None else None
    with Display(as_json).count("decode") as tick, watched(tick):
        try:
            folder = steps.init(run, chosen, resize=sizing)
        except GudaError as e:
            if e.code != "prompts-section-unexpected" or recipe is not None:
                raise
            # contents are the classes of a class-conditional model, which has no prompts
            chosen, _ = _recipe(run, recipe, data, model, prompts=False)
            folder = steps.init(run, chosen, resize=sizing)
    if first:
        steps.suit_methods(folder)
    images = load_data(folder)
    summary = images.summary()
    text = [f"{folder.root}: {sum(n for _, n, _ in summary)} images in {len(summary)} groups"]
    text += [f"  {name:<20} {n:>7} images  {share:6.1%}" for name, n, share in summary]
    if images.left_out:
        text.append(f"Left out: {choices(f'{file} [{code}]' for file, code in images.left_out.items())}")
    told = _training_text(folder, measured.get("steps_per_second"))
    text += told
    then = "prompts build" if chosen.prompts else "fit" if chosen.model.path else "train"
    methods = steps.applicable(folder)
    besides = ", besides logo" if chosen.training else ""
    text += [f"Methods for this model and these groups{besides}: {', '.join(methods)}"]
    if (classes := run_classes(folder)) is not None:
        numbers = ", ".join(f"{number} = {name}" for number, name in classes.names.items())
        null = "none" if classes.null is None else classes.null
        text += [f"The model is class-conditional; classes: {numbers}; null label: {null}"]
    text += [f"Next: guda {then} {folder.root}", f"Or everything up to the report: guda run {folder.root}"]
    groups = {name: n for name, n, _ in summary}
    value = {"run": str(folder.root), "groups": groups, "model": folder.info["model"], "methods": methods}
    value |= {"left_out": images.left_out} if images.left_out else {}
    say(value | ({"training": measured} if measured else {}), "\n".join(text), as_json)


def _training_text(run: Run, rate: float | None) -> list[str]:
    """What training will cost, where it was measured."""
    from guda.table import human_time

    if rate is None or run.recipe.training is None:
        return []
    steps, again = run.recipe.training.steps, f"guda init {run.root} --hours 8"
    return [
        f"Training: {steps:,} steps, about {human_time(steps / rate)} on this machine ({rate:.3g} steps a second); "
        f"longer or shorter: {again}, or edit training in {run.path('recipe.yaml')}",
        f"What the model draws while it trains: {run.path('previews')}",
    ]


def _recipe(run: Path, name: str | None, data: Changes, model: Changes, prompts: bool = True) -> tuple[Recipe, bool]:
    """The recipe that a run is made from, and whether it is a first recipe, whose size is still open. A run that exists
    keeps its own recipe, edits included."""
    from guda.run.recipe import Recipe, preset, read_recipe
    from guda.run.run import Run

    first = name is None and not Run.exists(run)
    if name is not None:
        base = read_recipe(name).model_dump(mode="json")
    elif not first:
        base = Run.read(run).stored_recipe.model_dump(mode="json")
    else:
        # images of the same things in several styles are what text-to-image models are asked about
        chosen = preset(text_to_image=prompts and "content_by" in data, adapted="lora" in model)
        base = chosen.model_dump(mode="json")
        if "source" not in data:
            raise GudaError("data-not-given", "give --data FOLDER (images in one sub-folder per group), or --recipe")
        base["name"] = Path(data["source"]).name or data["source"]
    base["data"] |= data
    base["model"] = model if "path" in model else base["model"] | model
    return Recipe.from_dict(base, name or "options"), first


@command
def train(run: RunFolder, engine: Any = ENGINE, as_json: Json = False) -> None:
    """Train the full model of a run that has none; RUN/previews shows what it draws meanwhile."""
    from guda import steps
    from guda.run.run import Run

    opened = Run.open(run)
    folder = steps.train(opened, engine)
    sheets = sorted(opened.path("previews").glob("[!.]*.png"))
    text = [f"Trained model: {folder}", *([f"What it draws: {sheets[-1]}"] if sheets else [])]
    say({"model": folder}, "\n".join(text), as_json)


@command
def fit(
    run: RunFolder,
    method: Method = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method for this command, e.g. --set steps=200; see `guda set`."),
    ] = None,
    placebos: Annotated[
        int, typer.Option(help="Also unlearn N random placebo groups, as a null reference for the scores.", min=0)
    ] = 0,
    groups: Groups = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Create a method's counterfactual models (default: the recipe's methods but logo, which retrains the model)."""
    from guda import steps
    from guda.methods.base import get_method
    from guda.run.run import Run
    from guda.table import human_time

    folder = steps.override(Run.open(run), groups=groups, methods=method, settings=settings)
    chosen, oracles = steps.default_methods(folder)
    methods = method or chosen
    left_out = [] if method else [m for m in oracles if not get_method(folder, m).fitted()]
    if not methods:
        raise GudaError(
            "methods-none",
            f"the recipe of {run} names no method to fit (logo is fitted only when asked for); give --method",
        )
    done = steps.fit(folder, methods, engine, placebos)
    warnings = steps.warnings(folder)
    lines = [f"Fitted {', '.join(methods)} ({done} tasks run).", *(f"Warning: {line}" for line in warnings)]
    if folder.changes:
        lines.append(f"The recipe is as it was: give `guda score` the same options, or keep them: {_keeping(folder)}")
    for m in left_out:
        cost = _oracle_cost(folder, m)
        why = "guda evaluate compares with it; " if get_method(folder, m).scored else ""
        lines.append(
            f"Left out: {m}, which retrains the model {cost['models']} times, about {human_time(cost['seconds'])} "
            f"here. {why}to fit it: guda fit {run} --method {m}"
        )
    found = {"methods": methods, "left_out": left_out, "tasks_run": done, "warnings": warnings}
    say(found, "\n".join(lines), as_json)


def _oracle_cost(run: Run, method: str) -> dict[str, Any]:
    """How many models an oracle has left to train, and how long that takes on this machine."""
    from guda import steps
    from guda.run.task import pending

    tasks = [t for t in pending(run, steps.fit_tasks(run, [method])) if t.trains]
    per_eval, workers = steps.seconds_per_evaluation(run, training=True)
    return {"models": len(tasks), "seconds": sum(t.cost for t in tasks) * per_eval / max(1, min(workers, len(tasks)))}


def _keeping(run: Run) -> str:
    """The `guda set` that makes the options of a command the run's settings."""
    import shlex

    named = [(f"{section}.{key}", value) for section, fields in run.changes.items() for key, value in fields.items()]
    flat = [
        (f"{name}.{key}", sub)
        for name, value in named
        for key, sub in (value.items() if name.startswith("methods.") else [("", value)])
    ]
    texts = [
        f"{name.removesuffix('.')}={'all' if name == 'scoring.groups.' and value is None else json.dumps(value)}"
        for name, value in flat
    ]
    return shlex.join(["guda", "set", str(run.root), *texts])


def set_(
    run: RunFolder,
    settings: Annotated[
        list[str],
        typer.Argument(help="SECTION.KEY=VALUE, e.g. scoring.rounds=6 methods.retrack.steps=400 queries.n=50."),
    ],
    as_json: Json = False,
) -> None:
    """Change settings in the run's recipe. Options of other commands hold for that command alone."""
    from guda import steps
    from guda.run.run import Run

    folder = Run.open(run)
    found = steps.set_values(folder, settings)
    text = "\n".join(f"{name} = {json.dumps(value, default=str)}" for name, value in found.items())
    say({"recipe": str(folder.path("recipe.yaml")), "set": found}, text, as_json)


@command
def sample(
    run: RunFolder,
    changes: Changes = fields(QueriesConfig, "n as -n", "objects", "seed"),
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Draw queries from the run's model."""
    from guda import steps
    from guda.run.run import Run

    folder = steps.override(Run.open(run), queries=changes)
    name = steps.sample(folder, engine)
    say({"queries": name}, f"Query set {name}", as_json)


def plan(
    run: RunFolder,
    method: Method = None,
    n: Annotated[int | None, typer.Option("-n", help="Queries to plan for; default: the recipe's.", min=1)] = None,
    workers: Workers = None,
    cluster: Annotated[
        str | None, typer.Option(help="Simulate the run from scratch on this many workers, e.g. 10,100,1000.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting of the cluster, e.g. --set groups=1000 --set price=2.5; see docs/planning.md."
        ),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the simulated schedules (.svg, .png).")] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Estimate peak memory instead: of a run, or of sd15, sdxl or flux.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Estimate evaluations, time, disk and precision before you run.

    Instead of a run folder, the name of a shipped recipe may be given for its evaluations and disk.
    With --cluster: worker-hours, storage, price and the schedule on machines you do not have yet."""
    from guda import steps
    from guda.cli.display import cluster_text, memory_text, outline_text, plan_text
    from guda.config import parse_config
    from guda.run.run import Run

    if cluster is None and (settings or figure):
        raise GudaError(
            "cluster-option-missing",
            "--set and --figure need --cluster, e.g. --cluster 10,100,1000",
        )

    if memory:
        known = run.name if not run.exists() and run.name == str(run) else Run.open(run)
        asked = steps.plan_memory(known, method)
        return say(asked, memory_text(asked), as_json)
    if not run.exists() and run.name == str(run):  # no folder: the name of a recipe
        from guda.run.recipe import builtin_recipe

        found = steps.outline(builtin_recipe(run.name), n)
        return say(found, outline_text(found), as_json)
    folder = Run.open(run)
    count = n or steps.query_count(folder, folder.recipe.queries)
    if cluster is not None:
        given = steps.parse_settings([f"workers=[{cluster}]", *(settings or [])])
        config = parse_config(steps.ClusterConfig, given, "--cluster")
        draw = None
        if figure is not None:
            from guda.report.figures import cluster_schedules

            draw = partial(cluster_schedules, path=figure)
        value = steps.plan_cluster(folder, method or list(folder.recipe.methods), config, count, draw)
        return say(value, cluster_text(value), as_json)
    value = steps.plan(folder, method or list(folder.recipe.methods), count, workers)
    say(value, plan_text(value), as_json)


def status(run: RunFolder, as_json: Json = False) -> None:
    """Show what is done and what is left."""
    from guda.run.run import Run
    from guda.run.status import recall, run_status

    folder = Run.open(run)
    if (listing := recall(folder)) is not None:
        value = run_status(folder, listing)
    else:
        from guda import steps

        value = steps.status(folder)
    rows = [("model", value["model"]["name"], "ready" if value["model"]["ready"] else "not trained")]
    rows += [("method", m, f"{v['fitted']}/{v['of']} fitted") for m, v in value["methods"].items()]
    rows += [
        ("queries", q, f"{v['n']}, scored by {', '.join(v['scored']) or 'nothing'}")
        for q, v in value["queries"].items()
    ]
    rows += [("running", r, "") for r in value["running"]]
    rows += [("report", r, "") for r in value["reports"] or ["none"]]
    lines = [f"{value['run']} (recipe {value['recipe']}): {value['images']} images, {len(value['groups'])} groups"]
    lines += [f"  {what:<8} {name}{': ' if state else ''}{state}" for what, name, state in rows]
    say(value, "\n".join(lines), as_json)


def methods(as_json: Json = False) -> None:
    """List every method: its id, what it does and the unit of its scores."""
    import textwrap

    from guda.method_index import method_index

    value = method_index()
    wide = max(map(len, value)) + 2
    lines = ["Scores are in nats unless said otherwise; docs/operators.md, docs/baselines.md",
             "Settings of each: `guda set RUN methods.ID.KEY=VALUE`"]  # fmt: skip
    for name, v in value.items():
        text = v["summary"] + ("" if v["unit"] == "nats" else f" [{v['unit']}]")
        lines += textwrap.wrap(f"{name:<{wide}}{text}", 80, initial_indent="  ", subsequent_indent=" " * (wide + 2))
    say(value, "\n".join(lines), as_json)
