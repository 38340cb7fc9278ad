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


def shoot(page: Path, target: Path, width: int, height: int, top: int, bottom: int) -> None:
    """Render the page at width x height and keep the rows from `top` to `bottom`."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium found; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        shot = Path(profile) / "shot.png"
        options = [f"--window-size={width},{height}", f"--screenshot={shot}", f"--user-data-dir={profile}"]
        command = [browser, *FLAGS.split(), *options, page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        image = Image.open(shot).convert("RGB").crop((0, top, width, bottom))
    image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.LANCZOS).save(target, optimize=True)
    print(f"{target}: {image.size}")


def main() -> None:
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo") / "report.html"
    (HERE / "images").mkdir(exist_ok=True)
    shoot(page, HERE / "images" / "report.png", 1280, 2000, 0, 1840)
    shoot(page, HERE / "images" / "report-pictures.png", 1280, 4600, 2800, 4480)


if __name__ == "__main__":
    main()
