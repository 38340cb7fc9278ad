"""Per-sample gradients: batched = one by one = plain autograd = closed form, on every kind of network.

Fisher information: plain autograd sample by sample, a closed form, and what it must not depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from constantnet import constant
from torch import nn

from guda.baselines.gradients import (
    KEYS_AND_VALUES,
    Gradients,
    chosen_weights,
    fisher_pass,
    inverse,
    mean_of,
    per_sample_block,
)
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.loading import make_scheduler
from guda.diffusion.noise import generator
from guda.errors import NotFinite
from refusals import refused

T = torch.tensor([3, 40, 90])
TEXT = ("sd", "sd-v", "sdxl", "sd3", "sd3-t5")
PROMPTS = ("a cat", "red dogs, soft", "the sea", "waxy trees")


@pytest.fixture(scope="module")
def network(make_mlp: Any, make_unet: Any, tiny_pipeline: Callable[[str], Path]) -> Callable[[str], Denoiser]:
    def build(kind: str) -> Denoiser:
        if kind in TEXT:
            return Denoiser.from_pretrained(tiny_pipeline(kind))
        if kind == "unet":
            return Denoiser.from_module(make_unet(), make_scheduler("linear:100"))
        return make_mlp(num_class_embeds=3 if kind == "classes" else None)

    return cache(build)


def told(denoiser: Denoiser, n: int = 4) -> Cond | None:
    if not denoiser.conditional:
        return None
    return denoiser.condition(PROMPTS[:n] if denoiser.frozen else ["0", "2", "2", "1"][:n])


def samples(shape: Sequence[int], n: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(x_t, target) [n, levels, C, H, W]."""
    g = torch.Generator().manual_seed(seed)
    x_t, target = torch.randn(2, n, len(T), *shape, generator=g)
    return x_t, target


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], relative: float = 1e-5) -> None:
    """Within `relative` of the largest gradient of all weights; rounding of tiny ones is beside the point."""
    assert list(a) == list(b)
    largest = max(float(v.abs().max()) for v in b.values())
    assert largest > 0
    for name in b:
        assert a[name].shape == b[name].shape, name
        assert float((a[name] - b[name]).abs().max()) < relative * largest, name


def plain(denoiser: Denoiser, x_t: torch.Tensor, target: torch.Tensor, cond: Cond | None) -> dict[str, torch.Tensor]:
    """{weight: [1, size]} of the mean squared error over one sample's levels, by .backward()."""
    denoiser.module.zero_grad()
    repeated = None if cond is None else Cond.cat([cond] * len(T))
    (denoiser.raw(x_t, T, repeated) - target).square().mean().backward()
    found = denoiser.module.named_parameters()
    return {n: torch.zeros(1, w.numel()) if w.grad is None else w.grad.reshape(1, -1).clone() for n, w in found}


@pytest.mark.parametrize("what", ["loss", "squared_norm", "mean_output"])
@pytest.mark.parametrize("kind", ["mlp", "classes", "unet"])
def test_batched_is_one_by_one(kind: str, what: Any, network: Callable[[str], Denoiser]) -> None:
    denoiser = network(kind)
    x_t, target = samples(denoiser.shape)
    one, other = (Gradients(denoiser, what, mode=m)(x_t, T, target, told(denoiser)) for m in ("vmap", "loop"))  # type: ignore[arg-type]
    assert_same(one, other)


@pytest.mark.parametrize("kind", TEXT)
def test_batched_is_one_by_one_with_text(kind: str, network: Callable[[str], Denoiser]) -> None:
    """Cross attention (SD, SDXL) and joint attention (SD3) batch through torch.func alike."""
    denoiser = network(kind)
    x_t, target = samples(denoiser.shape)
    one, other = (Gradients(denoiser, mode=m)(x_t, T, target, told(denoiser)) for m in ("vmap", "loop"))  # type: ignore[arg-type]
    assert_same(one, other)
    if kind == "sd":
        swapped = Gradients(denoiser)(x_t, T, target, denoiser.condition(PROMPTS[::-1]))
        listens = next(name for name in one if "attn2.to_k" in name)
        assert (swapped[listens] - one[listens]).abs().max() > 1e-3 * one[listens].abs().max()


@pytest.mark.parametrize("kind", ["mlp", "classes", "unet", "sd", "sdxl", "sd3"])
def test_one_sample_is_plain_autograd(kind: str, network: Callable[[str], Denoiser]) -> None:
    denoiser = network(kind)
    x_t, target = samples(denoiser.shape)
    cond = told(denoiser)
    found = Gradients(denoiser)(x_t, T, target, cond)
    for i in (0, 3):
        rows = {name: g[i : i + 1] for name, g in found.items()}
        assert_same(rows, plain(denoiser, x_t[i], target[i], None if cond is None else cond[i : i + 1]))


class Linear(nn.Module):
    """eps_hat = W x_t."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1) @ self.W.T).reshape(x.shape)


@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_linear_denoiser(mode: Any) -> None:
    """squared_norm: (2/d) W x x^T; loss: (2/d) (W x - y) x^T; mean_output: (1/d) 1 x^T; means over levels."""
    denoiser = Denoiser.from_module(Linear(16), make_scheduler("linear:100"), shape=(1, 4, 4))
    x_t, target = (v.double() for v in samples((1, 4, 4)))
    x, y, w = x_t.flatten(2), target.flatten(2), denoiser.module.W.detach()
    expected = {
        "squared_norm": 2 / 16 * torch.einsum("ij,bsj,bsk->bik", w, x, x) / 3,
        "loss": 2 / 16 * torch.einsum("bsi,bsk->bik", x @ w.T - y, x) / 3,
        "mean_output": (x.mean(dim=1) / 16)[:, None, :].expand(4, 16, 16),
    }
    for what, grad in expected.items():
        found = Gradients(denoiser, what, mode=mode)(x_t, T, target)["W"]  # type: ignore[arg-type]
        torch.testing.assert_close(found, grad.flatten(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["mlp", "unet"])
def test_squared_norm_is_the_loss_of_a_zero_target(kind: str, network: Callable[[str], Denoiser]) -> None:
    denoiser = network(kind)
    x_t, target = samples(denoiser.shape)
    norm = Gradients(denoiser, "squared_norm")(x_t, T, target)
    loss = Gradients(denoiser, "loss")(x_t, T, torch.zeros_like(target))
    assert all(torch.equal(norm[name], loss[name]) for name in norm)


@pytest.mark.parametrize("kind", ["mlp", "unet", "sd"])
def test_a_sample_does_not_depend_on_those_beside_it(kind: str, network: Callable[[str], Denoiser]) -> None:
    """Bitwise, in a block of the same size: why `blocks` fills up the last one."""
    denoiser = network(kind)
    x_t, target = samples(denoiser.shape)
    others, wanted = samples(denoiser.shape, seed=1)
    others[0], wanted[0] = x_t[0], target[0]
    gradients, cond = Gradients(denoiser), told(denoiser)
    one, other = gradients(x_t, T, target, cond), gradients(others, T, wanted, cond)
    assert all(torch.equal(one[name][0], other[name][0]) for name in one)
    assert any(not torch.equal(one[name][1], other[name][1]) for name in one)


def test_weights_are_chosen_by_name(network: Callable[[str], Denoiser]) -> None:
    denoiser = network("sd")
    names = [name for name, _ in denoiser.module.named_parameters()]
    assert list(chosen_weights(denoiser)) == names
    wanted = [n for n in names if "attn2.to_k" in n or "attn2.to_v" in n]
    gradients = Gradients(denoiser, weights=KEYS_AND_VALUES)
    assert gradients.names == wanted
    assert 0 < sum(gradients.sizes.values()) < denoiser.n_parameters()
    x_t, target = samples(denoiser.shape)
    part, whole = (g(x_t, T, target, told(denoiser)) for g in (gradients, Gradients(denoiser)))
    assert {name: v.shape[1] for name, v in part.items()} == gradients.sizes
    assert_same(part, {name: whole[name] for name in wanted})
    with refused("weights-pattern-unmatched", match="attn9"):
        Gradients(denoiser, weights="attn9")


def test_only_the_classes_that_were_told_have_gradients(network: Callable[[str], Denoiser]) -> None:
    denoiser = network("classes")
    x_t, target = samples(denoiser.shape)
    rows = Gradients(denoiser)(x_t, T, target, told(denoiser))["classes.weight"].reshape(4, 3, -1)
    assert [(row.abs().sum(dim=1) > 0).nonzero().flatten().tolist() for row in rows] == [[0], [2], [2], [1]]
    with refused("prompts-required"):
        Gradients(denoiser)(x_t, T, target)


def test_the_network_is_left_alone(network: Callable[[str], Denoiser]) -> None:
    denoiser = network("mlp")
    before = denoiser.digest()
    denoiser.module.zero_grad()
    x_t, target = samples(denoiser.shape)
    for mode in ("vmap", "loop"):
        found = Gradients(denoiser, mode=mode)(x_t, T, target)  # type: ignore[arg-type]
        assert not any(g.requires_grad for g in found.values())
    assert denoiser.digest() == before
    assert all(w.grad is None for w in denoiser.module.parameters())


class Peeks(Linear):
    """Looks at a value, which torch.func does not allow; has a weight nothing depends on."""

    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return super().forward(x, t) * (2 if float(x[0, 0, 0, 0]) > 0 else 3)


def test_networks_that_cannot_be_batched_go_one_by_one() -> None:
    denoiser = Denoiser.from_module(Peeks(16), make_scheduler("linear:100"), shape=(1, 4, 4))
    x_t, target = (v.double() for v in samples((1, 4, 4)))
    with refused("network-not-batchable"):
        Gradients(denoiser)(x_t, T, target)
    found = Gradients(denoiser, mode="loop")(x_t, T, target)
    assert torch.equal(found["unused"], torch.zeros(4, 2, dtype=torch.float64))
    torch.testing.assert_close(found["W"][1:2], plain(denoiser, x_t[1], target[1], None)["W"])


@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_timesteps_of_each_sample(make_mlp: Callable[..., Denoiser], mode: str) -> None:
    """t [B, S] gives every sample what it would get alone with its own t [S]."""
    gradients = Gradients(make_mlp(), mode=mode)
    rng = torch.Generator().manual_seed(0)
    x_t, target = torch.randn(2, 3, 2, 1, 4, 4, generator=rng)
    t = torch.tensor([[0, 99], [5, 50], [20, 21]])
    together = gradients(x_t, t, target)
    for i in range(3):
        for name, g in gradients(x_t[i : i + 1], t[i], target[i : i + 1]).items():
            torch.testing.assert_close(together[name][i], g[0], rtol=1e-4, atol=1e-7)


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
