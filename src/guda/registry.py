"""Registries: the names that a recipe or a command may use, and that other packages can add to.

    OPERATORS = Registry[type[Operator]]("operator", "guda.operators", ["guda.unlearning.operators.retrack", ...])

    @OPERATORS.register("my-operator")
    class MyOperator(Operator): ...

A module registers what it defines when it is imported. guda's own modules and every module that an installed package
names under the entry-point group are imported when a name is first looked up, so that `import guda` stays fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeVar

from guda.errors import GudaError, suggestion

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A mapping from name to what was registered under it, filled on first use."""

    def __init__(self, kind: str, group: str, modules: Sequence[str] = ()) -> None:
        self.kind, self.group, self._modules = kind, group, tuple(modules)
        self._items: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator; the same name twice is an error, because one of the two would be ignored."""

        def add(item: T) -> T:
            if name in self._items and self._items[name] is not item:
                code = f"{self.kind}-registered-twice"
                raise GudaError(
                    code,
                    f"{self.kind} {name!r} is registered twice, by {self._items[name]!r} and {item!r}; rename one",
                )
            self._items[name] = item
            return item

        return add

    def load(self) -> None:
        """Import guda's own modules, then those of installed plug-ins."""
        if self._loaded:
            return
        self._loaded = True  # first: a module that is imported here may look names up
        for module in self._modules:
            import_module(module)
        for entry in sorted(entry_points(group=self.group), key=lambda e: (e.name, e.value)):
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
        self.load()
        if name not in self._items:
            known, code = sorted(self._items), f"{self.kind}-unknown"
            raise GudaError(
                code,
                f"unknown {self.kind} {name!r}; known: {', '.join(known)}{suggestion(name, known)}",
            )
        return self._items[name]

    def __getitem__(self, name: str) -> T:
        self.load()
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        self.load()
        return iter(self._items)

    def __len__(self) -> int:
        self.load()
        return len(self._items)
