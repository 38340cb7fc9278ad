"""The published tables: every number of the data file is in the paper's source, in its row, and none is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guda.errors import GudaError
from guda.evaluation.metrics import METRICS
from guda.evaluation.published import TIMES, Duration, PublishedRow, PublishedTable, published

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "guda-paper.tex.txt"  # beside the project, where it is
TABLES = published().tables
MACROS = {r"\method": "GUDA", r"\etal": " et al.", r"\times": "x", r"\ ": " ", "~": " ", r"\,": ""}


def plain(cell: str) -> str:
    """A LaTeX cell as bare text: 10^{-4} becomes e-4, commands that only dress it go away."""
    cell = re.sub(r"\\rowcolor\{[^}]*\}", "", cell)
    cell = re.sub(r"\\citet\{wang2024data\}", "Wang et al.", cell)
    cell = re.sub(r"\\citep\{[^}]*\}", "", cell)
    cell = re.sub(r"\^\\dagger", "", cell)
    cell = re.sub(r"\\textbf\{([^}]*)\}", r"\1", cell)
    cell = re.sub(r"\\times\s*10\^\{(-\d+)\}", r"e\1", cell)
    for macro, text in MACROS.items():
        cell = cell.replace(macro, text)
    return re.sub(r"\s+", " ", cell.replace("$", "")).strip()


def paper_rows(table: PublishedTable) -> dict[str, list[str]]:
    """First cell -> the other cells, of one tabular of the paper."""
    text = PAPER.read_text()
    environment = text[text.index(rf"\label{{{table.label}}}") :]
    environment = environment[: environment.index(r"\end{table")]
    tabular = re.findall(r"\\begin\{tabular\}.*?\\midrule(.*?)\\bottomrule", environment, re.DOTALL)[table.part]
    rows = {}
    for line in tabular.replace(r"\midrule", "").split(r"\\"):
        if line.strip():
            name, *cells = (plain(cell) for cell in line.split("&"))
            rows[name] = cells
    return rows


def printed(row: PublishedRow, table: PublishedTable) -> list[str]:
    """The row's numbers as the paper prints them."""
    signed = table.key == "noisy.change"
    cells = [f"{row.metrics[m]:{'+' if signed else ''}.3f}" for m in table.metrics if row.metrics]
    return cells + [row.times[name].text for name in TIMES if row.times]


def without_zeros(time: str) -> str:
    """The paper writes 07:18 and 7:18, $<$00:01."""
    return re.sub(r"^(<?)0(\d)", r"\1\2", time)


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not here")
@pytest.mark.parametrize("key", [k for k, t in TABLES.items() if (t.label or "").startswith("tab:")])
def test_every_number_is_in_its_row_of_the_paper(key: str) -> None:
    table = TABLES[key]
    theirs = paper_rows(table)

    def name(row: PublishedRow) -> str:
        return f"{float(row.name):.0e}" if key == "retrack.lr" else row.name

    if key == "retrack.lr":
        theirs = {f"{float(n.replace(' ', '')):.0e}": cells for n, cells in theirs.items()}
    assert list(theirs) == [name(row) for row in table.rows.values()]
    for row in table.rows.values():
        cells = [without_zeros(c) for c in theirs[name(row)] if not c.startswith(r"\multicolumn")]
        assert cells == printed(row, table)


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not here")
def test_no_table_of_figures_is_left_out_and_shading_is_kept() -> None:
    text = PAPER.read_text()
    labels = set(re.findall(r"\\label\{(tab:[^}]*)\}", text))
    words = {"tab:config", "tab:style_descriptor_prompt_examples", "tab:anchor_prompt_examples"}
    assert labels - words == {t.label for t in TABLES.values() if (t.label or "").startswith("tab:")}
    for table in TABLES.values():
        if (table.label or "").startswith("tab:"):
            part = text[text.index(rf"\label{{{table.label}}}") :]
            part = part[: part.index(r"\end{table")]
            tabular = re.findall(r"\\begin\{tabular\}.*?\\bottomrule", part, re.DOTALL)[table.part]
            assert tabular.count(r"\rowcolor") == sum(row.main for row in table.rows.values())


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not here")
def test_numbers_of_the_text() -> None:
    text = PAPER.read_text()
    pair = published().table("likelihood.correlation").rows["logo"].metrics
    section = text[text.index(r"\label{app:elbo_validity}") :]
    found = re.search(
        r"Pearson \$= ([\d.]+)\$, Spearman \$= ([\d.]+)\$.*?Top-1 agreement \$= ([\d.]+)\$, NDCG@3 \$= ([\d.]+)\$",
        section, re.DOTALL,
    )  # fmt: skip
    assert found
    assert [f"{pair[m]:.3f}" for m in ("pearson", "spearman", "top1", "ndcg3_linear")] == list(found.groups())
    cost = published().table("timing.cifar10").rows
    assert f"({cost['guda'].query_seconds}s per image)" in text
    assert f"({cost['das'].query_seconds}s per image)" in text
    assert cost["logo"].query_seconds == cost["guda"].query_seconds
    minutes = (published().table("timing.unlearncanvas").rows["wang"].query_seconds or 0) / 60
    assert f"({minutes:.1f} minutes per image)" in text
    for key, base in (("dtrak.lam", 1000), ("trak.lam", 100)):
        assert re.search(rf"TRAK baseline \$\\lambda={base}\$", text)
        assert [float(v) for v in published().table(key).rows] == [0.1 * base, base, 10 * base]


def test_rows_of_one_method_agree_between_tables() -> None:
    main = published().table("main.cifar10")
    assert published().table("oracle.elbo").rows["das"].metrics == main.rows["das"].metrics
    assert published().table("retrack.epochs").rows["20"].metrics == main.rows["guda"].metrics
    assert published().table("trak.lam").rows["100"].metrics == main.rows["trak"].metrics
    assert published().table("dtrak.lam").rows["1000"].metrics == main.rows["dtrak"].metrics
    clean, noisy, change = (published().table(k).rows for k in ("main.cifar10", "noisy.figures", "noisy.change"))
    for key, row in change.items():
        for metric, value in row.metrics.items():  # rounded three times
            assert noisy[key].metrics[metric] - clean[key].metrics[metric] == pytest.approx(value, abs=0.0016)


def test_metrics_times_and_methods_are_known() -> None:
    from guda.methods.base import METHODS

    for table in TABLES.values():
        for row in table.rows.values():
            assert row.id is None or row.id in METHODS
            if table.key != "likelihood.correlation":
                assert set(row.metrics) <= set(METRICS)
    assert published().table("main.unlearncanvas").metrics[2] == "ndcg3_linear"
    assert Duration(text="206:52").seconds == 206 * 3600 + 52 * 60
    assert Duration(text="<0:01").seconds == 60
    assert published().table("main.cifar10").where == "published, CIFAR-10, H100"
    with pytest.raises(GudaError, match=r"no published table 'x'; there are main\.cifar10"):
        published().table("x")
