"""Which pictures are asked about."""

from __future__ import annotations

import re
from pathlib import Path

from guda.config import QueriesConfig
from guda.data.queries import Queries
from guda.errors import GudaError, Mismatch
from guda.files import read_json
from guda.methods.terms import load_queries
from guda.run.data import load_data, scored_groups
from guda.run.models import architecture
from guda.run.run import HELDOUT, REFERENCE, UPLOAD, Run
from guda.run.samples import set_name
from guda.steps.calibration import calibration_sets


def add_queries(run: Run, folder: str | Path, name: str | None = None) -> str:
    """Take a folder of pictures into the run; returns the set's name."""
    mode = {1: "L", 3: "RGB"}[load_data(run).shape[0]]
    return keep_queries(run, Queries.from_folder(folder, size=run.recipe.data.size, mode=mode), name)


def keep_queries(run: Run, queries: Queries, name: str | None = None) -> str:
    """Take pictures into the run; returns the set's name."""
    queries.check_shape(load_data(run).shape)
    architecture(run).condition(queries.prompts)  # refuses prompts that are missing, or not wanted
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


def tuning_queries(run: Run, seed: int | None, n: int) -> QueriesConfig:
    """Samples of a seed of their own: 0, or 1 where the recipe's queries have 0."""
    reported = run.recipe.queries
    if seed is None:
        seed = 0 if reported.seed != 0 else 1
    if seed == reported.seed:
        raise GudaError(
            "tuning-seed-taken",
            f"seed {seed} draws the queries that {run.root} is evaluated on; settings chosen on them would flatter "
            f"every figure: give another --queries-seed, e.g. {seed + 1}",
        )
    if n < 2:
        raise GudaError("queries-too-few", f"{n} tuning queries give no interval; give -n 2 or more")
    changes = {"n": n, "seed": seed}
    if run.recipe.prompts is not None:  # the same number of objects in every style
        objects = len(set(load_data(run).contents or ()))
        changes["objects"] = min(objects, max(1, n // len(scored_groups(run))))
    return reported.model_copy(update=changes)


def refuse_shared(run: Run, queries: str) -> None:
    """No picture that figures are reported on, however it came into the run."""
    ours = load_queries(run, queries)
    seen = {image.tobytes(): i for image, i in zip(ours.images, ours.ids, strict=True)}
    reported = {set_name(run, run.recipe.queries)}
    reported |= {s for s in run.query_sets() if run.has(f"scores/{s}/evaluation.json")}
    for name in sorted(reported & set(run.query_sets())):
        others = load_queries(run, name)
        for image, i in zip(others.images, others.ids, strict=True):
            if (mine := seen.get(image.tobytes())) is not None:
                raise GudaError(
                    "tuning-query-overlap",
                    f"tuning query {mine!r} of {queries!r} is also query {i!r} of {name!r}, which the run is "
                    "evaluated on; give another --queries-seed",
                )


def choose_queries(run: Run, queries: str | None = None) -> str:
    """A set of the run by name; default: the recipe's samples, else the only set there is that nothing was tuned on and
    that was not brought to the page or to `guda sanity`."""
    sets = run.query_sets()
    if queries is None:
        own = set_name(run, run.recipe.queries)
        if own in sets:
            return own
        others = {*tuning_sets(run), *calibration_sets(run)}
        sets = [s for s in sets if s not in others and not s.startswith((UPLOAD, HELDOUT))]
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
