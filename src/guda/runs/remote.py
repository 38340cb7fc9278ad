"""A run in a bucket: `s3://bucket/run`, `gs://...`, or any address that fsspec knows.

Work is done in a local copy of it, because networks and tables are memory-mapped files. `pull` fetches what is missing
here, `push` publishes what is missing there; both may be stopped at any time and repeated. Nothing is locked: files
that tasks make are named after what makes them and come out the same bytes, so two drivers that work on one run
publish the same thing twice at worst. The exceptions are recipe.yaml and run.json, which people change: a push over
another driver's change is refused.

Files appear whole. An object store publishes an object only when all of it is there; elsewhere it is written under a
temporary name and renamed. They appear in the order in which they were published here, so that what says "done" comes
last. Heartbeats and half-done trainings stay on the machine they belong to, and what is deleted here is not there.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

from guda.errors import GudaError, Mismatch
from guda.runs.store import atomic_path, digest, write_bytes
from guda.runs.writers import TEMPORARY, temporary

VARIABLE = "GUDA_CACHE"  # where local copies are kept; default: ~/.cache/guda
WHOLE = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory")  # an object is there whole or not at all
LOCAL = ("progress", "checkpoints")  # of this machine
FIXED = (
    "data",
    "models",
    "artifacts",
    "queries",
    "terms",
    "likelihood",
    "cache",
    "timings",
)  # same name, same bytes
LOCKS = ("recipe.yaml", "run.json")


def whole(address: str) -> str:
    """The address as it was given: a Path in between makes `s3:/bucket/run` of it."""
    protocol, _, rest = address.partition(":/")
    rest = rest.lstrip("/")
    return f"file:///{rest}" if protocol == "file" else f"{protocol}://{rest}"


def mirror(address: str) -> Mirror:
    """The local copy of a run, one per process and address."""
    url = whole(address)
    if url not in _MIRRORS:
        _MIRRORS[url] = Mirror(url)
    return _MIRRORS[url]


def push_all() -> None:
    """Publish what was written in the copies that this process has opened."""
    for found in _MIRRORS.values():
        found.push()


_MIRRORS: dict[str, Mirror] = {}


class Mirror:
    def __init__(self, url: str, local: Path | None = None) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise GudaError(f"{url} needs fsspec; install it with: pip install fsspec") from None
        try:
            self.fs, root = url_to_fs(url)
        except (ImportError, ValueError) as e:  # no driver for it, or no such protocol
            raise GudaError(f"{url} cannot be opened: {e}") from None
        self.url, self.root = url, str(root).rstrip("/")
        protocol = self.fs.protocol
        self.whole = bool({protocol} & set(WHOLE) if isinstance(protocol, str) else set(protocol) & set(WHOLE))
        kept = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "guda") / "runs"
        self.local = local or kept / f"{self.root.rsplit('/', 1)[-1]}-{digest(url)}"

    def pull(self) -> int:
        """Fetch what is missing or older here; returns how many files that were."""
        found, seen, fetched = self._remote(), dict[str, bytes](), 0
        for name in sorted(found, key=lambda n: (_stamp(found[n]), n in LOCKS, n)):
            here = self.local / name
            if name in LOCKS:
                seen[name] = self._read(name)
                if not here.is_file():
                    write_bytes(here, seen[name])
                    fetched += 1
                continue
            if here.is_file() and (_fixed(name) or _stamp(found[name]) <= here.stat().st_mtime):
                continue
            with atomic_path(here) as tmp:  # models are too large to pass through memory
                self.fs.get_file(f"{self.root}/{name}", str(tmp))
            fetched += 1
        for name, there in seen.items():
            base = self._base(name)
            if base.is_file() and base.read_bytes() == (self.local / name).read_bytes() != there:
                write_bytes(self.local / name, there)  # changed there, unchanged here
                fetched += 1
            if (self.local / name).read_bytes() == there:
                write_bytes(base, there)
        return fetched

    def _base(self, name: str) -> Path:
        """A lock as it was when both sides were last the same."""
        return self.local.with_name(f"{self.local.name}.seen") / name

    def push(self) -> int:
        """Publish what is missing or older there; returns how many files that were."""
        found = self._remote()
        pushed = 0
        for path in sorted(self._files(), key=lambda p: (p.stat().st_mtime_ns, str(p))):
            name = path.relative_to(self.local).as_posix()
            if name in found and _fixed(name):
                continue
            if name in found:
                here, there = path.read_bytes(), self._read(name)
                if there == here:
                    continue
                base = self._base(name)
                if name in LOCKS and not (base.is_file() and base.read_bytes() == there):
                    raise Mismatch(
                        f"{self.url}/{name} was changed by another driver meanwhile", digest(there.decode()),
                        digest(here.decode()), f"compare it with {path}, delete that, and run the command again",
                    )  # fmt: skip
            self._write(name, path)
            if name in LOCKS:
                write_bytes(self._base(name), path.read_bytes())
            pushed += 1
        return pushed

    def _files(self) -> list[Path]:
        """What is published here. Others may publish meanwhile: what they have not finished is not looked at."""
        wanted = []
        for folder, folders, files in os.walk(self.local):
            mine = LOCAL if Path(folder) == self.local else ()  # heartbeats come and go
            folders[:] = [name for name in folders if not name.startswith(TEMPORARY) and name not in mine]
            wanted += [Path(folder, name) for name in files if not name.startswith(TEMPORARY)]
        return wanted

    def _remote(self) -> dict[str, dict[str, Any]]:
        """Name below the run -> what the store says of it."""
        try:
            self.fs.invalidate_cache()
            found = self.fs.find(self.root, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as e:  # every driver has its own kinds
            raise GudaError(f"{self.url} cannot be listed: {e}") from None
        names = {path[len(self.root) :].lstrip("/"): info for path, info in found.items()}
        return {n: info for n, info in names.items() if n and not n.rsplit("/", 1)[-1].startswith(TEMPORARY)}

    def _read(self, name: str) -> bytes:
        return bytes(self.fs.cat_file(f"{self.root}/{name}"))

    def _write(self, name: str, path: Path) -> None:
        target = f"{self.root}/{name}"
        if self.whole:
            self.fs.put_file(str(path), target)
            return
        folder, _, last = target.rpartition("/")
        self.fs.makedirs(folder, exist_ok=True)
        tmp = f"{folder}/{temporary(Path(last)).name}"
        self.fs.put_file(str(path), tmp)
        self.fs.mv(tmp, target)


def _fixed(name: str) -> bool:
    return name.split("/", 1)[0] in FIXED


def _stamp(info: dict[str, Any]) -> float:
    """When it was last written, seconds; stores call it by different names."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
