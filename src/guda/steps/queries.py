"""Which pictures are asked about."""

from __future__ import annotations

import re
from pathlib import Path

from guda.data.queries import Queries
from guda.errors import GudaError, Mismatch
from guda.files import read_json
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.run import REFERENCE, UPLOAD, Run
from guda.run.samples import set_name


def add_queries(run: Run, folder: str | Path, name: str | None = None) -> str:
    """Take a folder of pictures into the run; returns the set's name."""
    mode = {1: "L", 3: "RGB"}[load_data(run).shape[0]]
    return keep_queries(run, Queries.from_folder(folder, size=run.recipe.data.size, mode=mode), name)


def keep_queries(run: Run, queries: Queries, name: str | None = None) -> str:
    """Take pictures into the run; returns the set's name."""
    queries.check_shape(load_data(run).shape)
    load_model(run, "base").condition(queries.prompts)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name or queries.name).lstrip(".") or "queries"
    if name is not None and name != plain:
        raise GudaError(
            "query-set-name-invalid", f"--name {name!r}: letters, digits, dot, dash and underscore only, e.g. {plain!r}"
        )
    name = plain
    if REFERENCE.fullmatch(name):
        raise GudaError(
            "query-set-name-reserved",
            f"query sets called {name!r} are the run's own training images; give another --name",
        )
    target = run.path("queries", name)
    if (target / "index.json").is_file():
        known = Queries.load(target)
        if known.digest != queries.digest:
            raise Mismatch(
                "query-set-conflict",
                f"query set {name!r} of the run has other pictures",
                known.digest[:12],
                queries.digest[:12],
                "give this one another --name",
            )
        return name
    Queries(queries.ids, queries.images, queries.prompts, name).save(target)
    return name


def tuning_sets(run: Run) -> dict[str, set[str]]:
    """Query sets that settings were chosen on (`guda tune`), with the methods."""
    found: dict[str, set[str]] = {}
    for path in sorted(run.path("tune").glob("*/study.json")):
        study = read_json(path)
        found.setdefault(study["queries"]["name"], set()).add(study["method"])
    return found


def tuned_on(run: Run, queries: Queries) -> list[str]:
    """Methods whose settings were chosen on some of these very pictures: figures on them flatter."""
    seen = {image.tobytes() for image in queries.images}
    return sorted(
        method
        for name, methods in tuning_sets(run).items()
        if name in run.query_sets() and any(i.tobytes() in seen for i in Queries.load(run.path("queries", name)).images)
        for method in methods
    )


def choose_queries(run: Run, queries: str | None = None) -> str:
    """A set of the run by name; default: the recipe's samples, else the only set there is that nothing was tuned on and
    that was not brought to the page. Samples that were only drawn to compare others with do not count: where they are
    not scored and a single other set is, it is that one."""
    sets = run.query_sets()
    if queries is None:
        own = set_name(run, run.recipe.queries)
        others = [s for s in sets if s not in (own, *tuning_sets(run)) and not s.startswith(UPLOAD)]
        if own in sets:
            scored = [s for s in others if any(run.path("scores", s).rglob("*.parquet"))]
            return scored[0] if len(scored) == 1 and not any(run.path("scores", own).rglob("*.parquet")) else own
        sets = others
        if len(sets) == 1:
            return sets[0]
        if not sets:
            raise GudaError(
                "query-set-missing",
                f"{run.root} has no queries; give --queries FOLDER, or draw some with: guda sample {run.root}",
            )
        raise GudaError(
            "query-set-ambiguous", f"{run.root} has several query sets; choose one with --queries: {', '.join(sets)}"
        )
    if queries in sets:
        return queries
    raise GudaError(
        "query-set-unknown",
        f"no query set {queries!r} in {run.root} and no such folder; sets: {', '.join(sets) or 'none'}",
    )


def choose_or_add_queries(run: Run, queries: str | None, name: str | None = None) -> str:
    """A set by name, or a folder that becomes one; a folder of a set's name must still hold the same pictures."""
    if queries is not None and Path(queries).is_dir():
        return add_queries(run, queries, name)
    if name is not None:
        raise GudaError("query-set-folder-missing", "--name names a new query set: give its folder with --queries")
    return choose_queries(run, queries)
