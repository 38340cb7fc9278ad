"""What is done and what is left of a run, from the names of its files.

Which files make a method fitted is known to its tasks, and listing those imports everything, which takes seconds. So
the list is kept, RUN/cache/tasks.json, with a digest of what it follows from (recipe, lock, version of guda); as long
as that is the same, `guda status` reads the list and looks which files are there.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from guda import __version__
from guda.errors import GudaError
from guda.files import digest, digest_file, read_json, write_json
from guda.run.run import Run
from guda.run.task import read_progress

FILE = "cache/tasks.json"


def _key(run: Run) -> str:
    return digest([__version__, *(digest_file(run.path(name)) for name in ("recipe.yaml", "run.json"))], 16)


def remember(run: Run, listing: dict[str, Any]) -> None:
    """`listing`: images, what was left out, groups, model [name, files of each task], methods {name: files of each
    task}, ranked: names of all methods that rank groups, scores: the folder of scores below that of a query set."""
    with suppress(GudaError, OSError):  # a run that can only be read
        write_json(run.path(FILE), {"key": _key(run), **listing})


def recall(run: Run) -> dict[str, Any] | None:
    """The list; None where there is none of the run as it is."""
    with suppress(GudaError, OSError, KeyError, TypeError):
        found = read_json(run.path(FILE))
        return dict(found) if found["key"] == _key(run) else None
    return None


def run_status(run: Run, listing: dict[str, Any]) -> dict[str, Any]:
    """As plain JSON."""

    def done(tasks: list[list[str]]) -> int:
        return sum(all(run.has(file) for file in makes) for makes in tasks)

    def scored(queries: str) -> list[str]:
        found = {p.stem for p in run.path("scores", queries, listing["scores"]).glob("*.parquet")}
        ordered = dict.fromkeys([*run.recipe.methods, *sorted(found)])
        return [m for m in ordered if m in found and m in listing["ranked"]]

    name, tasks = listing["model"]
    running = [r for p in sorted(run.path("progress").glob("[!.]*.json")) if (r := read_progress(p)) is not None]
    return {
        "run": str(run.root),
        "recipe": run.recipe.name,
        "images": listing["images"],
        "left_out": listing.get("left_out", {}),
        "groups": listing["groups"],
        "model": {"name": name, "ready": done(tasks) == len(tasks)},
        "methods": {m: {"fitted": done(files), "of": len(files)} for m, files in listing["methods"].items()},
        "queries": {s: {"n": len(run.query_ids(s)), "scored": scored(s)} for s in run.query_sets()},
        "running": [f"{r['done']}/{r['total']}" for r in running],
        "evaluated": run.has("evaluation.json"),
        "report": str(run.path("report.html")) if run.has("report.html") else None,
        "reports": [str(p) for p in sorted(run.path(".").glob("report*.html"))],
        "versions": run.info["versions"],
    }
