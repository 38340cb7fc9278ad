"""Two groups left out together: LOGO and unlearned counterfactuals of pairs, to see whether scores add up.

The data are regrouped: a and b become one group, "a + b", and everything that leaves out or unlearns a group does the
same with it. A retraining deletes the places of both groups from the same stream (coupled with its singles: same start,
same order, same noise); an operator's forget set is the union. Files lie beside those of the singles, in `pairs/`:
a single's file keeps its name and its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from guda.config import parse_config
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.base import METHODS, Method, get_method
from guda.methods.elbo import ElboMethod
from guda.methods.logo import Logo, train_without
from guda.methods.unlearned import Unlearned, fit_without
from guda.run.models import load_data, model_files, need_training, prompt_files, train_evals
from guda.run.run import Run
from guda.run.task import Task
from guda.unlearning.bank import FILES, file_name
from guda.unlearning.unlearn import OPERATORS, Operator

SUFFIX = "-pairs"

FOLDER = "pairs"

Pair = tuple[str, str]


def pair_name(pair: Pair) -> str:
    return " + ".join(pair)


def joined_groups(groups: Groups, pair: Pair) -> Groups:
    return groups.joined(*(groups.index(g) for g in pair), name=pair_name(pair))


def joined(data: ImageData, pair: Pair) -> ImageData:
    return replace(data, groups=joined_groups(data.groups, pair))


def in_order(groups: Groups, pair: Sequence[str]) -> Pair:
    """The two names in the data's order, so that (a, b) and (b, a) are one pair; anything else is refused."""
    numbers = sorted({groups.index(g) for g in pair})
    if len(groups) < 3:
        raise GudaError("pair-covers-all", "there are only two groups: without both, nothing is left to train on")
    if len(pair) != 2 or len(numbers) != 2:
        raise GudaError("pair-invalid", f"a pair is two different groups, got {' and '.join(map(repr, pair))}")
    return groups.names[numbers[0]], groups.names[numbers[1]]


def _file(groups: Groups, pair: Pair) -> str:
    one, two = (groups.index(g) for g in pair)
    return f"{FOLDER}/{file_name(one, f'{two:04d}-{pair[0]}-{pair[1]}')}"


class PairLogo(Logo):
    """Retrainings without both groups of each pair; no recipe and no registry names it."""

    def __init__(self, of: Logo, pairs: Sequence[Pair]) -> None:
        super().__init__(of.run, of.method_id + SUFFIX, of.config)
        self.of, self.pairs = of, {pair_name(p): p for p in pairs}

    @property
    def folder(self) -> str:
        return self.of.folder

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.pairs)

    def file(self, seed: int, group: str) -> str:
        return f"{self.folder}/s{seed}/{_file(load_data(self.run).groups, self.pairs[group])}"

    def fit(self) -> list[Task]:
        need_training(self.run)
        return [
            Task(
                name=f"train logo-s{seed} without {group}", stage=f"fit/{self.method_id}",
                fn="guda.methods.pairs:train_pair", args={"seed": seed, "pair": list(pair)},
                makes=(self.file(seed, group),), needs=prompt_files(self.run), cost=float(train_evals(self.run)),
                trains=True, store="fp32",
            )
            for seed in self.config.seeds
            for group, pair in self.pairs.items()
        ]  # fmt: skip


class PairUnlearned(Unlearned):
    """The run's model with both groups of each pair unlearned together."""

    def __init__(self, of: Unlearned, pairs: Sequence[Pair]) -> None:
        super().__init__(of.run, of.method_id + SUFFIX, of.config)
        self.of, self.pairs = of, {pair_name(p): p for p in pairs}

    @property
    def operator(self) -> type[Operator]:
        return self.of.operator

    @property
    def folder(self) -> str:
        return self.of.folder

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.pairs)

    def file(self, group: str) -> str:
        return f"{self.folder}/{_file(load_data(self.run).groups, self.pairs[group])}"

    def fit(self) -> list[Task]:
        return [
            Task(
                name=f"fit {self.of.method_id} without {group}", stage=f"fit/{self.method_id}",
                fn="guda.methods.pairs:fit_pair",
                args={
                    "method": self.of.method_id, "config": self.config.model_dump(mode="json"), "pair": list(pair),
                },
                makes=(self.file(group),), needs=model_files(self.run, "base") + prompt_files(self.run),
                cost=float(self.fit_evals()), store=self.config.store,
            )
            for group, pair in self.pairs.items()
        ]  # fmt: skip

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        return ElboMethod.score(self, queries, planned)  # drift has no part in a difference of three models


def train_pair(run: Run, seed: int, pair: list[str]) -> float:
    logo, groups = get_method(run, "logo"), load_data(run).groups
    assert isinstance(logo, Logo)
    both = in_order(groups, pair)
    name = pair_name(both)
    return train_without(logo, seed, name, PairLogo(logo, [both]).file(seed, name), joined_groups(groups, both))


def fit_pair(run: Run, method: str, config: dict[str, Any], pair: list[str]) -> None:
    of = METHODS[method](run, method, parse_config(OPERATORS[method].Config, config, method))
    assert isinstance(of, Unlearned)
    data = load_data(run)
    both = in_order(data.groups, pair)
    fit_without(of, joined(data, both), pair_name(both), PairUnlearned(of, [both]).file(pair_name(both)))


def takes_pairs(method: Method) -> bool:
    return isinstance(method, Logo) or (isinstance(method, Unlearned) and method.operator.regroupable)


def pairs_of(method: Method, pairs: Sequence[Pair]) -> PairLogo | PairUnlearned:
    """The method with pairs for groups, refused where two groups cannot be taken out as one."""
    if isinstance(method, Logo):
        return PairLogo(method, pairs)
    if isinstance(method, Unlearned) and method.operator.regroupable:
        return PairUnlearned(method, pairs)
    why = "by their own labels or prompts" if isinstance(method, Unlearned) else "without a model of its own for each"
    raise GudaError(
        "pair-method-unsupported",
        f"{method.method_id} takes groups out {why}, so it has no pairs; give logo or another operator",
    )


def pair_files(method: ElboMethod) -> dict[str, str]:
    """Stored pairs of a method's present settings: file -> name of the pair."""
    if isinstance(method, Logo):
        folders = [f"{method.folder}/s{seed}/{FOLDER}" for seed in method.config.seeds]
    elif isinstance(method, Unlearned):
        folders = [f"{method.folder}/{FOLDER}"]
    else:
        return {}
    names, found = load_data(method.run).groups.names, {}
    for folder in folders:
        for path in sorted(method.run.path(folder).glob(FILES)):
            if numbers := re.match(r"(\d{4})-(\d{4})-", path.name):
                found[f"{folder}/{path.name}"] = pair_name((names[int(numbers[1])], names[int(numbers[2])]))
    return found
