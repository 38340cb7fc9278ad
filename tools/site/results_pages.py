"""The results pages and the README's table, from benchmarks/results: no figure on them is typed by hand.

    python tools/site/results_pages.py --write     # the table between the markers of README.md, and marked figures

Methods are sorted by merit: Top-1 is how often a method ranks the same group first as LOGO retraining does.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import figures as marked_figures

from guda.evaluation.intervals import Figure
from guda.evaluation.results import DatasetEntry, MethodEntry, ResultsFile, read_entry, read_results
from guda.files import read_json
from guda.table import human_count

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ORACLE = "logo"
CEILING = "LOGO, one retraining (ceiling)"
BEGIN, END = "<!-- results: begin (tools/site/results_pages.py) -->", "<!-- results: end -->"


@dataclass(frozen=True)
class Measured:
    """One data set of one file."""

    file: Path
    command: str
    dataset: str
    entry: DatasetEntry

    @property
    def link(self) -> str:
        return (
            f"../../{self.file.relative_to(ROOT).as_posix()}"  # as from docs/results/, which the site's hook resolves
        )


def results_files(folder: Path = RESULTS) -> dict[Path, ResultsFile]:
    """Files of the one schema; what has another is listed by `others`."""
    return {p: read_results(p) for p in sorted(folder.glob("*.json")) if "schema" in read_json(p)}


def others(folder: Path = RESULTS) -> list[Path]:
    return [p for p in sorted(folder.glob("*.json")) if "schema" not in read_json(p)]


def measured(folder: Path = RESULTS) -> Iterator[Measured]:
    for path, file in results_files(folder).items():
        for name, entry in file.datasets.items():
            yield Measured(path, file.command, name, entry)
    for path in sorted(folder.glob("reproduce-*/evaluation.json")):
        name = path.parent.name.removeprefix("reproduce-")
        command = f"guda reproduce {name.removesuffix('-small')}"
        command += " --scale small" if name.endswith("-small") else ""
        yield Measured(path, command, name, read_entry(path))


def ranked(entry: DatasetEntry) -> list[tuple[str, MethodEntry]]:
    """Methods that were compared with LOGO, best Top-1 first."""
    rows = [(name, m) for name, m in entry.methods.items() if name != ORACLE and "top1" in m.metrics]
    return sorted(rows, key=lambda row: -row[1].metrics["top1"].mean)


# ---- pages ----------------------------------------------------------------------------------------------------------
def results_markdown(folder: Path = RESULTS) -> str:
    """Every benchmark: what was measured, with which command, on which machine."""
    parts = [
        "# Results",
        "Generated from the files of `benchmarks/results/`. Brackets are 95 % intervals. A comparison with LOGO is "
        "shown beside its ceiling, what one retraining reaches against the others. Costs are in evaluation units "
        "(forward of one image = 1, forward and backward = 3). Click on a column's head to sort by it. Methods side by "
        "side: [leaderboard](leaderboard.md).",
    ]
    machines = {path: file.machine for path, file in results_files(folder).items()}
    shown: Path | None = None
    for m in measured(folder):
        if m.file != shown:
            title = m.file.stem if m.file.parent == folder else m.file.parent.name
            shown, where = m.file, machines.get(m.file)
            parts += [f"## {title}", f"Command: `{m.command}`. File: [{m.file.relative_to(folder)}]({m.link})."]
            if where is not None:
                versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
                parts.append(f"Machine: {where.cores} cores ({where.cpu}), Python {where.python}, {versions}.")
        parts += _dataset(m)
    for path in others(folder):
        command = read_json(path).get("command", "python benchmarks/cluster_plan.py RUN")
        link = f"../../{path.relative_to(ROOT).as_posix()}"
        parts += [f"## {path.stem}", f"Command: `{command}`. File: [{path.name}]({link})."]
    return "\n\n".join(parts) + "\n"


def _dataset(m: Measured) -> list[str]:
    e = m.entry
    facts = [f"{e.n_queries:,} pictures", *([f"{e.n_groups} groups"] if e.n_groups else [])]
    facts += [f"{len(e.seeds)} LOGO seeds"] if e.ceiling else []
    facts += [e.estimand] if e.estimand else []
    parts = [
        f"### {m.file.stem if m.file.stem != 'evaluation' else m.file.parent.name}: {m.dataset}",
        "; ".join(facts) + ".",
    ]
    if e.note:
        parts.append(e.note)
    if rows := ranked(e):
        parts.append(_comparison(e, rows))
    if e.figures:
        table = "| figure | value |\n|---|---:|\n" + "\n".join(f"| {k} | {v} |" for k, v in figures(e.figures))
        block = table.replace("\n", "\n    ")
        parts.append(f'??? note "All {len(figures(e.figures))} other figures"\n\n    {block}')
    return parts


def figures(values: dict[str, float]) -> list[tuple[str, str]]:
    """Numbers by name; `x` with `x.lo` and `x.hi` (or `_lo`, `_hi`) is one row with an interval."""
    rows = []
    for name, value in values.items():
        base = re.sub(r"[._](mean|lo|hi)$", "", name)
        ends = [next((values[base + s + end] for s in "._" if base + s + end in values), None) for end in ("lo", "hi")]
        if None in ends:
            rows.append((f"`{name}`", f"{value:.4g}"))
        elif not name.endswith(("lo", "hi")):
            rows.append((f"`{base}`", f"{value:.3g} [{ends[0]:.3g}, {ends[1]:.3g}]"))
    return rows


def _comparison(e: DatasetEntry, rows: Sequence[tuple[str, MethodEntry]], source: dict[str, str] | None = None) -> str:
    head = ["method", "Top-1", "of ceiling", "MRR", "Spearman", "fit, per group", "score, per picture"]
    lines = [[*head, "file"] if source else head]
    top = e.methods.get(ORACLE) or MethodEntry(metrics=e.ceiling or {})
    for name, m in [(CEILING, top), *rows]:
        ratio = (m.ratio_to_ceiling or {}).get("top1")
        cells = [name, _figure(m.metrics.get("top1")), "1" if name == CEILING else _figure(ratio)]
        cells += [_figure(m.metrics.get(metric)) for metric in ("mrr", "spearman")]
        cells += [_count(m.fit_evals), _count(m.score_evals)]
        lines.append(cells + ([source.get(name, "")] if source else []))
    if e.random:
        cells = ["random ranking", f"{e.random['top1']:.2f}", "", f"{e.random.get('mrr', 0):.2f}", "0.00", "0", "0"]
        lines.append(cells + ([""] if source else []))
    aligned = ["---", *["---:"] * 6, *(["---"] if source else [])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], aligned, *lines[1:]])


def _figure(f: Figure | None) -> str:
    return "" if f is None else f"{f.mean:.2f} [{f.lo:.2f}, {f.hi:.2f}]"


def _count(evals: float | None) -> str:
    return "" if evals is None else "none" if evals == 0 else human_count(evals)


def leaderboard(folder: Path = RESULTS) -> dict[str, tuple[DatasetEntry, dict[str, tuple[MethodEntry, Measured]]]]:
    """By data set and estimand: one row per method and setting. Of equal rows in several files the first is kept; a
    method with other settings, or measured on other pictures, is a row of its own."""
    boards: dict[str, tuple[DatasetEntry, dict[str, tuple[MethodEntry, Measured]]]] = {}
    for m in measured(folder):
        if not m.entry.ceiling or not ranked(m.entry):
            continue
        estimand, _, where = str(m.entry.estimand).partition(": sum over ")
        band = re.search(r"bands? \S+", where)
        title = ", ".join([m.dataset, estimand, *([band[0]] if band else []), f"{m.entry.n_queries:,} pictures"])
        _, rows = boards.setdefault(title, (m.entry, {}))
        for name, entry in ranked(m.entry):
            same = [e for n, (e, _) in rows.items() if n.partition(" (")[0] == name]
            if any(e.metrics["top1"].mean == entry.metrics["top1"].mean for e in same):
                continue
            rows[f"{name} ({m.file.stem})" if same else name] = (entry, m)
    return boards


def leaderboard_markdown(folder: Path = RESULTS) -> str:
    parts = [
        "# Leaderboard",
        "Generated from `benchmarks/results/`. One table per data set, estimand and set of pictures, sorted by Top-1; "
        "click on a column's head to sort by it. Rows whose intervals overlap may be in any order. Compare within a "
        "table only: pictures, models and ceilings differ between tables.",
    ]
    for title, (entry, rows) in leaderboard(folder).items():
        order = sorted(rows, key=lambda name: -rows[name][0].metrics["top1"].mean)
        source = {name: f"[{rows[name][1].file.stem}]({rows[name][1].link})" for name in order}
        seeds = f"{entry.n_groups} groups, {len(entry.seeds)} LOGO seeds"
        table = _comparison(entry, [(name, rows[name][0]) for name in order], source)
        parts += [f"## {title}", f"{entry.estimand}; {seeds}.", table]
    return "\n\n".join(parts) + "\n"


# ---- the README -----------------------------------------------------------------------------------------------------
# data set: where its figures are; the first file that has a method wins (in baselines.json, baselines are tuned)
COLUMNS = {
    "digits": (("baselines.json", "digits"), ("operators.json", "digits")),
    "fashion-mnist": (("baselines.json", "fashion-mnist"), ("operators.json", "fashion-mnist")),
    "cifar10-small": (("reproduce-cifar10-small/evaluation.json", ""),),
    "emoji": (("emoji.json", "emoji"),),
    "fonts": (("fonts.json", "fonts-12"),),
}
ROWS = (
    "hybrid", "shift", "posterior", "retrack", "anchors-weighted", "dtrak", "das", "trak", "similarity-pixel", "prompt",
)  # fmt: skip


def readme_table(folder: Path = RESULTS) -> str:
    """Top-1 by data set, sorted by the mean share of the ceiling over the data sets whose ceiling is above chance."""
    entries = {
        column: [
            read_results(folder / file).datasets[name] if name else read_entry(folder / file) for file, name in where
        ]
        for column, where in COLUMNS.items()
    }

    def find(column: str, method: str) -> MethodEntry | None:
        return next((e.methods[method] for e in entries[column] if method in e.methods), None)

    def merit(method: str) -> float:
        shares = []
        for column, (first, *_) in entries.items():
            found = find(column, method)
            if found is not None and _usable(first):
                assert first.ceiling is not None
                shares.append(found.metrics["top1"].mean / first.ceiling["top1"].mean)
        return sum(shares) / len(shares)

    lines = [["method", *COLUMNS], ["---", *["---:"] * len(COLUMNS)]]
    lines.append([CEILING, *(_figure((es[0].ceiling or {})["top1"]) for es in entries.values())])
    for method in sorted(ROWS, key=lambda name: -merit(name)):
        found = [find(column, method) for column in COLUMNS]
        lines.append([f"`{method}`", *("" if m is None else _figure(m.metrics["top1"]) for m in found)])
    lines.append(["random ranking", *(f"{(es[0].random or {})['top1']:.2f}" for es in entries.values())])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _usable(entry: DatasetEntry) -> bool:
    """Whether two retrainings agree more often than chance; otherwise there is nothing to be compared with."""
    return entry.ceiling is not None and entry.ceiling["top1"].lo > (entry.random or {"top1": 0.0})["top1"]


def with_table(readme: str, table: str) -> str:
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"README.md has no line {BEGIN}"
    assert end, f"README.md has no line {END}"
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write README.md's table and the marked figures")
    table, readme = readme_table(), ROOT / "README.md"
    if parser.parse_args().write:
        readme.write_text(with_table(readme.read_text(), table))
        marked_figures.main()
    else:
        print(table)


if __name__ == "__main__":
    main()
