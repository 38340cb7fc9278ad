"""A method for groups other than the run's own: `method.on(grouping)`.

    method.on(Subset(("cat", "dog")))   some of the data's groups: a level of a tree, or a few groups for tuning
    placebos_of(method, 20)             random groups, to see what a score is where there is no group
    pairs_of(method, [("cat", "dog")])  two groups left out together, to see whether scores add up
    unions_of(method, [("cat", "dog", "owl")])   any number of groups left out together

Every other grouping is made of the same training images, so everything that leaves out or unlearns a group does the
same with it. A retraining without a pair deletes the places of both groups from the same stream (same start, same
order, same noise as its singles); an operator's forget set is the union.

A placebo is as large as the median group and drawn by the key (seed, "placebo", number) from the whole training set;
the data are regrouped into {placebo, rest}. A group whose score is not above most of theirs cannot be told from chance.

Files lie beside those of the run's groups, in `pairs/`, `unions/` and `placebo/` of the method's folder.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

import numpy as np

from guda.config import Config
from guda.data.groups import Groups
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.files import digest
from guda.methods.base import Method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.run.data import load_data, scored_groups
from guda.unlearning.bank import FILES, file_name

Pair = tuple[str, str]

PLACEBO = "-placebo"  # ends the id under which a method's placebos are scored


class Grouping(Config, ABC):
    """Groups to ask about; `known` is always the data's own grouping."""

    suffix: ClassVar[str] = ""  # of the method's id, which names scores and times
    drifts: ClassVar[bool] = True  # False: drift has no part in what is compared
    repeated: ClassVar[bool] = True  # False: unlearned once, whatever the number of seeds

    passes: float | None = None  # how many times the steps of a leaf unlearn each of them; None: as their sizes say

    @property
    @abstractmethod
    def groups(self) -> tuple[str, ...]: ...

    @abstractmethod
    def regroup(self, known: Groups, group: str) -> Groups:
        """The training images grouped in such a way that `group` is one of the groups."""

    @abstractmethod
    def file(self, known: Groups, group: str) -> str:
        """Where the model without `group` is kept, in the method's folder."""

    @classmethod
    def check(cls, method: Method) -> None:
        """Refuse a method that cannot score such groups."""


class Subset(Grouping):
    """Some of the data's own groups."""

    names: tuple[str, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        return self.names

    def regroup(self, known: Groups, group: str) -> Groups:
        return known

    def file(self, known: Groups, group: str) -> str:
        return file_name(known.index(group), group)


class Placebos(Grouping):
    """Random groups placebo-0, placebo-1, ... of `size` images each; `passes`: those of the groups they stand for."""

    suffix = PLACEBO
    repeated = False
    n: int
    size: int
    seed: int
    passes: float

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(f"placebo-{i}" for i in range(self.n))

    def regroup(self, known: Groups, group: str) -> Groups:
        inside = np.zeros(known.n_images, bool)
        order = generator(self.seed, "placebo", self.groups.index(group)).permutation(known.n_images)
        inside[order[: self.size]] = True
        return Groups((group, "rest"), np.stack([inside, ~inside], axis=1))

    def file(self, known: Groups, group: str) -> str:
        folder = "placebo" if self.size == placebo_size(known) else f"placebo-{self.size}"
        return f"{folder}/{file_name(self.groups.index(group), group)}"

    @classmethod
    def check(cls, method: Method) -> None:
        if method.oracle or not method.counterfactuals:
            raise GudaError(
                "placebo-method-unsupported",
                f"{method.method_id} unlearns nothing, so it has no placebos; give --method and an operator",
            )
        if not method.regroupable:
            raise GudaError(
                "placebo-labels-unsupported",
                f"{method.method_id} unlearns a group by its own label or prompts, which random images do not share; "
                "leave --placebos",
            )


class Pairs(Grouping):
    """Two groups each, called "a + b"."""

    suffix = "-pairs"
    drifts = False  # in a difference of three models
    pairs: tuple[Pair, ...]
    passes: float | None = 1.0

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(pair_name(pair) for pair in self.pairs)

    def regroup(self, known: Groups, group: str) -> Groups:
        return joined(known, self.pairs[self.groups.index(group)])

    def file(self, known: Groups, group: str) -> str:
        a, b = self.pairs[self.groups.index(group)]
        return f"pairs/{file_name(known.index(a), f'{known.index(b):04d}-{a}-{b}')}"

    @classmethod
    def check(cls, method: Method) -> None:
        if not takes_pairs(method):
            why = "by their own labels or prompts" if method.unlearns else "without a model of its own for each"
            raise GudaError(
                "pair-method-unsupported",
                f"{method.method_id} takes groups out {why}, so it has no pairs; give logo or another operator",
            )


class Unions(Grouping):
    """Several groups each that are left out together: an opt-out of all of them, or the complement of a coalition."""

    suffix = "-unions"
    drifts = False
    repeated = False
    unions: tuple[tuple[str, ...], ...]

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(union_name(union) for union in self.unions)

    def regroup(self, known: Groups, group: str) -> Groups:
        inside = known.membership[:, [known.index(g) for g in self._union(group)]].any(axis=1)
        return Groups((group, "rest"), np.stack([inside, ~inside], axis=1))

    def file(self, known: Groups, group: str) -> str:
        names = sorted(self._union(group), key=known.index)
        return f"unions/{digest(names)}.safetensors"

    def _union(self, group: str) -> tuple[str, ...]:
        return self.unions[self.groups.index(group)]

    @classmethod
    def check(cls, method: Method) -> None:
        if not method.regroupable or method.oracle or len(method.parts()) > 1:
            raise GudaError(
                "union-method-unsupported",
                f"{method.method_id} cannot unlearn several groups together here; give --by posterior, or an operator "
                "that works on images alone (retrack, shift)",
            )


def union_name(names: Sequence[str]) -> str:
    """Readable as long as there are few."""
    return " + ".join(names) if len(names) <= 3 else f"{len(names)} groups {digest(list(names), 8)}"


def unions_of(method: Method, which: Sequence[Sequence[str]]) -> ElboMethod:
    """The method with unions of groups for groups."""
    Unions.check(method)
    assert has_counterfactuals(method)
    return method.on(Unions(unions=tuple(tuple(names) for names in which)))


def task_grouping(method: ElboMethod) -> dict[str, Any] | None:
    """What a task needs to know to fit one of the method's groups; None: a group of the data's own."""
    if method.grouping is None or type(method.grouping) is Subset:
        return None
    return method.grouping.model_dump(mode="json")


def regrouped(method: Method, grouping: dict[str, Any] | None) -> ElboMethod:
    """The method for the groups that `task_grouping` recorded."""
    assert has_counterfactuals(method)
    if grouping is None:
        return method
    kind = next((cls for key, cls in (("pairs", Pairs), ("unions", Unions)) if key in grouping), Placebos)
    return method.on(kind.model_validate(grouping))


# ---- placebos


def placebo_size(known: Groups, names: Sequence[str] | None = None) -> int:
    """The median size of the scored groups; default: of all leaves."""
    sizes = dict(zip(known.names, known.sizes, strict=True))
    return int(np.median([sizes[name] for name in names or known.leaf_names]))


def takes_placebos(method: Method) -> bool:
    """Whether random groups can be taken out the way it takes out a group, without training anew."""
    return method.regroupable and not method.oracle


def placebos_of(method: Method, n: int) -> ElboMethod:
    """The method with `n` random groups for groups."""
    Placebos.check(method)
    assert has_counterfactuals(method)
    names = scored_groups(method.run)
    size = placebo_size(load_data(method.run).groups, names)
    passes = float(np.median([method.passes(g) for g in names]))
    return method.on(Placebos(n=n, size=size, seed=method.placebo_seed, passes=passes))


def fitted_placebos(method: Method) -> ElboMethod | None:
    """As many as there are, from number 0 on; None if there are none."""
    if not has_counterfactuals(method) or not takes_placebos(method) or method.grouping is not None:
        return None
    n = 0
    while all(
        map(method.run.has, (str(c[f"placebo-{n}"].counterfactual) for _, c in placebos_of(method, n + 1).sets()))
    ):
        n += 1
    return placebos_of(method, n) if n else None


# ---- pairs


def takes_pairs(method: Method) -> bool:
    """Additivity is a matter of the ELBO difference, of which a rule keeps no terms under other estimands."""
    return method.regroupable and (method.unlearns or method.oracle)


def pairs_of(method: Method, which: Sequence[Pair]) -> ElboMethod:
    """The method with pairs for groups."""
    Pairs.check(method)
    assert has_counterfactuals(method)
    return method.on(Pairs(pairs=tuple(which)))


def pair_name(pair: Pair) -> str:
    return " + ".join(pair)


def joined(known: Groups, pair: Pair) -> Groups:
    return known.joined(*(known.index(g) for g in pair), name=pair_name(pair))


def in_order(groups: Groups, pair: Sequence[str]) -> Pair:
    """The two names in the data's order, so that (a, b) and (b, a) are one pair; anything else is refused."""
    numbers = sorted({groups.index(g) for g in pair})
    if len(groups) < 3:
        raise GudaError("pair-covers-all", "there are only two groups: without both, nothing is left to train on")
    if len(pair) != 2 or len(numbers) != 2:
        raise GudaError("pair-invalid", f"a pair is two different groups, got {' and '.join(map(repr, pair))}")
    return groups.names[numbers[0]], groups.names[numbers[1]]


def pair_files(method: ElboMethod) -> dict[str, str]:
    """Stored pairs of a method's present settings: file -> name of the pair."""
    files = [ref.counterfactual for _, others in method.sets() for ref in others.values()]
    folders = dict.fromkeys(f"{PurePosixPath(file).parent}/pairs" for file in files if file is not None)
    names, found = load_data(method.run).groups.names, {}
    for folder in folders:
        for path in sorted(method.run.path(folder).glob(FILES)):
            if numbers := re.match(r"(\d{4})-(\d{4})-", path.name):
                found[f"{folder}/{path.name}"] = pair_name((names[int(numbers[1])], names[int(numbers[2])]))
    return found
