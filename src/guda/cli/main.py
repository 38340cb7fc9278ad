"""The command line. Every verb is one function of `guda.verbs`; nothing is decided here.

Heavy imports stay inside the verbs, so that `guda --help` answers at once. A user's mistake is one line on stderr and
exit code 2.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guda import __version__
from guda.cli import experiments
from guda.cli import inspect as look
from guda.cli.bank import app as bank
from guda.cli.figure import figure
from guda.cli.fit import fit, sample, score, train
from guda.cli.likelihood import likelihood
from guda.cli.options import ENGINE, Drift, Json, Method, QuerySet, RunFolder, works
from guda.cli.options import say as _say
from guda.cli.prompts import app as prompts
from guda.cli.report import report
from guda.cli.reproduce import reproduce
from guda.cli.serve import serve
from guda.diffusion import distributed
from guda.errors import GudaError, OneProcess

if TYPE_CHECKING:
    from guda.run.recipe import Recipe


app = typer.Typer(
    name="guda",
    help="Which training data is this picture owed to? Group-wise attribution of diffusion models, in nats.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TOGETHER = ("train", "fit")  # verbs that `accelerate launch` may run in several processes


def _version(show: bool) -> None:
    if show:
        print(f"guda {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if distributed.world_size() > 1 and context.invoked_subcommand not in TOGETHER:
        raise GudaError(
            "launch-unsupported",
            f"{distributed.world_size()} processes were launched, but guda {context.invoked_subcommand} "
            "is the work of one; "
            f"launch only guda {' and guda '.join(TOGETHER)}, and run this by itself",
        )


@app.command()
@works
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
            return _show_evaluation(folder.recipe.name, entry, as_json, str(page))
    from guda import steps
    from guda.report.drawings import draw_missing
    from guda.report.page import write_report

    folder = folder or steps.init(run, recipe)
    entry = steps.pipeline(folder, engine)
    name = steps.choose_queries(folder)
    draw_missing(folder, steps.scored_methods(folder, name), engine)
    page = write_report(folder, name)
    scored = [f"scores/{name}/{m}.parquet" for m in folder.recipe.methods]
    folder.finish("demo", ["evaluation.json", "report.html", *scored])
    _show_evaluation(folder.recipe.name, entry, as_json, str(page))


def _show_evaluation(name: str, entry: Any, as_json: bool, report: str | None = None, pairs: bool = False) -> None:
    if as_json:
        print(json.dumps(entry.model_dump(mode="json") | ({"report": report} if report else {})))
        return
    from rich.console import Console

    from guda.evaluation.tables import terminal

    console = Console()
    console.print(terminal(name, entry, console.width))
    if pairs:
        from guda.evaluation.separation import pairs_terminal

        console.print(pairs_terminal(name, entry))
    if report:
        print(f"Report: {report}")


@app.command()
def init(
    run: RunFolder,
    data: Annotated[str | None, typer.Option(help="Image folder (groups are its sub-folders) or source name.")] = None,
    model: Annotated[str | None, typer.Option(help="Trained diffusers model: a folder or Hub id.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Noise schedule KIND:STEPS[:PREDICTION] or folder, if the model brings none."),
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="Folder level (level:2) or metadata column; a tree: level:1/level:2.")
    ] = None,
    content_by: Annotated[
        str | None, typer.Option(help="What an image shows, for text-to-image: folder level or metadata column.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Resize and centre-crop images to this many pixels.", min=1)] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe file, or the name of a shipped one; options here override it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a run folder from images with groups and a model (or a recipe to train one)."""
    from guda import steps
    from guda.run.models import load_data

    chosen = _recipe(recipe, data=data, model=model, scheduler=scheduler, group_by=group_by,
                     content_by=content_by, size=size)  # fmt: skip
    folder = steps.init(run, chosen, keep_edits=recipe is None)
    summary = load_data(folder).summary()
    text = [f"{folder.root}: {sum(n for _, n, _ in summary)} images in {len(summary)} groups"]
    text += [f"  {name:<20} {n:>7} images  {share:6.1%}" for name, n, share in summary]
    then = "prompts build" if chosen.prompts else "fit" if chosen.model.path else "train"
    text += [f"Next: guda {then} {folder.root}"]
    groups = {name: n for name, n, _ in summary}
    _say({"run": str(folder.root), "groups": groups, "model": folder.info["model"]}, "\n".join(text), as_json)


def _recipe(name: str | None, **given: Any) -> Recipe:
    from guda.run.recipe import Recipe, builtin_recipe, preset

    if name is None:
        # images of the same things in several styles are what text-to-image models are asked about
        base: dict[str, Any] = preset(text_to_image=given["content_by"] is not None).model_dump(mode="json")
        if given["data"] is None:
            raise GudaError("data-not-given", "give --data FOLDER (images in one sub-folder per group), or --recipe")
        base["name"] = Path(given["data"]).name or given["data"]
    else:
        found = Recipe.read(Path(name)) if name.endswith((".yaml", ".yml")) else builtin_recipe(name)
        base = found.model_dump(mode="json")
    if given["data"] is not None:
        base["data"]["source"] = given["data"]
    for option in ("group_by", "content_by", "size"):
        if given[option] is not None:
            base["data"][option] = given[option]
    if given["model"] is not None:
        base["model"] = {"path": given["model"], "scheduler": given["scheduler"]}
    elif given["scheduler"] is not None:
        base["model"]["scheduler"] = given["scheduler"]
    return Recipe.from_dict(base, name or "options")


for _verb in (train, fit, sample, score):
    app.command()(_verb)


@app.command()
def evaluate(
    run: RunFolder,
    queries: QuerySet = None,
    band: Annotated[str | None, typer.Option(help="Count some timesteps only, e.g. 100:1000.")] = None,
    bands: Annotated[bool, typer.Option("--bands", help="Top-1 in each noise band, against its own ceiling.")] = False,
    drift: Drift = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Methods against each other: paired differences, p, what is not separated.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare every scored method with the LOGO oracle: six metrics, intervals, ceiling."""
    from guda import steps
    from guda.run.run import Run

    folder = Run.open(run)
    chosen = steps.choose_queries(folder, queries)
    steps.change_scoring(folder, drift=drift)
    if not bands:
        return _show_evaluation(folder.recipe.name, steps.evaluate(folder, chosen, band), as_json, pairs=pairs)
    table = steps.evaluate_bands(folder, chosen)
    lines = ["Top-1 by noise band, each against its own oracle and ceiling"]
    lines += [f"  t in {b:<10}" + "   ".join(f"{m} {x:.2f}" for m, x in row.items()) for b, row in table.items()]
    _say(table, "\n".join(lines), as_json)


@app.command()
@works
def health(
    run: RunFolder,
    method: Method = None,
    n: Annotated[
        int | None, typer.Option("-n", help="Training images of each group; kept in the recipe.", min=2)
    ] = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """How far the counterfactuals can be trusted: what they do to training images of every group."""
    from guda import steps
    from guda.run.run import Run

    folder = Run.open(run)
    methods = method or steps.health_methods(folder)
    found = steps.health(folder, methods, engine, n)
    if as_json:
        print(json.dumps({m: h.model_dump(mode="json") for m, h in found.items()}, ensure_ascii=False))
        return
    from rich.console import Console

    from guda.cli.health import tables

    console = Console()
    for measured in found.values():
        console.print(*tables(measured, console.width), sep="\n")


app.command()(likelihood)

for _verb in (look.plan, report, look.status, look.methods):
    app.command()(_verb)

app.command()(figure)

app.add_typer(bank, name="bank")

app.add_typer(prompts, name="prompts")

app.command()(experiments.tune)

app.command()(experiments.ablate)

app.command()(reproduce)

app.command()(serve)

app.command()(experiments.pairs)


def _publish() -> None:
    """Runs in a bucket: what the verb wrote here goes there."""
    if "guda.run.remote" in sys.modules and distributed.is_main():
        from guda.run.remote import push_all

        push_all()


def main() -> None:
    try:
        with nullcontext() if distributed.is_main() else redirect_stdout(io.StringIO()):  # results are told once
            try:
                app()
            except SystemExit as e:  # how typer ends
                if not e.code:
                    _publish()
                raise
    except GudaError as e:
        if distributed.is_main() or isinstance(e, OneProcess):
            print(e.line, file=sys.stderr, flush=True)
        distributed.leave(2)
    except Exception:
        if distributed.world_size() == 1:
            raise
        traceback.print_exc()
        distributed.leave(1)
    except SystemExit as e:
        if e.code == 130:  # typer's answer to Ctrl-C
            print("guda: stopped; nothing finished is lost, the same command goes on from here", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
