"""Commands about one picture: map, exhibit, verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guda.cli.options import ENGINE, Json, RunFolder, StoredSet, command, say
from guda.errors import GudaError

if TYPE_CHECKING:
    from guda.report.cards import MethodView
    from guda.report.content import Content

Picture = Annotated[str, typer.Argument(help="Id of a scored picture, e.g. s1-00287.", show_default=False)]

OneMethod = Annotated[str | None, typer.Option("--method", "-m", help="Method id; default: the report's.")]

Group = Annotated[str | None, typer.Option(help="Which group; default: the first in rank.")]


def _asked(
    run: Path, picture: str, queries: str | None, method: str | None, group: str | None
) -> tuple[Content, MethodView, str]:  # fmt: skip
    """What is known of the picture's set, the method and the group; refused where there is none of that name."""
    from guda import steps
    from guda.report.content import Content
    from guda.report.exhibit import choose_view, first_group
    from guda.run.run import Run

    folder = Run.open(run)
    content = Content.read(folder, steps.choose_queries(folder, queries))
    view = choose_view(content, method)
    content.queries.subset([picture])
    return content, view, group or first_group(view, picture)


@command
def map_(
    run: RunFolder,
    picture: Picture,
    queries: StoredSet = None,
    method: OneMethod = None,
    group: Group = None,
    out: Annotated[Path | None, typer.Option(help="Output file, .png; default: in RUN/figures.")] = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Draw where in a picture the score of a group comes from, in nats, whole and by noise band."""
    from guda.report.map_figure import floor_sentence, map_figure, wide_edges
    from guda.run.models import run_schedule
    from guda.run.plan import run_plan
    from guda.steps.evidence import map_picture

    if out is not None and out.suffix != ".png":
        raise GudaError("map-not-png", f"--out {out}: a map is a picture; give a name that ends in .png")
    content, view, group = _asked(run, picture, queries, method, group)
    folder, name = content.run, content.name
    found, worse = map_picture(folder, name, picture, view.id, group, engine)
    whole, edges = found.whole, wide_edges(run_schedule(folder).T, run_plan(folder).edges)
    title = f"{picture} without group {group}, by {view.id}: {whole.score:.2f} nats"
    q = content.queries.ids.index(picture)
    plain = f"map-{view.id}-{picture}-{group}".replace("/", "_")
    path = out or folder.path("figures", f"{plain}.png")
    map_figure(content.queries.images[q], found, worse, edges, title, path)
    value = {
        "map": str(path), "picture": picture, "method": view.id, "group": group, "nats": whole.score,
        "clear_cells": int(whole.clear.sum()), "cells": int(whole.nats.size), "clear_nats": whole.shown,
        "bands": {b.name: b.score for b in found.bands(edges)}, "elbo": None if worse is None else worse.whole.score,
    }  # fmt: skip
    say(value, f"Map: {path}\n{title}\n{floor_sentence(whole)}", as_json)


@command
def exhibit(
    run: RunFolder,
    picture: Picture,
    queries: StoredSet = None,
    method: OneMethod = None,
    group: Group = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also print it to PDF; needs Chromium, Chrome or Edge.")] = False,
    bundle: Annotated[
        bool, typer.Option("--zip", help="Also write the bundle: pictures, scores, terms, recipe, hashes.")
    ] = False,
    sign: Annotated[
        Path | None, typer.Option(help="Sign the bundle with this private ed25519 key (PEM).", metavar="KEY")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output file, .html; default: in RUN/exhibits.")] = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Two pages on one picture, to be filed: verdict, map, with and without the group, scores, limits, provenance."""
    from guda.files import write_text
    from guda.report.bundle import check_key, write_bundle
    from guda.report.exhibit import Exhibit
    from guda.report.export import find_browser, write_pdf
    from guda.steps.evidence import gather_evidence

    if out is not None and out.suffix != ".html":
        raise GudaError("exhibit-not-html", f"--out {out}: give a name that ends in .html; .pdf and .zip go beside it")
    if sign is not None:
        if not bundle:
            raise GudaError("sign-without-zip", "--sign signs the bundle; give --zip too")
        check_key(sign)
    if pdf:
        find_browser()
    content, view, group = _asked(run, picture, queries, method, group)
    folder, name = content.run, content.name
    found = Exhibit(content, view, gather_evidence(folder, name, picture, view.id, group, engine))
    plain = f"{name}-{picture}-{view.id}".replace("/", "_")
    page = out or folder.path("exhibits", f"{plain}.html")
    write_text(page, found.html())
    made = {"exhibit": page}
    files = found.files() if bundle else {}
    if pdf:
        made["pdf"] = write_pdf(page, page.with_suffix(".pdf"))
        if bundle:
            files["exhibit.pdf"] = made["pdf"].read_bytes()
    if bundle:
        made["bundle"] = write_bundle(page.with_suffix(".zip"), files, sign)
    titles = {"exhibit": "Exhibit", "pdf": "PDF", "bundle": "Bundle"}
    lines = [view.verdicts[content.queries.ids.index(picture)].text]
    lines += [f"{title}: {made[what]}" for what, title in titles.items() if what in made]
    say({what: str(path) for what, path in made.items()}, "\n".join(lines), as_json)


def verify(
    bundle: Annotated[Path, typer.Argument(help="The bundle (.zip) of an exhibit.", show_default=False)],
    run: Annotated[
        Path | None, typer.Option(help="The run it came from: also check models and data, and recompute terms.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="The public ed25519 key (PEM) that must have signed it.", metavar="PUB")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a bundle: every hash, the signature, the arithmetic; with --run, the models too. Exit code 2: refused."""
    from guda.report.verify import verify as check
    from guda.run.run import Run

    found = check(bundle, None if run is None else Run.open(run), key)
    lines = [f"{bundle}: nothing wrong was found", f"Picture {found.picture}: {found.verdict}", "Checked:"]
    lines += [f"  + {line}" for line in found.checked]
    lines += ["Not checked:", *(f"  - {line}" for line in found.unchecked)]
    say(found.to_json(), "\n".join(lines), as_json)
