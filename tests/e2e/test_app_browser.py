"""The app in a real browser: a digit is dropped, settles, and is found again; what must be refused is."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for helpers in ("run", "web"):
    sys.path.insert(0, str(Path(__file__).parents[1] / helpers))
from uploads import grey, png_header  # noqa: E402

import programs  # noqa: E402
from waiting import LIMIT, wait_for  # noqa: E402

pytestmark = pytest.mark.e2e
WAIT = 180_000  # milliseconds; machines are slow, and nothing is ever waited for in full


@pytest.fixture(scope="module")
def app_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`guda serve` as a user starts it."""
    pytest.importorskip("fastapi")
    from tinyrun import copy_run

    root = copy_run(tmp_path_factory.mktemp("app") / "run").root
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "guda", "serve", str(root), "--port", str(port), "--max-mb", "1"]
    log = root.parent / "log"
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(root.parent)}
    with log.open("w") as out:
        server = programs.start(command, stdout=out, stderr=subprocess.STDOUT, env=environ)
    try:
        wait_for(lambda: "Serving" in log.read_text() or server.poll() is not None, "guda serve to start or to exit")
        assert server.poll() is None, log.read_text()
        found = re.search(r"http://\S+", log.read_text())
        assert found is not None
        yield found[0]
        assert len(list(root.parent.glob("guda-web-*"))) == 1
        server.send_signal(signal.SIGTERM)  # as a supervisor ends it
        assert server.wait(LIMIT) == 0
        assert log.read_text().endswith("Stopped.\n")
        assert "Traceback" not in log.read_text()
        assert list(root.parent.glob("guda-web-*")) == []
    finally:
        programs.end(server)


class Visit:
    """A page with everything it complained about and every server it asked."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        """`address`: the link that was printed; later pages need only the cookie."""
        self.link, self.errors, self.asked = address, [], []  # type: ignore[var-annotated]
        self.address = address.partition("/?")[0]
        self.page = browser.new_context(viewport={"width": 1280, "height": 1000}, **options).new_page()
        self.page.set_default_timeout(WAIT)
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))

    def open(self, path: str = "") -> Visit:
        self.page.goto(self.link)  # the token leaves the address, the cookie stays
        assert "token" not in self.page.url
        if path:
            self.page.goto(f"{self.address}/{path}")
        return self

    def bring(self, *files: Path, where: str = "picture") -> Visit:
        self.page.set_input_files(f"#{where}", [str(f) for f in files])
        return self

    def ask(self) -> Visit:
        self.page.click("#ask-button")
        return self

    def settled(self) -> Any:
        self.page.wait_for_url("**/result?**")
        return self.page.wait_for_selector("#answer .answer[data-state=final]")

    def clean(self) -> None:
        assert self.errors == []
        foreign = [u for u in self.asked if not u.startswith((self.address, "data:", "blob:"))]
        assert foreign == []
        self.page.context.close()


@pytest.fixture
def app_page(browser: Any, app_address: str) -> Iterator[Visit]:
    visit = Visit(browser, app_address)
    yield visit.open()
    visit.clean()


def test_a_digit_settles_and_is_found_again(app_page: Visit, browser: Any, tmp_path: Path) -> None:
    page = app_page.page
    app_page.bring(grey(tmp_path / "digit.png", seed=1)).ask()
    answer = app_page.settled()
    rows = answer.query_selector_all(".bars li")
    assert len(rows) == 3
    for row in rows:
        assert re.fullmatch(r"[+\N{MINUS SIGN}]?[\d.]+ \[[^,]+, [^\]]+\]", row.query_selector(".value").inner_text())
    said = answer.query_selector(".verdict").inner_text()
    assert re.search("stands out|not separated|is first", said, re.IGNORECASE)
    assert len(answer.query_selector_all(".exemplars img")) == 12
    values = [r.inner_text() for r in rows]
    href = answer.query_selector("a.stored").get_attribute("href")
    for kind, start in (("json", '"result": "upload-'), ("csv", "result,picture,method")):
        with page.expect_download() as download:
            page.click(f"#answer a[download$='.{kind}']")
        assert start in Path(download.value.path()).read_text()

    page.goto(f"{app_page.address}/{href}")
    again = app_page.settled()
    assert [r.inner_text() for r in again.query_selector_all(".bars li")] == values
    page.reload()
    assert app_page.settled().query_selector(".verdict").inner_text() == said
    name = re.search(r"upload-\w{12}", href)[0]  # type: ignore[index]
    someone = Visit(browser, app_page.link).open(f"?result={name}")  # the short form, in another browser
    assert someone.settled().query_selector(".verdict").inner_text() == said
    someone.clean()

    page.goto(f"{app_page.address}/stored")  # the gallery: picture, name, verdict
    tile = page.locator("#gallery li", has_text=name)
    assert tile.locator("a").get_attribute("href") == href
    assert tile.locator(".verdict").inner_text().lower() in said.lower()
    assert tile.locator("img").evaluate("i => i.complete && i.naturalWidth") == 8


def test_a_sample_is_one_click_and_its_answer_is_seen_at_once(browser: Any, app_address: str) -> None:
    for width, height in ((1280, 900), (390, 844)):
        visit = Visit(browser, app_address).open()
        visit.page.set_viewport_size({"width": width, "height": height})
        assert visit.page.locator("#samples button").count() == 12
        visit.page.locator("#samples button").nth(3).click()
        answer = visit.settled()
        assert "Already scored as" in answer.inner_text()
        box = answer.query_selector(".verdict").bounding_box()
        assert box["y"] + box["height"] < height  # without scrolling, on a phone too
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.clean()


def test_an_upload_is_previewed(app_page: Visit, tmp_path: Path) -> None:
    page = app_page.page
    assert not page.locator("#preview").is_visible()
    app_page.bring(grey(tmp_path / "mine.png", (16, 8), seed=3))
    page.wait_for_selector("#preview img")
    page.wait_for_function("document.querySelector('#preview figcaption').textContent.includes('16')")
    assert page.inner_text("#preview figcaption").startswith("mine.png, 1 KB")
    assert page.inner_text("#preview figcaption").endswith("16 \u00d7 8")


def test_a_race_survives_a_reload_in_its_middle(app_page: Visit, browser: Any, tmp_path: Path) -> None:
    page = app_page.page
    page.get_by_label("a custom rule is met").check()
    page.get_by_label("Stop rule").fill("top2@0.999")
    app_page.bring(grey(tmp_path / "slow.png", seed=2)).ask()
    page.wait_for_url("**/watch?**")
    watching = page.url
    assert "upload-" in watching
    page.reload()  # in the middle
    someone = Visit(browser, app_page.link).open(watching.rpartition("/")[2])  # and on another machine
    first = app_page.settled().query_selector(".bars").inner_text()
    assert someone.settled().query_selector(".bars").inner_text() == first
    someone.clean()
    page.goto(watching)  # once it is done, the same address is the answer
    assert app_page.settled().query_selector(".bars").inner_text() == first


def test_bars_come_before_the_end(app_page: Visit, tmp_path: Path) -> None:
    page = app_page.page
    page.get_by_label("a custom rule is met").check()
    page.get_by_label("Stop rule").fill("top2@0.999,budget=2900")
    events: list[str] = []
    page.on("response", lambda r: events.append(r.url) if "/events?" in r.url else None)
    # every state that the page shows, however slowly this test gets to look
    page.add_init_script("""
        window.addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
            const answer = document.querySelector("#answer .answer");
            const seen = JSON.parse(sessionStorage.seen || "[]");
            if (answer) sessionStorage.seen = JSON.stringify([...seen, answer.dataset.evaluations]);
        }).observe(document.body, {subtree: true, childList: true}));
    """)
    app_page.bring(grey(tmp_path / "rounds.png", seed=22)).ask()
    app_page.settled()
    assert len(events) == 1
    assert len(set(page.evaluate("JSON.parse(sessionStorage.seen)"))) >= 2


def test_refusals_are_one_line_and_the_page_goes_on(app_page: Visit, tmp_path: Path) -> None:
    page = app_page.page
    app_page.ask()
    assert "choose a picture first" in page.inner_text("#answer .refused")
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "script.png").write_text("<script>document.title = 'taken'</script>")
    (tmp_path / "bomb.png").write_bytes(png_header(10_000, 10_000))
    (tmp_path / "<img src=x onerror=alert(1)>.png").write_text("x")
    for name, line in (("notes.txt", "not a PNG"), ("script.png", "not a PNG"), ("bomb.png", "100 megapixels"),
                       ("<img src=x onerror=alert(1)>.png", "not a PNG")):  # fmt: skip
        app_page.open().bring(tmp_path / name).ask()
        said = page.inner_text("#answer .refused")
        assert re.search(line, said), said
        assert "\n" not in said.strip()
    assert page.title() != "taken"
    app_page.errors[:] = [e for e in app_page.errors if "400" not in e]  # the browser notes the status of a refusal
    app_page.open().bring(grey(tmp_path / "after.png", seed=3)).ask()
    app_page.settled()


def test_a_rule_that_makes_no_sense_is_refused(app_page: Visit, tmp_path: Path) -> None:
    app_page.page.get_by_label("a custom rule is met").check()
    app_page.page.get_by_label("Stop rule").fill("top9@2 <b>")
    app_page.bring(grey(tmp_path / "d.png", seed=4)).ask()
    assert "topK@CONFIDENCE" in app_page.page.inner_text("#answer .refused")
    assert app_page.page.get_by_label("Stop rule").input_value() == "top9@2 <b>"  # what was filled in stays
    app_page.errors.clear()


def test_two_at_once_both_finish(browser: Any, app_address: str, tmp_path: Path) -> None:
    visits = [Visit(browser, app_address).open().bring(grey(tmp_path / f"{i}.png", seed=5 + i)) for i in range(2)]
    for visit in visits:
        visit.ask()
    links = [v.settled().query_selector("a.stored").get_attribute("href") for v in visits]
    assert links[0] != links[1]
    for visit in visits:
        visit.clean()


def test_a_batch_gives_a_line_and_a_link_each(app_page: Visit, tmp_path: Path) -> None:
    page = app_page.page
    page.get_by_role("link", name="Several pictures").click()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    app_page.bring(
        grey(tmp_path / "a.png", seed=7), tmp_path / "broken.png", grey(tmp_path / "b.png", seed=8), where="pictures"
    )
    page.click("#batch-button")
    page.wait_for_url("**/batch?list=*")
    page.reload()
    page.wait_for_selector("text=All 3 done.")
    rows = {r.inner_text().split()[0]: r.inner_text() for r in page.query_selector_all("#answer tbody tr")}
    assert set(rows) == {"a.png", "broken.png", "b.png"}
    assert "Not accepted" in rows["broken.png"]
    assert len(page.query_selector_all("#answer tbody a")) == 2


def test_two_methods_and_two_pictures_side_by_side(app_page: Visit) -> None:
    page = app_page.page
    page.locator("#samples button").first.click()
    app_page.settled()
    here = page.url
    page.click("#others a:has-text('logo')")
    page.wait_for_url("**/compare?**")
    assert page.locator(".side .answer").count() == 2
    assert "The same picture by two methods." in page.inner_text("main")
    spent = page.locator(".side .state").all_inner_texts()
    assert ["method retrack" in spent[0], "method logo" in spent[1]] == [True, True]
    page.goto(here)
    page.locator("#others .gallery a").first.click()
    page.wait_for_url("**/compare?**")
    assert "Two pictures." in page.inner_text("main")
    assert page.locator(".side .answer").count() == 2
    images = page.locator(".side .head img").evaluate_all("all => all.map(i => i.src)")
    assert images[0] != images[1]


def test_the_evidence_is_shown_when_asked_for(app_page: Visit) -> None:
    page = app_page.page
    page.locator("#samples button").nth(1).click()
    app_page.settled()
    page.click("#gather")
    page.wait_for_selector(".evidence-panels img")
    assert page.locator(".evidence-panels img").count() == 6
    assert "strength of a map alone" in page.inner_text("#evidence")
    page.reload()
    assert page.locator("#gather").count() == 0


def test_leaderboard_and_runs_and_api_and_keyboard(app_page: Visit) -> None:
    page = app_page.page
    page.get_by_role("link", name="Leaderboard").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#board table")
    assert "ceiling" in page.inner_text("#board table")
    assert page.get_by_role("link", name="Leaderboard").get_attribute("aria-current") == "page"
    page.get_by_role("link", name="Runs").click()
    page.wait_for_selector("#runs table")
    assert "run (this one)" in page.inner_text("#runs")
    page.get_by_role("link", name="HTTP API").click()
    page.wait_for_url("**/api")
    text = page.inner_text("main")
    for path in ("POST /api/attribute", "GET /api/result", "GET /api/results", "GET /api/leaderboard"):
        assert path in text
    assert f"{app_page.address}/api/attribute" in text  # examples for this server


def test_it_works_without_a_script(browser: Any, app_address: str, tmp_path: Path) -> None:
    visit = Visit(browser, app_address, java_script_enabled=False).open()
    visit.bring(grey(tmp_path / "plain.png", seed=9)).ask()
    page = visit.page
    page.wait_for_url("**/watch?**")
    wait_for(lambda: "/result?" in page.url or not page.reload(), "the answer")
    assert page.locator("#answer .verdict").count() == 1
    page.context.close()


def test_dark_follows_the_system_and_the_language_the_browser(browser: Any, app_address: str) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        visit = Visit(browser, app_address, color_scheme=scheme).open()
        grounds.append(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        visit.clean()
    assert grounds == ["rgb(251, 250, 247)", "rgb(22, 22, 22)"]
    visit = Visit(browser, app_address, locale="de-DE").open()
    assert visit.page.inner_text("h1") == "Welche Trainingsbilder haben dieses Bild geprägt?"
    visit.page.locator("#samples button").first.click()
    assert "Mit allen Runden bewertet." in visit.settled().inner_text()
    visit.clean()
