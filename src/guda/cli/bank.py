"""`guda bank ...`: the counterfactual models of a run. Every verb is one function of `guda.verbs.bank`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from guda.steps.bank import Stored


app = typer.Typer(
    help="The stored counterfactual models: list, add, verify, export.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunFolder = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]

Group = Annotated[str, typer.Option("--group", "-g", help="The group that was left out.", show_default=False)]

Method = Annotated[str, typer.Option("--method", "-m", help="Method id, e.g. retrack or logo.", show_default=False)]

Seed = Annotated[int | None, typer.Option(help="Which retraining; for logo only.", min=0)]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


def _say(value: Any, text: str, as_json: bool) -> None:
    print(json.dumps(value, ensure_ascii=False) if as_json else text)


@app.command("ls")
def list_(run: RunFolder, as_json: Json = False) -> None:
    """What is stored: kind, size, and whether it was made from this run's model."""
    from guda.run.run import Run
    from guda.steps.bank import bank_list

    rows = bank_list(Run.open(run))
    _say({"run": str(run), "counterfactuals": [asdict(r) for r in rows]}, _table(run, rows), as_json)


def _table(run: Path, rows: list[Stored]) -> str:
    if not rows:
        return f"{run} holds no counterfactuals yet; make them with: guda fit {run}"
    base = {True: "ok", False: "OTHER", None: "-"}
    head = ("method", "group", "kind", "rank", "dtype", "bytes", "of a copy", "base", "")
    table = [head] + [
        (r.method, r.group, r.kind, "-" if r.rank is None else str(r.rank), r.dtype, f"{r.bytes:,}", f"{r.share:.1%}",
         base[r.base_ok], "" if r.used else "(other settings)")
        for r in rows
    ]  # fmt: skip
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    numbers = {3, 5, 6}
    lines = [
        "  ".join(c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in table
    ]
    total, share = sum(r.bytes for r in rows), sum(r.share for r in rows)
    return "\n".join([*(line.rstrip() for line in lines), f"{len(rows)} models, {total:,} bytes, {share:.1f} copies"])


@app.command()
def add(
    run: RunFolder,
    path: Annotated[Path, typer.Argument(help="A .safetensors file (guda's or a state dict) or a diffusers folder.")],
    group: Group,
    method: Method,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Take in a counterfactual made elsewhere, where `guda fit` would put it (a whole fp32 delta, or weights)."""
    from guda.run.run import Run
    from guda.steps.bank import bank_add

    value = bank_add(Run.open(run), method, group, path, seed)
    done = "Added" if value["added"] else "Already there:"
    _say(value, f"{done} {value['method']} without {group} ({value['kind']}): {value['file']}", as_json)


@app.command()
def verify(run: RunFolder, as_json: Json = False) -> None:
    """Read every stored file: digest, base, shapes, finite numbers. One line per problem, exit code 2 if any."""
    from guda.run.run import Run
    from guda.steps.bank import bank_verify

    value = bank_verify(Run.open(run))
    problems = [f"{p['file']}: {' '.join(p['problem'].split())}" for p in value["problems"]]
    _say(value, "\n".join(problems or [f"{value['files']} counterfactuals, all sound"]), as_json)
    if problems:
        raise typer.Exit(2)


@app.command()
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(help="A new folder for the model, in the diffusers layout.")],
    group: Group,
    method: Method,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Write one counterfactual as an ordinary diffusers folder."""
    from guda.run.run import Run
    from guda.steps.bank import bank_export

    value = bank_export(Run.open(run), method, group, folder, seed)
    _say(value, f"{value['method']} without {group}: {value['folder']}", as_json)
