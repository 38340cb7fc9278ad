"""A real browser (Debian's chromium, driven by Playwright) and a small scored run to look at with it.

Every test below this folder is marked `e2e`: `make test` leaves them out, `make test-e2e` runs them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

_helpers = str(Path(__file__).parents[1] / "run")
if _helpers not in sys.path:
    sys.path.insert(0, _helpers)

import pytest  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from guda.run.run import Run

CHROMIUM = os.environ.get("GUDA_CHROMIUM", "/usr/bin/chromium")
ARGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
INSIDE = ("file:", "data:", "blob:")  # what a page may ask for without a network


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.e2e)


@dataclass
class Watch:
    """What a page did that nobody sees: complaints on its console, exceptions, requests to a network."""

    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def on(self, page: Page) -> None:
        page.on(
            "console", lambda m: self.console.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else 0
        )
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith(INSIDE) else self.requests.append(r.url))

    def quiet(self) -> None:
        """Fails with what was heard."""
        assert (self.console, self.errors, self.requests) == ([], [], [])


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; run: make test-e2e")
    if not Path(CHROMIUM).exists():
        pytest.fail(f"no browser at {CHROMIUM}; Debian: apt-get install chromium (or set GUDA_CHROMIUM)", pytrace=False)
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGS))
        yield found
        found.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Fresh: no cookies, storage or cache of another test."""
    found = browser.new_context(viewport={"width": 1280, "height": 900})
    found.set_default_timeout(20_000)
    yield found
    found.close()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture(scope="session")
def a_watch() -> type[Watch]:
    """For fixtures that outlive a test."""
    return Watch


@pytest.fixture
def page(context: BrowserContext, watch: Watch) -> Page:
    """One page, watched from its first request on."""
    found = context.new_page()
    watch.on(found)
    return found


@pytest.fixture(scope="session")
def scored_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The tiny run of tests/run/tinyrun.py (three digits, three methods, twelve pictures): trained, scored and
    evaluated once, in seconds. Shared: copy it before changing anything."""
    from tinyrun import finished_root

    from guda.run.run import Run

    root = tmp_path_factory.mktemp("e2e") / "run"
    shutil.copytree(finished_root(), root)
    return Run.open(root)


@pytest.fixture(scope="session")
def report(scored_run: Run) -> Path:
    """report.html of the scored run."""
    from tinyrun import SET

    from guda.report.page import write_report

    return write_report(scored_run, SET)
