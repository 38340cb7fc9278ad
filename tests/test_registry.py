"""A registry fills itself from guda's modules and from entry points, on first use."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from guda import registry
from guda.errors import GudaError
from guda.methods.base import METHODS
from guda.registry import Registry
from guda.unlearning.unlearn import OPERATORS, Operator
from refusals import refused


def provide(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    entries = [EntryPoint(name=f"plug-in {i}", value=value, group="guda.things") for i, value in enumerate(values)]
    monkeypatch.setattr(registry, "entry_points", lambda group: [e for e in entries if e.group == group])


def test_nothing_is_imported_before_the_first_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    things: Registry[int] = Registry("thing", "guda.things", ["own_things"])
    monkeypatch.setitem(sys.modules, "things_of_the_test", ModuleType("things_of_the_test"))
    sys.modules["things_of_the_test"].things = things  # type: ignore[attr-defined]
    (tmp_path / "own_things.py").write_text("from things_of_the_test import things\nthings.register('one')(1)\n")
    (tmp_path / "other_things.py").write_text("from things_of_the_test import things\nthings.register('two')(2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    provide(monkeypatch, "other_things")
    assert "own_things" not in sys.modules
    assert dict(things) == {"one": 1, "two": 2}
    assert things.find("two") == 2
    with refused("thing-unknown", match=r"unknown thing 'tow' \(did you mean 'two'\?\); known: one, two") as e:
        things.find("tow")
    assert e.value.code == "thing-unknown"
    with pytest.raises(GudaError) as e:
        things.register("one")(3)
    assert e.value.code == "thing-registered-twice"


def test_a_broken_plug_in_is_named_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    things: Registry[int] = Registry("thing", "guda.things")
    provide(monkeypatch, "no_such_module_anywhere")
    for _ in range(2):
        with refused("plugin-broken") as e:
            things.get("one")
        assert e.value.code == "plugin-broken"


def test_one_registry_may_be_made_of_another() -> None:
    things: Registry[int] = Registry("thing", "guda.things")
    doubles: Registry[Any] = Registry("double", "guda.doubles")
    doubles.derive(things, lambda name, item: [name, 2 * item], prefix="double-")
    doubles.register("own")([])
    assert list(doubles) == ["own"]
    things.register("three")(3)  # later
    assert list(doubles) == ["own", "double-three"]
    assert doubles["double-three"] == ["three", 6]
    assert doubles["double-three"] is doubles["double-three"]
    assert "three" not in doubles


def test_an_operator_that_is_registered_late_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "late" not in METHODS

    class Late(Operator):
        summary = "comes late"

    monkeypatch.setitem(OPERATORS._items, "late", Late)
    found = METHODS.find("late")
    assert (found.id, found.summary, found.Config, found.unlearns) == ("late", "comes late", Late.Config, True)
