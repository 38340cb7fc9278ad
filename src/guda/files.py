"""Files that are either whole or absent, and names derived from what made them.

Everything a run keeps goes through here: written under a temporary name in the same folder, flushed to disk,
renamed. A reader therefore never meets a half-written artifact, two writers of the same artifact do not clash
(the last rename wins and both wrote the same bytes), and kill -9 leaves at most a stray temporary file.

Publishing is idempotent, so nobody holds a lease: two drivers of one run, or a task that a cluster runs twice because
it lost sight of a node, at worst do the same work twice. A temporary name says who is writing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from guda import parsing
from guda.errors import GudaError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

T = TypeVar("T")

HEADER = "guda"  # the entry of a safetensors header that holds ours, as JSON


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: the text that hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any, length: int = 12) -> str:
    """A short stable name for any JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def digest_arrays(*arrays: np.ndarray) -> str:
    """sha256 over dtype, shape and bytes."""
    import numpy as np

    h = hashlib.sha256()
    for a in arrays:
        h.update(f"{a.dtype.str}{a.shape}".encode())
        h.update(np.ascontiguousarray(a).tobytes() if a.ndim == 0 else np.ascontiguousarray(a).data)
    return h.hexdigest()


def digest_file(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


REFUSED = {  # what a disk may say to a write -> code, what to do about it
    errno.ENOSPC: ("disk-full", "the disk is full, or a file may not be so large; make room"),
    errno.EDQUOT: ("disk-full", "the disk quota is used up; make room"),
    errno.EFBIG: ("file-size-limited", "the file would exceed the allowed size; raise the limit (ulimit -f)"),
    errno.EACCES: ("path-not-writable", "permission denied; make it writable"),
    errno.EPERM: ("path-not-writable", "permission denied; make it writable"),
    errno.EROFS: ("path-not-writable", "the file system is read-only; make it writable"),
    errno.EIO: ("write-failed", "the disk reports an error; check it"),
    errno.ENAMETOOLONG: ("path-too-long", "the name is too long; use shorter names"),
    errno.ENOTDIR: ("path-is-file", "a part of the path is a file; remove it"),
    errno.EEXIST: ("path-is-file", "a file is where a folder should be; remove it"),
    errno.EISDIR: ("path-is-folder", "there is a folder of this name; remove it"),
    errno.ELOOP: ("path-link-cycle", "a link leads back to itself; remove it"),
}


def _error_number(error: Exception) -> int | None:
    """What the system said, also where a library hides it in its text."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := re.search(r"\bcode: (\d+)", str(error))) is not None:
        number = int(found[1])  # safetensors: "I/O error: Os { code: 28, kind: StorageFull, ... }"
    if number is None and (found := re.search(r"\(os error (\d+)\)|\[errno (\d+)\]", str(error))) is not None:
        number = int(found[1] or found[2])  # the same of other versions; pyarrow
    if number is None and isinstance(error, OSError) and "requested and" in str(error):
        number = errno.ENOSPC  # numpy counts what was written and does not ask why
    return number


def vanished(error: Exception) -> bool:
    """Whether a file or folder was removed while it was read or written."""
    return _error_number(error) == errno.ENOENT or (isinstance(error, GudaError) and error.code == "file-missing")


def write_error(error: Exception, path: object) -> GudaError | None:
    """The one line for a write that the disk refused; None for an error of another kind. What was finished before
    stays and nothing is half-written, so the same command continues once the cause is gone."""
    number = _error_number(error)
    if number not in REFUSED:
        return None
    code, fix = REFUSED[number]
    return GudaError(code, f"cannot write {path}: {fix} and run the same command again")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the disk refuses into one line."""
    try:
        yield
    except GudaError:
        raise
    except Exception as e:
        if (refused := write_error(e, path)) is None:
            raise
        raise refused from None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary sibling of `path`; on success it is synced and renamed to `path`, on error it is removed."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = temporary(path)
        try:
            yield tmp
            _sync(tmp)
            os.replace(tmp, path)
        finally:
            with suppress(OSError):
                tmp.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """The same for a folder. If somebody else published `path` meanwhile, theirs stays (contents are equal)."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = temporary(path)
        try:
            tmp.mkdir()
            made = os.open(tmp, os.O_RDONLY)  # held, so that its number is nobody else's
            try:
                yield tmp
                if not os.path.samestat(os.fstat(made), tmp.stat()):  # removed, and made anew by the next file of it
                    raise FileNotFoundError(errno.ENOENT, "was removed while it was written", str(tmp))
            finally:
                os.close(made)
            for file in tmp.rglob("*"):
                if file.is_file():
                    _sync(file)
            try:
                os.replace(tmp, path)
            except OSError:
                if not path.is_dir():
                    raise
        finally:
            shutil.rmtree(tmp, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """At once for everybody who looks, whatever they do there: nothing half-removed has its name, and nobody who still
    writes into it can publish."""
    gone = temporary(path)
    with suppress(OSError):  # somebody else removed it
        os.replace(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_path(path) as tmp:
        tmp.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return parsing.read_json(path)
    except FileNotFoundError:
        raise GudaError("file-missing", f"{path} does not exist") from None
    except (parsing.ParseError, IsADirectoryError) as e:
        raise GudaError("file-damaged", f"{path} is damaged ({e}); delete it and run the command again") from None


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Safetensors whose bytes depend only on what is in them."""
    from safetensors.torch import save_file

    # one text, because safetensors writes several in a random order, and files are compared by their bytes
    header = {HEADER: canonical(dict(metadata))} if metadata else None
    with atomic_path(path) as tmp:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, tmp, metadata=header)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The safetensors file and our header."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise GudaError("file-missing", f"{path} does not exist")
    try:
        with safe_open(path, framework="pt") as f:
            header = dict(f.metadata() or {})
            header |= parsing.parse_json_object(header.pop(HEADER, "{}"))
            yield f, header
    except (SafetensorError, OSError, ValueError, RuntimeError) as e:  # torch: RuntimeError
        if not path.is_file():
            raise GudaError("file-missing", f"{path} does not exist") from None
        if isinstance(e, RuntimeError):
            raise
        raise GudaError("file-damaged", f"{path} is damaged ({e}); delete it and run the command again") from None


class NotHeld(GudaError, KeyError):
    """A file holds no tensor, or its header no entry, of this name."""

    def __str__(self) -> str:  # a KeyError's would be in quotes
        return str(self.args[0])


class _Held(dict[str, Any]):
    """What a file holds; asking for anything else says which file is damaged."""

    def __init__(self, path: Path, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self.path = path

    def __missing__(self, key: str) -> Any:
        fix = "it is damaged, or of another kind; delete it and run the same command again"
        raise NotHeld("file-contents-missing", f"{self.path} holds no {key!r}: {fix}")

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with _opened(path) as (f, header):
        return _Held(path, {k: f.get_tensor(k) for k in f.keys()}), _Held(path, header)  # noqa: SIM118


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The header alone, and the dtype of each tensor: no weights are read."""
    with _opened(path) as (f, header):
        return header, {k: f.get_slice(k).get_dtype() for k in f.keys()}  # noqa: SIM118


def write_table(path: Path, table: pa.Table) -> None:
    """Parquet whose bytes depend only on the table's contents."""
    import pyarrow.parquet as pq

    with atomic_path(path) as tmp:
        pq.write_table(table, tmp, compression="zstd")


def read_table(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise GudaError("file-missing", f"{path} does not exist") from None
    except (pa.ArrowException, OSError) as e:
        raise GudaError("file-damaged", f"{path} is damaged ({e}); delete it and run the command again") from None


_HELD: dict[str, dict[tuple[str, int, int], Any]] = {}


def remembered(kind: str, path: Path, load: Callable[[], T], keep: int = 4) -> T:
    """`load()`, once per process for each state of the file at `path`; the newest `keep` of a kind are held."""
    held, state = _HELD.setdefault(kind, {}), path.stat()
    key = (str(path), state.st_mtime_ns, state.st_size)
    value = held.get(key)
    if value is None:
        for old in list(held)[: max(0, len(held) + 1 - keep)]:
            held.pop(old, None)  # first: there need not be room for both
        value = held[key] = load()
    return cast("T", value)


# ---- Writers: who is writing under a temporary name, and whether they still are.
TEMPORARY = ".tmp-"  # prefix of names that were never published

NAME = re.compile(re.escape(TEMPORARY) + r"(?P<place>[0-9a-f]{10})-(?P<pid>\d+)-[0-9a-f]{12}-")

DAY = 86400.0


@cache
def place() -> str:
    """Short, and the same for every process that sees the same process numbers."""
    known = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text(),
        lambda: os.readlink("/proc/self/ns/pid"),  # containers of one machine number their processes apart
    ):
        try:
            known.append(read().strip())
        except OSError:  # not Linux
            known.append(str(uuid.getnode()))
    return hashlib.sha256(" ".join(known).encode()).hexdigest()[:10]


def temporary(path: Path) -> Path:
    """A name beside `path` that no other process on any machine uses."""
    return path.parent / f"{TEMPORARY}{place()}-{os.getpid()}-{uuid.uuid4().hex[:12]}-{path.name}"


def alive(pid: int) -> bool:
    """Of a process of this place."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # somebody else's
    except OSError:
        return False
    try:  # in a container nobody may have collected the dead
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return True


def sweep(root: Path, older_than: float = DAY) -> None:
    """Remove what dead processes left under temporary names.

    Others may publish and remove at the same time, so anything here may vanish while one looks at it."""
    for folder, folders, files in os.walk(root):  # ignores a folder that vanishes
        strays = [name for name in folders if name.startswith(TEMPORARY)]
        folders[:] = [name for name in folders if not name.startswith(TEMPORARY)]
        for name in strays + [name for name in files if name.startswith(TEMPORARY)]:
            stray = Path(folder) / name
            if not _abandoned(stray, older_than):
                continue
            if stray.is_dir():
                shutil.rmtree(stray, ignore_errors=True)
            else:
                stray.unlink(missing_ok=True)


def _abandoned(stray: Path, older_than: float) -> bool:
    found = NAME.match(stray.name)
    if found is not None and found["place"] == place():
        return not alive(int(found["pid"]))
    return time.time() - _touched(stray) > older_than


def _touched(stray: Path) -> float:
    """When anything in it last changed; now, where it vanished."""
    newest = 0.0
    for path in (stray, *stray.rglob("*")) if stray.is_dir() else (stray,):
        try:
            newest = max(newest, path.lstat().st_mtime)
        except OSError:
            newest = time.time()
    return newest


# ---- Seeded choices among names: an order that is a function of a key and of the names, the same in every process.
def ordered(items: Sequence[str], *key: str | int) -> list[str]:
    return sorted(items, key=lambda item: digest([*key, item], length=64))


def library_versions() -> dict[str, str]:
    found = {}
    for package in ("guda", "torch", "diffusers", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
