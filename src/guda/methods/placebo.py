"""Placebo groups: random images of all groups, unlearned like a group, to see what a score is when there is no group.

A placebo is as large as the median group and drawn by the key (seed, "placebo", number) from the whole training set.
The data are regrouped into {placebo, rest} and the same operator with the same settings unlearns it. Scores of the
pictures by such counterfactuals are the null: what taking out so many images does that have nothing in common. A group
whose score is not above most of them has not been told from chance.

Beside the method's own files: artifacts/<method>-<digest>/placebo/. Scores: scores/<set>/<method>-placebo.parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guda.config import parse_config
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.methods.base import METHODS, Method
from guda.methods.unlearned import Unlearned, fit_without
from guda.run.models import architecture, asked_groups, load_data, model_files
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.scores import Scores
from guda.unlearning.bank import file_name
from guda.unlearning.unlearn import OPERATORS

SUFFIX = "-placebo"

QUANTILE = 0.95

REST = "rest"


def placebo_name(number: int) -> str:
    return f"placebo-{number}"


def placebo_size(data: ImageData, groups: Sequence[str] | None = None) -> int:
    """The median of the groups that are asked about."""
    sizes = dict(zip(data.groups.names, data.groups.sizes, strict=True))
    return int(np.median([sizes[name] for name in groups or data.groups.leaf_names]))


def regroup(data: ImageData, number: int, seed: int, size: int) -> ImageData:
    """The same images in two groups: a placebo of `size` images, and the rest."""
    inside = np.zeros(data.n, bool)
    inside[generator(seed, "placebo", number).permutation(data.n)[:size]] = True
    return replace(data, groups=Groups((placebo_name(number), REST), np.stack([inside, ~inside], axis=1)))


class Placebos(Unlearned):
    """The placebos of one unlearned method as a method of their own, which no recipe and no registry names."""

    def __init__(self, of: Unlearned, n: int) -> None:
        super().__init__(of.run, of.method_id + SUFFIX, of.config)
        self.of, self.n = of, n
        asked = asked_groups(of.run)
        self.size = placebo_size(load_data(of.run), asked)
        self.more = float(np.median([of.passes(g) for g in asked]))  # unlearned no less than the groups they stand for

    @property
    def folder(self) -> str:
        usual = self.size == placebo_size(load_data(self.run))
        return f"{self.of.folder}/placebo" + ("" if usual else f"-{self.size}")

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(placebo_name(i) for i in range(self.n))

    def number(self, group: str) -> int:
        return self.groups.index(group)

    def outside(self, index: np.ndarray) -> np.ndarray:
        data = load_data(self.run)
        members = [regroup(data, i, self.config.seed, self.size).groups.members(0) for i in range(self.n)]
        return np.stack([~np.isin(index, m) for m in members], axis=1)

    def fit(self) -> list[Task]:
        return [
            Task(
                name=f"fit {self.of.method_id} without {group}", stage=f"fit/{self.method_id}",
                fn="guda.methods.placebo:fit_placebo",
                args={"method": self.of.method_id, "config": self.config.model_dump(mode="json"), "number": number,
                      "size": self.size, "passes": self.more},
                makes=(self.file(group),), needs=model_files(self.run, "base"),
                cost=float(self.fit_evals() * self.more), store=self.config.store,
            )
            for number, group in enumerate(self.groups)
        ]  # fmt: skip

    def fit_evals(self) -> float:
        return self.of.fit_evals()


def fit_placebo(run: Run, method: str, config: dict[str, Any], number: int, size: int, passes: float) -> None:
    of = METHODS[method](run, method, parse_config(OPERATORS[method].Config, config, method))
    assert isinstance(of, Unlearned)
    data = regroup(load_data(run), number, of.config.seed, size)
    group = placebo_name(number)
    fit_without(of, data, group, Placebos(of, number + 1).file(group), passes)


def takes_placebos(method: Method) -> bool:
    """Whether random groups can be unlearned the way it unlearns a group."""
    return isinstance(method, Unlearned) and method.operator.regroupable


def placebo_tasks(method: Method, n: int) -> list[Task]:
    """Tasks of the first `n` placebos, refused where random groups make no sense."""
    if not isinstance(method, Unlearned):
        raise GudaError(
            "placebo-method-unsupported",
            f"{method.method_id} unlearns nothing, so it has no placebos; give --method and an operator",
        )
    cls = OPERATORS[method.method_id]
    if not cls.regroupable or architecture(method.run).conditional:
        raise GudaError(
            "placebo-labels-unsupported",
            f"{method.method_id} unlearns a group by its own label or prompts, which random images do not share; "
            "leave --placebos",
        )
    return Placebos(method, n).fit()


def fitted_placebos(method: Method) -> Placebos | None:
    """As many as there are, from number 0 on; None if there are none, or the method unlearns nothing."""
    if not isinstance(method, Unlearned) or isinstance(method, Placebos):
        return None
    folder, n = Placebos(method, 0).folder, 0
    while method.run.has(f"{folder}/{file_name(n, placebo_name(n))}"):
        n += 1
    return Placebos(method, n) if n else None


@dataclass(frozen=True, eq=False)
class Null:
    """What placebos score on a set of pictures, all of them together."""

    scores: Scores
    size: int  # images of a placebo

    @property
    def n(self) -> int:
        return len(self.scores.groups)

    def quantile(self, q: float = QUANTILE) -> float:
        """The score that a share `q` of all (picture, placebo) scores is not above."""
        return float(np.quantile(self.scores.score, q))

    def clears(self, scores: Scores) -> np.ndarray:
        """bool [Q]: whether the first group's score is above 95 % of the placebo scores of the set.

        One line for all pictures. It is a line for one group: the first of G placebos would pass it for up to
        1 - 0.95^G of the pictures."""
        return np.asarray(scores.first > self.quantile())

    def to_json(self, scores: Scores) -> dict[str, Any]:
        return {
            "placebos": self.n, "images": self.size, "median": self.quantile(0.5), "q95": self.quantile(),
            "first_above": int(self.clears(scores).sum()), "of": len(scores.queries),
        }  # fmt: skip

    def sentence(self, unit: str) -> str:
        return (
            f"{self.n} placebo groups of {self.size:,} random images: half of their scores are below "
            f"{self.quantile(0.5):.3g} {unit}, 95 % below {self.quantile():.3g}"
        )
