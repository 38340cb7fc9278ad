"""Unlearning one query: closed forms on paper networks, the limit of small steps, and what must not change."""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pytest
import torch
from constantnet import constant

from guda.baselines.features import grid
from guda.baselines.gradients import Gradients, fisher_pass, inverse, mean_of
from guda.baselines.synthesized import Ascent, Query, Samples, first_order, losses, unlearn_query
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator


def timesteps(T: int, n: int) -> torch.Tensor:
    return torch.from_numpy(grid(T, n))


X0 = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (6, 1, 4, 4)).astype(np.float32))
IDS = [f"image-{i}" for i in range(6)]
T = timesteps(100, 10)


def precondition(denoiser: Denoiser, weights: str = "all") -> dict[str, torch.Tensor]:
    return inverse(fisher_pass(Gradients(denoiser, weights=weights), X0.to(_dtype(denoiser)), IDS), 1e-3)


def _dtype(denoiser: Denoiser) -> torch.dtype:
    return next(denoiser.module.parameters()).dtype


@pytest.fixture
def double(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    denoiser = make_mlp()
    denoiser.module.double()
    return denoiser


def test_losses_by_hand() -> None:
    """One noise per image, the same at every timestep: a network blind to t has one loss."""
    c = torch.tensor([[[0.5, -1.0], [0.0, 2.0]]])
    samples = Samples.of(torch.zeros(3, 1, 2, 2), ["a", "b", "c"], seed=4)
    found = losses(constant(c), samples, timesteps(20, 5), block=4)
    for name, value in zip("abc", found, strict=True):
        eps = generator("synthesized", 4, "image", name, 0).standard_normal((1, 2, 2), np.float32)
        assert abs(value - np.square(c.numpy() - eps).mean()) < 1e-6
    mirrored = Samples.of(torch.zeros(3, 1, 2, 2), ["a", "b", "c"], seed=4, mirrored=True)
    assert not torch.equal(mirrored.eps, samples.eps)


def query_noise(query: str, step: int, levels: int, pixels: int) -> np.ndarray:
    rng = generator("synthesized", 0, "query", query, step)
    rng.random(levels)
    return rng.standard_normal((levels, pixels), np.float32).astype(np.float64)


def test_closed_form_of_many_steps() -> None:
    """c <- c + rate F^-1 2 (c - mean eps) / D is linear: c_m = k^m c - sum_s (k - 1) k^(m-1-s) mean eps_s."""
    c, rate, m, levels = torch.tensor([[[0.5, -1.0], [0.0, 2.0]]], dtype=torch.float64), 0.3, 6, 4
    fisher_inverse = torch.tensor([1.0, 2.0, 0.5, 0.0], dtype=torch.float64)
    given = {"c": fisher_inverse, "unused": torch.ones(2, dtype=torch.float64)}
    ascent = Ascent(constant(c), "all", given, rate=rate, levels=levels)
    query = Query("q", torch.zeros(1, 2, 2, dtype=torch.float64))
    for step in range(m):
        ascent.climb(ascent.weights, query, step)
    k = 1 + rate * fisher_inverse.numpy() * 2 / 4
    expected = k**m * c.numpy().ravel()
    for s in range(m):
        expected -= (k - 1) * k ** (m - 1 - s) * query_noise("q", s, levels, 4).mean(axis=0)
    np.testing.assert_allclose(ascent.weights[0].detach().numpy().ravel(), expected, rtol=1e-12)
    assert abs(ascent.moved() - np.linalg.norm(expected - c.numpy().ravel()) / np.sqrt(5.25 + 2)) < 1e-12
    np.testing.assert_array_equal(ascent.weights[1].detach().numpy(), 1.0)  # no gradient, no step

    samples, t = Samples.of(torch.zeros(2, 1, 2, 2, dtype=torch.float64), ["a", "b"]), timesteps(20, 4)
    ascent.restore()
    before = losses(ascent.denoiser, samples, t, 8)
    found = unlearn_query(ascent, query, samples, before, (2, m), t, 8)
    eps = samples.eps.flatten(1).numpy()
    by_hand = np.square(expected - eps).mean(1) - np.square(c.numpy().ravel() - eps).mean(1)
    np.testing.assert_allclose(found.change[1], by_hand, rtol=1e-9)


@pytest.mark.parametrize("of_length", [False, True])
def test_small_steps_are_the_first_order_form(double: Denoiser, of_length: bool) -> None:
    """tau / rate -> g_i^T (F + damping)^-1 g: by brute force for one step, and as `first_order` has it for several."""
    given, x0 = precondition(double), X0.double()
    samples, query = Samples.of(x0[:4], IDS[:4]), Query("q", x0[5])
    rate = 1e-6 if of_length else 1e-6 / float(torch.cat(list(given.values())).mean())
    ascent = Ascent(double, "all", given, rate=rate, of_length=of_length)
    before = losses(double, samples, T, 16)
    found = unlearn_query(ascent, query, samples, before, (1, 3), T, 16)
    towards = ascent.directions(query, (1, 3))
    product = first_order(Gradients(double), samples, T, [towards, towards], 3)
    assert product.shape == (2, 2, 4)
    np.testing.assert_array_equal(product[0], product[1])
    np.testing.assert_allclose(found.change, product[0], rtol=1e-3, atol=1e-3 * np.abs(product).max())

    module = double.module
    g = torch.autograd.grad(_query_loss(double, query), list(module.parameters()))
    u = [d * given[name].reshape(d.shape) for d, (name, _) in zip(g, module.named_parameters(), strict=True)]
    size = rate
    if of_length:
        size *= _norm(module.parameters()) / _norm(u)
    for i in range(4):
        mine = torch.autograd.grad(_sample_loss(double, samples, i), list(module.parameters()))
        expected = size * sum(float((a * b).sum()) for a, b in zip(mine, u, strict=True))
        assert abs(product[0, 0, i] - expected) <= 1e-9 * abs(expected)


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return float(torch.cat([x.detach().flatten() for x in tensors]).norm())


def _query_loss(denoiser: Denoiser, query: Query, levels: int = 10) -> torch.Tensor:
    rng = generator("synthesized", 0, "query", query.id, 0)
    t = torch.from_numpy(((np.arange(levels) + rng.random(levels)) * 100 / levels).astype(np.int64))
    eps = torch.from_numpy(rng.standard_normal((levels, 1, 4, 4), np.float32)).double()
    x_t = denoiser.schedule.add_noise(query.x0.expand(levels, 1, 4, 4), eps, t)
    return (denoiser.raw(x_t, t) - eps).square().mean()


def _sample_loss(denoiser: Denoiser, samples: Samples, i: int) -> torch.Tensor:
    x0, eps = (v[i].expand(len(T), 1, 4, 4) for v in (samples.x0, samples.eps))
    return (denoiser.raw(denoiser.schedule.add_noise(x0, eps, T), T) - eps).square().mean()


def test_no_step_no_change(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp()
    samples = Samples.of(X0, IDS)
    before = losses(denoiser, samples, T, 16)
    ascent = Ascent(denoiser, "all", precondition(denoiser), rate=0.0)
    found = unlearn_query(ascent, Query("q", X0[0]), samples, before, (1, 4), T, 16)
    np.testing.assert_array_equal(found.change, 0.0)
    np.testing.assert_array_equal(found.moved, 0.0)


def test_blocks_and_order_of_images_do_not_matter(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp()
    ascent = Ascent(denoiser, "all", precondition(denoiser), rate=1e-3, of_length=True)

    def tau(order: list[int], block: int) -> np.ndarray:
        samples = Samples.of(X0[order], [IDS[i] for i in order])
        before = losses(denoiser, samples, T, block)
        return unlearn_query(ascent, Query("q", X0[0]), samples, before, (5,), T, block).change[0]

    first = tau([0, 1, 2, 3, 4, 5], 64)
    assert np.abs(first).max() > 1e-5
    for order, block in (([0, 1, 2, 3, 4, 5], 7), ([5, 3, 0, 1, 4, 2], 16), ([2, 4], 1)):
        np.testing.assert_allclose(tau(order, block), first[order], rtol=1e-3, atol=1e-7)


def test_only_the_chosen_weights_move_and_they_come_back(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp()
    before = {name: w.clone() for name, w in denoiser.weights().items()}
    ascent = Ascent(denoiser, r"^out\.", precondition(denoiser, r"^out\."), rate=1e-2, of_length=True)
    ascent.climb(ascent.weights, Query("q", X0[0]), 0)
    changed = {name for name, w in ascent.denoiser.weights().items() if not torch.equal(w, before[name])}
    assert changed == {"out.weight", "out.bias"}
    ascent.restore()
    samples = Samples.of(X0, IDS)
    base = losses(denoiser, samples, T, 16)
    alone = unlearn_query(ascent, Query("q", X0[0]), samples, base, (3,), T, 16)
    for name, w in ascent.denoiser.weights().items():
        assert torch.equal(w, before[name])
    for name, w in denoiser.weights().items():
        assert torch.equal(w, before[name])  # the model itself was never touched
    unlearn_query(ascent, Query("other", X0[1]), samples, base, (3,), T, 16)
    again = unlearn_query(ascent, Query("q", X0[0]), samples, base, (3,), T, 16)
    np.testing.assert_array_equal(alone.change, again.change)  # a query does not know which came before


def test_divergence_is_recorded_and_the_weights_come_back(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp()
    samples, given = Samples.of(X0, IDS), precondition(denoiser)
    base = losses(denoiser, samples, T, 16)
    unlearn = partial(unlearn_query, query=Query("q", X0[0]), samples=samples, before=base, t=T, block=16)
    wild = Ascent(denoiser, "all", given, rate=1e6)
    found = unlearn(wild, checkpoints=(1, 2))
    assert np.isnan(found.change).all()
    assert torch.equal(wild.weights[0], denoiser.module.inp.weight)
    walk = Ascent(denoiser, "all", given, rate=0.02, of_length=True, cap=0.05)  # 2 % a step, 5 % in all
    found = unlearn(walk, checkpoints=(1, 2, 10, 20))
    assert np.isfinite(found.change[:2]).all()
    assert np.isnan(found.change[2:]).all()
    assert np.isnan(found.moved[2:]).all()
    assert abs(found.moved[0] - 0.02) < 1e-5


def test_unlearning_a_copy_forgets_the_original(make_mlp: Callable[..., Denoiser]) -> None:
    """Six pictures with nothing in common (rows of a Hadamard matrix), learned by heart."""
    denoiser = make_mlp(width=64)
    rows = np.array([[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(1, 7)], np.float32)
    x0 = torch.from_numpy(rows).reshape(6, 1, 4, 4)
    optimizer = torch.optim.Adam(denoiser.module.parameters(), 3e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(500):
        i, t = torch.randint(6, (64,), generator=rng), torch.randint(100, (64,), generator=rng)
        eps = torch.randn(64, 1, 4, 4, generator=rng)
        loss = (denoiser.raw(denoiser.schedule.add_noise(x0[i], eps, t), t) - eps).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    samples = Samples.of(x0, IDS)
    base = losses(denoiser, samples, T, 60)
    fisher = mean_of([fisher_pass(Gradients(denoiser), x0, IDS, number=i) for i in range(20)])
    ascent = Ascent(denoiser, "all", inverse(fisher, 1e-3), rate=2e-4, of_length=True)
    queries = [Query(f"q{i}", x) for i, x in enumerate(x0)]
    found = np.stack([unlearn_query(ascent, q, samples, base, (50,), T, 60).change[0] for q in queries])
    np.testing.assert_array_equal(found.argmax(axis=1), np.arange(6))
    assert (np.diag(found) > 0).all()
