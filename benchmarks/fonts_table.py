"""Makes guda_sources/fonts.yaml: families of Debian's packages that can be groups, and what was left out and why.

    python benchmarks/fonts_table.py FOLDER_WITH_DEB_FILES [--all] [--write]

A family stays if its plainest file draws all 62 characters in at least 50 different pictures, needs no more than a
fifth taken off its size to fit the picture, and is not the same pictures as an earlier one. The choice among those is
made by hand, below.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml

from guda.errors import GudaError
from guda_sources.faces import STYLES, families
from guda_sources.fonts import CHARACTERS, TABLE, Pen, alike, why_not

SMALLEST = 0.8
# Chosen by hand from what passes: text faces, monospaced, script, blackletter and pixel faces; of packages with many
# relatives of one design one or two. Looked at and left out: Because We *, Beteckna, Humor Sans (capitals for small
# letters), OCR B (a style in frames), femkeklaver (unreadable at 16 pixels). Clones are wanted: Arimo, Tinos, Cousine
# beside Liberation; Hack, Verana beside DejaVu; Karmilla beside Karla.
CHOSEN = """
3270: IBM 3270; adf-accanthis: Accanthis ADF Std; adf-baskervald: Baskervald ADF Std; adf-berenis: Berenis ADF Pro;
adf-gillius: Gillius ADF; adf-ikarius: Ikarius ADF Std; adf-irianis: Irianis ADF Std; adf-libris: Libris ADF Std;
adf-mekanus: Mekanus ADF Std; adf-oldania: Oldania ADF Std; adf-romande: Romande ADF Std; adf-tribun: Tribun ADF Std;
adf-universalis: Universalis ADF Std; adf-verana: Verana Sans; agave: Agave; amiga: Amiga; anonymous-pro: Anonymous
Pro; arapey: Arapey; averia-serif-gwf: Averia Serif GWF; b612: B612; bajaderka: Bajaderka; blankenburg:
Blankenburg_UNZ1A; breip: Breip; cabin: Cabin; cabinsketch: Cabin Sketch; cantarell: Cantarell; century-catalogue:
Century Catalogue; cherrybomb: Cherry Bomb; clear-sans: Clear Sans; comfortaa: Comfortaa; comic-neue: Comic Neue;
croscore: Arimo, Cousine, Tinos; crosextra-caladea: Caladea; crosextra-carlito: Carlito; dancingscript: Dancing
Script; dejavu-core: DejaVu Sans, DejaVu Sans Mono, DejaVu Serif; dosis: Dosis; dustin: Dustismo Roman, It wasn't me;
engadget: Engadget; essays1743: Essays1743; eurofurence: eurofurence; fantasma: Fantasma; fantasque-sans: Fantasque
Sans Mono; fanwood: Fanwood; ferrite-core: Ferrite Core DX; gamaliel: Gamaliel; georgewilliams: Caliban, Caslon;
glasstty: Glass TTY VT220; gnutypewriter: GNUTypewriter; go: Go; goudybookletter: Goudy Bookletter 1911; hack: Hack;
havana: Havana; hermit: Hermit; inconsolata: Inconsolata; isabella: Isabella; junction: Junction; jura: Jura; karla:
Karla; karmilla: Karmilla; klaudia-berenika: Klaudia; lato: Lato; league-spartan: League Spartan; leckerli-one:
Leckerli One; liberation2: Liberation Mono, Liberation Sans, Liberation Serif; lindenhill: Linden Hill;
linuxlibertine: Linux Biolinum O, Linux Libertine O; monofur: monofur; monoid: Monoid; mononoki: mononoki;
national-park: National Park; ocr-a: OCRA; okolaks: okolaks; oldstandard: Old Standard TT; open-sans: Open Sans;
opendin: OSP-DIN; oxygen: Oxygen-Sans; paratype: PT Sans, PT Serif; play: Play; prociono: Prociono; quattrocento:
Quattrocento; quicksand: Quicksand; radisnoir: Radis Sans; roadgeek: Roadgeek 2014 Series D; roboto-slab: Roboto Slab;
routed-gothic: Routed Gothic; sil-andika: Andika; sil-gentium-basic: Gentium Basic; sora: Sora; staypuft: StayPuft;
summersby: Summersby; terminus: Terminus (TTF); tuffy: Tuffy; uralic: Chancery Uralic; vollkorn: Vollkorn;
yanone-kaffeesatz: Yanone Kaffeesatz; yrsa-rasa: Rasa
"""
HEADER = """\
# Font families of Debian packages (bookworm), made by benchmarks/fonts_table.py: version of the package, and of each
# family the files below usr/share/fonts, the plainest first, with the first 16 hex digits of their SHA-256.
"""


def field(deb: Path, name: str) -> str:
    return subprocess.run(["dpkg-deb", "-f", deb, name], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="look at every family, not only at those chosen")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    pairs = [entry.partition(":") for entry in " ".join(CHOSEN.split()).split(";")]
    only = {f"fonts-{package.strip()}": {n.strip() for n in names.split(",")} for package, _, names in pairs}
    table: dict[str, dict] = {}
    plain: dict[str, np.ndarray] = {}
    for deb in sorted(asked.folder.glob("*.deb")):
        package = deb.name.partition("_")[0]
        if not asked.all and package not in only:
            continue
        with TemporaryDirectory() as name:
            subprocess.run(["dpkg-deb", "-x", deb, name], check=True)
            root = Path(name) / "usr/share/fonts"
            found, _ = families(root) if root.is_dir() else ([], {})
            kept = {}
            for family in found:
                if family.name in plain or not (asked.all or family.name in only[package]):
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
                kept[family.name] = {str(f.relative_to(root)): sha for f, sha in digests.items()}
                plain[family.name] = np.stack([Pen(files[0], 16).draw(c) for c in CHARACTERS])
                print(f"+ {package}: {family.name}: {len(files)} styles")
            if kept:
                table[package] = {"version": field(deb, "Version"), "families": kept}
    same, near = alike(plain)
    for one, other in same.items():
        print(f"- {one}: the same pictures as {other}")
    for entry in table.values():
        entry["families"] = {name: files for name, files in entry["families"].items() if name not in same}
    table = {package: entry for package, entry in table.items() if entry["families"]}
    for a, b, d in near:
        print(f"~ {a} / {b}: {d}")
    print(f"{sum(len(e['families']) for e in table.values())} families in {len(table)} packages")
    chosen = {name for names in only.values() for name in names}
    print("not found:", sorted(chosen - {n for e in table.values() for n in e["families"]}))
    if asked.write:
        TABLE.write_text(HEADER + yaml.safe_dump({"packages": table}, sort_keys=False, allow_unicode=True, width=200))


if __name__ == "__main__":
    main()
