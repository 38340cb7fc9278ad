"""What is only read: stored results as a gallery, the leaderboard, other runs. Nothing is computed here.

A stored result is a scored query set of the run, found by name, opened from a list or through its link.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from guda import steps
from guda.errors import GudaError
from guda.evaluation.results import DatasetEntry, read_entry
from guda.evaluation.tables import comparison
from guda.language import tr
from guda.methods.base import METHODS
from guda.report.shares import coalition_sections
from guda.run.run import UPLOAD, Run
from guda.run.samples import set_name
from guda.run.task import read_progress
from guda.scoring.race import StopRule
from guda.scoring.scores import Scores
from guda.steps import scores_folder
from guda.web import answer
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
    wanted_result = ", ".join(str(part) for part in (queries, method, rule) if part)
    raise GudaError(
        "result-unknown", f"there is no stored result {wanted_result!r} in this run; see the tab Stored results"
    )


def open_result(
    service: Service, queries: str, method: str | None = None, rule: str | None = None, picture: str | None = None
) -> Snapshot:
    stored = find(service.run, queries, method, rule)
    return service.snapshot(service.run, queries, stored.rule, one_picture(readable(service, stored), picture or None))


def readable(service: Service, stored: Stored) -> Scores:
    """Refused if they are of other groups than the recipe has now."""
    scores = Scores.read(stored.path)
    if scores.groups != service.data.groups.names:
        raise GudaError(
            "result-stale", f"{stored.title} was scored for other groups than the recipe has now; score it again"
        )
    return scores


PAGE, BESIDE = 24, 6  # tiles of a gallery; pictures offered for comparison


def picture_address(queries: str, picture: str) -> str:
    return "picture?" + urlencode({"set": queries, "id": picture})


def tile(service: Service, queries: str, shot: Snapshot) -> dict[str, Any]:
    """One picture of a gallery: what the macro `tile` takes."""
    view = service.view(shot)
    verdict, first = view.verdicts[0], view.rows(0)[0]
    value = "" if verdict.kind == "foreign" else f"{first.name} {first.value} {view.unit}"
    name = shot.picture if shot.picture == queries else f"{queries}/{shot.picture}"
    return {
        "href": answer.link(shot), "image": picture_address(queries, shot.picture), "verdict": verdict,
        "name": f"{name}, {shot.scores.method}{f', {shot.rule}' if shot.rule else ''}", "value": value,
    }  # fmt: skip


def gallery(service: Service, page: int) -> tuple[list[dict[str, Any]], int]:
    """(tiles of a page, pages): one for each stored result, newest first; a set of several pictures is one tile."""
    run, stored_results = service.run, results(service.run)
    tiles = []
    for stored in stored_results[(page - 1) * PAGE : page * PAGE]:
        ids = run.query_ids(stored.queries)
        try:
            if len(ids) == 1:
                tiles.append(tile(service, stored.queries, open_result(service, stored.queries, stored.method,
                                                                       stored.rule or FULL)))  # fmt: skip
                continue
        except GudaError:  # scored for other groups than the recipe has now
            pass
        href = "stored?" + urlencode({"set": stored.queries, "method": stored.method, "rule": stored.rule or FULL})
        tiles.append({
            "href": href, "image": picture_address(stored.queries, ids[0]), "verdict": None,
            "name": f"{stored.queries}, {stored.method}{f', {stored.rule}' if stored.rule else ''}",
            "value": tr("{n} pictures", n=f"{len(ids):,}"),
        })  # fmt: skip
    return tiles, -(-len(stored_results) // PAGE)


def set_gallery(service: Service, queries: str, method: str, rule: str, page: int) -> tuple[list[dict[str, Any]], int]:
    """(tiles of a page, pages): the pictures of one scored set."""
    stored = find(service.run, queries, method, rule)
    scores = readable(service, stored)
    shots = [
        service.snapshot(service.run, queries, stored.rule, scores[q : q + 1])
        for q in range(len(scores.queries))[(page - 1) * PAGE : page * PAGE]
    ]
    return [tile(service, queries, shot) for shot in shots], -(-len(scores.queries) // PAGE)


def others(service: Service, shot: Snapshot) -> dict[str, Any]:
    """What an answer can be compared with: the same picture by other methods, other stored pictures."""
    here = answer.link(shot).partition("?")[2]

    def beside(link: str) -> str:
        return f"compare?{urlencode({'left': here, 'right': link.partition('?')[2]})}"

    run, methods, shown = service.run, [], []
    for stored in _of(run, shot.queries):
        if (stored.method, stored.rule) != (shot.scores.method, shot.rule):
            name = stored.method + (f", {stored.rule}" if stored.rule else "")
            picture = None if shot.picture == shot.queries else shot.picture
            methods.append((beside(address(shot.queries, stored.method, stored.rule, picture)), name))
    if len(run.query_ids(shot.queries)) > 1:
        tiles = set_gallery(service, shot.queries, shot.scores.method, shot.rule or FULL, 1)[0]
    else:
        tiles = gallery(service, 1)[0]
    shown = [t | {"href": beside(t["href"])} for t in tiles if t["verdict"] and t["href"] != answer.link(shot)]
    return {"methods": methods, "pictures": shown[:BESIDE]}


def evaluations(run: Run) -> dict[str, DatasetEntry]:
    """Evaluated query sets, the recipe's own first."""
    own = set_name(run, run.recipe.queries)
    files = {name: scores_folder(run, name) / "evaluation.json" for name in run.query_sets()}
    entries = {name: read_entry(path) for name, path in files.items() if path.is_file()}
    return dict(sorted(entries.items(), key=lambda item: (item[0] != own, item[0])))


def leaderboard(service: Service) -> Markup:
    """Methods against the oracle, a table for every query set that was evaluated."""
    run = service.run
    entries = evaluations(run)
    if not entries:
        return answer.macro(
            "empty",
            f"This run has not been compared with an oracle, so it is unknown how often a method is right. "
            f"Fit and score {run.recipe.evaluation.against}, then run: guda evaluate {run.root}",
        )
    boards = []
    for name, entry in entries.items():
        table = comparison(name, entry)
        rows = [(row[0], [_cell(c) for c in row[1:]]) for row in table.texts()]
        boards.append(
            answer.macro(
                "leaderboard", table.title, table.header, rows, service.method, table.note, file="board.html.j2"
            )
        )
    return Markup("").join(boards)


def _cell(text: str) -> tuple[str, str]:
    """A mean, and the interval that is shown below it."""
    mean, bracket, rest = text.partition(" [")
    return mean, bracket.strip() + rest


def shares_tables(service: Service) -> Markup:
    """What was computed of several groups together (`guda shares`, `guda without`), by query set."""
    run, sections_html = service.run, Markup("")
    for name in run.query_sets():
        path = scores_folder(run, name) / "evaluation.json"
        for section in coalition_sections(run, name, read_entry(path) if path.is_file() else None):
            table = section.table
            rows = [("", row) for row in table.texts()]
            sections_html += Markup("<h2>{}</h2>").format(table.title)
            sections_html += answer.macro("words", table.title, table.header, rows, table.note)
            if section.picture is not None:
                caption = tr("Pictures with and without the groups, from the same noise")
                sections_html += Markup('<p class="scroll"><img src="{}" alt="{}"></p>').format(
                    section.picture, caption
                )
    if not sections_html:
        return answer.macro("empty", f"Nothing was computed of several groups together; run: guda shares {run.root}")
    return sections_html


RUNS_HEADER = ("run", "recipe", "groups", "fitted methods", "query sets", "state")


def runs_table(folder: Path, here: Path) -> Markup:
    """The run folders below `folder`; only their small files are read."""
    roots = sorted(p.parent for p in folder.glob("*/run.json"))
    if not roots:
        return answer.macro("empty", f"There are no run folders in {folder}.")
    rows = [("", _run_row(root, root.resolve() == here.resolve())) for root in roots]
    return answer.macro("words", "Runs", RUNS_HEADER, rows, f"Run folders in {folder}.")


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
