"""The read-only tabs: stored results, the leaderboard, other runs. Nothing is computed here.

A stored result is a scored query set of the run, found by name, opened from a list or through its link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from guda import steps
from guda.errors import GudaError
from guda.evaluation.results import DatasetEntry, read_entry
from guda.evaluation.tables import comparison
from guda.files import read_json
from guda.methods.base import METHODS
from guda.run.run import UPLOAD, Run
from guda.run.samples import set_name
from guda.run.task import read_progress
from guda.scoring.race import StopRule
from guda.scoring.scores import Scores
from guda.steps import scores_folder
from guda.web import answer
from guda.web.answer import html
from guda.web.job import FULL, Snapshot, address, one_picture
from guda.web.service import Service


@dataclass(frozen=True)
class Stored:
    """One file of scores."""

    queries: str
    method: str
    rule: str | None  # None: scored in full, by the recipe's rounds
    path: Path

    @property
    def when(self) -> float:
        return self.path.stat().st_mtime

    @property
    def upload(self) -> bool:
        return self.queries.startswith(UPLOAD)

    @property
    def address(self) -> str:
        return address(self.queries, self.method, self.rule)

    @property
    def title(self) -> str:
        return f"{self.queries}, {self.method}, {self.rule or 'in full'}"


def results(run: Run) -> list[Stored]:
    """Newest first."""
    return sorted((r for name in run.query_sets() for r in _of(run, name)), key=lambda r: (-r.when, r.title))


def _of(run: Run, queries: str) -> Iterator[Stored]:
    for method in steps.scored_methods(run, queries):
        yield Stored(queries, method, None, steps.scores_path(run, queries, method))
    for path in sorted(steps.scores_folder(run, queries).glob("*/*.parquet")):  # by the run's present estimand
        if path.stem in METHODS and (rule := _rule(path.parent.name)) is not None:
            yield Stored(queries, path.stem, rule, path)


def _rule(folder: str) -> str | None:
    """Folders beside stop rules are noise bands and likelihoods."""
    try:
        return folder if StopRule.parse(folder).name == folder else None
    except GudaError:
        return None


def find(run: Run, queries: str, method: str | None = None, rule: str | None = None) -> Stored:
    """By name, as in an address: method and rule may be left out, then the newest of the set."""
    if queries in run.query_sets():  # never a path made of what somebody wrote into an address
        for stored in sorted(_of(run, queries), key=lambda r: (-r.when, r.title)):
            if method in (None, "", stored.method) and (not rule or rule == (stored.rule or FULL)):
                return stored
    asked = ", ".join(str(part) for part in (queries, method, rule) if part)
    raise GudaError("result-unknown", f"there is no stored result {asked!r} in this run; see the tab Stored results")


def open_result(
    service: Service, queries: str, method: str | None = None, rule: str | None = None, picture: str | None = None
) -> Snapshot:
    run = service.run
    stored = find(run, queries, method, rule)
    scores = Scores.read(stored.path)
    if scores.groups != service.data.groups.names:
        raise GudaError(
            "result-stale", f"{stored.title} was scored for other groups than the recipe has now; score it again"
        )
    return service.snapshot(run, queries, stored.rule, one_picture(scores, picture or None))


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
    running = [r for p in run.path("progress").glob("[!.]*.json") if (r := read_progress(p)) is not None]
    if running:
        return f"working ({len(running)} task{'' if len(running) == 1 else 's'})"
    done = [w for w, there in (("evaluated", run.has("evaluation.json")), ("report", run.has("report.html"))) if there]
    return ", ".join(done) or ("trained" if run.has("models") or run.recipe.model.path else "not trained")


@dataclass(frozen=True)
class Shelf:
    result: Any  # dropdown of stored results, their values as in an address
    picture: Any
    place: Any
    table: Any
    refill: Callable[[], tuple[Any, str]]
    open: Callable[[dict[str, str]], tuple[Any, Any, str]]  # the parts of an address -> (result, picture, answer)


def shelf_tab(service: Service) -> Shelf:
    import gradio as gr

    def choices() -> list[tuple[str, str]]:
        return [(r.title, r.address) for r in results(service.run)[:LISTED]]

    def refill() -> tuple[Any, str]:
        return gr.update(choices=choices()), stored_table(service)

    def shown(value: str | None, picture: str | None = None) -> tuple[Any, str]:
        """(pictures to choose from, answer)."""
        asked = {k: v[0] for k, v in parse_qs((value or "").lstrip("?")).items()}
        if not asked:
            return gr.update(visible=False), says("Choose a result above, or one of the links below.")
        try:
            queries = asked["result"]
            shot = open_result(service, queries, asked.get("method"), asked.get("rule"), picture)
            ids = pictures(service.run, queries)
            page, _ = answer.answer(service, shot)
            return gr.update(choices=ids, value=shot.picture, visible=len(ids) > 1), page
        except GudaError as e:
            return gr.update(visible=False), answer.refusal(str(e), "Not found.")

    def opened(query: dict[str, str]) -> tuple[Any, Any, str]:
        try:
            value = find(service.run, query["result"], query.get("method"), query.get("rule")).address
        except GudaError as e:
            return gr.update(choices=choices()), gr.update(visible=False), answer.refusal(str(e), "Not found.")
        known = choices()
        known += [] if value in [v for _, v in known] else [(query["result"], value)]
        return gr.update(choices=known, value=value), *shown(value, query.get("picture"))

    result = gr.Dropdown(choices(), value=None, label="Result", elem_id="shelf-result")
    picture = gr.Dropdown([], label="Picture", visible=False, elem_id="shelf-picture")
    place = html(shown(None)[1], elem_id="shelf-answer")
    table = html(stored_table(service), elem_id="shelf-table")
    quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    result.input(shown, result, [picture, place], **quick)
    picture.input(lambda value, chosen: shown(value, chosen)[1], [result, picture], place, **quick)
    return Shelf(result, picture, place, table, refill, opened)
