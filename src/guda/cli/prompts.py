"""`guda prompts ...`: the prompts of a text-to-image run. Every verb is one function of `guda.verbs.prompts`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from guda.cli.options import Json, RunFolder, say
from guda.errors import GudaError

app = typer.Typer(
    help="The prompts of a text-to-image run: build, show.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def build(run: RunFolder, as_json: Json = False) -> None:
    """Describe every style, and write the training and evaluation prompts."""
    from guda.run.run import Run
    from guda.steps.prompts import prompts_build

    value = prompts_build(Run.open(run))
    done = "Wrote" if value["built"] else "Already there:"
    lines = [f"{done} {value['file']}: {value['training']} training and {value['evaluation']} evaluation prompts"]
    say(value, "\n".join([*lines, *_vocabularies(value)]), as_json)


@app.command()
def show(
    run: RunFolder,
    examples: Annotated[int, typer.Option(help="Examples of each style.", min=0)] = 1,
    anchors: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Also anchors of these examples if this style is to be forgotten."),
    ] = None,
    tau: Annotated[float | None, typer.Option(help="Sharpness of weighted anchors.", min=0)] = None,
    eta: Annotated[float | None, typer.Option(help="Uniform share of weighted anchors.", min=0, max=1)] = None,
    encoder: Annotated[str | None, typer.Option(help="Text encoder of anchors: minilm or clip:NAME_OR_PATH.")] = None,
    as_json: Json = False,
) -> None:
    """Vocabularies, example prompts of every style, and anchors, like the paper's tables."""
    from guda.run.run import Run
    from guda.steps.prompts import prompts_show
    from guda.unlearning.anchors import AnchorsConfig

    given = {k: v for k, v in (("tau", tau), ("eta", eta), ("encoder", encoder)) if v is not None}
    if given and anchors is None:
        raise GudaError(
            "anchors-option-missing", f"--{next(iter(given))} is about anchors: give --anchors GROUP as well"
        )
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
