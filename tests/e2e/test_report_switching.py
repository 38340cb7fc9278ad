"""The page in a real browser: switching, filtering, no errors, nothing asked of the network."""

from __future__ import annotations

import pytest
from tinyrun import SET as TINY
from tinyrun import Inline, copy_run

from guda import steps
from guda.report.card_evidence import gather_examples
from guda.report.content import Content
from guda.report.page import write_report
from guda.report.same_noise import draw_missing
from guda.scoring.scores import Scores


@pytest.fixture(scope="module")
def opened(tmp_path_factory, browser, a_watch):
    run = copy_run(tmp_path_factory.mktemp("browser") / "run")
    draw_missing(run, steps.scored_methods(run, TINY), Inline())
    gather_examples(Content.read(run, TINY), [0], Inline())
    file = write_report(run, TINY)
    page, watch = browser.new_page(), a_watch()
    watch.on(page)
    page.goto(file.as_uri())
    yield run, page
    page.close()
    watch.quiet()


def test_switching_the_method_switches_everything_on_the_card(opened):
    run, page = opened
    data = page.evaluate("JSON.parse(document.getElementById('data').textContent)")
    for number, method in enumerate(data["methods"]):
        page.select_option("#method", str(number))
        scores = Scores.read(run.path("scores", TINY, f"{method['id']}.parquet"))
        g = int(scores.score[0].argmax())
        card = page.locator(".card").first
        assert card.locator(".bars bdi").first.text_content() == scores.groups[g]
        over_trainings = scores.p_first is not None and scores.stderr_training is not None
        assert card.locator(".odds").is_visible() == (over_trainings or scores.answer is not None)
        assert card.locator(".evidence").is_visible() == (number == data["main"])  # it is of that method's first group
        assert f"{method['id']}" in page.locator("#tally").text_content().lower()
    page.click("button[type=reset]")


def test_the_filter_finds_each_verdict_and_the_counts_agree(opened):
    run, page = opened
    counts = Content.read(run, TINY).view.counts()
    for kind, n in counts.items():
        page.select_option("#kind", kind)
        assert page.locator(".card:visible").count() == n
        assert page.locator(f".card.{kind}:visible").count() == n
    page.click("button[type=reset]")
    kind = next(k for k, n in counts.items() if n)
    page.click(f"a[data-kind={kind}]")
    page.wait_for_function(f"document.getElementById('kind').value === '{kind}'")
    assert page.locator(".card:visible").count() == counts[kind]
    page.click("button[type=reset]")


def test_sorting_is_by_the_shown_score(opened):
    run, page = opened
    page.select_option("#sort", "top")
    scores = Scores.read(run.path("scores", TINY, "retrack.parquet"))
    shown = page.locator(".card").evaluate_all("found => found.map((c) => c.id)")
    assert shown == [scores.queries[q] for q in sorted(range(12), key=lambda q: -scores.score[q].max())]
