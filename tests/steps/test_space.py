"""What a search may try, as written by a user."""

from pathlib import Path

import pytest

from guda.errors import GudaError
from guda.methods.base import METHODS
from guda.steps.search_space import Choice, Range, check_space, default_space, parse_space, read_space


def test_a_line_of_ranges_and_choices() -> None:
    assert parse_space("lr=1e-5..1e-3, steps=50|100|200,k_nearest=1..50,window=[0,1]|[0.1,1],decay=true|false") == {
        "lr": Range(1e-5, 1e-3),
        "steps": Choice((50, 100, 200)),
        "k_nearest": Range(1, 50, whole=True),
        "window": Choice(([0, 1], [0.1, 1])),
        "decay": Choice((True, False)),
    }
    assert parse_space("lr=1e-4|3e-4") == {"lr": Choice((1e-4, 3e-4))}  # YAML alone would read texts
    assert parse_space("k_nearest=10|null") == {"k_nearest": Choice((10, None))}


def test_a_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("lr: 1e-5..1e-3\nsteps: [50, 100]\nlambda_forget: {low: 0.3, high: 3e1}\nk_nearest: 5\n")
    assert read_space(path) == {
        "lr": Range(1e-5, 1e-3),
        "steps": Choice((50, 100)),
        "lambda_forget": Range(0.3, 30.0),
        "k_nearest": Choice((5,)),
    }


def test_ranges_are_searched_by_ratio_and_tried_in_three_digits() -> None:
    lr = Range(3.14159e-5, 1e-3)
    assert lr.distribution().log
    assert lr.setting(0.000123456) == 0.000123
    assert lr.setting(3.1416e-5) == 3.14159e-5  # rounding must not leave the range
    assert not Range(0.0, 1.0).distribution().log
    assert Range(1, 50, whole=True).setting(7) == 7
    windows = Choice(([0, 1], [0.1, 1]))
    assert [windows.setting(c) for c in windows.distribution().choices] == [[0, 1], [0.1, 1]]


def test_defaults_are_what_the_method_has() -> None:
    known = METHODS
    found = default_space(known["retrack"], {"window": [0.3, 0.9]})
    assert found == {
        "lr": Range(3e-5, 1e-3),
        "steps": Choice((50, 100, 200)),
        "lambda_forget": Range(0.3, 30.0),
        "window": Choice(([0.0, 0.9], [0.05, 0.9], [0.1, 0.9], [0.2, 0.9])),
    }
    assert set(default_space(known["shift"], {})) == {"lr", "steps", "window"}
    with pytest.raises(GudaError, match=r"similarity-pixel has no default search \(its settings: rule, per_group\)"):
        default_space(known["similarity-pixel"], {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write key=low..high"),
        ("lr", "write key=low..high"),
        ("lr=", "write key=low..high"),
        ("lr=1e-3..1e-5", "from a smaller to a larger"),
        ("lr=1..inf", "from a smaller to a larger"),
        ("lr=a..b", "ends of a range are numbers"),
        ("lr=1e-3..1e-2,lr=1|2", "lr occurs twice"),
        ("steps=5|5", "values that differ"),
        ("window=[0,1|2", "not valid YAML"),
    ],
)
def test_bad_searches(text: str, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        parse_space(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step=5|6", r"search of retrack, step = 5: step: .*settings: steps"),
        ("lr=-1..1", r"lr = -1: lr: .*greater than 0"),
        ("steps=5|many", r"steps = many: steps: .*integer"),
    ],
)
def test_settings_the_method_does_not_take(text: str, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        check_space(parse_space(text), METHODS["retrack"], {})


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    with pytest.raises(GudaError, match="no such file"):
        read_space(path)
    for text, message in (("- a", "one line per setting"), ("a: [", "not valid YAML"), ("lr: {low: 1}", "low..high")):
        path.write_text(text)
        with pytest.raises(GudaError, match=message):
            read_space(path)
