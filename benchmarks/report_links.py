"""Where the links of a report land, in a browser (Playwright): for benchmarks/evidence.py and the tests."""

from __future__ import annotations

from typing import Any

LAND = """async (links) => {
  const found = {};
  for (const link of links) {
    scrollTo(0, 0);
    // the page's own listener comes first; what it did is laid out when it is measured
    const landed = new Promise((done) => {
      addEventListener("hashchange", () => setTimeout(done), { once: true });
      setTimeout(done, 500);
    });
    location.hash = link;
    await landed;
    const target = document.getElementById(decodeURIComponent(link.slice(1).split("&")[0]));
    found[link] = target && target.checkVisibility() ? target.getBoundingClientRect().top : null;
  }
  return found;
}"""


def landings(page: Any) -> dict[str, float]:
    """{link: pixels from the top of the window to the top of what it leads to}, every link of the page, each followed
    from the top of the page; 1e6 where the target is missing or not to be seen."""
    script = "() => [...new Set([...document.querySelectorAll(\"a[href^='#']\")].map((a) => a.getAttribute('href')))]"
    found: dict[str, float | None] = page.evaluate(LAND, page.evaluate(script))
    return {link: 1e6 if off is None else off for link, off in found.items()}
