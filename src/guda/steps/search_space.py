"""The settings a search may try: ranges and choices, from text, from a file, or a method's default.

lr=1e-5..1e-3          a range; on a log scale where it is positive, because rates and weights act by their ratios
k_nearest=1..50        a range of whole numbers, because both ends are
steps=50|100|200       a choice; each value as in a recipe
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guda import parsing
from guda.config import parse_config
from guda.errors import GudaError
from guda.files import canonical
from guda.methods.base import Method

DIGITS = 3  # of a tried value: more would only make recipes hard to read


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    whole: bool = False

    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.low > 0)
        return FloatDistribution(self.low, self.high, log=self.low > 0)

    def setting(self, param: Any) -> Any:
        """What is tried when the sampler suggests `param`."""
        if self.whole:
            return int(param)
        return min(max(float(f"{param:.{DIGITS}g}"), self.low), self.high)

    def ends(self) -> list[Any]:
        return [int(self.low), int(self.high)] if self.whole else [self.low, self.high]

    def to_json(self) -> Any:
        return {"low": self.low, "high": self.high, "whole": self.whole, "log": self.low > 0}


@dataclass(frozen=True)
class Choice:
    values: tuple[Any, ...]

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([canonical(v) for v in self.values])  # texts: a value may be a list

    def setting(self, param: Any) -> Any:
        return json.loads(param)

    def ends(self) -> list[Any]:
        return list(self.values)

    def to_json(self) -> Any:
        return list(self.values)


Space = dict[str, Range | Choice]

STANDARD: dict[str, Range | Choice] = {
    "lr": Range(3e-5, 1e-3),
    "steps": Choice((50, 100, 200)),
    "lambda_forget": Range(0.3, 30.0),
    "window": Choice((0.0, 0.05, 0.1, 0.2)),  # where the window begins; its end stays as it is
}


# methods for which less than the standard makes sense: `shift` has one loss for both sides, with nothing to weigh;
# the `lr` of `synthesized` is of another kind; a continued training forgets nothing by itself
DEFAULTS: dict[str, tuple[str, ...]] = {
    "shift": ("lr", "steps", "window"), "synthesized": (), "continuation": ("lr", "steps"), "short": ("lr", "steps"),
    "tangent": ("lr", "steps"),
}  # fmt: skip


def default_space(cls: type[Method], base: Mapping[str, Any]) -> Space:
    """The standard settings that the method has."""
    fields = cls.Config.model_fields
    space = {k: STANDARD[k] for k in DEFAULTS.get(cls.id, STANDARD) if k in fields}
    if not space:
        settings = f"its settings: {', '.join(fields)}" if fields else "it has no settings"
        raise GudaError(
            "search-default-missing", f"{cls.id} has no default search ({settings}); give --search or --space"
        )
    if "window" in space:
        _, end = parse_config(cls.Config, dict(base), f"methods.{cls.id}").window
        starts = [v for v in space["window"].ends() if v < end]
        space["window"] = Choice(tuple([start, end] for start in starts))
    return space


def parse_space(text: str) -> Space:
    """`--search`; commas separate settings, and may also stand inside a value's brackets."""
    space: Space = {}
    for part in re.split(r",(?=\s*[A-Za-z_]\w*\s*=)", text):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not key or not equals or not value:
            raise GudaError(
                "search-invalid", f"--search {part.strip()!r}: write key=low..high or key=a|b|c, several with commas"
            )
        if key in space:
            raise GudaError("search-key-duplicate", f"--search: {key} occurs twice")
        space[key] = _dimension(value, f"--search {part.strip()!r}")
    return space


def read_space(path: Path) -> Space:
    """`--space`: a YAML mapping of settings to `low..high`, `{low: .., high: ..}` or a list."""
    try:
        value = parsing.read_yaml(path)
    except OSError:
        raise GudaError("space-file-missing", f"--space {path}: no such file") from None
    except parsing.ParseError as e:
        raise GudaError("space-not-yaml", f"--space {path} is not valid YAML: {e}") from None
    if not isinstance(value, dict) or not value:
        raise GudaError("space-layout-invalid", f"--space {path}: write one line per setting, e.g. lr: 1e-5..1e-3")
    return {str(k): _dimension(v, f"--space {path}: {k}") for k, v in value.items()}


def _dimension(value: Any, where: str) -> Range | Choice:
    if isinstance(value, dict) and set(value) == {"low", "high"}:
        return _range(value["low"], value["high"], where)
    if isinstance(value, list):
        return _choice(value, where)
    if isinstance(value, str):
        if "|" not in value and ".." in value:
            low, _, high = value.partition("..")
            return _range(low.strip(), high.strip(), where)
        try:
            return _choice([_number(parsing.parse_yaml(v)) for v in value.split("|")], where)
        except parsing.ParseError:
            raise GudaError("space-not-yaml", f"{where}: the value is not valid YAML") from None
    if value is None or isinstance(value, dict):
        raise GudaError("search-range-invalid", f"{where}: write low..high, or a list of values")
    return _choice([value], where)


def _number(value: Any) -> Any:
    """YAML reads 1e-4 as a text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _range(low: Any, high: Any, where: str) -> Range:
    try:
        ends = float(low), float(high)
    except (TypeError, ValueError):
        raise GudaError(
            "search-range-invalid", f"{where}: the ends of a range are numbers, got {low!r} and {high!r}"
        ) from None
    if not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
        raise GudaError(
            "search-range-reversed", f"{where}: a range goes from a smaller to a larger number, got {low} and {high}"
        )
    return Range(*ends, whole=all(re.fullmatch(r"[+-]?[0-9]+", str(v)) for v in (low, high)))


def _choice(values: list[Any], where: str) -> Choice:
    if not values or len({canonical(v) for v in values}) != len(values):
        raise GudaError("search-choices-duplicate", f"{where}: a choice needs values that differ")
    return Choice(tuple(values))


def check_space(space: Space, cls: type[Method], base: Mapping[str, Any]) -> None:
    """Refuse what the method does not know or take, before anything is fitted."""
    for key, dimension in space.items():
        for end in dimension.ends():
            parse_config(cls.Config, {**base, key: end}, f"search of {cls.id}, {key} = {end}")
