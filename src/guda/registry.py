"""Registries: the names that a recipe or a command may use, and that other packages can add to.

    OPERATORS = Registry[type[Operator]]("operator", "guda.operators", ["guda.unlearning.operators.retrack", ...])

    @OPERATORS.register("my-operator")
    class MyOperator(Operator): ...

A module registers what it defines when it is imported. guda's own modules and every module that an installed package
names under the entry-point group are imported when a name is first looked up, so that `import guda` stays fast.
tests/plugin is a package that adds one of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from threading import RLock
from typing import Any, TypeVar

from guda.errors import GudaError, suggestion

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A mapping from name to what was registered under it, filled on first use."""

    def __init__(self, kind: str, group: str, modules: Sequence[str] = ()) -> None:
        self.kind, self.group, self._modules = kind, group, tuple(modules)
        self._items: dict[str, T] = {}
        self._derived: list[tuple[Registry[Any], Callable[[str, Any], T], str]] = []
        self._loaded, self._lock = False, RLock()

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator; a class gets the name as its `id`. The same name twice is an error: one would be ignored."""

        def add(item: T) -> T:
            if name in self._items and self._items[name] is not item:
                code = f"{self.kind}-registered-twice"
                raise GudaError(
                    code,
                    f"{self.kind} {name!r} is registered twice, by {self._items[name]!r} and {item!r}; rename one",
                )
            if isinstance(item, type):
                item.id = name  # type: ignore[attr-defined]
            self._items[name] = item
            return item

        return add

    def derive(self, other: Registry[Any], make: Callable[[str, Any], T], prefix: str = "") -> None:
        """Add everything that `other` has, or will have: `make(name, item)` under the name with `prefix` before it."""
        self._derived.append((other, cache(make), prefix))

    def load(self) -> None:
        """Import guda's own modules, then those of installed plug-ins."""
        with self._lock:
            if self._loaded:
                return
            self._loaded = True  # first: a module that is imported here may look names up
            try:
                for module in self._modules:
                    import_module(module)
                for entry in sorted(entry_points(group=self.group), key=lambda e: (e.name, e.value)):
                    self._load_plugin(entry)
            except BaseException:
                self._loaded = False
                raise

    def _load_plugin(self, entry: Any) -> None:
        try:
            entry.load()
        except Exception as e:
            raise GudaError(
                "plugin-broken",
                f"the plug-in {entry.value!r} ({self.group}: {entry.name}) cannot be imported: {e}; "
                "fix or uninstall the package that provides it",
            ) from e

    def find(self, name: str) -> T:
        """The item, or an error that lists the known names."""
        if name not in self:
            known, code = sorted(self), f"{self.kind}-unknown"
            raise GudaError(
                code,
                f"unknown {self.kind} {name!r}{suggestion(name, known)}; known: {', '.join(known)}",
            )
        return self[name]

    def __getitem__(self, name: str) -> T:
        self.load()
        if name in self._items:
            return self._items[name]
        for other, make, prefix in self._derived:
            if name.startswith(prefix) and (short := name.removeprefix(prefix)) in other:
                return make(short, other[short])
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        self.load()
        derived = (prefix + name for other, _, prefix in self._derived for name in other)
        return iter(dict.fromkeys([*self._items, *derived]))

    def __len__(self) -> int:
        return sum(1 for _ in self)
