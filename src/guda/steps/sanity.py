"""Scores held-out real pictures of known groups: the first thing to try on a run of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from guda.data.folder import group_paths, image_files
from guda.data.queries import Queries, file_ids
from guda.errors import GudaError, choices, suggestion
from guda.evaluation.sanity import Sanity, measure
from guda.files import read_json, write_json
from guda.run.data import load_data, scored_groups
from guda.run.run import HELDOUT, Run
from guda.scoring.scores import Scores
from guda.steps.fit import Engine, check_fitted, fitted_methods
from guda.steps.queries import keep_queries
from guda.steps.score import score, scored_methods, scores_folder, scores_path

FILE = "sanity.json"


def sanity(
    run: Run, heldout: str | Path, engine: Engine, methods: Sequence[str] | None = None, name: str | None = None
) -> Sanity:
    """Score the pictures in `heldout` (a folder like one of training images) by the methods (default: all that are
    fitted) and compare with the groups they are in; also written beside the scores."""
    asked = list(methods or fitted_methods(run))
    if not asked:
        raise GudaError("method-not-fitted", f"nothing is fitted in {run.root} yet; run: guda fit {run.root}")
    check_fitted(run, asked)
    root = Path(heldout).expanduser()
    if not root.is_dir():
        raise GudaError("heldout-folder-missing", f"--heldout {heldout}: no such folder; give one with DIR/<group>/*")
    known = known_groups(run, root)  # before the slow part
    data = load_data(run)
    queries = Queries.from_folder(root, size=run.recipe.data.size, mode={1: "L", 3: "RGB"}[data.shape[0]])
    queries.check_shape(data.shape)
    check_unseen(queries, {image.tobytes(): i for i, image in zip(data.ids, data.images, strict=True)})
    chosen = keep_queries(run, replace(queries, name=HELDOUT + queries.name), name)
    score(run, chosen, asked, engine)
    # what other methods said of these pictures before is kept beside it
    every = {m: Scores.read(scores_path(run, chosen, m)) for m in scored_methods(run, chosen)}
    pictures = Counter(g for of_picture in known.values() for g in of_picture)
    whole = Sanity(
        queries=chosen, estimand=next((s.estimand for s in every.values() if s.reading.models), "no estimand"),
        pictures={g: pictures[g] for g in scored_groups(run) if pictures[g]},
        methods={m: measure(scores, known, scores.verdict()) for m, scores in every.items()}, known=known,
    )  # fmt: skip
    write_json(scores_folder(run, chosen) / FILE, whole.model_dump(mode="json"))
    return whole.model_copy(update={"methods": {m: whole.methods[m] for m in asked if m in whole.methods}})


def known_groups(run: Run, root: Path) -> dict[str, tuple[str, ...]]:
    """Of every picture in the folder, by its query id, the ranked groups it is in; told as the training data tell
    theirs: by folders, or by a metadata column."""
    names, ranked = set(load_data(run).groups.names), scored_groups(run)
    files = image_files(root)
    found: dict[str, tuple[str, ...]] = {}
    for file, query, paths in zip(
        files, file_ids(files), group_paths(root, files, run.recipe.data.group_by), strict=True
    ):
        of_picture: set[str] = set()
        for path in paths:
            nodes = [{"/".join(path[:d]), path[d - 1]} & names for d in range(1, len(path) + 1)]
            if not nodes[-1]:
                group = "/".join(path)
                raise GudaError(
                    "heldout-group-unknown",
                    f"{file} is of group {group!r}, which the run does not have; groups: {choices(ranked)}"
                    f"{suggestion(group, ranked)}",
                )
            of_picture |= set().union(*nodes)
        found[query] = tuple(g for g in ranked if g in of_picture)
        if not found[query]:
            raise GudaError(
                "heldout-group-not-scored",
                f"{file} is of {choices(sorted(of_picture))}, and the recipe ranks only {choices(ranked)}; "
                "leave it out, or rank its group (--groups)",
            )
    return found


def check_unseen(queries: Queries, training: dict[bytes, str]) -> None:
    """Refuse pictures that are training images, pixel by pixel, as the model sees them."""
    seen = [q for q, image in enumerate(queries.images) if image.tobytes() in training]
    if seen:
        first = queries.ids[seen[0]]
        raise GudaError(
            "heldout-is-training",
            f"{len(seen)} of {queries.n} held-out pictures are training images, e.g. {first} = "
            f"{training[queries.images[seen[0]].tobytes()]}; take them out, or the test flatters",
        )


def read_sanity(run: Run) -> list[Sanity]:
    """Those measured under the recipe's estimand, by the name of their set."""
    return [found for name in run.query_sets() if (found := sanity_of(run, name)) is not None]


def sanity_of(run: Run, queries: str) -> Sanity | None:
    """Of one query set, if it was measured under the recipe's estimand."""
    path = scores_folder(run, queries) / FILE
    try:
        return Sanity.model_validate(read_json(path)) if path.is_file() else None
    except ValidationError:
        raise GudaError(
            "sanity-damaged", f"{run.path('scores')}: a {FILE} is damaged; delete it and run guda sanity again"
        ) from None
