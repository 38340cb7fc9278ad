"""Paper-shaped tables: what the cells say, in three formats, from the same inputs the same bytes."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from guda.evaluation.metrics import METRICS, SIX
from guda.evaluation.paper_tables import (
    anchors_table,
    correlation_table,
    main_table,
    noisy_table,
    oracles_table,
    sweep_tables,
    timing_table,
)
from guda.evaluation.partition import PartitionFile, partition_table
from guda.evaluation.results import DatasetEntry, Figure, MethodEntry
from guda.evaluation.sweep import SweepFile, SweepRow
from guda.evaluation.tables import figure
from guda.evaluation.timing import Timing
from guda.table import Column, Number, Row, Table, count, escape, number, seconds, write_tables


def fig(mean: float) -> Figure:
    return Figure(mean=mean, lo=mean - 0.04, hi=mean + 0.04)


def method(mean: float, **cost: float) -> MethodEntry:
    return MethodEntry(metrics={m: fig(mean) for m in METRICS}, **cost)


def entry(shift: float = 0.0, **methods: MethodEntry) -> DatasetEntry:
    return DatasetEntry(
        n_queries=100, seeds=[1, 2], n_groups=10, estimand="ELBO: sum over 1 <= t <= 992", note="Some note.",
        ceiling={m: fig(0.7 + shift) for m in METRICS},
        methods={
            "logo": method(0.7, fit_evals=1e6, fit_seconds=800, score_evals=80, score_seconds=20),
            "retrack": method(0.6 + 2 * shift, fit_evals=1e4, fit_seconds=10, score_evals=40, score_seconds=5),
            **methods,
        },
    )  # fmt: skip


def sweep(method_id: str = "retrack", axis: str = "lr") -> SweepFile:
    def row(label: str, mean: float, own: bool = False, failed: str | None = None) -> SweepRow:
        return SweepRow(
            axis=axis, label=label, own=own, settings={}, fit_evals=1e4, fit_seconds=12, evals_ratio_vs_logo=100,
            metrics={} if failed else {m: fig(mean) for m in METRICS}, failed=failed,
        )  # fmt: skip

    rows = (row("0.001", 0.5), row("0.01", 0.6, own=True), row("1", 0.0, failed="weights are not finite"))
    return SweepFile(
        name="steps-of", method=method_id, base={}, queries="some", groups=("a", "b"), oracle=entry(), rows=rows
    )


LINES = [
    Timing(method="logo", n_groups=10, n_queries=100, fit_seconds=400, query_seconds=0.1, fit_evals=1e7,
           query_evals=40),
    Timing(method="retrack", n_groups=10, n_queries=100, fit_seconds=10, query_seconds=0.2, query_stderr=0.01,
           fit_evals=1e5, query_evals=80),
]  # fmt: skip


def noisy(clean: DatasetEntry, noisy: DatasetEntry) -> Table:
    file = PartitionFile(
        fraction=0.05, seed=0, moved_per_group=5, clean=clean, noisy=noisy, rows=partition_table(clean, noisy),
        oracle=None, note="",
    )  # fmt: skip
    return noisy_table("digits", file)


def everything() -> list[Table]:
    return [
        main_table("digits", entry(), LINES), anchors_table("emoji", entry(**{"anchors-uniform": method(0.4)})),
        *sweep_tables("digits", sweep()), *sweep_tables("digits", sweep("das", "aggregate")),
        *sweep_tables("digits", sweep("dtrak", "lam")), timing_table("digits", LINES),
        correlation_table("digits", {"pearson": fig(0.9), "top1": fig(0.8)}, 100, 10),
        oracles_table("digits", entry(), entry()), noisy(entry(), entry(-0.05)),
    ]  # fmt: skip


def named(table: Table, name: str, section: str = "") -> dict[str, object]:
    """The row of that name in the first section that contains the words."""
    row = next(r for r in table.rows if r.cells[0] == name and section in r.section)
    return {c.label: x for c, x in zip(table.columns, row.cells, strict=True)}


def text(cell: object) -> str:
    assert isinstance(cell, Number)
    return cell.text


def test_main_results_with_ceiling_intervals_and_the_published_apart() -> None:
    table = main_table("digits", entry(), LINES)
    ceiling, retrack = named(table, "LOGO, one retraining (ceiling)"), named(table, "retrack")
    assert text(ceiling["Top-1"]) == "0.70 [0.66, 0.74]"
    assert [text(ceiling[c]) for c in ("preprocessing", "query", "total")] == ["6:40 min", "10 s", "6:50 min"]
    assert [text(retrack[c]) for c in ("preprocessing", "query", "total")] == ["10 s", "20 s", "30 s"]
    assert text(named(table, "random ranking")["MRR"]) == "0.29"
    das = named(table, "DAS", "published, CIFAR-10, H100 (another data set")
    assert [text(das[c]) for c in ("Top-1", "Spearman", "total")] == ["0.716", "0.267", "35:24 h"]
    assert "same data, other models" in main_table("c", entry(), same_data=True).rows[-1].section
    assert not any(str(r.cells[0]).endswith("(Ours)") for r in table.rows)
    assert "ELBO: sum over 1 <= t <= 992; nats, positive = the group mattered" in table.title


def test_recorded_times_stand_where_no_line_was_fitted_and_logo_is_one_seed() -> None:
    table = main_table("digits", entry(), beside=None)
    assert text(named(table, "LOGO, one retraining (ceiling)")["total"]) == "6:50 min"  # (800 + 20) / 2
    assert text(named(table, "retrack")["total"]) == "15 s"
    assert {r.section for r in table.rows} == {"measured here: digits, 10 groups, 100 queries, 2 LOGO seeds, "
                                               "95 % intervals"}  # fmt: skip


def test_unlearncanvas_is_met_with_the_linear_ndcg_it_was_published_in() -> None:
    table = anchors_table("emoji", entry(**{"anchors-uniform": method(0.4)}))
    assert [c.label for c in table.columns][3] == "NDCG@3 (linear gain)"
    ours = [r.cells[0] for r in table.rows if r.section.startswith("measured")]
    assert ours == ["LOGO, one retraining (ceiling)", "anchors-uniform", "random ranking"]
    assert text(named(table, "Style removed")["Top-1"]) == "0.400"


def test_sweeps_stand_beside_the_published_sweep_of_the_same_setting() -> None:
    (table,) = sweep_tables("digits", sweep())
    assert [r.cells[0] for r in table.rows if r.section.startswith("published")] == [
        "0.0003",
        "0.0001",
        "3e-05",
        "1e-05",
    ]
    assert [r.cells[0] for r in table.rows if r.marked] == ["0.01 (recipe)", "1e-05"]
    failed = named(table, "1")
    assert failed["Top-1"] == "failed: weights are not finite"
    assert (failed["MRR"], text(failed["LOGO / fit evals"])) == (None, "100.0")
    (ridge,) = sweep_tables("digits", sweep("trak", "lam"))
    named_only = [r for r in ridge.rows if r.section.startswith("published")]
    assert [r.cells[0] for r in named_only] == ["10", "100", "1000"]
    assert named_only[0].cells[1] is None
    assert "none but the middle one" in ridge.note
    (steps,) = sweep_tables("digits", sweep("retrack", "steps"))  # published are epochs
    assert not any("published" in r.section for r in steps.rows)
    (other,) = sweep_tables("digits", sweep("shift", "lr"))  # nobody published it
    assert not any("published" in r.section for r in other.rows)


def test_timing_is_the_line_and_where_it_meets_logo() -> None:
    table = timing_table("digits", LINES)
    ours = named(table, "retrack")
    assert [text(ours[c]) for c in ("preprocessing", "per query", "Q queries", "total")] == [
        "10 s", "0.2 s ± 0.02", "20 s", "30 s",
    ]  # fmt: skip
    assert text(ours["LOGO / total"]) == "13.7"  # 410 / 30
    assert text(ours["meets LOGO at Q"]) == "3.9 k"  # 390 / 0.1
    assert text(named(table, "GUDA", "published")["LOGO / total"]) == "102.2"
    assert named(table, "LOGOA (oracle)", "published")["meets LOGO at Q"] is None
    same = [LINES[0], LINES[1].model_copy(update={"query_evals": 40})]
    assert named(timing_table("digits", same), "retrack")["meets LOGO at Q"] == "never, same cost per query"


def test_a_published_bound_stays_a_bound() -> None:
    clipa = named(timing_table("digits", LINES), "CLIPA", "published")
    assert [clipa[c] for c in ("preprocessing", "Q queries", "total")] == ["< 1:00 min"] * 3
    assert clipa["LOGO / total"] == "> 12467"  # 207:47 over one minute
    assert named(main_table("digits", entry()), "CLIPA", "published")["total"] == "< 0:01 h"


def test_the_main_table_charges_logo_as_the_timing_table_does() -> None:
    name = "LOGO, one retraining (ceiling)"
    assert text(named(main_table("digits", entry(), LINES), name)["evals / query"]) == "40"
    lines = [LINES[0].model_copy(update={"query_evals": 55})]
    assert text(named(main_table("digits", entry(), lines), name)["evals / query"]) == "55"
    one = entry().model_copy(update={"ceiling": None, "seeds": [1]})
    assert named(main_table("digits", one, lines), "LOGO (no ceiling: one seed)")["Top-1"] is None


def test_both_oracles_and_both_partitions_have_sections() -> None:
    table = oracles_table("digits", entry(), entry(-0.1))
    assert [s[:3] for s, _ in table.sections()] == ["(a)", "(b)", "(a)", "(b)"]
    assert text(named(table, "retrack", "(b) likelihood")["Top-1"]) == "0.40 [0.36, 0.44]"
    table = noisy(entry(), entry(-0.05))
    assert text(named(table, "retrack", "(b) noisy less clean, measured")["RBO"]) == "-0.10 [-0.16, -0.04]"
    assert text(named(table, "LOGO, one retraining (ceiling)", "(b)")["RBO"]) == "-0.05 [-0.11, +0.01] n.s."
    assert text(named(table, "D-TRAK", "(b) noisy less clean, published")["Top-3"]) == "+0.002"
    assert "n.s.: not separated from no change" in table.note
    assert "the noise of retraining is not in the interval" in table.note


def test_correlations() -> None:
    table = correlation_table("digits", {"pearson": fig(0.9), "top1": fig(0.8)}, 100, 10)
    ours, theirs = table.rows
    assert [None if c is None else text(c) for c in ours.cells[1:]] == [
        "0.90 [0.86, 0.94]",
        None,
        "0.80 [0.76, 0.84]",
        None,
    ]
    assert [text(c) for c in theirs.cells[1:]] == ["0.820", "0.735", "0.683", "0.939"]


@pytest.mark.parametrize("number_", range(len(everything())))
def test_csv_has_every_number_back(number_: int) -> None:
    table = everything()[number_]
    header, *rows = csv.reader(io.StringIO(table.csv()))
    assert len(header) == len(set(header)) == 1 + len(table.columns) + 2 * sum(c.interval for c in table.columns)
    assert len(rows) == len(table.rows)
    for read, row in zip(rows, table.rows, strict=True):
        assert len(read) == len(header)
        found = iter(read)
        assert next(found) == row.section
        for column, cell in zip(table.columns, row.cells, strict=True):
            ends = [next(found) for _ in range(3 if column.interval else 1)]
            if isinstance(cell, Number):
                assert float(ends[0]) == pytest.approx(cell.value, rel=1e-5)
                if column.interval and cell.lo is not None:
                    assert [float(x) for x in ends[1:]] == pytest.approx([cell.lo, cell.hi], rel=1e-5, abs=1e-12)
            else:
                assert ends[0] == (cell or "")


@pytest.mark.parametrize("number_", range(len(everything())))
def test_markdown_and_latex_are_rectangular_and_balanced(number_: int) -> None:
    table = everything()[number_]
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    named_sections = [s for s, _ in table.sections() if s]
    assert len(lines) == 2 + len(table.rows) + len(named_sections)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.columns) + 1}
    tex = table.latex()
    body = tex[tex.index(r"\toprule") : tex.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {len(table.columns) - 1}
    assert len(rows) == 1 + len(table.rows)
    bare = re.sub(r"\\[{}%$&#_]", "", tex)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert set(re.findall(r"\\begin\{([a-z]+\*?)\}", tex)) == set(re.findall(r"\\end\{([a-z]+\*?)\}", tex))
    assert tex.isascii()


def test_latex_escapes_what_names_may_hold() -> None:
    assert escape(r"50 % of a_b & c#1 {x} ~ ^ \y $2 <= λ") == (
        r"50 \% of a\_b \& c\#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}y \$2 $\leq$ $\lambda$"
    )
    assert escape("[x]") == "{}[x]"  # after \\ it would be a length
    table = Table("t", (Column("a"), Column("b")), (Row(("[odd] | name", number(-0.5)), "", True),), key="k")
    assert r"\textbf{{}[odd] $|$ name} & $-$0.50 \\" in table.latex()
    assert r"| **[odd] \| name** | -0.50 |" in table.markdown()


def test_cells() -> None:
    assert (figure(None), number(None), count(None), seconds(None)) == (None,) * 4
    assert text(seconds(0.0)) == "0 s"
    assert text(count(12_800)) == "12.8 k"
    with pytest.raises(ValueError, match="a row of 1 cells under 2 columns"):
        Table.of("t", ("a", "b"), [("x",)])


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    one = write_tables(tmp_path / "one", everything())
    two = write_tables(tmp_path / "two", everything())
    assert len(one) == 3 * len(everything()) + 1
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]
    assert sorted(p.name for p in one) == sorted(p.name for p in (tmp_path / "one").iterdir())
    with pytest.raises(ValueError, match="two tables have one key"):
        write_tables(tmp_path, [everything()[0]] * 2)


def test_all_six_metrics_are_there() -> None:
    assert [c.label for c in oracles_table("d", entry(), entry()).columns[1:]] == [
        "Top-1", "MRR", "NDCG@3", "Top-3", "RBO", "Spearman",
    ]  # fmt: skip
    assert len(SIX) == 6
