"""Makes src/guda/data/fonts.yaml: families of Debian's packages that can be groups, and what was left out and why.

    python benchmarks/fonts_table.py FOLDER_WITH_DEB_FILES [--write]

A family stays if its plainest file draws all 62 characters in at least 50 different pictures, needs no more than a
fifth taken off its size to fit the picture, and is not the same pictures as an earlier one. Choices by hand are below.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml

from guda.data.faces import STYLES, families
from guda.data.fonts import CHARACTERS, TABLE, Pen, alike, why_not
from guda.errors import GudaError

SMALLEST = 0.8
# Packages of one maker with dozens of near-relatives: these families only. The others would crowd the set.
ONLY: dict[str, tuple[str, ...]] = {}
# Symbol-like, or the same design again at another spacing or encoding.
WITHOUT: frozenset[str] = frozenset()
HEADER = """\
# Font families of Debian packages (bookworm) as pinned by benchmarks/fonts_table.py: version of the package, and of each
# family the files below usr/share/fonts, the plainest first, with the first 16 hex digits of their SHA-256.
"""


def field(deb: Path, name: str) -> str:
    return subprocess.run(["dpkg-deb", "-f", deb, name], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    table: dict[str, dict] = {}
    plain: dict[str, np.ndarray] = {}
    for deb in sorted(asked.folder.glob("*.deb")):
        package = deb.name.partition("_")[0]
        with TemporaryDirectory() as name:
            subprocess.run(["dpkg-deb", "-x", deb, name], check=True)
            root = Path(name) / "usr/share/fonts"
            found, _ = families(root) if root.is_dir() else ([], {})
            chosen = {}
            for family in found:
                if family.name in plain or family.name in WITHOUT or family.name not in ONLY.get(package, (family.name,)):
                    continue
                try:
                    reason = why_not(family.files[0])
                    shrunk = 0.0 if reason else Pen(family.files[0], 16).shrunk
                except GudaError as e:
                    reason = str(e)
                if reason is None and shrunk < SMALLEST:
                    reason = f"drawn at {shrunk:.2f} of the size"
                if reason:
                    print(f"- {package}: {family.name}: {reason}")
                    continue
                files = [f for f in family.files[:STYLES] if not Pen(f, 16).lacks() and Pen(f, 16).shrunk >= SMALLEST]
                digests = {f: hashlib.sha256(f.read_bytes()).hexdigest()[:16] for f in files}
                chosen[family.name] = {str(f.relative_to(root)): sha for f, sha in digests.items()}
                plain[family.name] = np.stack([Pen(files[0], 16).draw(c) for c in CHARACTERS])
                print(f"+ {package}: {family.name}: {len(files)} styles")
            if chosen:
                table[package] = {"version": field(deb, "Version"), "families": chosen}
    same, near = alike(plain)
    for one, other in same.items():
        print(f"- {one}: the same pictures as {other}")
    for entry in table.values():
        entry["families"] = {name: files for name, files in entry["families"].items() if name not in same}
    table = {package: entry for package, entry in table.items() if entry["families"]}
    for a, b, d in near:
        print(f"~ {a} / {b}: {d}")
    print(f"{sum(len(e['families']) for e in table.values())} families in {len(table)} packages")
    if asked.write:
        TABLE.write_text(HEADER + yaml.safe_dump({"packages": table}, sort_keys=False, allow_unicode=True, width=200))


if __name__ == "__main__":
    main()
