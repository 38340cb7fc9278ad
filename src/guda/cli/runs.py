"""Commands that create a run and prepare it for scoring (demo, init, train, fit, sample) or inspect it (plan, status,
methods)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guda.cli.options import ENGINE, Changes, Groups, Json, Method, RunFolder, Workers, command, fields, say
from guda.cli.scores import show_evaluation
from guda.config import DataConfig, ModelConfig, QueriesConfig
from guda.errors import GudaError

if TYPE_CHECKING:
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
    from guda.report.card_evidence import gather_examples
    from guda.report.content import Content
    from guda.report.page import write_report
    from guda.report.picture_cards import examples
    from guda.report.pictures import write_samples
    from guda.report.same_noise import draw_missing

    folder = folder or steps.init(run, recipe)
    entry = steps.pipeline(folder, engine)
    name = steps.choose_queries(folder)
    draw_missing(folder, steps.scored_methods(folder, name), engine)
    content = Content.read(folder, name)
    gather_examples(content, examples(content.view), engine)
    write_samples(folder, name)
    page = write_report(folder, name)
    scored = [f"scores/{name}/{m}.parquet" for m in folder.recipe.methods]
    folder.finish("demo", ["evaluation.json", "report.html", *scored])
    show_evaluation(folder.recipe.name, entry, as_json, str(page))


@command
def init(
    run: RunFolder,
    data: Changes = fields(DataConfig, "source as --data", "group_by", "content_by", "size"),
    model: Changes = fields(ModelConfig, "path as --model", "scheduler", "lora"),
    recipe: Annotated[
        str | None, typer.Option(help="Recipe file, or the name of a shipped one; options here override it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a run folder from grouped images and a model (or a recipe to train one)."""
    from guda import steps
    from guda.run.data import load_data
    from guda.run.models import run_classes

    chosen = _recipe(recipe, data, model)
    try:
        folder = steps.init(run, chosen, keep_edits=recipe is None)
    except GudaError as e:
        if e.code != "prompts-section-unexpected" or recipe is not None:
            raise
        # contents are the classes of a class-conditional model, which has no prompts
        chosen = _recipe(recipe, data, model, prompts=False)
        folder = steps.init(run, chosen, keep_edits=True)
    summary = load_data(folder).summary()
    text = [f"{folder.root}: {sum(n for _, n, _ in summary)} images in {len(summary)} groups"]
    text += [f"  {name:<20} {n:>7} images  {share:6.1%}" for name, n, share in summary]
    then = "prompts build" if chosen.prompts else "fit" if chosen.model.path else "train"
    methods = steps.applicable(folder)
    text += [f"Methods for this model and these groups, besides logo: {', '.join(methods)}"]
    if (classes := run_classes(folder)) is not None:
        numbers = ", ".join(f"{number} = {name}" for number, name in classes.names.items())
        text += [f"The model is class-conditional; classes: {numbers}"]
    text += [f"Next: guda {then} {folder.root}"]
    groups = {name: n for name, n, _ in summary}
    found = {"run": str(folder.root), "groups": groups, "model": folder.info["model"], "methods": methods}
    say(found, "\n".join(text), as_json)


def _recipe(name: str | None, data: Changes, model: Changes, prompts: bool = True) -> Recipe:
    from guda.run.recipe import Recipe, preset, read_recipe

    if name is None:
        # images of the same things in several styles are what text-to-image models are asked about
        chosen = preset(text_to_image=prompts and "content_by" in data, adapted="lora" in model)
        base: dict[str, Any] = chosen.model_dump(mode="json")
        if "source" not in data:
            raise GudaError("data-not-given", "give --data FOLDER (images in one sub-folder per group), or --recipe")
        base["name"] = Path(data["source"]).name or data["source"]
    else:
        base = read_recipe(name).model_dump(mode="json")
    base["data"] |= data
    base["model"] = model if "path" in model else base["model"] | model
    return Recipe.from_dict(base, name or "options")


@command
def train(run: RunFolder, engine: Any = ENGINE, as_json: Json = False) -> None:
    """Train the full model of a run that has none."""
    from guda import steps
    from guda.run.run import Run

    folder = steps.train(Run.open(run), engine)
    say({"model": folder}, f"Trained model: {folder}", as_json)


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
    from guda.run.run import Run

    folder = steps.override(Run.open(run), groups=groups, methods=method, settings=settings)
    chosen, oracles = steps.default_methods(folder)
    methods = method or chosen
    left_out = [] if method else [m for m in oracles if m not in steps.fitted_methods(folder)]
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
    lines += [
        f"Left out: {m}, which retrains the model without each group. guda evaluate compares with it; to fit it: "
        f"guda fit {run} --method {m}"
        for m in left_out
    ]
    found = {"methods": methods, "left_out": left_out, "tasks_run": done, "warnings": warnings}
    say(found, "\n".join(lines), as_json)


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
