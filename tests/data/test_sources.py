"""Sources: by name or path, options refused, not ignored, limits depend on nothing but their key."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from PIL import Image
from pydantic import Field

from guda.config import DataConfig
from guda.data.digits import load_digits_data
from guda.data.images import ImageData
from guda.data.sources import SOURCES, DataSize, known_size, limit_groups, load_source, source
from guda.errors import GudaError
from refusals import refused

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "sources"


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load_digits_data()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    SOURCES.load()
    monkeypatch.setattr(SOURCES, "_items", dict(SOURCES._items))


def art(root: Path) -> Path:
    for group in ("a", "b"):
        (root / group).mkdir(parents=True)
        Image.fromarray(np.full((4, 4), ord(group), dtype=np.uint8)).save(root / group / "1.png")
    return root


def test_digits(digits: ImageData) -> None:
    from sklearn.datasets import load_digits

    assert (digits.n, digits.shape, digits.name) == (1797, (1, 8, 8), "digits")
    assert digits.ids[0] == "digit-0000"
    assert digits.ids[-1] == "digit-1796"
    assert digits.groups.names == tuple("0123456789")
    raw = load_digits()
    np.testing.assert_array_equal(digits.groups.labels, raw.target)
    levels = [0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]
    np.testing.assert_array_equal(digits.images[:, 0], np.array(levels)[raw.images.astype(int)])


def test_by_name_and_by_path(digits: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_source("digits").digest == digits.digest
    folder = art(tmp_path / "art")
    expected = ImageData.from_folder(folder).digest
    assert load_source(str(folder)).digest == expected
    monkeypatch.chdir(tmp_path)
    assert load_source("art").digest == expected
    assert load_source("art", size=2, mode="RGB", group_by="level:1").shape == (3, 2, 2)


def test_a_source_goes_before_a_folder_of_the_same_name(
    digits: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    art(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert load_source("digits").digest == digits.digest
    assert load_source("./digits").n == 2


def test_unknown_names_list_the_sources() -> None:
    with refused("source-unknown", match=r"'digit'; the sources are .*digits.*did you mean 'digits'"):
        load_source("digit")
    with refused("data-folder-missing", match="image folder no/such/place does not exist"):
        load_source("no/such/place")


@pytest.mark.parametrize("option", [{"size": 8}, {"group_by": "level:1"}, {"mode": "L"}])
def test_options_a_source_does_not_take_are_refused(option: dict) -> None:
    with pytest.raises(GudaError, match=f"'digits' does not take {next(iter(option))}.*no such options"):
        load_source("digits", **option)


@pytest.mark.usefixtures("registry")
def test_registering_a_source(digits: ImageData) -> None:
    seen = []

    @source("tiny", DataSize(10, 20, (1, 8, 8)))
    def tiny(size: int | None = None, colours: Annotated[int, Field(gt=0)] = 2) -> ImageData:
        seen.append((size, colours))
        return digits

    assert load_source("tiny", size=3) is digits
    assert load_source("tiny", options={"colours": 5}) is digits
    assert seen == [(3, 2), (None, 5)]
    with refused("source-option-unknown"):
        load_source("tiny", mode="L")
    for colours in (0, "many"):
        with refused("source-option-invalid", match="'tiny': colours: ") as e:
            load_source("tiny", options={"colours": colours})
        assert e.value.code == "source-option-invalid"
    with pytest.raises(GudaError) as e:
        source("tiny")(tiny)
    assert e.value.code == "source-registered-twice"
    assert known_size(DataConfig(source="tiny", limit_per_group=7)) == DataSize(10, 7, (1, 8, 8))
    source("sizeless")(tiny)
    for name in ("sizeless", "./pictures"):
        with pytest.raises(GudaError) as e:
            known_size(DataConfig(source=name))
        assert e.value.code == "data-size-unknown"


def test_options_are_in_the_recipe_only_where_there_are_any() -> None:
    """The section is locked: runs made before there were options are the same experiment."""
    assert "options" not in DataConfig(source="digits").model_dump()
    config = DataConfig(source="x", options={"colours": 3})
    assert DataConfig(**config.model_dump(mode="json")) == config


def test_sources_of_another_package_come_in_by_entry_points(tmp_path: Path) -> None:
    """What installing benchmarks/sources does: its code is importable, and its entry points are found."""
    project = tomllib.loads((BENCHMARKS / "pyproject.toml").read_text())["project"]
    group = project["entry-points"]["guda.sources"]
    info = tmp_path / "guda_benchmark_sources-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[guda.sources]\n" + "".join(f"{k} = {v}\n" for k, v in group.items()))
    path = os.pathsep.join(str(p) for p in (tmp_path, BENCHMARKS, *filter(None, sys.path)))
    program = "from guda.data.sources import SOURCES; print(*sorted(SOURCES))"
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["cifar10", "digits", "emoji", "fashion-mnist", "fonts", "unlearncanvas"], done.stderr


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["emoji", "fonts", "fonts:some"])
def test_sources_of_the_benchmarks_say_how_to_install_them(name: str) -> None:
    for known in ("emoji", "fonts"):
        SOURCES._items.pop(known, None)
    with refused("source-unknown", match="pip install -e benchmarks/sources") as e:
        load_source(name)
    assert e.value.code == "source-unknown"


def test_limit_keeps_order_and_counts(digits: ImageData) -> None:
    part = load_source("digits", limit_per_group=5, seed=1)
    assert part.groups.sizes == (5,) * 10
    assert list(part.ids) == sorted(part.ids)
    position = {name: i for i, name in enumerate(digits.ids)}
    np.testing.assert_array_equal(part.images, digits.images[[position[name] for name in part.ids]])
    assert (part.meta["limit_per_group"], part.meta["limit_seed"]) == (5, 1)
    assert part.digest == limit_groups(digits, 5, 1).digest
    assert part.digest != limit_groups(digits, 5, 2).digest
    assert limit_groups(digits, 10_000, 0).digest == digits.digest


def test_a_larger_limit_contains_the_smaller(digits: ImageData) -> None:
    assert set(limit_groups(digits, 5, 0).ids) < set(limit_groups(digits, 9, 0).ids)


def test_what_is_kept_of_a_group_does_not_depend_on_other_groups(digits: ImageData) -> None:
    labels = digits.groups.labels
    few = np.flatnonzero((labels == 3) | (labels == 7))
    part = ImageData.from_arrays(
        digits.images[few], [str(k) for k in labels[few]], ids=[digits.ids[i] for i in few], layout="NCHW"
    )
    kept = limit_groups(digits, 5, 0)
    expected = [name for name, k in zip(kept.ids, kept.groups.labels, strict=True) if k in (3, 7)]
    assert list(limit_groups(part, 5, 0).ids) == expected


@pytest.mark.parametrize(("limit", "seed", "message"), [(0, 0, "limit_per_group"), (1.5, 0, "limit"), (1, -1, "seed")])
def test_bad_limits_are_refused(digits: ImageData, limit: int, seed: int, message: str) -> None:
    with pytest.raises(GudaError, match=f"{message}.*must be a whole number"):
        limit_groups(digits, limit, seed)
