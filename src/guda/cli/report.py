"""The verb `report`: the page, and the same content as a table, for machines and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from guda.cli.options import ENGINE, QuerySet, RunFolder, say, works


@works
def report(
    run: RunFolder,
    queries: QuerySet = None,
    stop: Annotated[
        str | None, typer.Option(help="Report on scores raced to this rule (`guda score --stop`), e.g. top1@0.95.")
    ] = None,
    screen: Annotated[
        str | None, typer.Option(help="With --stop: of the race that was screened so (`guda score --screen`).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The page's file, .html; default: report.html in the run folder.")
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Also write a table: one row per picture, method and group.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Also write everything as report.json, and print one JSON object of paths.")
    ] = False,
    as_pdf: Annotated[
        bool, typer.Option("--pdf", help="Also print the page to PDF; needs Chromium, Chrome or Edge.")
    ] = False,
    no_drawings: Annotated[
        bool, typer.Option("--no-drawings", help="Do not draw what is missing of the same-noise pictures.")
    ] = False,
    engine: Any = ENGINE,
) -> None:
    """Write report.html: the pictures, their groups with intervals, and how far to trust them."""
    from guda import steps
    from guda.errors import GudaError
    from guda.report.content import Content
    from guda.report.page import report_path, write_content
    from guda.run.run import Run

    if out is not None and out.suffix not in (".html", ".htm"):
        raise GudaError("report-not-html", f"--out {out}: the report is a page; give a name that ends in .html")
    if as_pdf:
        from guda.report.pdf import find_browser

        find_browser()  # before anything is drawn
    folder = Run.open(run)
    chosen = steps.choose_queries(folder, queries)
    variant = steps.variant(folder, stop, None, "keep", screen)
    content = Content.read(folder, chosen, variant)
    if not no_drawings:
        from guda.report.drawings import draw_missing

        draw_missing(folder, [v.id for v in content.views], engine)
    page = write_content(content, out or report_path(folder, chosen, variant), drawn=not no_drawings)
    made = {"report": page}
    if as_csv or as_json:
        from guda.report.export import write_csv, write_json_report

        if as_csv:
            made["csv"] = write_csv(content, page.with_suffix(".csv"))
        if as_json:
            made["json"] = write_json_report(content, page.with_suffix(".json"))
    if as_pdf:
        from guda.report.pdf import write_pdf

        made["pdf"] = write_pdf(page, page.with_suffix(".pdf"))
    titles = {"report": "Report", "csv": "Table", "pdf": "Paper"}
    lines = [f"{title}: {made[what]}" for what, title in titles.items() if what in made]
    say({what: str(path) for what, path in made.items()}, "\n".join(lines), as_json)
