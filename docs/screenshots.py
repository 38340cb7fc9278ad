"""Pictures of the report for README and docs, from the demo run. Needs Chromium (Debian: apt-get install chromium).

.venv/bin/python docs/screenshots.py [runs/demo]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
FLAGS = "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking"


def shoot(page: Path, section: str, target: Path, width: int, height: int) -> None:
    """Render `height` rows of one section of the page, by its id; "": from its head."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium found; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        shot, copy = Path(profile) / "shot.png", Path(profile) / "page.html"
        alone = f"<style>header, section:not(#{section}) {{ display: none !important }}</style>" if section else ""
        copy.write_text(page.read_text().replace("</head>", alone + "</head>", 1))
        # some rows of the window are lost to a title bar that is not there
        options = [f"--window-size={width},{height + 160}", f"--screenshot={shot}", f"--user-data-dir={profile}"]
        command = [browser, *FLAGS.split(), *options, copy.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        image = Image.open(shot).convert("RGB").crop((0, 0, width, height))
    image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.LANCZOS).save(target, optimize=True)
    print(f"{target}: {image.size}")


def main() -> None:
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo") / "report.html"
    (HERE / "images").mkdir(exist_ok=True)
    shoot(page, "", HERE / "images" / "report.png", 1280, 1840)
    shoot(page, "health", HERE / "images" / "report-counterfactuals.png", 1280, 1120)
    shoot(page, "pictures", HERE / "images" / "report-pictures.png", 1280, 1680)


if __name__ == "__main__":
    main()
