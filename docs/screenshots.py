"""Pictures of the report for README and docs, from the demo run. Needs Chromium (Debian: apt-get install chromium).

.venv/bin/python docs/screenshots.py [runs/demo]
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
FLAGS = "--no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking"


def main() -> None:
    """The report's first screen, its pictures, and the counterfactuals unfolded; on a telephone too."""
    from playwright.sync_api import sync_playwright

    page_file = (Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo") / "report.html").resolve()
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium found; on Debian: apt-get install chromium")
    shots = (
        ("report", "", 1280, 1180), ("report-groups", "groups", 1280, 900), ("report-pictures", "pictures", 1280, 1500),
        ("report-counterfactuals", "health", 1280, 1120), ("report-narrow", "", 390, 844),
    )  # fmt: skip
    (HERE / "images").mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=browser, args=FLAGS.split())
        for name, place, width, height in shots:
            page = found.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(300_000)  # machines are slow
            page.goto(page_file.as_uri() + (f"#{place}" if place else ""))
            target = HERE / "images" / f"{name}.png"
            page.screenshot(path=target)
            page.close()
            image = Image.open(target).convert("RGB")
            if width > 1000:
                image = image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.LANCZOS)
            image.save(target, optimize=True)
            print(f"{target}: {image.size}")
        found.close()


if __name__ == "__main__":
    main()
