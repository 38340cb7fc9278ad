"""Where a picture comes from, as far as the model and the training images tell: asked before any group is named.

foreign   the model does not make such pictures, so no training image shaped it through this model: no attribution
copy      one training image explains the picture by itself

Stored in the table of scores, one value per picture, so that every door gives the same verdict.

Would this model make such a picture? A conformal p-value from the full model's own errors, against its own samples.

A picture is described by the logarithms of the full model's KL terms, stratum by stratum of noise, less the smooth
curve that such terms follow along t inside a stratum (a draw's timestep is random and says nothing of the picture),
averaged over rounds; and by how badly the samples span what it looks like at 16x16 cells or less. Its distance from the
samples is Mahalanobis': too large or too small errors count alike, so noise (which the model cannot predict) and flat
or blurred pictures (which it predicts too well) are both far out. How badly x is spanned is its ridge leverage h among
all pictures, as the logarithm of h / (1 - h):

    h = diag( K (K + lambda)^-1 ),   K = X X^T of the centred pictures,   lambda = the mean of K's diagonal

A picture of other content than the samples has a large one even where the model predicts its noise well.

Where the training images are known, how far the nearest of them is counts as much: u is the share of pictures whose
distance from the mean is at least as large, v the share of those that are at least as far from their nearest image, and
the picture is as far out as u v is small. Near ones are not unusual, so that real pictures of the images' kind, which
the model never made, are seldom refused for being real.

    p = (1 + how many samples are at least as far out) / (1 + how many samples)

Curve, leverage, mean, covariance, u and v are computed from the samples and the picture together, so that the picture
and a sample are treated alike. A fresh sample then has p <= alpha with a probability of at most alpha, exactly,
whatever the distribution is (full conformal prediction). A picture that is one of the samples is compared with the
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from guda.scoring.terms import Terms


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
    made = []
    for q, image in enumerate(copied):
        origin = Origin(None if p is None else float(p[q]), False, *(image or ()))
        made.append(replace(origin, accepted=accept and origin.foreign))
    return tuple(made)


def summary(queries: Sequence[str], origins: Sequence[Origin] | None) -> dict[str, Any]:
    """For machines: which pictures are foreign, which were accepted although they are, which repeat what image.
    `asked`: whether anybody asked if the model makes such pictures, and could tell."""
    by_query = dict(zip(queries, origins or (), strict=False))
    return {
        "asked": any(o.typical_p is not None for o in by_query.values()),
        "foreign": [q for q, o in by_query.items() if o.foreign],
        "accepted": [q for q, o in by_query.items() if o.accepted],
        "copies": {q: o.copy_of for q, o in by_query.items() if o.copy_of is not None},
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


LEAST = 39  # samples; with fewer even the farthest picture has p > 1 / 40, and the covariance is not worth much

ROUNDS = 6  # of the draws that describe a picture (scoring/plan.py, `typical_plan`)

DEGREE = 3  # of the curve along t inside a stratum

SHRINK = 0.1  # towards independent strata

CELLS = 16  # along each side of a picture


@dataclass(frozen=True, eq=False)
class Described:
    """Full-model KL terms (positive) and their timesteps, both [pictures, R, S]; what the pictures look like [pictures,
    cells], and how far the nearest training image is [pictures], or None: they are compared by the others alone."""

    kl: np.ndarray
    t: np.ndarray
    cells: np.ndarray | None = None
    nearest: np.ndarray | None = None

    @classmethod
    def of_terms(cls, terms: Terms, images: np.ndarray, nearest: np.ndarray | None = None) -> Described:
        """`images`: the pictures, uint8 [n, C, H, W]."""
        return cls(terms.kl.transpose(1, 0, 2), terms.t.transpose(1, 0, 2), coarse(images), nearest)

    def __len__(self) -> int:
        return len(self.kl)

    def of(self, chosen: np.ndarray) -> Described:
        rest = (None if values is None else values[chosen] for values in (self.cells, self.nearest))
        return Described(self.kl[chosen], self.t[chosen], *rest)


def coarse(images: np.ndarray) -> np.ndarray:
    """Means over CELLS x CELLS cells (or pixels, where there are fewer), flattened: float64 [n, C cells cells]."""
    means = images.astype(np.float64)
    for axis in (2, 3):
        edges = np.linspace(0, images.shape[axis], min(CELLS, images.shape[axis]) + 1).astype(int)
        shape = [-1 if a == axis else 1 for a in range(4)]
        means = np.add.reduceat(means, edges[:-1], axis=axis) / np.diff(edges).reshape(shape)
    return np.asarray(means.reshape(len(means), -1))


def typical_p(samples: Described, pictures: Described, place: np.ndarray) -> np.ndarray | None:
    """float64 [Q]; `place` [Q]: which of the samples a picture is, or -1. None: too few samples to tell."""
    if len(samples) < LEAST:
        return None
    own, others = _columns(samples, samples), _columns(pictures, samples)
    p = np.empty(len(pictures))
    inside: np.ndarray | None = None  # all samples against each other: what every picture that is a sample needs
    for q, at in enumerate(place):
        if at >= 0:
            inside = _far_out(*own) if inside is None else inside
            p[q] = _share(inside, int(at))
        else:
            both = [np.concatenate([a, b[q : q + 1]]) for a, b in zip(own, others, strict=True)]
            p[q] = _share(_far_out(*both), len(samples))
    return p


def _columns(some: Described, of: Described) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logarithms of the terms, the curves along t that are taken off them, cells and distances; [n, 0]: unknown."""
    none = np.empty((len(some), 0))
    cells, near = none if some.cells is None else some.cells, none if some.nearest is None else some.nearest[:, None]
    return _logs(some.kl), _curves(some.t, of.t), cells, near


def _logs(kl: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(kl, 1e-300)))


def _curves(t: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Powers of t, centred and scaled by stratum as `of` is: [n, R, S, DEGREE + 1]."""
    lo, hi = of.min(axis=(0, 1)), of.max(axis=(0, 1))
    u = (2 * t - lo - hi) / np.maximum(hi - lo, 1)
    return np.stack([u**k for k in range(DEGREE + 1)], axis=-1)


def _far_out(values: np.ndarray, curves: np.ndarray, cells: np.ndarray, near: np.ndarray) -> np.ndarray:
    """[n], larger for more unusual pictures."""
    distances = _distances(values, curves, cells)
    return -np.log(_shares(distances) * _shares(near[:, 0])) if near.shape[1] else distances


def _shares(values: np.ndarray) -> np.ndarray:
    """Of all values that are at least as large as each, equal but for rounding; positive values."""
    return np.asarray(1 - np.searchsorted(np.sort(values), values * (1 - 1e-9), side="left") / len(values))


def _distances(values: np.ndarray, curves: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Squared, [n], of each picture from the mean of all."""
    left = np.concatenate([_levels(values, curves), _spanned(cells)], axis=1)
    left = left - left.mean(axis=0)
    left = left / np.maximum(left.std(axis=0), 1e-12)
    shape = (1 - SHRINK) * left.T @ left / len(left) + SHRINK * np.eye(left.shape[1])
    return np.asarray(np.einsum("ni,ni->n", left @ np.linalg.inv(shape), left))


def _levels(values: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """The terms without their curve, averaged over rounds: [n, S]."""
    x, y = curves.transpose(2, 0, 1, 3), values.transpose(2, 0, 1)  # stratum first
    s, n, r = y.shape
    rows, flat = x.reshape(s, n * r, -1), y.reshape(s, n * r)
    products = rows.transpose(0, 2, 1) @ rows
    fit = np.linalg.pinv(products, rcond=1e-10, hermitian=True) @ (rows.transpose(0, 2, 1) @ flat[..., None])
    return np.asarray((flat - (rows @ fit)[..., 0]).reshape(s, n, r).mean(axis=2).T)


def _spanned(cells: np.ndarray) -> np.ndarray:
    """Logarithm of leverage / (1 - leverage), [n, 1]; of no cells [n, 0]."""
    if not cells.shape[1]:
        return np.empty((len(cells), 0))
    centred = cells - cells.mean(axis=0)
    products = centred @ centred.T
    ridge = max(float(np.trace(products)) / len(cells), 1e-9)
    free = ridge * np.diagonal(np.linalg.inv(products + ridge * np.eye(len(cells))))  # 1 - leverage
    return np.asarray(np.log(np.maximum(1 / free - 1, 1e-12))[:, None])


def _share(distances: np.ndarray, at: int) -> float:
    """Of pictures as far out as this one, itself included; equal but for rounding counts."""
    return float((distances >= distances[at] * (1 - 1e-9)).mean())
