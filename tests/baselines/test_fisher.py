"""Fisher information: plain autograd sample by sample, a closed form, and what it must not depend on."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from constantnet import constant

from guda.baselines.fisher import fisher_pass, inverse, mean_of, per_sample_block
from guda.baselines.gradients import Gradients
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator
from guda.errors import NotFinite
from refusals import refused

X0 = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (7, 1, 4, 4)).astype(np.float32))
IDS = [f"image-{i}" for i in range(7)]


def drawn(image: str, number: int, T: int, shape: tuple[int, ...], seed: int = 0) -> tuple[int, torch.Tensor]:
    rng = generator("fisher", seed, image, number)
    t = int(rng.integers(T))
    return t, torch.from_numpy(rng.standard_normal(shape, dtype="float32"))


@pytest.mark.parametrize("scheduler", ["linear:100", "linear:100:v_prediction"])
@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_mean_of_squared_gradients_of_single_samples(
    make_mlp: Callable[..., Denoiser], mode: str, scheduler: str
) -> None:
    denoiser = make_mlp(scheduler)
    found = fisher_pass(Gradients(denoiser, mode=mode), X0, IDS, number=3, block=4)
    expected = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in denoiser.module.named_parameters()}
    for x, image in zip(X0, IDS, strict=True):
        t, eps = drawn(image, 3, 100, (1, 4, 4))
        at = torch.tensor([t])
        x_t = denoiser.schedule.add_noise(x[None], eps[None], at)
        loss = (denoiser.raw(x_t, at) - denoiser.target(x[None], eps[None], at)).square().mean()
        denoiser.module.zero_grad()
        loss.backward()
        for name, p in denoiser.module.named_parameters():
            expected[name] += p.grad.double().square() / len(X0)
    for name, value in expected.items():
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], value.flatten(), rtol=1e-4, atol=1e-12)


def test_closed_form_and_not_the_square_of_a_mean() -> None:
    """E (2 (c - eps) / D)^2 = 4 (c^2 + 1) / D^2; the mean gradient of n samples would give c^2 + 1/n instead."""
    c = torch.tensor([[[0.0, 1.0], [-2.0, 3.0]]])
    n = 4000
    gradients = Gradients(constant(c))
    found = fisher_pass(gradients, torch.zeros(n, 1, 2, 2), [str(i) for i in range(n)])
    expected = 4 * (c.flatten().double() ** 2 + 1) / 4**2
    assert (found["c"] / expected - 1).abs().max() < 0.1  # standard error: at most sqrt(2 / n) = 2 %
    assert (found["unused"] == 0).all()


def test_neither_block_nor_order_nor_company_matter(make_mlp: Callable[..., Denoiser]) -> None:
    gradients = Gradients(make_mlp())
    first = fisher_pass(gradients, X0, IDS, block=64)
    order = [3, 0, 6, 5, 1, 2, 4]
    others = [
        fisher_pass(gradients, X0, IDS, block=1),
        fisher_pass(gradients, X0, IDS, block=3),
        fisher_pass(gradients, X0[order], [IDS[i] for i in order], block=2),
        mean_of([fisher_pass(gradients, X0[i : i + 1], IDS[i : i + 1], block=3) for i in range(7)]),
    ]
    for other in others:
        for name, value in first.items():
            torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-15)


def test_passes_seeds_and_weights(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp()
    gradients = Gradients(denoiser, weights=r"^out\.")
    passes = [fisher_pass(gradients, X0, IDS, number=i) for i in range(2)]
    assert set(passes[0]) == {"out.weight", "out.bias"}
    assert not torch.equal(passes[0]["out.bias"], passes[1]["out.bias"])
    assert not torch.equal(passes[0]["out.bias"], fisher_pass(gradients, X0, IDS, seed=1)["out.bias"])
    mean = (passes[0]["out.bias"] + passes[1]["out.bias"]) / 2
    torch.testing.assert_close(mean_of(passes)["out.bias"], mean, rtol=1e-12, atol=0)


def test_damping_is_relative_to_the_mean() -> None:
    fisher = {"a": torch.tensor([0.0, 2.0], dtype=torch.float64), "b": torch.tensor([4.0], dtype=torch.float64)}
    found = inverse(fisher, 0.5)  # mean 2: damping 1
    torch.testing.assert_close(found["a"], torch.tensor([1.0, 1 / 3], dtype=torch.float64))
    torch.testing.assert_close(found["b"], torch.tensor([0.2], dtype=torch.float64))
    small = inverse({k: v * 1e-20 for k, v in fisher.items()}, 0.5)
    torch.testing.assert_close(small["a"] * 1e-20, found["a"])
    with refused("fisher-not-finite", match="mean Fisher information of the chosen weights is 0", kind=NotFinite):
        inverse({"a": torch.zeros(3, dtype=torch.float64)}, 0.5)


def test_gradients_held_at_once_are_bounded() -> None:
    assert per_sample_block({"a": 1000}) == 64
    assert per_sample_block({"a": 2**24, "b": 2**24}) == 2
    assert per_sample_block({"a": 2**30}) == 1
    assert per_sample_block({"a": 1000}, levels=10, block=256) == 25
