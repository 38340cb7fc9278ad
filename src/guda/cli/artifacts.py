"""Command groups for what a run stores: `guda bank ...` (counterfactual models) and `guda prompts ...`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guda.cli.options import Json, RunFolder, finite, say
from guda.errors import GudaError

if TYPE_CHECKING:
    from guda.steps.bank import Stored

HELP = {"help_option_names": ["-h", "--help"]}

bank = typer.Typer(
    help="The stored counterfactual models: list, add, verify, export.", no_args_is_help=True, context_settings=HELP
)

prompts = typer.Typer(
    help="The prompts of a text-to-image run: build, show.", no_args_is_help=True, context_settings=HELP
)

Group = Annotated[str, typer.Option("--group", "-g", help="The group that was left out.", show_default=False)]

OneMethod = Annotated[str, typer.Option("--method", "-m", help="Method id, e.g. retrack or logo.", show_default=False)]

Seed = Annotated[int | None, typer.Option(help="Which retraining; for logo only.", min=0)]


@bank.command("ls")
def list_(run: RunFolder, as_json: Json = False) -> None:
    """List the stored models: kind, size, and whether they were made from this run's model."""
    from guda.run.run import Run
    from guda.steps.bank import bank_list

    rows = bank_list(Run.open(run))
    say({"run": str(run), "counterfactuals": [asdict(r) for r in rows]}, _table(run, rows), as_json)


def _table(run: Path, rows: list[Stored]) -> str:
    if not rows:
        return f"{run} has no counterfactuals yet; create them with: guda fit {run}"
    base = {True: "ok", False: "OTHER", None: "-"}
    from guda.table import Column, Table

    left, right = (partial(Column, align=side) for side in ("left", "right"))
    columns = (left("method"), left("group"), left("kind"), right("rank"), left("dtype"), right("bytes"),
               right("of a copy"), left("base"), left(""))  # fmt: skip
    cells = [
        (r.model, r.group, r.kind, "-" if r.rank is None else str(r.rank), r.dtype, f"{r.bytes:,}", f"{r.share:.1%}",
         base[r.base_ok], "" if r.used else "(other settings)")
        for r in rows
    ]  # fmt: skip
    total, share = sum(r.bytes for r in rows), sum(r.share for r in rows)
    summary = f"{len(rows)} models, {total:,} bytes, {share:.1f} copies"
    return f"{Table.of('', columns, cells).plain('')}\n{summary}"


@bank.command()
def add(
    run: RunFolder,
    path: Annotated[Path, typer.Argument(help="A .safetensors file (guda's or a state dict) or a diffusers folder.")],
    group: Group,
    method: OneMethod,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Import a counterfactual made elsewhere, as if `guda fit` had made it (a full fp32 delta, or weights)."""
    from guda.run.run import Run
    from guda.steps.bank import bank_add

    value = bank_add(Run.open(run), method, group, path, seed)
    done = "Added" if value["added"] else "Already there:"
    say(value, f"{done} {value['method']} without {group} ({value['kind']}): {value['file']}", as_json)


@bank.command()
def verify(run: RunFolder, as_json: Json = False) -> None:
    """Check every stored file: digest, base, shapes, finite numbers. One line per problem; exit code 2 if any."""
    from guda.run.run import Run
    from guda.steps.bank import bank_verify

    value = bank_verify(Run.open(run))
    problems = [f"{p['file']}: {' '.join(p['problem'].split())}" for p in value["problems"]]
    say(value, "\n".join(problems or [f"{value['files']} counterfactuals, all sound"]), as_json)
    if problems:
        raise typer.Exit(2)


@bank.command()
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(help="A new folder for the model, in the diffusers layout.")],
    group: Group,
    method: OneMethod,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Write one counterfactual as an ordinary diffusers folder."""
    from guda.run.run import Run
    from guda.steps.bank import bank_export

    value = bank_export(Run.open(run), method, group, folder, seed)
    say(value, f"{value['method']} without {group}: {value['folder']}", as_json)


@prompts.command()
def build(run: RunFolder, as_json: Json = False) -> None:
    """Describe every style, and write the training and evaluation prompts."""
    from guda.run.run import Run
    from guda.steps.prompts import prompts_build

    value = prompts_build(Run.open(run))
    done = "Wrote" if value["built"] else "Already there:"
    lines = [f"{done} {value['file']}: {value['training']} training and {value['evaluation']} evaluation prompts"]
    say(value, "\n".join([*lines, *_vocabularies(value)]), as_json)


@prompts.command()
def show(
    run: RunFolder,
    examples: Annotated[int, typer.Option(help="Examples of each style.", min=0)] = 1,
    anchors: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Also show the anchors of these examples for forgetting this style."),
    ] = None,
    tau: Annotated[float | None, typer.Option(help="Sharpness of weighted anchors.", min=0, callback=finite)] = None,
    eta: Annotated[
        float | None, typer.Option(help="Uniform share of weighted anchors.", min=0, max=1, callback=finite)
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Text encoder of anchors: minilm or clip:NAME_OR_PATH.")] = None,
    as_json: Json = False,
) -> None:
    """Show vocabularies, example prompts of every style, and anchors, like the paper's tables."""
    from guda.run.run import Run
    from guda.steps.prompts import prompts_show
    from guda.unlearning.anchors import AnchorsConfig

    given = {k: v for k, v in (("tau", tau), ("eta", eta), ("encoder", encoder)) if v is not None}
    if given and anchors is None:
        raise GudaError("anchors-option-missing", f"--{next(iter(given))} needs --anchors GROUP")
    value = prompts_show(Run.open(run), examples, anchors, AnchorsConfig.model_validate(given))
    say(value, "\n".join([*_vocabularies(value), *_examples(value), *_drawn(value)]), as_json)


def _vocabularies(value: dict[str, Any]) -> list[str]:
    width = max(len(s) for s in value["vocabularies"])
    lines = [f"  {s.ljust(width)}  {', '.join(words)}" for s, words in value["vocabularies"].items()]
    return ["Vocabularies", *lines, *([f"  left out: {', '.join(value['dropped'])}"] if value["dropped"] else [])]


def _examples(value: dict[str, Any]) -> list[str]:
    lines = ["", "Example prompts (style / object: training, evaluation)"] if value["examples"] else []
    for row in value["examples"]:
        lines += [f"  {row['style']} / {row['object']}", f"    {row['training']}", f"    {row['evaluation']}"]
    return lines


def _drawn(value: dict[str, Any]) -> list[str]:
    lines = ["", "Anchors (forget prompt -> anchor prompt)"] if "anchors" in value else []
    for row in value.get("anchors", []):
        lines += [f"  {row['strategy']}", f"    {row['forget']}", f"    -> {row['anchor']}"]
        if row["strategy"] == "weighted":
            likely = sorted(row["probabilities"].items(), key=lambda kv: -kv[1])[:5]
            lines.append(f"    probabilities: {', '.join(f'{s} {p:.3f}' for s, p in likely)}")
    return lines
