"""Packages of Debian as a way to get data: the .deb of a pinned version, unpacked once into the cache.

Nothing is installed and no script of a package is run, so no rights are needed: `apt-get download`, `dpkg-deb -x`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from guda import files
from guda.errors import GudaError
from guda.files import TEMPORARY


def unpacked(package: str, version: str, cache: Path, given: Path | None, hint: str) -> Path:
    """The folder a package lies unpacked in, as if it were /.

    given: a folder of the user's that has the package, as NAME_*.deb or unpacked in NAME/; nothing is downloaded then.
    hint: how else to come by the data, for the errors.
    """
    folder = cache / f"{package}_{version.replace(':', '%3a').replace('/', '_')}"
    if given is not None:
        if (given / package).is_dir():
            return given / package
        debs = sorted(given.glob(f"{package}_*.deb"))
        if not debs:
            raise GudaError(
                "debian-package-missing",
                f"{given} has no {package}_*.deb and no folder {package}; {_by_hand(package, version)}",
            )
        folder = cache / f"given-{files.digest_file(debs[-1])[:16]}"
        return folder if folder.is_dir() else _unpack(debs[-1], folder, hint)
    if folder.is_dir():
        return folder
    apt = shutil.which("apt-get")
    if apt is None:
        raise GudaError("apt-missing", f"{package} is a package of Debian and there is no apt-get here; {hint}")
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache, prefix=TEMPORARY) as name:
        command = [apt, "download", "-q", f"{package}={version}"]
        done = subprocess.run(command, cwd=name, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        debs = sorted(Path(name).glob("*.deb"))
        if done.returncode or not debs:
            errors = [line.removeprefix("E: ") for line in done.stderr.splitlines() if line.startswith("E:")]
            reason = errors[0] if errors else "no file came"
            raise GudaError(
                "download-failed", f"cannot download {package} {version} ({reason}); run apt-get update, or {hint}"
            )
        return _unpack(debs[0], folder, hint)


def _by_hand(package: str, version: str) -> str:
    return f"get {package} {version} with apt-get download {package}, or from https://snapshot.debian.org"


def _unpack(deb: Path, folder: Path, hint: str) -> Path:
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise GudaError(
            "dpkg-missing", f"{deb.name} is unpacked by dpkg-deb, which is not here; install dpkg, or {hint}"
        )
    with files.atomic_folder(folder) as tmp:
        done = subprocess.run([tool, "-x", str(deb), str(tmp)], capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it is no package"])[0]
            raise GudaError("download-damaged", f"{deb} cannot be unpacked ({reason}); delete it and fetch it again")
    return folder
