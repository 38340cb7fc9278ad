"""Commands that publish a run: card, push, pull."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guda.cli.options import Json, RunFolder, StoredSet, say

Place = Annotated[str, typer.Argument(help="hf:owner/name on the Hugging Face Hub, or a folder.", show_default=False)]


def card(
    run: RunFolder,
    queries: StoredSet = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; default: RUN/card.")] = None,
    as_json: Json = False,
) -> None:
    """Write a model card (README.md) and a data sheet with the attribution summary, for the Hugging Face Hub."""
    from guda.run.run import Run
    from guda.steps.card import write_card

    made = write_card(Run.open(run), out, queries)
    say({name: str(path) for name, path in made.items()}, "\n".join(str(path) for path in made.values()), as_json)


def push(
    run: RunFolder,
    place: Place,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Whose models; default: the first that is fitted.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish a method's counterfactual models (a bank) with the card, beside a model. No training image is
    published."""
    from guda.run.run import Run
    from guda.steps.hub import push as publish

    value = publish(Run.open(run), place, method)
    what = f"{value['groups']} counterfactuals of {value['method']} ({value['bytes']:,} bytes)"
    text = f"Published {what} at {value['place']}"
    say(value, text, as_json)


def pull(
    place: Place,
    folder: Annotated[Path, typer.Argument(help="New folder for the bank.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Fetch a published bank and check every file of it; guda.Bank.load(FOLDER) reads it."""
    from guda.steps.hub import pull as fetch

    found = fetch(place, folder)
    value = {
        "folder": str(folder),
        "method": found.method,
        "model": found.model,
        "groups": [e.group for e in found.files],
    }
    text = [
        f"{folder}: {len(found.files)} counterfactuals by {found.method}, all checked",
        f"They belong to the model with weights {found.model[:12]}...; another model is refused.",
    ]
    say(value, "\n".join(text), as_json)
