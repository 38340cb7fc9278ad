"""Tables of the read-only tabs: stored results, the leaderboard, other runs. Nothing is computed here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guda.errors import GudaError
from guda.evaluation.results import DatasetEntry, read_entry
from guda.evaluation.tables import comparison
from guda.files import read_json
from guda.methods.base import METHODS
from guda.run import progress
from guda.run.run import Run
from guda.run.samples import set_name
from guda.steps import scores_folder
from guda.web import answer
from guda.web.results import results
from guda.web.service import Service

LISTED = 200  # stored results in the table; older ones are still found by their link

STORED_HEADER = ("query set", "pictures", "method", "rule", "stored")

RUNS_HEADER = ("run", "recipe", "groups", "fitted methods", "query sets", "state")


def words(label: str, header: tuple[str, ...], rows: Sequence[tuple[str, tuple[str, ...]]], more: str = "") -> str:
    """A table of words; each row may lead somewhere."""
    macros: Any = answer.environment().get_template("tables.html.j2").module
    return str(macros.words(label, header, rows, more))


def says(text: str) -> str:
    return answer.render("waiting.html.j2", text=text)


def stored_table(service: Service) -> str:
    run, found = service.run, results(service.run)
    if not found:
        return says("Nothing is stored in this run yet.")
    rows = [
        (r.address, (r.queries, f"{len(pictures(run, r.queries)):,}", r.method, r.rule or "all rounds", _date(r.when)))
        for r in found[:LISTED]
    ]
    more = f"The newest {LISTED} of {len(found):,}." if len(found) > LISTED else ""
    return words("Stored results", STORED_HEADER, rows, more)


def pictures(run: Run, queries: str) -> list[str]:
    """Ids of a set's pictures, without reading the pictures."""
    return list(read_json(run.path("queries", queries, "index.json"))["ids"])


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def evaluations(run: Run) -> dict[str, DatasetEntry]:
    """Evaluated query sets, the recipe's own first."""
    own = set_name(run, run.recipe.queries)
    files = {name: scores_folder(run, name) / "evaluation.json" for name in run.query_sets()}
    found = {name: read_entry(path) for name, path in files.items() if path.is_file()}
    return dict(sorted(found.items(), key=lambda item: (item[0] != own, item[0])))


def leaderboard(service: Service) -> str:
    """Methods against the oracle, a table for every query set that was evaluated."""
    run = service.run
    found = evaluations(run)
    if not found:
        return says(
            f"This run has not been compared with an oracle, so it is unknown how often a method is right. "
            f"Fit and score {run.recipe.evaluation.against}, then run: guda evaluate {run.root}"
        )
    macros: Any = answer.environment().get_template("tables.html.j2").module
    boards = []
    for name, entry in found.items():
        table = comparison(name, entry)
        rows = [(row[0], [_cell(c) for c in row[1:]]) for row in table.texts()]
        boards.append(macros.leaderboard(table.title, table.header, rows, service.method, table.note))
    return "".join(map(str, boards))


def _cell(text: str) -> tuple[str, str]:
    """A mean, and the interval that is shown below it."""
    mean, bracket, rest = text.partition(" [")
    return mean, bracket.strip() + rest


def runs_table(folder: Path, here: Path) -> str:
    """The run folders below `folder`; only their small files are read."""
    found = sorted(p.parent for p in folder.glob("*/run.json"))
    if not found:
        return says(f"There are no run folders in {folder}.")
    rows = [("", _run_row(root, root.resolve() == here.resolve())) for root in found]
    return words("Runs", RUNS_HEADER, rows, f"Run folders in {folder}.")


def _run_row(root: Path, served: bool) -> tuple[str, ...]:
    try:
        run = Run.open(root)
        recipe, methods = run.recipe, _made(run)
        return (
            root.name + (" (this one)" if served else ""), recipe.name, str(len(run.info.get("groups", {}))),
            ", ".join(methods) or "nothing", str(len(run.query_sets())), _state(run),
        )  # fmt: skip
    except GudaError as e:
        return root.name, "", "", "", "", f"cannot be opened: {e}"


def _made(run: Run) -> list[str]:
    """Methods with a folder of artifacts; whether all of it is there would take reading the data."""
    names = {p.name.rpartition("-")[0] for p in run.path("artifacts").glob("[!.]*")}
    return [m for m in dict.fromkeys([*run.recipe.methods, *sorted(names)]) if m in names and m in METHODS]


def _state(run: Run) -> str:
    running = [r for p in run.path("progress").glob("[!.]*.json") if (r := progress.read(p)) is not None]
    if running:
        return f"working ({len(running)} task{'' if len(running) == 1 else 's'})"
    done = [w for w, there in (("evaluated", run.has("evaluation.json")), ("report", run.has("report.html"))) if there]
    return ", ".join(done) or ("trained" if run.has("models") or run.recipe.model.path else "not trained")
