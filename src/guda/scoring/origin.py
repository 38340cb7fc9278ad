"""Where a picture comes from, as far as the model and the training images tell: asked before any group is named.

foreign   the model does not make such pictures, so no training image shaped it through this model: no attribution
copy      one training image explains the picture by itself

Stored in the table of scores, one value per picture, so that every door gives the same verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

FOREIGN = 0.05  # a picture with a smaller p-value is foreign; so many of the model's own pictures have one too


@dataclass(frozen=True)
class Origin:
    typical_p: float | None = None  # conformal p-value of "this model makes such pictures"; None: not asked
    accepted: bool = False  # somebody decided to attribute it although it is foreign
    copy_of: str | None = None  # id of the training image that it nearly repeats
    copy_group: str | None = None  # its group; several: joined by " + "
    copy_distance: float | None = None  # to that image, over the typical distance of a sample to its nearest image

    @property
    def foreign(self) -> bool:
        """Not of a copy: a model that memorised an image predicts it better than its other pictures, which is unusual
        too."""
        unusual = self.typical_p is not None and self.typical_p < FOREIGN
        return unusual and not self.accepted and self.copy_of is None

    @property
    def remark(self) -> str:
        """What stands beside the groups of a foreign picture that was attributed all the same."""
        if not self.accepted:
            return ""
        return f"this model does not make such pictures (p = {self.typical_p:.2g}); attributed on request"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


UNKNOWN = Origin()

Copied = tuple[str, str, float]  # id of the training image, its groups, the distance over the usual one


def make_origins(p: Sequence[float] | None, copied: Sequence[Copied | None], accept: bool) -> tuple[Origin, ...]:
    """`p` None: nobody can tell; `accept`: foreign pictures are attributed all the same."""
    found = []
    for q, image in enumerate(copied):
        origin = Origin(None if p is None else float(p[q]), False, *(image or ()))
        found.append(replace(origin, accepted=accept and origin.foreign))
    return tuple(found)


def summary(queries: Sequence[str], origins: Sequence[Origin] | None) -> dict[str, Any]:
    """For machines: which pictures are foreign, which were accepted although they are, which repeat what image.
    `asked`: whether anybody asked if the model makes such pictures, and could tell."""
    found = dict(zip(queries, origins or (), strict=False))
    return {
        "asked": any(o.typical_p is not None for o in found.values()),
        "foreign": [q for q, o in found.items() if o.foreign],
        "accepted": [q for q, o in found.items() if o.accepted],
        "copies": {q: o.copy_of for q, o in found.items() if o.copy_of is not None},
    }


def sentences(told: Mapping[str, Any], n: int) -> list[str]:
    """The same for people; `n` pictures were asked about."""

    def count(some: Sequence[str] | Mapping[str, Any]) -> str:
        return f"{len(some):,} of {n:,} picture{'' if n == 1 else 's'} {'is' if len(some) == 1 else 'are'}"

    lines = []
    if told["foreign"]:
        lines.append(f"{count(told['foreign'])} foreign to this model, so no group is named: {_few(told['foreign'])}")
    if told["accepted"]:
        lines.append(f"{count(told['accepted'])} foreign to this model and attributed on request (--foreign accept)")
    if told["copies"]:
        some = told["copies"]
        repeat = "repeats" if len(some) == 1 else "repeat"
        lines.append(f"{len(some):,} of {n:,} nearly {repeat} a training image: {_few(list(some))}")
    return lines


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


_NUMBERS, _TEXTS = ("typical_p", "copy_distance"), ("copy_of", "copy_group")


def origin_columns(origins: Sequence[Origin], n_groups: int) -> dict[str, pa.Array]:
    """Columns of a table with a row per (picture, group): the picture's values, repeated for its groups."""
    import pyarrow as pa

    def column(name: str, kind: Any) -> pa.Array:
        return pa.array([getattr(o, name) for o in origins for _ in range(n_groups)], kind)

    return {
        **{name: column(name, pa.float64()) for name in _NUMBERS},
        **{name: column(name, pa.string()) for name in _TEXTS},
        "accepted": column("accepted", pa.bool_()),
    }


def read_origins(columns: Mapping[str, Sequence[Any]], n_groups: int) -> tuple[Origin, ...] | None:
    """From the columns of such a table; None where the pictures were not asked."""
    names = (*_NUMBERS, *_TEXTS, "accepted")
    if any(name not in columns for name in names):
        return None
    rows = zip(*(columns[name][::n_groups] for name in names), strict=True)
    return tuple(Origin(**dict(zip(names, row, strict=True))) for row in rows)
