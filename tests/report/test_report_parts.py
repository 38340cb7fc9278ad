"""What stands beside the bars: probabilities, all methods, drawings, calibration, cost; and the same as files."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_report_page import EVIL, SET, Page, add_scores, embedded, make_run

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))
from tinyrun import GROUPS, Inline, copy_run
from tinyrun import SET as TINY

import guda
from guda import steps
from guda.errors import GudaError
from guda.evaluation.intervals import clopper_pearson
from guda.report.card_evidence import gather_examples
from guda.report.cards import MethodView
from guda.report.content import Content
from guda.report.export import COLUMNS, SCHEMA, find_browser, to_json, write_csv, write_json_report
from guda.report.page import render, report_path, write_report
from guda.report.picture_cards import examples
from guda.report.places import places
from guda.report.same_noise import draw_missing, drawing_tasks
from guda.scoring.origin import Origin
from guda.scoring.scores import Scores
from guda.table import probability


def odds_run(root: Path, p: list[list[float]], gold: list[int]):
    """Three groups; retrack's probabilities of being first as given, LOGO's first groups as given."""
    run = make_run(root, n=len(p))
    plain = add_scores(run, "retrack")
    score = np.array(p) * 10 + 20
    Scores(
        "retrack", "nats", "ELBO", plain.queries, plain.groups, score, 240, lo=score - 1, hi=score + 1,
        p_first=np.array(p), stderr_training=np.ones_like(score),
    ).write(run.path("scores", SET, "retrack.parquet"))  # fmt: skip
    oracle = np.eye(3)[gold] * 9
    Scores("logo", "nats", "ELBO", plain.queries, plain.groups, oracle, 240, lo=oracle - 1, hi=oracle + 1).write(
        run.path("scores", SET, "logo.parquet")
    )
    return run


def test_probability_of_being_first_is_on_the_card_in_the_tooltip_and_in_the_data(tmp_path):
    run = odds_run(tmp_path / "run", [[0.61, 0.389, 0.001], [0.0, 1.0, 0.0]], [0, 1])
    html = render(run, SET)
    text = Page(html).text
    assert f"probability of being first, over trainings: {EVIL} 61 %, b & c 39 %" in text
    assert "probability of being first, over trainings: b & c >99 %" in text
    assert "first with probability &lt;1\N{NO-BREAK SPACE}%" in html
    data = {m["id"]: m for m in embedded(html)["methods"]}
    assert data["retrack"]["odds"] == [[[0, 0.61], [1, 0.389]], [[1, 1.0]]]
    assert data["logo"]["odds"] is None
    assert [probability(v) for v in (0.0, 0.5, 1.0)] == [f"{t}\N{NO-BREAK SPACE}%" for t in ("<1", "50", ">99")]


def test_what_scoring_alone_is_sure_of_is_not_told_as_a_probability(tmp_path):
    run = odds_run(tmp_path / "run", [[0.61, 0.389, 0.001], [0.0, 1.0, 0.0]], [0, 1])
    path = run.path("scores", SET, "retrack.parquet")
    replace(Scores.read(path), stderr_training=None).write(path)
    html = render(run, SET)
    assert html.count('<p class="odds" hidden>') == 2
    assert "; first with probability" not in html
    assert {m["id"]: m["odds"] for m in embedded(html)["methods"]}["retrack"] is None


def test_a_calibrated_answer_set_stands_in_place_of_probabilities(tmp_path):
    run = odds_run(tmp_path / "run", [[0.61, 0.389, 0.001], [0.0, 1.0, 0.0]], [0, 1])
    path = run.path("scores", SET, "retrack.parquet")
    plain = Page(render(run, SET)).text
    assert "claims of this strength: retraining agreed for" in plain
    assert "not validated against retraining" not in plain  # it was compared: the card says how often it was right
    validation = "95 % answer sets calibrated on 100 other pictures against 2 retrainings"
    replace(Scores.read(path), answer=np.array([[1.0, 1, 0], [0, 1, 0]]), validation=validation).write(path)
    html = render(run, SET)
    text = Page(html).text
    assert f"retraining puts one of these groups first (95 % of pictures): {EVIL}, b & c" in text
    assert validation in text
    assert ">99" not in text.split("Every picture")[-1].split("How far to trust it")[0]
    data = {m["id"]: m for m in embedded(html)["methods"]}["retrack"]
    assert data["odds"] == [[[0, None], [1, None]], [[1, None]]]
    assert [v[3] for v in data["verdicts"]] == [validation] * 2


def test_cards_say_whether_they_were_compared_with_retraining(tmp_path):
    run = odds_run(tmp_path / "run", [[0.61, 0.389, 0.001], [0.0, 1.0, 0.0]], [0, 1])
    run.path("scores", SET, "logo.parquet").unlink()
    assert render(run, SET).count(">not validated against retraining</p>") == 2


def test_a_foreign_picture_counts_for_no_claim(tmp_path):
    sure = [0.995, 0.005, 0.0]
    run = odds_run(tmp_path / "run", [sure, sure, sure], [0, 1, 1])
    path = run.path("scores", SET, "retrack.parquet")
    foreign = (Origin(0.5), Origin(0.01), Origin(0.5))
    replace(Scores.read(path), origins=foreign).write(path)
    content = Content.read(run, SET)
    bins, kinds = content.calibration(content.view)
    assert [(s.n, s.mean) for s in bins] == [(2, 0.5)]
    assert [s.claim for s in kinds] == ["stands-out"]
    assert content.claims(content.view)[1][1] == -1
    text = Page(render(run, SET)).text
    assert "1 unlike what this model makes" in text
    assert "fewer than 1 % of its own pictures are as unusual; no attribution" in text


def test_calibration_counts_where_retraining_agrees(tmp_path):
    sure, unsure = [0.995, 0.005, 0.0], [0.6, 0.4, 0.0]
    run = odds_run(tmp_path / "run", [sure, sure, sure, unsure], [0, 0, 1, 0])
    content = Content.read(run, SET)
    bins, kinds = content.calibration(content.view)
    assert [(s.claim, s.k, s.n) for s in bins] == [("50-80 %", 1, 1), ("99-100 %", 2, 3)]
    assert [(s.claim, s.k, s.n) for s in kinds] == [("stands-out", 2, 3), ("close", 1, 1)]
    assert (bins[1].lo, bins[1].hi) == clopper_pearson(2, 3)
    text = Page(render(run, SET)).text
    assert "retraining agreed for 67 % [9, 99] of 3 pictures" in text
    assert content.calibration(content.oracle) is None


def test_how_often_such_claims_were_right_stands_beside_every_claim(tmp_path):
    sure, unsure = [0.995, 0.005, 0.0], [0.6, 0.4, 0.0]
    run = odds_run(tmp_path / "run", [sure, sure, sure, unsure], [0, 0, 1, 0])
    html = render(run, SET)
    text = Page(html).text
    assert text.count("claims of this strength: retraining agreed for 67 % [9, 99] of 3 pictures") == 3
    assert text.count("claims of this strength: retraining agreed for 100 % [") == 1
    data = {m["id"]: m for m in embedded(html)["methods"]}
    sentences, places = data["retrack"]["claims"]
    of = [sentences[i].rpartition(" of ")[2].partition(",")[0] for i in places]
    assert of == ["3 pictures"] * 3 + ["1 picture"]
    assert data["logo"]["claims"] is None  # retraining itself
    assert "over trainings" in text
    assert "exact" not in text.partition("When it was sure")[2].partition("How far to trust the")[0]


def test_the_interval_holds_agreement_with_each_retraining_alone(tmp_path):
    run = odds_run(tmp_path / "run", [[0.995, 0.005, 0.0]] * 4, [0, 0, 0, 0])
    plain = Scores.read(run.path("scores", SET, "logo.parquet"))
    for seed, gold in ((1, [0, 0, 0, 0]), (2, [0, 1, 1, 1])):
        score = np.eye(3)[gold] * 9
        one = Scores(f"logo-s{seed}", "nats", "ELBO", plain.queries, plain.groups, score, 240)
        one.write(run.path("scores", SET, f"logo-s{seed}.parquet"))
    content = Content.read(run, SET)
    [share], _ = content.calibration(content.view)
    assert (share.k, share.n, share.seeds) == (4, 4, 2)
    assert (share.lo, share.hi) == (clopper_pearson(1, 4)[0], 1.0)
    assert "widened to hold agreement with each of the 2 retrainings alone" in Page(render(run, SET)).text


def test_without_an_oracle_calibration_is_said_to_be_unmeasured(tmp_path):
    run = make_run(tmp_path / "run")
    add_scores(run, "retrack")
    assert "That could not be measured" in Page(render(run, SET)).text


def test_all_methods_side_by_side_without_javascript(tmp_path):
    run = odds_run(tmp_path / "run", [[0.9, 0.1, 0.0]], [1])
    html = render(run, SET)
    table = html.split('<details class="methods">')[1].split("</details>")[0]
    assert "0 of 1 methods rank the same group first as retraining" in table
    cells = [line for line in table.splitlines() if line.startswith("<tr><th>") and "<td" in line]
    assert [c.count("<td") for c in cells] == [3, 3]
    assert '<td class="o">b &amp; c' in cells[0].partition("logo")[2].partition("<td>")[0]
    assert cells[1].startswith("<tr><th>retrack<td>&lt;script&gt;")


def test_nothing_stands_out_cannot_be_missed(tmp_path):
    run = make_run(tmp_path / "run", n=2)
    plain = add_scores(run, "retrack")
    score = np.array([[9.0, 1.0, 0.0], [0.3, 0.2, 0.1]])
    Scores("retrack", "nats", "ELBO", plain.queries, plain.groups, score, 240, lo=score - 1, hi=score + 1).write(
        run.path("scores", SET, "retrack.parquet")
    )
    html = render(run, SET)
    text = Page(html).text
    assert '<li class="card nothing"' in html
    assert "For 1, nothing stands out" in text
    assert "one group stands out 1, too close to call 0, nothing stands out 1." in text
    assert 'data-kind="nothing"' in html
    assert '<option value="nothing">' in html


def test_drawings_are_paid_once_and_follow_the_first_group(tmp_path):
    run = copy_run(tmp_path / "run")
    plain = write_report(run, TINY).read_text()
    assert 'id="drawings"' not in plain
    engine = Inline()
    draw_missing(run, steps.scored_methods(run, TINY), engine)
    assert len(engine.ran) == 2 * (1 + len(GROUPS))  # retrack and logo; similarity draws nothing
    assert not [t for t in drawing_tasks(run, ["retrack", "logo"]) if not t.done(run)]
    html = write_report(run, TINY).read_text()
    section = html.split('id="drawings"')[1].split('id="cost"')[0]
    used = re.findall(r'<use href="#(x\d+)"/>', section)
    assert len(used) == 2 * 4 * (1 + len(GROUPS))  # retrack and the oracle, four noises each
    ids = re.findall(r'<symbol id="(x\d+)"', html)
    assert len(ids) == len(set(ids))
    assert set(used) <= set(ids)
    assert "or its pictures were not drawn: similarity-pixel." in Page(html).text
    assert write_report(run, TINY).read_text() == html


def test_evidence_is_on_the_cards_that_have_it(tmp_path):
    run = copy_run(tmp_path / "run")
    content = Content.read(run, TINY)
    assert "evidence" not in render(run, TINY).split("<body")[1].split("<script")[0]
    first = examples(content.view)
    assert 3 <= len(first) <= 6
    engine = Inline()
    gather_examples(content, first, engine)
    assert engine.ran
    html = render(run, TINY)
    cards = html.split('<li class="card ')[1:]
    assert [q for q, card in enumerate(cards) if '<div class="evidence">' in card] == sorted(first)
    group = content.view.scores.groups[int(content.view.order[first[0], 0])]
    assert f"nearest training images of group {group}" in cards[first[0]]
    again = Inline()
    gather_examples(content, first, again)
    assert again.ran == []
    shown = guda.show(run, content.queries.ids[first[0]])
    assert str(shown) == f"{content.queries.ids[first[0]]}: {content.view.verdicts[first[0]].text}"
    assert '<div class="evidence">' in shown._repr_html_()
    other = guda.show(run.root, content.queries.ids[1], method="similarity-pixel")
    assert '<div class="evidence">' not in other.html
    ids = [set(re.findall(r'<symbol id="([^"]+)"', card.html)) for card in (shown, other)]
    assert not ids[0] & ids[1]  # two cards in one notebook


def test_the_first_pictures_are_not_chosen_by_score(tmp_path):
    run = make_run(tmp_path / "run", n=8)
    plain = add_scores(run, "retrack")
    score = np.zeros((8, 3))
    for q, g in enumerate((1, 1, 0, None, 0, 2, None, 1)):
        if g is not None:
            score[q, g] = 10 + q
    score[6] = [9.0, 9.5, 0.0]
    made = Scores("retrack", "nats", "ELBO", plain.queries, plain.groups, score, 240, lo=score - 1, hi=score + 1)
    assert examples(MethodView(made, (4, 8, 2), "")) == [0, 2, 5, 6, 3]  # a group each, then close, then nothing


def test_places_are_unique_and_land():
    names = ["s1-00287", "a b", "a-b", 'q<"1', "groups", "x12", "group-5", "", "é", "a b"]
    found = places(names)
    assert found[0] == "s1-00287"
    assert len(set(found)) == len(names)
    assert not set(found) & {"groups", "x12", "group-5"}
    assert all(re.fullmatch(r"[\w.-]+", place) for place in found)
    assert places(["Monet", "van Gogh"], "group-") == ["group-Monet", "group-van-Gogh"]


def test_cost_of_a_real_run_is_told_per_method(tmp_path):
    run = copy_run(tmp_path / "run")
    text = Page(render(run, TINY)).text
    section = text.split("What it cost")[1].split("hashes, versions")[0]
    for method in steps.scored_methods(run, TINY):
        assert method in section
    assert "not recorded" not in section
    assert "training the full model" in section


def test_csv_has_one_row_per_picture_method_and_group(tmp_path):
    run = odds_run(tmp_path / "run", [[0.6, 0.4, 0.0], [0.1, 0.2, 0.7]], [0, 1])
    content = Content.read(run, SET)
    with write_csv(content, tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3
    assert tuple(rows[0]) == COLUMNS
    row = next(r for r in rows if r["method"] == "retrack" and r["query"].endswith("1") and r["rank"] == "1")
    assert (row["group"], float(row["score"]), float(row["p_first"]), row["verdict"]) == ("d", 27.0, 0.7, "stands-out")
    assert {r["p_first"] for r in rows if r["method"] == "logo"} == {""}
    assert {r["group"] for r in rows} == {EVIL, "b & c", "d"}


def test_json_says_the_same_as_the_page(tmp_path):
    run = odds_run(tmp_path / "run", [[0.6, 0.4, 0.0], [0.1, 0.2, 0.7]], [0, 1])
    content = Content.read(run, SET)
    value = json.loads(write_json_report(content, tmp_path / "r.json").read_text())
    assert value == json.loads(json.dumps(to_json(content)))
    assert (value["schema"], value["main"], value["oracle"]) == (SCHEMA, "retrack", "logo")
    assert [p["oracle_first"] for p in value["pictures"]] == [EVIL, "b & c"]
    retrack = next(m for m in value["methods"] if m["id"] == "retrack")
    page = embedded(render(run, SET))["methods"][1]
    assert [[v["verdict"][k] for k in ("kind", "headline", "detail", "note")] for v in retrack["answers"]] == page[
        "verdicts"
    ]
    assert [g["rank"] for g in retrack["answers"][1]["groups"]] == [1, 2, 3]
    assert len(value["digests"]["scores/samples/retrack.parquet"]) == 64


def test_other_sets_and_races_have_pages_of_their_own(tmp_path):
    run = copy_run(tmp_path / "run")
    assert report_path(run, TINY) == run.path("report.html")
    assert report_path(run, "mine") == run.path("report-mine.html")
    assert report_path(run, TINY, "top1@0.95") == run.path(f"report-{TINY}-top1@0.95.html")
    steps.score(run, TINY, ["retrack"], Inline(), stop="top1@0.9,budget=200")
    with pytest.raises(GudaError, match=r"by top1@0\.95 in .* --stop top1@0\.95"):
        render(run, TINY, "top1@0.95")
    html = render(run, TINY, "top1@0.9,budget=200")
    assert [m["id"] for m in embedded(html)["methods"]] == ["retrack"]
    text = Page(html).text
    assert "raced to top1@0.9,budget=200" in text
    assert "retraining ranks group" in text  # the oracle by the recipe's rounds
    raced = Scores.read(run.path("scores", TINY, "top1@0.9,budget=200", "retrack.parquet"))
    view = MethodView(raced, [16] * 3, "")
    for q, card in enumerate(html.split('<li class="card ')[1:]):  # in the race's own order
        names = [part.split("<")[0] for part in card.split("</ol>")[0].split("<bdi>")[1:]]
        assert names == [GROUPS[g] for g in view.order[q]]


def test_no_browser_is_one_line(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("GUDA_BROWSER", raising=False)
    with pytest.raises(GudaError, match="needs Chromium, Chrome or Edge"):
        find_browser()
    monkeypatch.setenv("GUDA_BROWSER", "lynx-of-the-moon")
    with pytest.raises(GudaError, match="lynx-of-the-moon is not a program"):
        find_browser()


@pytest.mark.parametrize("n", [1, 60])
def test_one_picture_or_sixty_groups(tmp_path, n):
    run = make_run(tmp_path / "run", n=1, labels=[f"group {i} <i>" for i in range(max(n, 2))])
    add_scores(run, "similarity-pixel", intervals=False, unit="cosine")
    page = Page(render(run, SET))
    assert "group 1 <i>" in page.text
    assert not [t for t, _ in page.tags if t == "i"]
