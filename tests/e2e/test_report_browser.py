"""report.html in a real browser, opened from a file: what is asked for is what is shown, and nobody is called.

What should be shown is computed from the run's score files, not from what the page carries.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from synthetic import METHODS, synthetic_run
from synthetic import SET as MADE_UP
from tinyrun import SET, Inline

from guda import steps
from guda.report.page import write_report
from guda.run.data import load_data
from guda.scoring.origin import Origin
from guda.scoring.scores import Scores
from guda.table import decimals, measured
from waiting import wait_for

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from report_links import landings

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from guda.run.run import Run


def until(page: Page, true: str) -> None:
    """Wait for an expression; Playwright's own waiting evaluates text in the page, which its policy forbids."""
    wait_for(lambda: page.evaluate(true), true)


def scores_of(run: Run, queries: str, method: str) -> Scores:
    return Scores.read(run.path("scores", queries, f"{method}.parquet"))


def pages(page: Page) -> Iterator[None]:
    """Every page of what is found, from the first; back on the first at the end."""
    links, here = (page.locator(".pager").first.locator(part) for part in ("a:visible", "b"))

    def turn(text: str) -> bool:
        wanted = links.filter(has_text=re.compile(f"^{text}$"))
        found = wanted.count() > 0
        if found:
            before = here.inner_text()
            wanted.click()
            wait_for(lambda: here.inner_text() != before, "the page to be turned")
        return found

    turn("1")
    yield
    while turn("\u203a"):
        yield
    turn("1")


def shown(page: Page) -> list[str]:
    """Ids of the pictures that are not filtered away, in their order, over all pages."""
    found: list[str] = []
    for _ in pages(page):
        here = [text.strip() for text in page.locator("#cards > .card:visible h3").all_text_contents()]
        assert len(here) <= 24
        found += here
    return found


def verdicts(page: Page) -> dict[str, str]:
    """The kind of verdict of every picture that is not filtered away, by its id."""
    script = """cards => cards.filter(c => c.checkVisibility()).map(c => [
        c.querySelector("h3").textContent.trim(),
        [...c.querySelector(".verdict").classList].filter(x => x !== "verdict").join(" ")])"""
    return {k: v for _ in pages(page) for k, v in page.locator("#cards > .card").evaluate_all(script)}


def bars(page: Page, picture: str) -> list[tuple[str, str]]:
    """(group, value) of one picture's bars, in their order."""
    card = page.locator("#cards > .card", has=page.locator("h3", has_text=picture)).first
    rows = card.locator(".bars li")
    return list(
        zip(rows.locator(".name").all_text_contents(), rows.locator(".number").all_text_contents(), strict=True)
    )


def ranked(scores: Scores, q: int) -> list[str]:
    return [scores.groups[g] for g in np.argsort(-scores.score[q], kind="stable")]


def printed(scores: Scores, q: int) -> list[str]:
    """Its scores, best first, with the decimals that their errors have a right to."""
    digits = decimals(scores.score)
    cells = [scores.cell(q, int(g)) for g in np.argsort(-scores.score[q], kind="stable")]
    return [measured(c.score, c.lo, c.hi, digits)[0] for c in cells]


def method_option(page: Page, method: str) -> str:
    """Its value: options are named after methods, some with a remark."""
    options = page.locator("#method option").evaluate_all("all => all.map(o => [o.text, o.value])")
    return next(value for text, value in options if text.split(" (")[0] == method)


def count(page: Page, n: int, of: int) -> None:
    text = page.locator("#count").inner_text()
    if n <= 24:
        assert text == (f"All {n} pictures" if n == of else f"{n} of {of} pictures")
    elif n == of:
        assert text == f"1 to 24 of {n} pictures"
    else:
        assert text == f"{n} of {of} pictures match; 1 to 24 of them"


@pytest.fixture
def opened(page: Page, report: Path) -> Page:
    page.goto(report.as_uri())
    return page


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Thirty pictures, ten of each kind of verdict."""
    run = synthetic_run(tmp_path_factory.mktemp("synthetic") / "run")
    write_report(run, MADE_UP)
    return run


def test_it_opens_from_a_file_and_asks_nobody(opened: Page, watch: Any, scored_run: Run) -> None:
    opened.wait_for_load_state("networkidle")
    retrack = scores_of(scored_run, SET, "retrack")
    assert shown(opened) == list(retrack.queries)
    count(opened, 12, 12)
    for q, picture in enumerate(retrack.queries):
        assert [name for name, _ in bars(opened, picture)] == ranked(retrack, q)
    for use in opened.locator("#cards .head .pic use").evaluate_all("all => all.map(u => u.getAttribute('href'))"):
        assert opened.locator(f"{use} image").get_attribute("href").startswith("data:image/png;base64,")  # type: ignore[union-attr]
    watch.quiet()


def test_the_watch_hears_what_it_should(page: Page, watch: Any, tmp_path: Path) -> None:
    """Otherwise its silence elsewhere would say nothing."""
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('oh'); throw new Error('ah')</script>")
    page.goto(bad.as_uri())
    page.wait_for_timeout(200)
    assert watch.requests == ["http://127.0.0.1:9/x.png"]
    assert "error: oh" in watch.console
    assert watch.errors == ["ah"]
    with pytest.raises(AssertionError):
        watch.quiet()


@pytest.mark.parametrize("method", ["retrack", "logo"])
def test_sorting_orders_by_margin_and_by_top_score(page: Page, made_up: Run, watch: Any, method: str) -> None:
    page.goto(made_up.path("report.html").as_uri())
    page.select_option("#method", method_option(page, method))
    scores = scores_of(made_up, MADE_UP, method)
    best = -np.sort(-scores.score, axis=1)
    keys = {"margin": best[:, 0] - best[:, 1], "top": best[:, 0]}
    for sort, values in keys.items():
        page.select_option("#sort", sort)
        found = values[[scores.queries.index(p) for p in shown(page)]]
        assert len(found) == len(scores.queries)
        assert (np.diff(found) <= 0.01).all()  # the page carries rounded numbers
        assert found[0] == values.max()
    page.select_option("#sort", "id")
    assert shown(page) == list(scores.queries)
    watch.quiet()


def test_filters_by_first_group_by_verdict_and_by_words(page: Page, made_up: Run, watch: Any) -> None:
    page.goto(made_up.path("report.html").as_uri())
    scores = scores_of(made_up, MADE_UP, "retrack")
    first = scores.score.argmax(axis=1)
    for g, name in enumerate(scores.groups):
        page.select_option("#group", label=name)
        assert shown(page) == [q for q, top in zip(scores.queries, first, strict=True) if top == g]
        count(page, int((first == g).sum()), 30)
    page.select_option("#group", label="any")
    every = verdicts(page)
    assert [every[q] for q in scores.queries] == ["stands-out", "close", "nothing"] * 10
    for kind in ("stands-out", "close", "nothing"):
        page.select_option("#kind", kind)
        assert verdicts(page) == {q: k for q, k in every.items() if k == kind}
    page.select_option("#kind", "")
    page.fill("#search", "-002")
    assert shown(page) == [f"picture-002{i}" for i in range(10)]
    page.select_option("#kind", "stands-out")  # filters hold together
    assert shown(page) == [q for q in scores.queries if q.startswith("picture-002") and every[q] == "stands-out"]
    page.fill("#search", "no such picture")
    assert shown(page) == []
    assert page.locator("#nothing").is_visible()
    page.locator("#nothing button").click()
    until(page, "document.querySelector('#count').textContent.startsWith('1 to 24')")
    count(page, 30, 30)
    watch.quiet()


def test_a_foreign_picture_names_no_group(page: Page, watch: Any, tmp_path: Path) -> None:
    """By no method and in no view, unless its folded scores are opened; a copy shows the image it repeats."""
    run = synthetic_run(tmp_path / "run", n=6)
    image = load_data(run).ids[5]
    origins = (Origin(0.5), Origin(0.01), Origin(0.3, copy_of=image, copy_group="style 1", copy_distance=0.1))
    for method in METHODS:
        scores = scores_of(run, MADE_UP, method)
        replace(scores, origins=origins * 2).write(run.path("scores", MADE_UP, f"{method}.parquet"))
    page.goto(write_report(run, MADE_UP).as_uri())
    cards = page.locator("#cards > .card")
    for method in METHODS:
        page.select_option("#method", method_option(page, method))
        for view in ("per", "group") if page.locator("#view").is_enabled() else ("",):
            if view:
                page.select_option("#view", view)
            assert [verdicts(page)[q] for q in scores.queries][1:3] == ["foreign", "copy"]
            for q in range(6):
                assert ("style" in cards.nth(q).inner_text()) == (q % 3 != 1), (method, view, q)
    assert image in cards.nth(2).inner_text()
    assert cards.nth(2).locator(".copied svg").is_visible()
    cards.nth(1).locator(".refused summary").click()
    assert "style" in cards.nth(1).inner_text()
    page.select_option("#kind", "foreign")
    assert shown(page) == [scores.queries[q] for q in (1, 4)]
    watch.quiet()


def test_an_answer_set_reads_the_same_when_it_is_drawn_again(page: Page, watch: Any, tmp_path: Path) -> None:
    """Its first groups are named and the others counted, without probabilities on the card or in tooltips."""
    run = synthetic_run(tmp_path / "run", n=3)
    scores, sizes = scores_of(run, MADE_UP, "retrack"), (10, 6, 1)
    best = np.argsort(np.argsort(-scores.score, axis=1), axis=1)
    answer = best < np.array(sizes)[:, None]
    p = np.exp(scores.score - scores.score.max(axis=1, keepdims=True))
    replace(scores, answer=answer, p_first=p / p.sum(axis=1, keepdims=True), validation="compared").write(
        run.path("scores", MADE_UP, "retrack.parquet")
    )
    page.goto(write_report(run, MADE_UP).as_uri())
    before = page.locator(".odds").all_text_contents()
    names = [ranked(scores, q) for q in range(3)]
    ends = [", ".join(names[0][:6]) + " and 4 more", ", ".join(names[1][:6]), names[2][0]]
    assert [text.partition(": ")[2] for text in before] == ends
    for method in ("logo", "retrack"):
        page.select_option("#method", method_option(page, method))
    assert page.locator(".odds").all_text_contents() == before
    titles = page.locator("#cards .bars li").evaluate_all("all => all.map(li => li.title)")
    assert not [title for title in titles if "probability" in title]
    watch.quiet()


def test_another_method_has_other_bars_and_reset_brings_all_back(opened: Page, scored_run: Run, watch: Any) -> None:
    picture = scores_of(scored_run, SET, "retrack").queries[0]
    before = bars(opened, picture)
    for method in ("logo", "similarity-pixel"):
        scores = scores_of(scored_run, SET, method)
        opened.select_option("#method", method_option(opened, method))
        for q, other in enumerate(scores.queries):
            assert [name for name, _ in bars(opened, other)] == ranked(scores, q)
        assert bars(opened, picture) != before
        assert [value for _, value in bars(opened, picture)] == printed(scores, 0)
    assert set(verdicts(opened).values()) == {"unmeasured"}  # similarity has no intervals
    opened.select_option("#sort", "margin")
    opened.fill("#search", picture)
    assert len(shown(opened)) == 1
    opened.locator("#controls button[type=reset]").click()
    until(opened, "document.querySelector('#count').textContent.startsWith('All')")
    assert bars(opened, picture) == before
    assert shown(opened) == list(scores_of(scored_run, SET, "retrack").queries)
    watch.quiet()


def test_wide_tables_scroll_by_themselves(page: Page, scored_run: Run, tmp_path: Path) -> None:
    """Labels that only a screen reader reads must not stick out of them and widen the page."""
    shutil.copytree(scored_run.root, tmp_path / "run")
    run = type(scored_run).open(tmp_path / "run")
    steps.health(run, ["retrack"], Inline())
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(write_report(run, SET).as_uri() + "#health")  # which unfolds it
    assert page.locator(".heat").first.evaluate("e => e.scrollWidth") > 340
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def focused(page: Page) -> str:
    return str(
        page.evaluate("document.activeElement.id || document.activeElement.type || document.activeElement.tagName")
    )


def tab_to(page: Page, wanted: str, most: int = 400) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page) == wanted:
            return
    pytest.fail(f"Tab never reached {wanted}")


def test_it_can_be_used_by_keyboard_alone(page: Page, made_up: Run, watch: Any) -> None:
    page.goto(made_up.path("report.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"  # the way past everything comes first
    page.keyboard.press("Enter")
    scores = scores_of(made_up, MADE_UP, "retrack")
    for control in ("method", "sort", "group", "kind", "search", "reset"):  # in the order they are read
        tab_to(page, control, 12)
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring != "none", f"nothing shows that {control} has the focus"
        if control == "sort":
            page.keyboard.press("End")
            assert page.locator("#sort").input_value() == "margin"
            first = page.locator("#cards > .card:visible h3").first.inner_text()
            assert first == scores.queries[int(np.argmax(np.diff(np.sort(scores.score, axis=1)[:, -2:], axis=1)))]
        elif control == "group":
            page.keyboard.type("style 3")
            until(page, "document.querySelector('#group').selectedOptions[0].text === 'style 3'")
            tops = {ranked(scores, scores.queries.index(q))[0] for q in shown(page)}
            assert tops == {"style 3"}
            page.keyboard.press("Home")
        elif control == "search":
            page.keyboard.type("0007")
            assert shown(page) == ["picture-0007"]  # one page: nothing else takes the focus
        elif control == "reset":
            page.keyboard.press("Enter")
            until(page, "document.querySelector('#count').textContent.startsWith('1 to 24')")
            assert shown(page) == list(scores.queries)
    watch.quiet()


def test_paper_is_a_document_of_a_sane_length(page: Page, made_up: Run, tmp_path: Path) -> None:
    page.goto(made_up.path("report.html").as_uri())
    assert page.locator("#controls").is_visible()
    assert page.locator("details.expert:not([open])").count() > 0
    paper = page.pdf(path=tmp_path / "report.pdf")
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) <= 20  # 24 pictures, ten groups, every table
    assert page.locator("details.expert:not([open]), details.table:not([open])").count() == 0
    page.emulate_media(media="print")
    for hidden in ("#controls", "nav", ".sorter"):
        assert not page.locator(hidden).first.is_visible()
    assert page.locator("#cards .card:visible").count() == 24
    assert page.locator("#count").inner_text() == "1 to 24 of 30 pictures"  # paper says what it leaves out
    assert brightness(page, "body") > 0.9


# ---- the answer first, and links that land ------------------------------------------------------------------------

SIZES = [(1280, 900), (390, 844)]


@pytest.mark.parametrize("size", SIZES)
def test_the_first_screen_is_the_answer(page: Page, scored_run: Run, report: Path, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(report.as_uri())
    tiles = page.locator("#answers li")
    assert 3 <= tiles.count() <= 6
    box = tiles.first.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < size[1]
    scores, oracle = (scores_of(scored_run, SET, m) for m in ("retrack", "logo"))
    for tile in tiles.all():
        picture = tile.locator("a").get_attribute("href").removeprefix("#")  # type: ignore[union-attr]
        q = scores.queries.index(picture)
        text = tile.inner_text()
        first = ranked(scores, q)[0]
        assert printed(scores, q)[0] in text
        assert "nats" in text
        assert first in text
        assert ("retraining agrees" in text) == (ranked(oracle, q)[0] == first)
    order = page.evaluate("[...document.querySelectorAll('header, main > section, main > details')].map(e => e.id)")
    assert order[:5] == ["", "groups", "limits", "pictures", "trust"]  # limits before the pictures, experts last
    assert page.locator("details.expert[open]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_link_lands(page: Page, made_up: Run, watch: Any, size: tuple[int, int], scheme: Any) -> None:
    """On other pages of pictures, filtered away or folded: the target is at the top of the window."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(made_up.path("report.html").as_uri())
    found = landings(page)
    assert len(found) > 45
    assert {link: off for link, off in found.items() if not abs(off) <= 40} == {}
    watch.quiet()


def test_a_permalink_lands_when_it_is_opened_afresh(page: Page, made_up: Run) -> None:
    address = made_up.path("report.html").as_uri()
    for place in ("picture-0029", "picture-0003", "group-style-4", "provenance", "cost"):
        page.goto("about:blank")
        page.goto(f"{address}#{place}")
        until(page, f"Math.abs(document.getElementById('{place}').getBoundingClientRect().top) <= 40")
        assert page.locator(f"#{place}").is_visible()
    page.goto("about:blank")
    page.goto(f"{address}#picture-0029")
    assert page.locator(".pager b").first.inner_text() == "2"
    page.reload()
    until(page, "Math.abs(document.getElementById('picture-0029').getBoundingClientRect().top) <= 40")


def test_what_is_chosen_is_in_the_address(page: Page, made_up: Run) -> None:
    page.goto(made_up.path("report.html").as_uri())
    page.select_option("#method", method_option(page, "logo"))
    page.select_option("#sort", "margin")
    page.select_option("#kind", "stands-out")
    before, address = shown(page), page.url
    assert "method=logo" in address
    page.goto("about:blank")
    page.goto(address)
    assert shown(page) == before
    assert page.locator("#sort").input_value() == "margin"
    page.goto(made_up.path("report.html").as_uri() + "#pictures&sort=nonsense&method=none&group=%zz&page=99")
    assert len(shown(page)) == 30  # what is not known is ignored
    page.locator(".pager").first.locator("a", has_text="2").click()
    assert "page=2" in page.url
    page.go_back()
    until(page, "document.querySelector('.pager b').textContent === '1'")
    page.select_option("#kind", "close")
    place = next(q for q, k in enumerate(["stands-out", "close", "nothing"] * 10) if k != "close")
    page.evaluate(f"location.hash = 'picture-{place:04d}'")  # a filter that hides it gives way
    until(page, f"document.getElementById('picture-{place:04d}').checkVisibility()")


def test_search_by_group_and_everything_attributed_to_it(page: Page, made_up: Run, watch: Any) -> None:
    page.goto(made_up.path("report.html").as_uri())
    scores = scores_of(made_up, MADE_UP, "retrack")
    first = [ranked(scores, q)[0] for q in range(30)]
    page.fill("#search", "Style 3")
    assert shown(page) == [q for q, f in zip(scores.queries, first, strict=True) if f == "style 3"]
    page.fill("#search", "")
    page.evaluate("location.hash = 'group-style-3'")
    until(page, "document.getElementById('group-style-3').open")
    listed = page.locator("#group-style-3 .attributed li")
    best = sorted((q for q in range(30) if first[q] == "style 3"), key=lambda q: -scores.score[q].max())
    assert listed.locator("small").all_inner_texts() == [scores.queries[q] for q in best]
    listed.first.locator("a").click()
    until(page, f"location.hash === '#{scores.queries[best[0]]}'")
    assert page.locator(f"#{scores.queries[best[0]]}").is_visible()
    watch.quiet()


def test_columns_can_be_sorted(page: Page, made_up: Run) -> None:
    page.goto(made_up.path("report.html").as_uri())
    page.locator("summary", has_text="All groups as a table").click()
    head = page.locator("table.groups thead th")
    column = [text.split(" \u2195")[0] for text in head.all_inner_texts()].index("first for")
    head.nth(column).locator("button").click()
    cells = page.locator(f"table.groups tbody tr td:nth-child({column + 1})").all_inner_texts()
    numbers = [int(text.split()[0]) for text in cells]
    assert numbers == sorted(numbers, reverse=True)
    assert head.nth(column).get_attribute("aria-sort") == "descending"
    head.first.locator("button").click()
    names = page.locator("table.groups tbody th").all_inner_texts()
    assert names == sorted(names)
    page.select_option("#order", "name")
    assert page.locator(".group > summary > b").all_inner_texts() == [f"style {g}" for g in range(10)]


def test_no_line_crosses_a_label(page: Page, scored_run: Run, report: Path) -> None:
    """In the figures of agreement, labels and lines have places of their own."""
    for width, _ in SIZES:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(report.as_uri())
        crossed = page.evaluate("""() => {
            const all = (s) => [...document.querySelectorAll(s)].map(e => e.getBoundingClientRect());
            const boxes = (s) => all(s).filter(r => r.width && r.height);
            const labels = boxes(".dot-row > span, .mark-row div span"), lines = boxes(".line");
            return [labels.length, lines.length, labels.filter(a => lines.some(b =>
                a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length];
        }""")
        assert crossed[0] > 3
        assert crossed[1] > 1
        assert crossed[2] == 0


@pytest.mark.parametrize(("code", "title"), [("de", "Welche Trainingsbilder"), ("fr", "Quelles images")])
def test_another_language_says_the_same_after_switching(
    page: Page, scored_run: Run, watch: Any, tmp_path: Path, code: str, title: str
) -> None:
    page.goto(write_report(scored_run, SET, out=tmp_path / "report.html", language=code).as_uri())
    assert title in page.inner_text("h1")
    before = page.locator("#cards").inner_text()
    for method in ("logo", "retrack"):
        page.select_option("#method", method_option(page, method))
    assert page.locator("#cards").inner_text() == before
    assert page.locator("html").get_attribute("lang") == code
    watch.quiet()


# ---- colours ------------------------------------------------------------------------------------------------------


def colour(locator: Locator, name: str) -> np.ndarray:
    """Its r, g, b and opacity in [0, 1], whatever notation the browser gives it in."""
    script = """(el, name) => {
        const pen = document.createElement("canvas").getContext("2d");
        pen.fillStyle = getComputedStyle(el)[name];
        pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data];
    }"""
    return np.array(locator.first.evaluate(script, name)) / 255


def luminance(rgb: np.ndarray) -> float:
    """Relative luminance of sRGB (WCAG 2)."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def brightness(page: Page, selector: str) -> float:
    return luminance(colour(page.locator(selector), "backgroundColor")[:3])


def contrast(page: Page, text: str, ground: str) -> float:
    ink = luminance(colour(page.locator(text), "color")[:3])
    return (max(ink, paper := brightness(page, ground)) + 0.05) / (min(ink, paper) + 0.05)


def test_contrast_is_the_known_one(page: Page) -> None:
    page.set_content("<p style='color:#777;background:#fff'>grey on white</p>")
    assert contrast(page, "p", "p") == pytest.approx(4.48, abs=0.01)


def test_dark_mode_differs_and_both_can_be_read(opened: Page, watch: Any) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        grounds[scheme] = brightness(opened, "body")
        for text, ground in (
            ("body", "body"), (".lead", "body"), (".card .verdict", ".card"), (".bars .number", ".card"),
            (".bars .interval", ".card"), ("#about", "body"), ("nav a", "body"), ("#method", "#method"),
        ):  # fmt: skip
            assert contrast(opened, text, ground) >= 4.5, (scheme, text)
    assert grounds["light"] > 0.8
    assert grounds["dark"] < 0.05
    watch.quiet()


# ---- size ---------------------------------------------------------------------------------------------------------


def test_five_hundred_pictures_are_light_enough(page: Page, watch: Any, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", n=500, side=128)
    file = write_report(run, MADE_UP)
    assert file.stat().st_size <= 30e6
    page.goto(file.as_uri())
    count(page, 500, 500)
    page.select_option("#sort", "margin")
    page.select_option("#method", method_option(page, "logo"))
    page.select_option("#kind", "stands-out")
    count(page, 167, 500)
    watch.quiet()
