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
    pytest.importorskip("gradio")
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

    def open(self, path: str = "/") -> Visit:
        self.page.goto(self.link if path == "/" else f"{self.link}&{path.removeprefix('/?')}")
        assert "token" not in self.page.url
        self.page.wait_for_selector("#ask-button", state="attached")  # a link opens another tab
        return self

    def bring(self, *files: Path, where: str = "ask-file") -> Visit:
        self.page.set_input_files(f"#{where} input[type=file]", [str(f) for f in files])
        self.page.wait_for_selector(f"#{where} .file-preview")
        return self

    def ask(self) -> Visit:
        self.page.click("#ask-button")
        return self

    def settled(self, where: str = "ask-answer") -> Any:
        return self.page.wait_for_selector(f"#{where} .answer[data-state=final]")

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
    with page.expect_download() as download:
        page.click("#ask-answer a[download$='.json']")
    assert '"result": "upload-' in Path(download.value.path()).read_text()

    page.goto(app_page.address + "/" + href)
    again = app_page.settled("shelf-answer")
    assert [r.inner_text() for r in again.query_selector_all(".bars li")] == values
    page.reload()
    assert app_page.settled("shelf-answer").query_selector(".verdict").inner_text() == said
    name = re.search(r"upload-\w{12}", href)[0]  # type: ignore[index]
    assert page.locator("#shelf-table a", has_text=name).first.get_attribute("href") == href

    someone = Visit(browser, app_page.link).open(f"/?result={name}")  # the short form, in another browser
    assert someone.settled("shelf-answer").query_selector(".verdict").inner_text() == said
    someone.clean()


def test_bars_come_before_the_end(app_page: Visit, tmp_path: Path) -> None:
    page = app_page.page
    page.get_by_label("a custom rule is met").check()
    page.get_by_label("Stop rule").fill("top2@0.999")
    # every state that the page shows, however slowly this test gets to look
    page.evaluate("""() => {
        window.shown = [];
        new MutationObserver(() => {
            const answer = document.querySelector("#ask-answer .answer");
            if (answer) window.shown.push(answer.dataset.evaluations);
        }).observe(document.body, {subtree: true, childList: true, attributes: true});
    }""")
    app_page.bring(grey(tmp_path / "slow.png", seed=2)).ask()
    page.wait_for_selector("#ask-answer .answer[data-state=final]")
    assert len(set(page.evaluate("window.shown"))) >= 2


def test_refusals_are_one_line_and_the_page_goes_on(app_page: Visit, tmp_path: Path) -> None:
    page = app_page.page
    app_page.ask()
    page.wait_for_selector("#ask-answer .refused")
    assert "choose a picture first" in page.inner_text("#ask-answer .refused")
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "script.png").write_text("<script>document.title = 'taken'</script>")
    (tmp_path / "bomb.png").write_bytes(png_header(10_000, 10_000))
    for name, line in (("notes.txt", "not a PNG"), ("script.png", "not a PNG"), ("bomb.png", "100 megapixels")):
        app_page.open().bring(tmp_path / name).ask()
        page.wait_for_selector("#ask-answer .refused")
        said = page.inner_text("#ask-answer .refused")
        assert re.search(line, said), said
        assert "\n" not in said.strip()
    assert page.title() != "taken"
    app_page.open().bring(grey(tmp_path / "after.png", seed=3)).ask()
    app_page.settled()


def test_a_rule_that_makes_no_sense_is_refused(app_page: Visit, tmp_path: Path) -> None:
    app_page.page.get_by_label("a custom rule is met").check()
    app_page.page.get_by_label("Stop rule").fill("top9@2 <b>")
    app_page.bring(grey(tmp_path / "d.png", seed=4)).ask()
    app_page.page.wait_for_selector("#ask-answer .refused")
    assert "topK@CONFIDENCE" in app_page.page.inner_text("#ask-answer .refused")


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
    page.get_by_role("tab", name="Batch").click()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    app_page.bring(
        grey(tmp_path / "a.png", seed=7), tmp_path / "broken.png", grey(tmp_path / "b.png", seed=8), where="batch-files"
    )
    page.click("#batch-button")
    page.wait_for_selector("text=All 3 done.")
    rows = [r.inner_text() for r in page.query_selector_all("#batch-answer tbody tr")]
    assert [r.split()[0] for r in rows] == ["a.png", "broken.png", "b.png"]
    assert "not accepted" in rows[1]
    assert len(page.query_selector_all("#batch-answer tbody a")) == 2


def test_leaderboard_and_runs_and_keyboard(app_page: Visit) -> None:
    page = app_page.page
    page.get_by_role("tab", name="Leaderboard").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#leaderboard table")
    assert "ceiling" in page.inner_text("#leaderboard table")
    assert page.get_by_role("tab", name="Leaderboard").get_attribute("aria-selected") == "true"
    page.get_by_role("tab", name="Runs").click()
    page.wait_for_selector("#runs-table table")
    assert "run (this one)" in page.inner_text("#runs-table")


def test_dark_follows_the_system(browser: Any, app_address: str) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        visit = Visit(browser, app_address, color_scheme=scheme).open()
        grounds.append(
            visit.page.evaluate("getComputedStyle(document.querySelector('.gradio-container')).backgroundColor")
        )
        visit.clean()
    assert grounds == ["rgb(251, 250, 247)", "rgb(22, 22, 22)"]
