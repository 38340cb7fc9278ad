"""The ridge kernel against retraining a ridge regression, brute-force inverses and its own identities."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guda.baselines.ridge import Cholesky, Eigen, Factor, Ridge, Rows, Spectrum, checked_leverage, effective, gram
from refusals import refused

LAM = 0.7
SHAPES = [(40, 7), (12, 30)]  # primal, dual


def features(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cholesky(found: torch.Tensor, lam: float) -> Factor:
    return Cholesky(found, lam)


def eigen(found: torch.Tensor, lam: float) -> Factor:
    return Eigen(Spectrum.of(found), lam)


def ridge(phi: torch.Tensor, lam: float = LAM, factor: Callable[..., Factor] = cholesky, block: int = 5) -> Ridge:
    rows = Rows.of(phi, block)
    return Ridge(rows, factor(gram(rows), lam))


def influences(found: Ridge, phi_q: torch.Tensor) -> torch.Tensor:
    return torch.cat([phi_q @ z.T for _, _, z in found.vectors()], dim=1)


def fitted(x: torch.Tensor, y: torch.Tensor, lam: float = LAM) -> torch.Tensor:
    return torch.linalg.solve(x.T @ x + lam * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [cholesky, eigen])
def test_influences_are_those_of_the_explicit_inverse(shape: tuple[int, int], factor: Callable[..., Factor]) -> None:
    phi, phi_q = features(*shape), features(3, shape[1], 1)
    inverse = torch.linalg.inv(phi.T @ phi + LAM * torch.eye(shape[1], dtype=phi.dtype))
    found = ridge(phi, factor=factor)
    torch.testing.assert_close(influences(found, phi_q), phi_q @ inverse @ phi.T, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.leverage(), (phi @ inverse @ phi.T).diagonal(), rtol=1e-10, atol=1e-12)
    weights = features(shape[0], 2, 2)
    torch.testing.assert_close(found.combine(weights), (inverse @ phi.T @ weights).T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_residual_over_one_minus_leverage_is_exact_leave_one_out(shape: tuple[int, int]) -> None:
    x, x_q = features(*shape), features(3, shape[1], 1)
    y = features(shape[0], 1, 2)[:, 0]
    found, full = ridge(x), fitted(x, y)
    predicted = influences(found, x_q) * ((y - x @ full) / (1 - found.leverage()))
    for i in range(shape[0]):
        rest = torch.arange(shape[0]) != i
        change = x_q @ full - x_q @ fitted(x[rest], y[rest])
        torch.testing.assert_close(predicted[:, i], change, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_removal_is_exactly_the_regression_without_the_group(shape: tuple[int, int]) -> None:
    x, x_q = features(*shape), features(3, shape[1], 1)
    y = features(shape[0], 1, 2)[:, 0]
    found, full = ridge(x), fitted(x, y)
    members = torch.tensor([7, 1, 4, 9])
    rest = torch.tensor([i not in members for i in range(shape[0])])
    change = x_q @ full - x_q @ fitted(x[rest], y[rest])
    vector = found.removal(members, (y - x @ full)[members])
    torch.testing.assert_close(x_q @ vector, change, rtol=1e-9, atol=1e-11)
    first_order = influences(found, x_q)[:, members] @ (y - x @ full)[members]
    assert (first_order - change).abs().max() > 1e-3  # the sum is another thing


def test_primal_and_dual_agree() -> None:
    phi, phi_q = features(20, 20), features(3, 20, 1)
    rows = Rows.of(phi, 6)
    assert not rows.dual
    primal = influences(Ridge(rows, cholesky(gram(rows), LAM)), phi_q)
    one_less = Rows.of(torch.cat([phi, torch.zeros(20, 1, dtype=phi.dtype)], dim=1), 6)  # a number that is always zero
    assert one_less.dual
    dual = Ridge(one_less, cholesky(gram(one_less), LAM))
    queries = torch.cat([phi_q, torch.zeros(3, 1, dtype=phi.dtype)], dim=1)
    torch.testing.assert_close(influences(dual, queries), primal, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_leverages_sum_to_the_effective_dimension_and_lie_below_one(shape: tuple[int, int]) -> None:
    phi = features(*shape)
    w = torch.linalg.eigvalsh(phi.T @ phi).clamp(min=0)
    h = ridge(phi).leverage()
    assert h.sum().item() == pytest.approx((w / (w + LAM)).sum().item(), rel=1e-10)
    assert (h >= 0).all()
    assert (h < 1).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_ridge_leaves_plain_products(shape: tuple[int, int]) -> None:
    phi, phi_q = features(*shape), features(3, shape[1], 1)
    found = ridge(phi, lam=1e9)
    torch.testing.assert_close(1e9 * influences(found, phi_q), phi_q @ phi.T, rtol=1e-6, atol=1e-6)
    assert found.leverage().max() < 1e-6


@settings(max_examples=20, deadline=None)
@given(c=st.floats(0.01, 100), lam=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_scaling_features_is_scaling_the_ridge_by_its_square(c: float, lam: float, seed: int) -> None:
    phi, phi_q = features(15, 6, seed), features(2, 6, seed + 1)
    plain, scaled = ridge(phi, lam), ridge(c * phi, c**2 * lam)
    torch.testing.assert_close(influences(scaled, c * phi_q), influences(plain, phi_q), rtol=1e-6, atol=1e-9)


def test_a_rotation_of_all_features_changes_nothing() -> None:
    phi, phi_q = features(15, 6), features(2, 6, 1)
    turned = torch.linalg.qr(features(6, 6, 5)).Q
    torch.testing.assert_close(
        influences(ridge(phi @ turned), phi_q @ turned), influences(ridge(phi), phi_q), rtol=1e-10, atol=1e-12
    )


def test_a_duplicate_has_its_twins_influence_and_order_only_permutes() -> None:
    phi, phi_q = features(15, 6), features(2, 6, 1)
    phi[9] = phi[3]
    found = influences(ridge(phi), phi_q)
    torch.testing.assert_close(found[:, 9], found[:, 3])
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(influences(ridge(phi[order]), phi_q), found[:, order], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_do_not_matter(shape: tuple[int, int]) -> None:
    phi, phi_q = features(*shape), features(3, shape[1], 1)
    one, many = ridge(phi, block=1000), ridge(phi, block=3)
    torch.testing.assert_close(influences(one, phi_q), influences(many, phi_q), rtol=1e-11, atol=1e-13)
    members = torch.tensor([8, 2, 3])
    torch.testing.assert_close(many.rows.take(members), phi[members])


def test_what_the_ridge_is_in_each_convention() -> None:
    phi = features(40, 8)
    rows = Rows.of(phi)
    found = gram(rows)
    assert effective(3.0, "jl", rows, found) == 3.0
    assert effective(3.0, "raw_gaussian", rows, found) == 3.0 / 8
    assert effective(3.0, "per_n", rows, found) == 120.0
    assert effective(3.0, "trace", rows, found) == pytest.approx(3.0 * phi.square().sum().item() / 8)
    assert effective(3.0, "norm", rows, found) == pytest.approx(3.0 * phi.square().sum(dim=1).mean().item())
    dual = Rows.of(phi[:5])
    assert effective(3.0, "norm", dual, gram(dual)) == pytest.approx(3.0 * phi[:5].square().sum(dim=1).mean().item())
    assert effective(1.0, "trace", dual, gram(dual)) == pytest.approx(phi[:5].square().sum().item() / 8)


def test_raw_gaussian_is_the_ridge_of_unscaled_projections() -> None:
    """Features of a projection with entries N(0, 1) are sqrt(k) times ours."""
    phi, phi_q, k = features(40, 8), features(3, 8, 1), 8
    rows = Rows.of(phi)
    ours = influences(ridge(phi, effective(100.0, "raw_gaussian", rows, gram(rows))), phi_q)
    theirs = influences(ridge(k**0.5 * phi, 100.0), k**0.5 * phi_q)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_nothing_is_jittered() -> None:
    singular = torch.ones(4, 4, dtype=torch.float64)
    for factor in (cholesky, eigen):
        with refused("kernel-singular"):
            factor(singular, 0.0)
    with refused("kernel-singular"):
        Cholesky(-torch.eye(3), 0.5)
    with refused("leverage-too-high", match=r"leverage is 0\.99999999.*raise lam"):
        checked_leverage(torch.tensor([0.2, 0.99999999], dtype=torch.float64))
