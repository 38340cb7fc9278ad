"""The store: a file is whole or absent, and a name depends on nothing but what made it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from guda import files
from guda.files import TEMPORARY
from refusals import refused


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob(f"{TEMPORARY}*")]


def fail_half_way(publish, target: Path) -> None:
    with publish(target) as tmp:
        (tmp / "a" if tmp.is_dir() else tmp).write_text("half")
        raise RuntimeError


def test_atomic_path_publishes_whole_files_and_leaves_nothing_on_an_exception(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    with pytest.raises(RuntimeError):
        fail_half_way(files.atomic_path, target)
    assert list(target.parent.iterdir()) == []
    files.write_text(target, "old")
    with pytest.raises(RuntimeError):
        fail_half_way(files.atomic_path, target)
    assert target.read_text() == "old"
    files.write_text(target, "new")
    assert target.read_text() == "new"
    assert leftovers(tmp_path) == []


def test_atomic_folder_leaves_nothing_on_an_exception(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail_half_way(files.atomic_folder, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_of_two_publishers_of_a_folder_the_first_stays(tmp_path: Path) -> None:
    target = tmp_path / "f"
    with files.atomic_folder(target) as mine:
        (mine / "sub").mkdir()
        (mine / "sub" / "a").write_text("mine")
        with files.atomic_folder(target) as theirs:
            (theirs / "a").write_text("theirs")
    assert (target / "a").read_text() == "theirs"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f"]


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with refused("path-is-file"), files.atomic_folder(tmp_path / "f") as tmp:
        (tmp / "a").write_text("x")
    assert leftovers(tmp_path) == []


def test_digests_are_pinned() -> None:
    """A change here would orphan every artifact of every run there is."""
    assert files.canonical({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'
    assert files.digest({"b": [1, 2.5, None], "a": "é"}) == "d764fee2563d"
    assert files.digest({"a": "é", "b": (1, 2.5, None)}, 8) == "d764fee2"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert files.digest_arrays(array)[:16] == "3378efc20f15f0e8"
    assert files.digest_arrays(np.asfortranarray(array)) == files.digest_arrays(array)
    different = [array.reshape(3, 2), array.astype(np.float64), array.astype(">f4"), array + 1]
    assert len({files.digest_arrays(a) for a in [array, *different]}) == 5
    assert files.digest_arrays(np.float32(1)) != files.digest_arrays(np.float32(2))
    with pytest.raises(ValueError, match=r"nan|Out of range"):
        files.digest(float("nan"))


def test_table_bytes_depend_on_the_contents_alone(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=1000)

    def table(chunks: int) -> pa.Table:
        pieces = [pa.table({"id": [f"q{i % 7}" for i in range(len(v))], "v": v}) for v in np.split(values, chunks)]
        return pa.concat_tables(pieces).replace_schema_metadata({"b": "2", "a": "1"})

    paths = [tmp_path / "x" / "one.parquet", tmp_path / "two.parquet", tmp_path / "three.parquet"]
    for file in paths:
        files.write_table(file, table(1))
    assert len({f.read_bytes() for f in paths}) == 1
    again = files.read_table(paths[0])
    assert again.schema.metadata == {b"b": b"2", b"a": b"1"}
    np.testing.assert_array_equal(again["v"].to_numpy(), values)


def test_tensors_round_trip_with_their_header(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 2), "a": torch.arange(3)}
    files.write_tensors(tmp_path / "t.safetensors", tensors, {"kind": "x"})
    back, header = files.read_tensors(tmp_path / "t.safetensors")
    assert header == {"kind": "x"}
    assert all(torch.equal(back[k], v) for k, v in tensors.items())


def test_tensor_bytes_depend_on_the_contents_alone(tmp_path: Path) -> None:
    """safetensors itself writes its metadata in a random order."""
    tensors, header = {"b": torch.ones(3, 2), "a": torch.arange(3)}, {f"key{i}": "é" * i for i in range(9)}
    for i in range(5):
        files.write_tensors(tmp_path / f"{i}", tensors, header)
        files.write_tensors(tmp_path / f"{i}-turned", dict(reversed(tensors.items())), dict(reversed(header.items())))
    assert len({p.read_bytes() for p in tmp_path.iterdir()}) == 1
    assert files.read_tensors(tmp_path / "0")[1] == header


def test_tensors_of_other_programs_can_be_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    assert files.read_tensors(tmp_path / "x.safetensors")[1] == {"format": "pt"}


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
@pytest.mark.parametrize("kind", ["json", "parquet", "safetensors"])
def test_a_cut_file_is_one_clear_line(tmp_path: Path, kind: str, keep: float) -> None:
    path = tmp_path / f"f.{kind}"
    read = {"json": files.read_json, "parquet": files.read_table, "safetensors": files.read_tensors}[kind]
    with refused("file-missing"):
        read(path)
    if kind == "json":
        files.write_json(path, {"a": "bb" * 10})
    elif kind == "parquet":
        files.write_table(path, pa.table({"a": np.arange(1000)}))
    else:
        files.write_tensors(path, {"a": torch.randn(100)})
    whole = path.read_bytes().rstrip()
    path.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    with refused("file-damaged") as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_json_refuses_what_other_readers_could_not_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nan|Out of range"):
        files.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_lacks_a_tensor_or_a_header_entry_is_named(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "a.safetensors", {"one": torch.zeros(1)}, {"kind": "x"})
    tensors, header = files.read_tensors(tmp_path / "a.safetensors")
    assert tensors.get("two") is None
    with refused("file-contents-missing", "a.safetensors.*'two'"):
        tensors["two"]
    with refused("file-contents-missing", "'twins'"):
        header["twins"]
