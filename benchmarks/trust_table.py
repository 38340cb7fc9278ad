"""Tables of benchmarks/results/trust.json: trust.md beside it, and the same text in docs/trust.md.

python benchmarks/trust_table.py        writes both again from the JSON file; trust.py does so after every data set
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from guda.evaluation.results import DatasetEntry, read_results
from guda.files import write_text

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "trust.json"
BEGIN, END = "<!-- begin benchmarks/results/trust.md -->\n", "<!-- end benchmarks/results/trust.md -->\n"
KINDS = {"path-excess": "path excess", "elbo": "ELBO difference"}
Figures = Mapping[str, float]


def cell(figures: Figures, name: str, digits: int = 2) -> str:
    """With its interval where it has one; empty where it was not measured."""
    if name not in figures:
        return ""
    value = f"{figures[name]:.{digits}f}"
    if f"{name}.lo" in figures:
        value += f" [{figures[f'{name}.lo']:.{digits}f}, {figures[f'{name}.hi']:.{digits}f}]"
    return value


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Nothing for a table without rows."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""] if rows else []


def each(datasets: Mapping[str, DatasetEntry], figure: str) -> Iterator[tuple[list[str], Figures, str]]:
    """(data set, estimand, method), the figures and the end of their names, wherever `figure` was measured."""
    for data, entry in datasets.items():
        for kind, words in KINDS.items():
            start = f"{figure}.{kind}."
            names = [n.removeprefix(start) for n in entry.figures if n.startswith(start)]
            for method in [n for n in names if not n.endswith((".lo", ".hi"))]:
                yield [data, words, method], entry.figures, f"{kind}.{method}"


def markdown(datasets: Mapping[str, DatasetEntry]) -> str:
    lines = ["Written by `make bench-trust` from `benchmarks/results/trust.json`; figures are explained in "
             "`benchmarks/trust.py`.", ""]  # fmt: skip
    lines += table(
        ["data set", "pictures", "groups", "LOGO seeds"],
        [[n, str(e.n_queries), str(e.n_groups), str(len(e.seeds))] for n, e in datasets.items()],
    )
    answers = [
        [*who, *(cell(f, f"{name}.{end}") for name in (
            "answer_set_coverage", "answer_set_size", "stands_out", "stands_out_right", "claims_99", "claims_99_right",
            "claims_p99", "claims_p99_right"))]
        for who, f, end in each(datasets, "answer_set_coverage")
    ]  # fmt: skip
    lines += table(
        ["data set", "estimand", "method", "95 % answer sets hold", "groups in a set", "one group stands out for",
         "and is right for", "claims at 99 %: made for", "right for", "uncalibrated p_first > .99: made for",
         "right for"],
        answers,
    )  # fmt: skip
    lines += table(
        ["data set", "kinds", "foreign pictures caught", "blurred samples", "samples with a quarter covered",
         "false alarms on fresh samples", "held-out real pictures called foreign"],
        [[n, str(sum(k.startswith("foreign_caught.") and k.count(".") == 1 and not k.endswith((".lo", ".hi"))
                     for k in e.figures) or ""),
          *(cell(e.figures, f"foreign_{k}") for k in ("caught", "blurred", "occluded", "false", "real"))]
         for n, e in datasets.items() if {"foreign_caught", "foreign_real"} & set(e.figures)],
    )  # fmt: skip
    rounds = [2, 3, 4, 6]
    covered = [
        [name, words, plan, *(cell(e.figures, f"coverage.{kind}.{plan}.{r}", 3) for r in rounds)]
        for name, e in datasets.items()
        for kind, words in KINDS.items()
        for plan in ("stratified", "importance")
        if f"coverage.{kind}.{plan}.2" in e.figures
    ]
    lines += table(
        ["data set", "estimand", "plan", *(f"95 % scoring intervals hold, {r} rounds" for r in rounds)], covered
    )
    lines += table(
        ["data set", "estimand", "95 % predictions of a left-out retraining hold"],
        [[n, words, cell(e.figures, f"predictive_coverage.{kind}", 3)]
         for n, e in datasets.items() for kind, words in KINDS.items() if f"predictive_coverage.{kind}" in e.figures],
    )  # fmt: skip
    lines += table(
        ["data set", "estimand", "method", "held-out real pictures: own group first", "one group stands out for",
         "and is the own one for"],
        [[*who, *(cell(f, f"{name}.{end}") for name in ("sanity", "sanity_claimed", "sanity_claims"))]
         for who, f, end in each(datasets, "sanity")],
    )  # fmt: skip
    counts = ("attributable", "pool", "below_noise")
    lines += table(
        ["data set", "estimand", "groups: attributable", "pool with others", "below noise", "mean reliability"],
        [[n, words, *(f"{e.figures[f'attributable.{kind}.{c}']:.0f}" for c in counts),
          cell(e.figures, f"attributable.{kind}.reliability")]
         for n, e in datasets.items() for kind, words in KINDS.items() if f"attributable.{kind}.pool" in e.figures],
    )  # fmt: skip
    lines += table(
        ["data set", "skill of the model", "samples unlike the data"],
        [[n, *(cell(e.figures, f"trained.{k}") for k in ("skill", "unlike"))]
         for n, e in datasets.items() if "trained.skill" in e.figures],
    )  # fmt: skip
    return "\n".join(lines)


def included(page: str) -> str:
    """What docs/trust.md has between its two marks."""
    return page.partition(BEGIN)[2].partition(END)[0]


def include(path: Path, text: str) -> None:
    before, mark, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{path} lost its marks {BEGIN.strip()} and {END.strip()}")
    write_text(path, before + BEGIN + text + END + after)


def write_tables(datasets: Mapping[str, DatasetEntry]) -> None:
    write_text(FILE.with_suffix(".md"), markdown(datasets))
    include(ROOT / "docs" / "trust.md", markdown(datasets))


if __name__ == "__main__":
    write_tables(read_results(FILE).datasets)
