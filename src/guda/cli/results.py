"""Commands that show finished work: report, figure, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from guda.cli.options import ENGINE, Json, QuerySet, RunFolder, command, finite, say
from guda.errors import GudaError, choices
from guda.language import LANGUAGES

Language = Annotated[str, typer.Option(help=f"Language of the page: {', '.join(LANGUAGES)}.", metavar="CODE")]


@command
def report(
    run: RunFolder,
    queries: QuerySet = None,
    stop: Annotated[
        str | None, typer.Option(help="Report on scores raced to this rule (`guda score --stop`), e.g. top1@0.95.")
    ] = None,
    screen: Annotated[
        str | None, typer.Option(help="With --stop: report on the race with this screen (`guda score --screen`).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output file, .html; default: report.html in the run folder.")
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
        bool, typer.Option("--no-drawings", help="Draw no missing pictures: same noise, and evidence for the first.")
    ] = False,
    language: Language = "en",
    engine: Any = ENGINE,
) -> None:
    """Write report.html: the pictures, their groups with intervals, and how far to trust the answers."""
    from guda import steps
    from guda.report.content import Content
    from guda.report.page import report_path, write_content
    from guda.run.run import Run

    if out is not None and out.suffix not in (".html", ".htm"):
        raise GudaError("report-not-html", f"--out {out}: the report is an HTML page; give a name that ends in .html")
    _check_language(language)
    if as_pdf:
        from guda.report.export import find_browser

        find_browser()  # before anything is drawn
    folder = Run.open(run)
    chosen = steps.choose_queries(folder, queries)
    variant = steps.variant(folder, stop, None, "keep", screen)
    content = Content.read(folder, chosen, variant)
    if not no_drawings:
        from guda.report.card_evidence import gather_examples
        from guda.report.picture_cards import examples
        from guda.report.same_noise import draw_missing

        draw_missing(folder, [v.id for v in content.views], engine)
        if variant is None:
            gather_examples(content, examples(content.view), engine)
    page = write_content(content, out or report_path(folder, chosen, variant), not no_drawings, language)
    made = {"report": page}
    if as_csv or as_json:
        from guda.report.export import write_csv, write_json_report

        if as_csv:
            made["csv"] = write_csv(content, page.with_suffix(".csv"))
        if as_json:
            made["json"] = write_json_report(content, page.with_suffix(".json"))
    if as_pdf:
        from guda.report.export import write_pdf

        made["pdf"] = write_pdf(page, page.with_suffix(".pdf"))
    titles = {"report": "Report", "csv": "Table", "pdf": "Paper"}
    lines = [f"{title}: {made[what]}" for what, title in titles.items() if what in made]
    say({what: str(path) for what, path in made.items()}, "\n".join(lines), as_json)


@command
def figure(
    name: Annotated[str | None, typer.Argument(help="Which figure; --list shows all of them.")] = None,
    run: Annotated[Path | None, typer.Argument(help="The run folder.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="File ending in .svg, .pdf or .png (pictures: .png); default: in RUN/figures.")
    ] = None,
    queries: Annotated[str | None, typer.Option("--queries", "-q", help="A query set's name.")] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="Method id, for figures of one method.")] = None,
    query: Annotated[str | None, typer.Option(help="Id of one picture, for ranking.")] = None,
    names: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Draw one figure of a run for a paper: SVG, PDF or PNG, the same bytes every time."""
    from guda.report.catalogue import FIGURES, known_figure
    from guda.report.catalogue import figure as draw
    from guda.run.run import Run

    if names:
        lines = [f"  {known:<14}{found.about}" for known, found in FIGURES.items()]
        return say({known: found.about for known, found in FIGURES.items()}, "\n".join(lines), as_json)
    if name is not None:
        known_figure(name)  # before any folder is looked for
    if name is None or run is None:
        raise GudaError(
            "figure-arguments-missing",
            "name a figure and a run folder: guda figure NAME RUN; names: guda figure --list",
        )
    path = draw(Run.open(run), name, engine, out, queries, method, query)
    say({"figure": str(path)}, f"Figure: {path}", as_json)


def _check_language(code: str) -> None:
    if code not in LANGUAGES:
        raise GudaError("language-unknown", f"--language {code!r} is not known: {choices(LANGUAGES)}")


def _limit(text: str) -> Any:
    return typer.Option(help=text, min=0.001, callback=finite)


def serve(
    run: RunFolder,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Default method of the page; default: the report's.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 7860,
    host: Annotated[str, typer.Option(help="Address to listen on; the default is this machine only.")] = "127.0.0.1",
    auth: Annotated[
        str | None,
        typer.Option(
            envvar="GUDA_AUTH", show_envvar=True, metavar="USER:PASSWORD",
            help="Ask visitors for a name and password; prefer the environment variable: command lines are visible in "
            "process lists.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GUDA_TOKEN", show_envvar=True,
            help="Token of the printed link, which lets visitors in where there is no --auth; default: a random one.",
        ),
    ] = None,
    without_password: Annotated[
        bool,
        typer.Option(
            "--without-password",
            help="Allow --host without --auth: whoever has the printed link sees every picture of the run.",
        ),
    ] = False,
    max_mb: Annotated[float, _limit("Largest upload, megabytes.")] = 10.0,
    max_total_mb: Annotated[
        float, _limit("Most disk space of uploads on their way, megabytes.")
    ] = 256.0,
    max_megapixels: Annotated[float, _limit("Largest picture, megapixels.")] = 25.0,
    queue: Annotated[int, typer.Option(help="Length of the queue.", min=1)] = 32,
    max_uploads: Annotated[int, typer.Option(help="Most uploads that the run keeps.", min=1)] = 10_000,
    runs: Annotated[
        Path | None, typer.Option(help="Folder whose runs are listed; default: where this run is.")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help=f"Language of the pages: {', '.join(LANGUAGES)}; default: the browser's.", metavar="CODE"),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:  # fmt: skip
    """Serve the pages of a run: click or upload a picture, watch its scores; stored results, comparison, HTTP API."""
    from guda.run.run import Run
    from guda.web.access import check_exposure, make_token, parse_auth
    from guda.web.server import free, need_web

    if language is not None:
        _check_language(language)
    login = parse_auth(auth)
    check_exposure(host, login, without_password)
    token = None if login else make_token(token)
    folder = Run.open(run)
    need_web()
    free(host, port)  # before the model is loaded
    from guda.web.server import serve as serve_app
    from guda.web.service import Service
    from guda.web.uploads import Limits

    limits = Limits(
        max_mb=max_mb, max_megapixels=max_megapixels, total_mb=max_total_mb, queue=queue, uploads=max_uploads
    )
    service = Service(folder.root, method, limits)
    print(f"Loading the model of {folder.root} ...", flush=True)
    service.warm()

    def ready(address: str) -> None:
        print(f"Serving {folder.root} with {service.method} at {address}  (press Ctrl-C to stop)", flush=True)
        if open_:
            import webbrowser

            webbrowser.open(address)

    serve_app(service, runs or folder.root.resolve().parent, host, port, login, token, ready, language)
    print("Stopped.", flush=True)
