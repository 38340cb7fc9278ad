"""A run in a bucket: `s3://bucket/run`, `gs://...`, or any URL that fsspec supports.

Work is done in a local copy of it, because networks and tables are memory-mapped files. `pull` fetches what changed
there, `push` publishes what changed here; both may be stopped at any time and repeated. Work is never locked:

    FIXED    what tasks make is named after what makes it and comes out the same bytes: published once, never compared
    others   tables, reports, the recipe: of each it is remembered what both sides held when they were last the same, so
             it is known who changed it, without asking a clock. Changed there: fetched. Changed here: published.
             Changed on both sides: the last one to publish is right, but over another's recipe.yaml or run.json nobody
             publishes: these are compared and written under a lease, a file that only one driver can create. One whose
             holder was killed counts for nothing once it has been seen for LEASE seconds

Files appear whole. An object store publishes an object only when all of it is there; elsewhere it is written under a
temporary name and renamed. They appear in the order in which they were published here, so that what says "done" comes
last. Heartbeats and half-done trainings stay on the machine they belong to. What is deleted here is not there, unless
`remove` did it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from guda.errors import GudaError, Mismatch
from guda.files import TEMPORARY, atomic_path, digest, digest_file, temporary, write_bytes

T = TypeVar("T")

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

LEASE, LOOK = 30.0, 0.2  # seconds until a lease that does not change is a dead driver's; between two looks at it


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
            raise GudaError("package-missing", f"{url} needs fsspec; install it with: pip install fsspec") from None
        try:
            self.fs, root = url_to_fs(url)
        except Exception as e:  # no driver for it, no such protocol, not what the driver calls an address
            raise GudaError("remote-not-opened", f"{url} cannot be opened: {e}") from None
        self.url, self.root = url, str(root).rstrip("/")
        protocol = self.fs.protocol
        self.whole = bool({protocol} & set(WHOLE) if isinstance(protocol, str) else set(protocol) & set(WHOLE))
        kept = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "guda") / "runs"
        self.local = local or kept / f"{self.root.rsplit('/', 1)[-1]}-{digest(url)}"
        self._looked = float("-inf")

    def pull(self, patience: float = 0.0) -> int:
        """Fetch what is missing here or was changed there; returns how many files that were. `patience`: a look that is
        not older than so many seconds is new enough."""
        if time.monotonic() - self._looked < patience:
            return 0
        found, fetched = self._remote(), 0
        self._same_run(found)
        for name in sorted(found, key=lambda n: (_stamp(found[n]), n in LOCKS, n)):
            fetched += self._pull_one(name, found[name])
        for name in self._seen_names():
            here = self.local / name
            if name not in found and name not in LOCKS and here.is_file() and self._seen(name)[0] == digest_file(here):
                here.unlink()  # removed there, and unchanged here
                self._base(name).unlink(missing_ok=True)
        self._looked = time.monotonic()
        return fetched

    def _pull_one(self, name: str, info: dict[str, Any]) -> bool:
        here = self.local / name
        if _fixed(name):
            if here.is_file():
                return False
            self._fetch(name, here)
            return True
        base, token = self._seen(name)
        if here.is_file() and token == _token(info):
            return False  # nobody changed it there
        if here.is_file() and base != (mine := digest_file(here)):
            if digest_bytes(self._read(name)) == mine:
                self._same(name, mine, _token(info))
            return False  # ours is newer, or both are: push decides
        self._fetch(name, here)
        self._same(name, digest_file(here), _token(info))
        return True

    def _same_run(self, found: dict[str, dict[str, Any]]) -> None:
        """Refuse a copy of a run that is not there any more, or is another one under the same address."""
        name = "run.json"
        here = self.local / name
        base, token = self._seen(name)
        if base is None or not here.is_file():
            return
        fix = f"delete the copy, {self.local}, if it is of no use"
        if name not in found:
            raise GudaError(
                "remote-run-missing", f"{self.url} holds no run any more, but there is a copy of it here; {fix}"
            )
        if token != _token(found[name]):
            ours, theirs = json.loads(here.read_bytes()), json.loads(self._read(name))
            for key in sorted(set(ours) & set(theirs) - {"versions"}):
                if ours[key] != theirs[key]:
                    raise Mismatch(
                        "remote-run-differs",
                        f"{self.url} is another run than the copy of it here: {key}",
                        digest(theirs[key]),
                        digest(ours[key]),
                        fix,
                    )

    def push(self) -> int:
        """Publish what is missing there or was changed here; returns how many files that were."""
        found, pushed = self._remote(), 0
        refused: Mismatch | None = None
        for _, path in sorted(self._files()):
            name = path.relative_to(self.local).as_posix()
            if _fixed(name):
                if name in found:
                    continue
                self._write(name, path)
                pushed += 1
                continue
            base, token = self._seen(name)
            mine = digest_file(path)
            if mine == base:
                continue  # unchanged here, whatever was done with it there
            if name in LOCKS:
                try:
                    pushed += self._push_lock(name, path)
                except Mismatch as e:
                    refused = e  # what tasks made is published all the same
                continue
            if name in found and token != _token(found[name]) and digest_bytes(self._read(name)) == mine:
                self._same(name, mine, _token(found[name]))
                continue
            self._write(name, path)
            self._same(name, mine, _token(self._ask("looked at", self.fs.info, f"{self.root}/{name}")))
            pushed += 1
        if refused is not None:
            raise refused
        return pushed

    def _push_lock(self, name: str, path: Path) -> bool:
        """Publish recipe.yaml or run.json unless another driver changed it since both sides were last the same."""
        with self._lease(name):
            self.fs.invalidate_cache()
            base, mine = self._seen(name)[0], path.read_bytes()
            there = self._ask("looked at", self.fs.exists, f"{self.root}/{name}")
            theirs = self._read(name) if there else None
            if theirs is not None and theirs != mine and digest_bytes(theirs) != base:
                raise Mismatch(
                    "remote-file-conflict",
                    f"{self.url}/{name} was changed by another driver meanwhile",
                    *_first_difference(theirs, mine),
                    f"compare it with {path}, delete that, and run the command again",
                )
            if theirs != mine:
                self._write(name, path)
            info = self._ask("looked at", self.fs.info, f"{self.root}/{name}")
            self._same(name, digest_bytes(mine), _token(info))
            return theirs != mine

    @contextmanager
    def _lease(self, name: str) -> Iterator[None]:
        """One driver at a time; waits for another, and takes the lease of one that does not come back."""
        target, mine = f"{self.root}/{TEMPORARY}lease-{name}", uuid.uuid4().hex.encode()
        held, since = None, time.monotonic()
        if not self.whole:
            self._ask("written", lambda: self.fs.makedirs(self.root, exist_ok=True))
        while not self._ask("written", self._create, target, mine):
            now = self._ask("read", self._lease_of, target)
            if now != held:
                held, since = now, time.monotonic()
            elif held is not None and time.monotonic() - since >= LEASE:
                self._ask("written", self._let_go, target)
            time.sleep(LOOK)
        try:
            yield
        finally:
            if self._ask("read", self._lease_of, target) == mine:  # not taken by one who held this driver for dead
                self._ask("written", self._let_go, target)

    def _lease_of(self, target: str) -> bytes | None:
        try:
            return bytes(self.fs.cat_file(target))
        except FileNotFoundError:
            return None

    def _let_go(self, target: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm_file(target)

    def _create(self, target: str, value: bytes) -> bool:
        """Write a small file that must not be there yet; False if it is. Stores do this in one step."""
        try:
            if self.whole:
                self.fs.pipe_file(target, value, mode="create")
            else:
                with self.fs.open(target, "xb") as f:
                    f.write(value)
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Here and there: it is wrong, and must not come back."""
        (self.local / name).unlink(missing_ok=True)
        self._base(name).unlink(missing_ok=True)
        if self._ask("looked at", self.fs.exists, f"{self.root}/{name}"):
            self._ask("changed", self.fs.rm_file, f"{self.root}/{name}")

    # what both sides held when they were last the same: the digest, and what the store said of it

    def _base(self, name: str) -> Path:
        return self.local.with_name(f"{self.local.name}.seen-{digest(self.url, 8)}") / name

    def _seen(self, name: str) -> tuple[str | None, str | None]:
        try:
            found, token = self._base(name).read_text().splitlines()
        except (OSError, ValueError):
            return None, None
        return found, token

    def _seen_names(self) -> list[str]:
        root = self._base("")
        return [Path(folder, file).relative_to(root).as_posix() for folder, _, files in os.walk(root) for file in files
                if not file.startswith(TEMPORARY)]  # fmt: skip

    def _same(self, name: str, value: str, token: str) -> None:
        write_bytes(self._base(name), f"{value}\n{token}".encode())

    def _files(self) -> list[tuple[int, Path]]:
        """What is published here, and when. Others may work here meanwhile: what they have not finished is not looked
        at, and what they removed is gone."""
        wanted = []
        for folder, folders, files in os.walk(self.local):
            mine = LOCAL if Path(folder) == self.local else ()  # heartbeats come and go
            folders[:] = [name for name in folders if not name.startswith(TEMPORARY) and name not in mine]
            for path in (Path(folder, name) for name in files if not name.startswith(TEMPORARY)):
                with suppress(FileNotFoundError):
                    wanted.append((path.stat().st_mtime_ns, path))
        return wanted

    def _ask(self, what: str, call: Callable[..., T], *args: Any) -> T:
        """Turn any error of a storage driver into a one-line message; each driver has its own exceptions."""
        try:
            return call(*args)
        except GudaError:
            raise
        except Exception as e:
            said = " ".join(str(e).split())[:200] or type(e).__name__
            raise GudaError("remote-failed", f"{self.url} cannot be {what}: {said}") from None

    def _remote(self) -> dict[str, dict[str, Any]]:
        """Name below the run -> what the store says of it."""

        def listed() -> dict[str, dict[str, Any]]:
            self.fs.invalidate_cache()
            try:
                return dict(self.fs.find(self.root, detail=True))
            except FileNotFoundError:
                return {}

        found = self._ask("listed", listed)
        names = {path[len(self.root) :].lstrip("/"): info for path, info in found.items()}
        return {n: info for n, info in names.items() if n and not n.rsplit("/", 1)[-1].startswith(TEMPORARY)}

    def _read(self, name: str) -> bytes:
        return bytes(self._ask("read", self.fs.cat_file, f"{self.root}/{name}"))

    def _fetch(self, name: str, target: Path) -> None:
        with atomic_path(target) as tmp:  # models are too large to pass through memory
            self._ask("read", self.fs.get_file, f"{self.root}/{name}", str(tmp))

    def _write(self, name: str, path: Path) -> None:
        target = f"{self.root}/{name}"
        if self.whole:
            self._ask("written", self.fs.put_file, str(path), target)
            return
        folder, _, last = target.rpartition("/")
        self._ask("written", lambda: self.fs.makedirs(folder, exist_ok=True))
        tmp = f"{folder}/{temporary(Path(last)).name}"
        self._ask("written", self.fs.put_file, str(path), tmp)
        self._ask("written", self.fs.mv, tmp, target)


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


def _token(info: dict[str, Any]) -> str:
    """Changes when the store's object does; one line."""
    tag = next((info[key] for key in ("ETag", "etag", "md5Hash", "content_settings") if info.get(key)), None)
    return " ".join(f"{info.get('size')} {_stamp(info)!r} {tag}".split())


def _first_difference(one: bytes, two: bytes) -> tuple[str, str]:
    """The first line on which two texts differ, as both have it."""
    lines = [value.decode("utf-8", "replace").splitlines() for value in (one, two)]
    n = max(map(len, lines))
    padded = [[*found, *[""] * (n - len(found))] for found in lines]
    pairs = zip(*padded, strict=True)
    a, b = next(((a, b) for a, b in pairs if a != b), ("", ""))
    return a.strip()[:200], b.strip()[:200]


def digest_bytes(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
