"""K-FAC influence against dense matrices, brute-force Fishers and the library's own inverse."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from guda.baselines.gradients import KEYS_AND_VALUES, Gradients
from guda.baselines.kfac import Block, Curvature, Draws, _Change, curvature
from guda.diffusion.denoiser import Denoiser, Latents
from guda.diffusion.loading import make_scheduler
from guda.errors import GudaError
from refusals import refused


class Linear(nn.Module):
    """One layer, one position: the case in which K-FAC's factors are the whole truth."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1)).reshape(x.shape)


class Two(Linear):
    """Two layers, one without bias, and a norm that has no curvature."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(4), nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.first(self.norm(x.flatten(1))))).reshape(x.shape)


def small(kind: type[nn.Module] = Two, seed: int = 0) -> Denoiser:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Denoiser.from_module(kind(), make_scheduler("linear:100"), (1, 2, 2))


def drawn(denoiser: Denoiser, draws: int = 60, batch: int = 16, seed: int = 0, n: int = 25) -> Draws:
    g = torch.Generator().manual_seed(1)
    x0 = torch.rand(n, *denoiser.shape, generator=g) * 2 - 1
    prompts = None if denoiser.n_classes is None else [str(i % denoiser.n_classes) for i in range(n)]
    return Draws(denoiser, Latents(x0), prompts, draws, batch, seed)


def randoms(found: Curvature, denoiser: Denoiser, n: int = 5, seed: int = 2) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    sizes = {name: p.numel() for name, p in denoiser.module.named_parameters()}
    return {name: torch.randn(n, sizes[name], generator=g) for name in found.names}


def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(gradients.values()), dim=1)


def library_operator(denoiser: Denoiser, draws: Draws, names: list[str]) -> Any:
    params = dict(denoiser.module.named_parameters())
    library = pytest.importorskip("curvlinops")
    return library.KFACLinearOperator(
        _Change(denoiser), nn.MSELoss(), [params[n] for n in names], draws, check_deterministic=False,
        fisher_type="empirical", separate_weight_and_bias=False, batch_size_fn=lambda given: len(given["t"]),
    )  # fmt: skip


# --- what a block does, without the library ---------------------------------------------------------


def test_the_eigenform_is_the_inverse_of_the_dense_kronecker_product() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(9, d, generator=g).double() for d in (6, 5))
    a, b = a.T @ a, b.T @ b
    (l_a, u_a), (l_b, u_b) = torch.linalg.eigh(a), torch.linalg.eigh(b)
    gradient = torch.randn(3, 5, 6, generator=g).double()
    dense = torch.linalg.inv(torch.kron(b, a) + 0.3 * torch.eye(30).double())  # row-major: out (x) in
    found = Block(u_b, u_a, torch.outer(l_b, l_a)).power(gradient, 0.3, -1.0)
    torch.testing.assert_close(found.flatten(1), gradient.flatten(1) @ dense)


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    denoiser = small()
    with refused("package-missing"):
        curvature(denoiser, drawn(denoiser))


def test_draws_do_not_depend_on_batches_and_visit_every_image_once_first() -> None:
    denoiser = small()
    one, many = drawn(denoiser, draws=25, batch=25), drawn(denoiser, draws=40, batch=7)
    (whole, target), *rest = one
    assert not rest
    given, targets = zip(*many, strict=True)
    torch.testing.assert_close(torch.cat([x["x_t"] for x in given])[:25], whole["x_t"], rtol=0, atol=0)
    torch.testing.assert_close(torch.cat(targets)[:25], target, rtol=0, atol=0)
    assert sorted(one.order) == list(range(25))


# --- what the library finds ---------------------------------------------------------------------------


def test_the_factors_of_one_linear_layer_are_its_second_moments() -> None:
    """H = E[d d^T] (x) E[a a^T] with d = 2 (output - target) / sqrt C: exactly those of the draws."""
    pytest.importorskip("curvlinops")
    denoiser = small(Linear)
    draws = drawn(denoiser)
    block = curvature(denoiser, draws).blocks["layer"]
    x = torch.cat([given["x_t"].flatten(1) for given, _ in draws])
    y = torch.cat([target for _, target in draws])
    a = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    dense = torch.kron(4 * y.T @ y / 4 / len(y), a.T @ a / len(a))
    basis = torch.kron(block.left, block.right)
    torch.testing.assert_close(basis @ torch.diag(block.eigenvalues.flatten()) @ basis.T, dense, rtol=1e-4, atol=1e-5)


def test_influence_in_linear_regression_is_the_closed_form() -> None:
    """The loss |W a - y|^2 / C has the Hessian (2 / C) I (x) E[a a^T], whatever y: tau is then known exactly."""
    pytest.importorskip("curvlinops")
    denoiser = small(Linear)
    draws = drawn(denoiser, draws=10_000, batch=2500)
    found = curvature(denoiser, draws)
    x = torch.cat([given["x_t"].flatten(1) for given, _ in draws])
    a = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    hessian = torch.kron(2 / 4 * torch.eye(4), a.T @ a / len(a))
    g = randoms(found, denoiser, 40)
    joint = torch.cat([g["layer.weight"].reshape(40, 4, 4), g["layer.bias"][:, :, None]], dim=2).flatten(1)
    damping = 0.05
    exact = joint @ torch.linalg.inv(hessian + damping * torch.eye(20)) @ joint.T
    tau = flat(found.precondition(g, damping)) @ flat(g).T
    assert float((tau - exact).norm() / exact.norm()) < 0.04  # only the 10,000 sampled targets differ


@pytest.mark.parametrize("weights", ["all", "weight"])
def test_preconditioning_is_the_librarys_exactly_damped_inverse(weights: str) -> None:
    library = pytest.importorskip("curvlinops")
    denoiser = small()
    draws = drawn(denoiser)
    found = curvature(denoiser, draws, weights)
    assert found.names == (["layer.weight", "layer.bias", "first.weight"] if weights == "all" else [
        "layer.weight", "first.weight"])  # fmt: skip
    params = dict(denoiser.module.named_parameters())
    operator = library_operator(denoiser, draws, found.names)
    inverse = library.KFACInverseLinearOperator(operator, damping=0.01, use_exact_damping=True)
    g = randoms(found, denoiser)
    theirs = inverse @ [g[n].T.reshape(*params[n].shape, 5) for n in found.names]
    ours = found.precondition(g, 0.01)
    for name, value in zip(found.names, theirs, strict=True):
        torch.testing.assert_close(ours[name], value.flatten(0, -2).T, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("corrected", [False, True])
def test_great_damping_leaves_the_plain_product(make_unet: Callable[..., Any], corrected: bool) -> None:
    pytest.importorskip("curvlinops")
    denoiser = Denoiser.from_module(make_unet(), make_scheduler("linear:100"))
    found = curvature(denoiser, drawn(denoiser, draws=16), corrected=corrected)
    x = torch.randn(3, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    gradients = Gradients(denoiser, "loss")(x, torch.tensor([10, 60]), torch.zeros_like(x))
    assert set(gradients) - set(found.names) == {n for n in gradients if "norm" in n}  # no block of their own
    plain = sum(gradients[n] @ gradients[n].T for n in found.names)
    damped = found.precondition(gradients, 1e6)
    torch.testing.assert_close(1e6 * sum(damped[n] @ gradients[n].T for n in found.names), plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("corrected", [False, True])
def test_either_side_or_half_of_both_may_be_preconditioned(corrected: bool) -> None:
    pytest.importorskip("curvlinops")
    denoiser = small()
    found = curvature(denoiser, drawn(denoiser), corrected=corrected)
    query, train = randoms(found, denoiser, 3, seed=3), randoms(found, denoiser, 6, seed=4)
    tau = flat(found.precondition(query, 0.02)) @ flat(train).T
    torch.testing.assert_close(flat(query) @ flat(found.precondition(train, 0.02)).T, tau, rtol=1e-4, atol=1e-3)
    halves = [flat(found.precondition(g, 0.02, power=-0.5)) for g in (query, train)]
    torch.testing.assert_close(halves[0] @ halves[1].T, tau, rtol=1e-4, atol=1e-3)
    alone = found.precondition({n: g[1:2] for n, g in query.items()}, 0.02)
    torch.testing.assert_close(flat(alone), flat(found.precondition(query, 0.02))[1:2])


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_class_embeds": 3}])
def test_curvature_does_not_depend_on_batches(
    make_mlp: Callable[..., Denoiser], corrected: bool, options: dict[str, Any]
) -> None:
    pytest.importorskip("curvlinops")
    denoiser = make_mlp(width=8, depth=1, **options)
    one, other = (curvature(denoiser, drawn(denoiser, 30, batch), corrected=corrected) for batch in (30, 7))
    g = randoms(one, denoiser)
    damping = 0.1 * one.mean_eigenvalue
    a, b = (flat(found.precondition(g, damping)) for found in (one, other))
    assert float((a - b).norm() / a.norm()) < 1e-4
    assert one.mean_eigenvalue == pytest.approx(other.mean_eigenvalue, rel=1e-5)


def test_cross_attention_of_a_text_to_image_model_listens_to_the_prompts(tiny_pipeline: Callable[[str], Path]) -> None:
    """A = E[a a^T] over draws and words, a being what the text encoder says."""
    pytest.importorskip("curvlinops")
    denoiser = Denoiser.from_pretrained(tiny_pipeline("sd"))
    prompts = ["a cat", "two red houses", "rain"]
    x0 = torch.randn(3, *denoiser.shape, generator=torch.Generator().manual_seed(0))
    draws = Draws(denoiser, Latents(x0), prompts, 6, 4, 0)
    found = curvature(denoiser, draws, KEYS_AND_VALUES)
    assert not found.biased
    assert all(name.endswith(("to_k.weight", "to_v.weight")) for name in found.names)
    words = torch.cat([given["encoder_hidden_states"] for given, _ in draws]).flatten(0, 1)
    block = next(iter(found.blocks.values()))
    inside = block.right.T @ (words.T @ words / len(words)) @ block.right
    torch.testing.assert_close(inside, torch.diag(inside.diagonal()), rtol=0, atol=1e-4 * float(inside.max()))


@pytest.mark.parametrize("network", ["mlp", "unet"])
def test_corrected_eigenvalues_never_fit_the_sampled_fisher_worse(
    make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any], network: str
) -> None:
    """|F - U diag(s) U^T|_F is least at s = diag(U^T F U), which is what EKFAC takes."""
    pytest.importorskip("curvlinops")
    unet = make_unet(block_out_channels=(4,), down_block_types=("AttnDownBlock2D",), norm_num_groups=2,
                     up_block_types=("AttnUpBlock2D",), attention_head_dim=2)  # fmt: skip
    net = Denoiser.from_module(unet, make_scheduler("linear:100"))
    denoiser = make_mlp(width=6, depth=1) if network == "mlp" else net
    draws = drawn(denoiser, draws=20, batch=20)
    plain, corrected = (curvature(denoiser, draws, corrected=c) for c in (False, True))
    params = dict(denoiser.module.named_parameters())
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in plain.blocks}
    for given, target in drawn(denoiser, draws=20, batch=1):
        loss = (_Change(denoiser)(given) - target).square().sum() / target.numel() ** 0.5
        for name in plain.blocks:
            parts = [params[f"{name}.weight"]] + [params[f"{name}.bias"]] * (name in plain.biased)
            found = torch.autograd.grad(loss, parts, retain_graph=True)
            rows[name].append(torch.cat([p.reshape(len(p), -1) for p in found], dim=1).flatten())
    better = 0
    for name, block in corrected.blocks.items():
        if len(rows[name][0]) > 600:
            continue
        g = torch.stack(rows[name]).double()
        fisher = g.T @ g / len(g)
        errors = []
        for b in (plain.blocks[name], block):
            basis = torch.kron(b.left.double(), b.right.double())
            errors.append(float((fisher - basis @ torch.diag(b.eigenvalues.double().flatten()) @ basis.T).norm()))
        assert errors[1] <= errors[0] * (1 + 1e-4) + 1e-9, name
        better += errors[1] < 0.99 * errors[0]
        shape = (len(g), *block.eigenvalues.shape)
        moments = (block.left.T.double() @ g.reshape(shape) @ block.right.double()).square().mean(0)
        scale = float(moments.max())
        torch.testing.assert_close(block.eigenvalues.double(), moments, rtol=1e-3, atol=1e-4 * scale + 1e-12)
    assert better >= 2


def test_a_saved_curvature_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("curvlinops")
    denoiser = small()
    found = curvature(denoiser, drawn(denoiser), corrected=True)
    found.save(tmp_path / "curvature.safetensors", "weights")
    again = Curvature.load(tmp_path / "curvature.safetensors", "weights")
    g = randoms(found, denoiser)
    assert again.names == found.names
    assert torch.equal(flat(again.precondition(g, 0.1)), flat(found.precondition(g, 0.1)))
    with pytest.raises(GudaError, match="another network"):
        Curvature.load(tmp_path / "curvature.safetensors", "other weights")


def test_weights_without_a_layer_are_refused() -> None:
    pytest.importorskip("curvlinops")
    denoiser = small()
    with pytest.raises(GudaError, match="no Linear or Conv2d"):
        curvature(denoiser, drawn(denoiser), "norm")
