"""Build hook: a wheel remembers the commit it was built from, which `guda --version` shows.

Of a checkout git is asked. An sdist carries the answer as src/guda/commit.txt, so a wheel built from it has it too.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "guda/commit.txt", "sdist": "src/guda/commit.txt"}


class CommitHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or (Path(self.root) / PLACES["sdist"]).is_file():
            return
        try:
            done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.root, capture_output=True, text=True)
        except OSError:  # no git
            return
        if done.returncode == 0 and (Path(self.root) / ".git").exists():
            file = Path(tempfile.mkdtemp(prefix="guda-build-")) / "commit.txt"
            file.write_text(done.stdout)
            build_data["force_include"][str(file)] = PLACES[self.target_name]
