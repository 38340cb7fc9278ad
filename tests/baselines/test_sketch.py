"""Sketches: unbiased, with the variance their docstring states, and a function of (seed, name) alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from guda.baselines.features import COLUMNS, Sketch, make_sketch
from refusals import refused

SIZES = {"a.weight": 9, "a.bias": 3, "b.weight": 18}
P, DIM, SEEDS = 30, 8, 1500
KINDS = ("countsketch", "sjlt:4", "gaussian")


def pair() -> torch.Tensor:
    """Two correlated gradients [2, P], with unequal coordinates."""
    rng = np.random.default_rng(0)
    u = rng.standard_normal(P) * np.linspace(0.2, 2, P)
    return torch.tensor(np.stack([u, 0.3 * u + rng.standard_normal(P)]), dtype=torch.float32)


def cut(values: torch.Tensor, sizes: dict[str, int] = SIZES) -> dict[str, torch.Tensor]:
    return dict(zip(sizes, values.split(list(sizes.values()), dim=1), strict=True))


def apply(sketch: Sketch, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    out = sketch.zeros(len(next(iter(parts.values()))))
    for name, values in parts.items():
        sketch.add(out, name, values)
    return out


def matrix(sketch: Sketch) -> torch.Tensor:
    """[P, dim]: what every coordinate becomes."""
    return apply(sketch, cut(torch.eye(P)))


def inner_products(kind: str) -> np.ndarray:
    parts = cut(pair())
    found = (apply(make_sketch(kind, SIZES, DIM, seed), parts) for seed in range(SEEDS))
    return np.array([float(u.double() @ v.double()) for u, v in found])


@pytest.mark.parametrize("kind", KINDS)
def test_inner_products_are_unbiased_with_the_stated_variance(kind: str) -> None:
    u, v = pair().double().numpy()
    found = inner_products(kind)
    assert abs(found.mean() - u @ v) < 4 * found.std() / SEEDS**0.5
    diagonal = 0 if kind == "gaussian" else 2 * (u**2 * v**2).sum()
    variance = ((u @ u) * (v @ v) + (u @ v) ** 2 - diagonal) / DIM
    squares = (found - u @ v) ** 2
    assert abs(squares.mean() - variance) < 4 * squares.std() / SEEDS**0.5
    assert squares.std() / SEEDS**0.5 < 0.12 * variance  # sharp enough to tell a wrong formula


@pytest.mark.parametrize(("kind", "places"), [("countsketch", 1), ("sjlt:2", 2), ("sjlt:4", 4)])
def test_a_coordinate_goes_to_one_place_in_every_part(kind: str, places: int) -> None:
    drawn = matrix(make_sketch(kind, SIZES, DIM, 5))
    parts = drawn.reshape(P, places, DIM // places)
    assert torch.equal((parts != 0).sum(dim=2), torch.ones(P, places, dtype=torch.int64))
    assert torch.equal(drawn[drawn != 0].abs(), torch.full((P * places,), places**-0.5))
    assert (drawn > 0).any()
    assert (drawn < 0).any()


def test_a_sketch_has_unit_columns_on_average() -> None:
    for kind in KINDS:
        squares = np.array([float(matrix(make_sketch(kind, SIZES, 64, s)).square().sum()) / P for s in range(20)])
        assert abs(squares.mean() - 1) < 0.05, kind


@pytest.mark.parametrize("kind", [*KINDS, "identity"])
def test_adding_weight_by_weight_is_one_matrix(kind: str) -> None:
    sketch = make_sketch(kind, SIZES, DIM, 1)
    values = torch.randn(4, P, generator=torch.Generator().manual_seed(0))
    whole = apply(sketch, cut(values))
    torch.testing.assert_close(whole, values @ matrix(sketch), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(apply(sketch, cut(3 * values)), 3 * whole, rtol=1e-6, atol=1e-6)  # linear: scaling
    torch.testing.assert_close(apply(sketch, cut(values[:1] + values[1:2])), whole[:1] + whole[1:2])  # and sums


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_weight_becomes_depends_on_seed_and_name_alone(kind: str) -> None:
    values = cut(torch.randn(4, P, generator=torch.Generator().manual_seed(0)))
    backwards = dict(reversed(SIZES.items()))
    there = apply(make_sketch(kind, SIZES, DIM, 1), values)
    back = apply(make_sketch(kind, backwards, DIM, 1), {name: values[name] for name in backwards})
    torch.testing.assert_close(there, back, rtol=1e-5, atol=1e-5)
    part = values["b.weight"]
    alone = apply(make_sketch(kind, {"b.weight": 18}, DIM, 1), {"b.weight": part})
    assert torch.equal(alone, apply(make_sketch(kind, SIZES, DIM, 1), {"b.weight": part}))
    assert not torch.allclose(alone, apply(make_sketch(kind, {"c.weight": 18}, DIM, 1), {"c.weight": part}))
    assert torch.equal(there, apply(make_sketch(kind, SIZES, DIM, 1), values))
    assert not torch.allclose(there, apply(make_sketch(kind, SIZES, DIM, 2), values))


def test_identity_is_the_concatenation() -> None:
    values = torch.randn(4, P, generator=torch.Generator().manual_seed(0))
    sketch = make_sketch("identity", SIZES, 7, 3)
    assert sketch.dim == P
    parts = cut(values)
    assert torch.equal(apply(sketch, parts), values)
    assert torch.equal(apply(sketch, dict(reversed(parts.items()))), values)


@pytest.mark.parametrize("kind", ["countsketch", "sjlt:4"])
def test_a_row_does_not_depend_on_the_rows_beside_it(kind: str) -> None:
    """Bitwise, and across the columns taken at once."""
    sizes = {"w": COLUMNS + 777, "b": 100}
    sketch = make_sketch(kind, sizes, 512, 0)
    values = torch.randn(6, sum(sizes.values()), generator=torch.Generator().manual_seed(0))
    whole = apply(sketch, cut(values, sizes))
    for rows in ([0], [5], [2, 3], [3, 2, 0, 0, 1]):
        assert torch.equal(apply(sketch, cut(values[rows], sizes)), whole[rows])
    assert torch.equal(apply(sketch, cut(values.t().contiguous().t(), sizes)), whole)  # nor on how they are laid out
    slow = torch.zeros(6, 512, dtype=torch.float64)
    for name, part in cut(values.double(), sizes).items():
        drawn = np.stack([sketch._slots(name, i, part.device).numpy() for i in range(sketch.places)])  # type: ignore[attr-defined]
        for slots in torch.from_numpy(drawn).long():
            sign = torch.where(slots < 512, 1.0, -1.0).double()
            slow.index_add_(1, slots % 512, part * sign / len(drawn) ** 0.5)
    torch.testing.assert_close(whole.double(), slow, rtol=1e-4, atol=1e-4)


def test_unknown_sketches_are_refused() -> None:
    with refused("sketch-size-indivisible", match="3 equal parts"):
        make_sketch("sjlt:3", SIZES, DIM, 0)
    with pytest.raises(ValueError, match="no sketch"):
        make_sketch("hadamard", SIZES, DIM, 0)
