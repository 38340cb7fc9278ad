"""One generated input of tools/fuzz.py as data: what is changed in the world, and the command that meets it.

A case is plain JSON, so that a failure is kept in tools/fuzz_corpus.json as it is and does not depend on the generator
that made it. Its changes are lists [operation, path, ...], paths relative to a private copy of the world
(tools/tiny_world.py); a path may be a glob, which means the first file that it matches.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ALWAYS = ("art", "model", "recipe.yaml")  # cheap, and named by texts as well as by arguments


@dataclass
class Case:
    kind: str  # what is bad about it: recipe, options, image, ...
    argv: list[str]
    changes: list[list[Any]] = field(default_factory=list)
    bad: bool = False  # known to be bad: exit code 0 would be wrong
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def copy_needs(self, world: Path, place: Path) -> None:
        """Copy what the case mentions of the world into `place`."""
        named = {text.split("/")[0] for text in (*self.argv, *(c[1] for c in self.changes))}
        for item in world.iterdir():
            if item.name in named or item.name in ALWAYS:
                (shutil.copytree if item.is_dir() else shutil.copy)(item, place / item.name)

    def apply(self) -> None:
        """Make the changes in the current folder. A path that is not there any more is left alone."""
        for operation, name, *more in self.changes:
            path = next(iter(sorted(Path().glob(name))), Path(name)) if "*" in name else Path(name)
            OPERATIONS[operation](path, *more)


def pack(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _cut(path: Path, share: float) -> None:
    if path.is_file():
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])


def _flip(path: Path, flips: list[list[float]]) -> None:
    """Each [share of the file, xor]."""
    if path.is_file() and path.stat().st_size:
        data = bytearray(path.read_bytes())
        for share, change in flips:
            data[min(int(share * len(data)), len(data) - 1)] ^= int(change)
        path.write_bytes(bytes(data))


def _set(path: Path, keys: list[Any], value: Any) -> None:
    """Another value somewhere in a JSON file; `keys` may be indices, taken modulo what is there."""
    if not path.is_file():
        return
    whole = place = json.loads(path.read_text())
    for i, key in enumerate(keys):
        if isinstance(key, int) and isinstance(place, dict | list) and place:
            key = sorted(place)[key % len(place)] if isinstance(place, dict) else key % len(place)
        last = i == len(keys) - 1 or not isinstance(place[key], dict | list) or not place[key]
        if last:
            place[key] = value
            break
        place = place[key]
    path.write_text(json.dumps(whole))


def _folder(path: Path) -> None:
    _delete(path)
    path.mkdir(parents=True)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _delete(path)
    path.symlink_to(target)


def _fifo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _delete(path)
    os.mkfifo(path)


def _copy(path: Path, source: str) -> None:
    """The contents of another file of the world, which is the current folder."""
    found = next(iter(sorted(Path().glob(source))), None)
    if found is not None and found.is_file():
        _write(path, found.read_bytes())


def _deep(path: Path, depth: int) -> None:
    """Folders in folders with a picture at the end."""
    path.mkdir(parents=True, exist_ok=True)
    here = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


OPERATIONS: dict[str, Any] = {
    "write": lambda path, data: _write(path, base64.b64decode(data)),
    "text": lambda path, text: _write(path, text.encode("utf-8", "surrogateescape")),
    "delete": _delete,
    "cut": _cut,
    "flip": _flip,
    "set": _set,
    "folder": _folder,
    "link": _link,
    "fifo": _fifo,
    "copy": _copy,
    "deep": _deep,
}


def listing(root: Path) -> dict[str, str]:
    """Everything below a folder: kind and digest by relative path. Follows no link, opens no pipe."""
    found = {}
    stack = [os.fsencode(root)]
    while stack:
        folder = stack.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:  # deeper than a path may be long
            continue
        for entry in entries:
            name = os.fsdecode(entry.path[len(os.fsencode(root)) + 1 :])
            if entry.is_symlink():
                found[name] = f"link {os.fsdecode(os.readlink(entry.path))}"
            elif entry.is_dir():
                found[name] = "folder"
                stack.append(entry.path)
            elif stat.S_ISREG(entry.stat().st_mode):
                with open(entry.path, "rb") as f:
                    found[name] = hashlib.file_digest(f, "sha256").hexdigest()
            else:
                found[name] = "special"
    return found
