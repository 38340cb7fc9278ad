"""Comparison tables: the same cells in the terminal and in Markdown, with unit, sign and random rankings."""

from __future__ import annotations

import io

import pytest

from guda.evaluation.ceiling import Reliability
from guda.evaluation.metrics import SIX
from guda.evaluation.results import DatasetEntry, Figure, MethodEntry
from guda.evaluation.tables import comparison, terminal, title
from guda.table import human_count, human_time


def figure(mean: float) -> Figure:
    return Figure(mean=mean, lo=mean - 0.04, hi=mean + 0.04)


def entry(**changes: object) -> DatasetEntry:
    fields: dict[str, object] = {
        "n_queries": 2048,
        "seeds": [0, 1, 2],
        "n_groups": 10,
        "estimand": "ELBO over 1 <= t <= 992",
        "ceiling": {m: figure(0.7) for m in SIX},
        "reliability": Reliability(one_seed=0.5, mean_of_seeds=0.75),
        "note": "Intervals are over queries.",
        "methods": {
            "logo": MethodEntry(metrics={m: figure(0.7) for m in SIX}, fit_evals=1.5e6, fit_seconds=748_020),
            "retrack": MethodEntry(
                metrics={m: figure(0.76) for m in SIX},
                fit_evals=12_800,
                fit_seconds=307,
                score_evals=40,
                score_seconds=4020,
            ),
            "clipa [x|y]": MethodEntry(metrics={"top1": figure(0.1)}),
        },
    }
    return DatasetEntry.model_validate(fields | changes)


def rows(entry: DatasetEntry) -> list[tuple[str, ...]]:
    return comparison("digits", entry).texts()


def test_rows_are_ceiling_methods_random() -> None:
    ceiling, retrack, clipa, random = rows(entry())
    assert ceiling == (
        "LOGO, one retraining (ceiling)",
        *["0.70 [0.66, 0.74]"] * 6,
        "1.5 M",
        "207:47 h",
        "–",
        "–",
    )
    assert retrack == ("retrack", *["0.76 [0.72, 0.80]"] * 6, "12.8 k", "5:07 min", "40", "1:07 h")
    assert clipa == ("clipa [x|y]", "0.10 [0.06, 0.14]", *["–"] * 9)
    assert random == ("random ranking", "0.10", "0.29", "0.29", "0.30", "0.30", "0.00", *["–"] * 4)


def test_random_figures_of_the_entry_are_used_when_present() -> None:
    assert rows(entry(random={"top1": 0.25}))[-1][1:3] == ("0.25", "–")


def test_a_ceiling_that_was_not_measured_is_shown_as_missing() -> None:
    first = rows(entry(ceiling=None, seeds=[1]))[0]
    assert first[0] == "LOGO (no ceiling: one seed)"
    assert first[1:7] == ("–",) * 6
    assert first[7] == "1.5 M"  # its cost is known all the same


def test_title_says_estimand_unit_sign_and_sizes() -> None:
    assert title("digits", entry()) == (
        "digits: agreement with LOGO, ELBO over 1 <= t <= 992 (nats; positive = the group mattered), "
        "10 groups, 2,048 queries, 3 LOGO seeds, 95 % intervals"
    )
    assert "1 LOGO seed," in title("digits", entry(seeds=[0]))


def test_markdown_has_one_line_per_row() -> None:
    text = comparison("digits", entry()).markdown()
    lines = text.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(rows(entry()))
    assert lines[0] == f"**{title('digits', entry())}**"
    assert table[3] == "| " + " | ".join(rows(entry())[1]) + " |"
    assert r"clipa [x\|y]" in table[4]
    assert "0.50 for one seed, 0.75 for the mean of 3 (Spearman-Brown)" in lines[-1]


def test_terminal_shows_every_cell_unharmed_by_markup() -> None:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=300).print(terminal("digits", entry()))
    text = out.getvalue()
    for row in [comparison("digits", entry()).header, *rows(entry())]:
        for cell in row:
            assert cell in text
    assert "positive = the group mattered" in text
    assert "Intervals are over queries." in text


@pytest.mark.parametrize("width", [150, 90])
def test_narrow_terminals_have_two_tables_of_the_same_cells(width: int) -> None:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width).print(terminal("digits", entry(), width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("207:47 h" in line for line in lines) == sum("random ranking" in line for line in lines) == 1
    assert sum("[0.72, 0.80]" in line if width == 150 else "[.72,.80]" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.5, "0.5"),
        (950, "950"),
        (999.6, "1 k"),
        (12_800, "12.8 k"),
        (999_900, "1 M"),
        (1.536e6, "1.54 M"),
        (7.68e12, "7680 G"),
    ],
)
def test_counts(value: float | None, text: str) -> None:
    assert human_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.4217, "0.422 s"),
        (12.34, "12.3 s"),
        (59.99, "1:00 min"),
        (307, "5:07 min"),
        (3599.7, "1:00 h"),
        (4020, "1:07 h"),
    ],
)
def test_times(seconds: float | None, text: str) -> None:
    assert human_time(seconds) == text
