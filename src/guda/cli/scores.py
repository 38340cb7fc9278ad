"""Commands that score pictures and check how far to trust them: score, evaluate, sanity, health, likelihood."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guda.cli.options import ENGINE, Changes, Groups, Json, Method, QuerySet, RunFolder, command, fields, say
from guda.config import EvaluationConfig, LikelihoodConfig, ScoringConfig
from guda.errors import GudaError

if TYPE_CHECKING:
    from guda.steps.likelihood import LikelihoodFile


@command
def score(
    run: RunFolder,
    queries: QuerySet = None,
    method: Method = None,
    name: Annotated[str | None, typer.Option(help="Name for a new query set; default: its folder's name.")] = None,
    top: Annotated[int, typer.Option(help="Groups to print per picture.", min=1)] = 3,
    stop: Annotated[
        str | None,
        typer.Option(help="Race to a stop rule: top1@0.95, top3@0.9, budget=N, or two separated by a comma."),
    ] = None,
    screen: Annotated[
        str | None,
        typer.Option(
            help="With --stop: shortlist groups for the race with cheap methods (posterior:10, posterior+dtrak:10), or "
            "descend a tree of groups, racing the parts of the best two at each level (tree:2)."
        ),
    ] = None,
    band: Annotated[
        str | None, typer.Option(help="Use only these timesteps, e.g. 100:1000; the estimand changes and is labelled.")
    ] = None,
    changes: Changes = fields(ScoringConfig, "estimand", "excess", "rounds", "strata", "drift", "foreign"),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method, as it was given to `guda fit --set`; for this command."),
    ] = None,
    groups: Groups = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Attribute pictures: a score per group, with 95 % intervals."""
    from guda import steps
    from guda.methods.origin import why_unknown
    from guda.methods.terms import load_queries
    from guda.run.run import Run
    from guda.scoring import origin
    from guda.scoring.reading import LABELS, direction_text

    folder = steps.override(Run.open(run), scoring=changes, groups=groups, methods=method, settings=settings)
    methods = method or steps.scorable_methods(folder)
    if not methods:
        raise GudaError("method-not-fitted", f"nothing is fitted in {run} yet; run: guda fit {run}")
    steps.check_scorable(folder, methods)  # before a folder of queries is taken in
    variant = steps.variant(folder, stop, band, screen=screen)
    chosen = steps.choose_or_add_queries(folder, queries, name)
    results = steps.score(folder, chosen, methods, engine, stop, band, screen)
    nulls = {m: steps.placebo_null(folder, chosen, m, variant) for m in results}
    lines, notes, kinds = [], {}, {}
    for found in results.values():
        lines.append(f"{found.method} ({found.unit}; {found.sign}; {found.estimand})")
        above = steps.upper_levels(folder, chosen, found.method, variant)
        if stop is not None:
            evals = sum(steps.evals_per_picture(folder, s) for s in (*above, found))
            also = "" if screen is None or above else f", plus those of the screen {screen}"
            lines.append(f"  {evals:,.0f} evaluations per picture on average{also}")
            if screen is not None and not above:
                lines.append(f"  {_recall_line(steps.known_recall(folder, chosen, screen, found.method), screen)}")
        shown = found.queries[:5]
        for query in shown:
            said = found[query].verdict()
            if said.kind in ("foreign", "copy"):
                lines.append(f"  {query}: {said.text}")
                continue
            levels = ["   ".join(str(g) for g in s[query].top(top)) for s in (*above, found)]
            first = found[query].top()[0]
            levels[-1] += f"   ({way})" if (way := direction_text(first.group, first.direction)) else ""
            answer = "" if said.kind == "unmeasured" else f"{said.headline}: "
            lines.append(f"  {query}: {answer}" + f"\n  {' ' * len(query)}  > ".join(levels))
        if len(found.queries) > len(shown):
            more = steps.scores_path(folder, chosen, found.method, variant)
            lines.append(f"  ... {len(found.queries) - len(shown)} more in {more}")
        kinds[found.method] = Counter(v.kind for v in found.verdict().values())
        told = "; ".join(f"{LABELS[kind]}: {n}" for kind, n in kinds[found.method].most_common())
        lines.append(f"  {len(found.queries)} pictures. {told}")
        if null := nulls[found.method]:
            clear = int(null.clears(found).sum())
            lines.append(f"  {null.sentence(found.unit)};")
            lines.append(f"  the first group is above that for {clear} of {len(found.queries)} pictures")
        notes[found.method] = found.compared or steps.calibration_note(folder, found.method, band)
        lines.append(f"  {notes[found.method]}")
    come = next(iter(results.values())).origins
    summary = origin.summary(load_queries(folder, chosen).ids, come)
    lines += origin.sentences(summary, len(come or ()))
    if come is not None and not summary["asked"]:
        lines.append(f"Not asked whether the model makes such pictures: {why_unknown(folder)}")
    warnings = steps.warnings(folder, methods)
    lines += [f"Warning: {line}" for line in warnings]
    value = {
        "queries": chosen,
        "origins": None if come is None else summary,
        "warnings": warnings,
        "scores": {
            m: {
                "path": str(steps.scores_path(folder, chosen, m, variant)),
                "unit": s.unit,
                "estimand": s.estimand,
                "validation": notes[m],
                "verdicts": dict(kinds[m]),
                "placebo": null.to_json(s) if (null := nulls[m]) else None,
                "answers": {picture.query: picture.to_json() for picture in s},
            }
            for m, s in results.items()
        },
    }
    say(value, "\n".join(lines), as_json)


@command
def distil(
    run: RunFolder,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of `distilled` for this command, e.g. teacher=hybrid, pictures=5000."),
    ] = None,
    groups: Groups = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Teach a small network to answer as a fitted method does, in milliseconds; then: guda score --method distilled."""
    from dataclasses import asdict

    from guda import steps
    from guda.run.run import Run

    folder = steps.override(Run.open(run), groups=groups, methods=["distilled"], settings=settings)
    found = steps.distil(folder, engine)
    same = found.same_first
    lines = [
        f"Distilled {found.teacher} from {found.pictures:,} pictures of the model.",
        f"On {found.checked} that it has not seen: the same first group for {same.mean:.2f} [{same.lo:.2f}, "
        f"{same.hi:.2f}], {found.inside:.3f} of the scores within their 95 % intervals, {found.milliseconds:.1f} ms a "
        "picture on one core.",
        f"Its intervals are about what {found.teacher} would score, not about retraining.",
    ]
    if folder.changes:
        lines.append("The recipe is as it was: give `guda score` the same options, or keep them with `guda set`.")
    value = asdict(found) | {"same_first": same.model_dump(mode="json")}
    say(value, "\n".join(lines), as_json)


@command
def evaluate(
    run: RunFolder,
    queries: QuerySet = None,
    band: Annotated[str | None, typer.Option(help="Use only these timesteps, e.g. 100:1000.")] = None,
    bands: Annotated[
        bool, typer.Option("--bands", help="Show Top-1 in each noise band, with its own ceiling.")
    ] = False,
    cross: Annotated[
        bool,
        typer.Option("--cross", help="Compare with what several retrainings change alike, without their noise."),
    ] = False,
    function: Annotated[
        bool,
        typer.Option(
            "--function", help="Compare in function space: the cosine of what a method and what a retraining change."
        ),
    ] = False,
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="With --function: method id, repeatable.")
    ] = None,
    first: Annotated[int, typer.Option("-n", min=2, help="With --function: the first so many pictures.")] = 32,
    changes: Changes = fields(ScoringConfig, "estimand", "excess", "drift"),
    judged: Changes = fields(EvaluationConfig, "against"),
    screen: Annotated[
        str | None,
        typer.Option(help="Recall of a screen, e.g. posterior+dtrak:10: how often it keeps a method's first group."),
    ] = None,
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs", help="Compare methods with each other: paired differences, p-values, what is not separated."
        ),
    ] = False,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Compare every scored method with the LOGO oracle, or with datamodel: six metrics, intervals, ceiling."""
    from guda import steps
    from guda.run.run import Run

    folder = steps.override(Run.open(run), scoring=changes, evaluation=judged)
    chosen = steps.choose_queries(folder, queries)
    if function:
        return show_function(steps.evaluate_function(folder, chosen, method, engine, first), as_json)
    if screen is not None:
        return show_screen(steps.evaluate_screen(folder, chosen, screen, engine), as_json)
    if cross:
        return show_cross(steps.evaluate_cross(folder, chosen, engine), as_json)
    if not bands:
        return show_evaluation(folder.recipe.name, steps.evaluate(folder, chosen, band), as_json, pairs=pairs)
    table = steps.evaluate_bands(folder, chosen)
    lines = ["Top-1 by noise band, each against its own oracle and ceiling"]
    lines += [f"  t in {b:<10}" + "   ".join(f"{m} {x:.2f}" for m, x in row.items()) for b, row in table.items()]
    say(table, "\n".join(lines), as_json)


def show_evaluation(name: str, entry: Any, as_json: bool, report: str | None = None, pairs: bool = False) -> None:
    if as_json:
        print(json.dumps(entry.model_dump(mode="json") | ({"report": report} if report else {})))
        return
    from rich.console import Console

    from guda.evaluation.tables import attributable_tables, averages_table, lds_table, terminal

    console = Console()
    console.print(terminal(name, entry, console.width))
    if lds := lds_table(name, entry):
        console.print(lds.rich())
    if averages := averages_table(name, entry):
        console.print(averages.rich())
    for table in attributable_tables(name, entry):
        console.print(table.rich())
    if pairs:
        from guda.evaluation.tables import pairs_terminal

        console.print(pairs_terminal(name, entry))
    if report:
        print(f"Report: {report}")


def _recall_line(recall: Any, screen: str) -> str:
    if recall is None:
        return f"how often {screen} misses the first group is not known here: guda evaluate RUN --screen {screen}"
    return f"{screen} keeps the first group of {recall.mean:.2f} [{recall.lo:.2f}, {recall.hi:.2f}] of the pictures"


def show_screen(found: Any, as_json: bool) -> None:
    """Recall of a screen by every method."""
    from rich.console import Console

    from guda.table import Table

    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
        return

    def cell(value: Any) -> str:
        return "" if value is None else f"{value.mean:.2f} [{value.lo:.2f}, {value.hi:.2f}]"

    rows = [(m, cell(value), cell(found.reproduced.get(m))) for m, value in found.recall.items()]
    if found.known is not None:
        rows.insert(0, ("the picture's own group", cell(found.known), ""))
    title = f"What the screen {found.screen} keeps of {found.groups} groups: {found.queries}"
    note = (
        "Share of pictures whose own group, or first group by the method, is kept by the screen, with 95 % intervals "
        "over pictures, given these models; "
        "reproduced: two halves of the method's rounds have the same first group."
    )
    Console().print(Table.of(title, ["method", "kept", "reproduced"], rows, note).rich())


def show_cross(found: Any, as_json: bool) -> None:
    """Agreement with the cross-seed oracle."""
    from rich.console import Console

    from guda.evaluation.tables import figures
    from guda.table import Table

    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
        return
    rows = [(m, *figures(row, ("top1", "spearman"))) for m, row in found.methods.items()]
    if found.ceiling is not None:
        rows.insert(0, ("two other retrainings (ceiling)", *figures(found.ceiling, ("top1", "spearman"))))
    title = f"Agreement with what LOGO seeds {', '.join(map(str, found.seeds))} change alike: {found.queries}"
    note = f"{found.estimand}. Of what one retraining changes, {found.systematic:.0%} is common to all of them."
    if found.ceiling is None:
        note += " A ceiling needs four LOGO seeds."
    Console().print(Table.of(title, ["", "Top-1", "Spearman"], rows, note).rich())


def show_function(found: Any, as_json: bool) -> None:
    """Cosines by noise band."""
    from rich.console import Console

    from guda.table import Table

    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
        return
    names = list(found.rows[0].other)
    title = f"Cosine with a retraining: first group / other groups, {found.pictures} pictures of {found.queries}"
    rows = [[row.band, *(f"{row.own[m].mean:+.2f} / {row.other[m].mean:+.2f}" for m in names)] for row in found.rows]
    Console().print(Table.of(title, ["t in", *names], rows, found.note).rich())


@command
def sanity(
    run: RunFolder,
    heldout: Annotated[
        Path, typer.Option(help="Folder of real pictures that were not trained on, laid out like the training data.")
    ],
    method: Method = None,
    name: Annotated[str | None, typer.Option(help="Name for the new query set; default: heldout-FOLDER.")] = None,
    changes: Changes = fields(ScoringConfig, "estimand", "excess", "rounds"),
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Score held-out pictures of known groups: how often is the right group first?"""
    from guda import steps
    from guda.evaluation.sanity import table, verdict_lines
    from guda.run.run import Run

    folder = steps.override(Run.open(run), scoring=changes)
    found = steps.sanity(folder, heldout, engine, method, name)
    if as_json:
        return say(found.model_dump(mode="json"), "", True)
    from rich.console import Console

    Console().print(table(found).rewrite(lambda _, cell: cell.replace(" [", "\n[")).rich())
    print("\n".join(verdict_lines(found)))


@command
def calibrate(
    run: RunFolder,
    method: Method = None,
    n: Annotated[int, typer.Option("-n", help="Pictures to draw for it; none of them is reported on.", min=2)] = 100,
    changes: Changes = fields(ScoringConfig, "estimand", "excess"),
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Calibrate answer sets against retraining: "one of these groups, 95 %"."""
    from guda import steps
    from guda.run.run import Run

    folder = steps.override(Run.open(run), scoring=changes)
    found = steps.calibrate(folder, engine, method, n)
    lines = []
    for name, (made, path) in found.items():
        lines.append(f"{name}: {made.sentence}; {made.size:.1f} groups on average ({path})")
        if made.threshold is None:
            lines.append(
                f"  {made.n} pictures are too few for {made.level:.0%}: every set has all groups; give -n 20 or more"
            )
    value = {name: made.model_dump(mode="json") | {"path": str(path)} for name, (made, path) in found.items()}
    say(value, "\n".join(lines), as_json)


@command
def health(
    run: RunFolder,
    method: Method = None,
    changes: Changes = fields(ScoringConfig, "reference as -n"),
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Check the counterfactuals: what they do to training images of every group."""
    from guda import steps
    from guda.run.run import Run

    folder = Run.open(run)
    methods = method or steps.health_methods(folder)
    found = steps.health(folder, methods, engine, changes.get("reference"))
    if as_json:
        print(json.dumps({m: h.model_dump(mode="json") for m, h in found.items()}, ensure_ascii=False))
        return
    from rich.console import Console

    from guda.cli.display import health_tables

    console = Console()
    for measured in found.values():
        console.print(*health_tables(measured, console.width), sep="\n")


@command
def likelihood(
    run: RunFolder,
    method: Method = None,
    queries: QuerySet = None,
    changes: Changes = fields(LikelihoodConfig, "n as -n", "solver", "steps", "seeds"),
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Score with log p (probability-flow ODE), compare the ELBO with it, evaluate every method with both."""
    from guda.run.run import Run
    from guda.steps import choose_queries, likelihood_path, override
    from guda.steps import likelihood as solve

    folder = override(Run.open(run), likelihood=changes)
    name = choose_queries(folder, queries)
    found = solve(folder, name, engine, method)
    path = likelihood_path(folder, name, "evaluation.json")
    if as_json:
        return say({"path": str(path)} | found.model_dump(mode="json"), "", True)
    _show_likelihood(found, path)


def _show_likelihood(found: LikelihoodFile, path: Path) -> None:
    from rich.console import Console

    from guda.evaluation.tables import terminal
    from guda.steps.likelihood import ORACLES, correlation_table

    console = Console()
    console.print(correlation_table(found).rewrite(lambda _, cell: cell.replace(" [", "\n[")).rich())
    for kind, entry in found.oracles.items():
        console.print(terminal(ORACLES[kind], entry, console.width))
    if not found.oracles:
        print("Not compared with LOGO: it has not been scored, or its log p was not requested.")
    print(f"Tables: {path}, {path.with_suffix('.md')}; scores beside them")
