"""A disk that refuses a write: one line, nothing half-written, and the same command continues when there is room."""

import errno
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from guda.errors import GudaError
from guda.files import atomic_folder, atomic_path, write_error, write_table, write_tensors, write_text
from refusals import refused


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """`ulimit -f` for this process: a write beyond it fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_folder(path: Path) -> None:
    with atomic_folder(path) as tmp:
        np.save(tmp / "a.npy", np.zeros(10_000))


WRITES: dict[str, tuple[Callable[[Path], None], str]] = {
    "text": (lambda p: write_text(p, "x" * 50_000), "file-size-limited"),
    "tensors": (lambda p: write_tensors(p, {"a": torch.zeros(10_000)}), "file-size-limited"),
    "table": (lambda p: write_table(p, pa.table({"a": np.random.default_rng(0).random(10_000)})), "file-size-limited"),
    "folder": (write_folder, "disk-full"),  # numpy does not say why
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_file_that_may_not_grow_is_one_line_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    write, code = WRITES[kind]
    with small_files(4096), refused(code, match=str(tmp_path)):
        write(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("writer", [atomic_path, atomic_folder])
def test_every_refusal_of_a_disk_is_a_line(writer: Callable[..., object], tmp_path: Path) -> None:
    for number, code in ((errno.ENOSPC, "disk-full"), (errno.EDQUOT, "disk-full"), (errno.EROFS, "path-not-writable")):
        with refused(code, match=str(tmp_path / "a")), writer(tmp_path / "a"):  # type: ignore[attr-defined]
            raise OSError(number, "no")
        assert list(tmp_path.iterdir()) == []


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    assert write_error(ValueError("code: 28 apples"), "x") is not None  # as safetensors writes it
    assert write_error(ValueError("no"), "x") is None
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a"):
        (tmp_path / "absent").read_text()
    (tmp_path / "file").touch()
    with refused("path-is-file"):
        write_text(tmp_path / "file" / "a", "x")


def test_init_on_a_full_disk_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.path.insert(0, str(Path(__file__).parent / "run"))
    from tinyrun import digits_folder, tiny

    from guda import steps
    from guda.run import run as run_module

    def full(path: Path, value: object) -> None:
        raise GudaError("disk-full", "no room")

    recipe = tiny(digits_folder())
    (tmp_path / "there").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_json", full)  # the last file of a run
        for root in (tmp_path / "run", tmp_path / "there"):
            with refused("disk-full"):
                steps.init(root, recipe)
    assert [p.name for p in tmp_path.rglob("*")] == ["there"]
    assert steps.init(tmp_path / "run", recipe).has("run.json")
