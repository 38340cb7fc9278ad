"""LoRA students: the teacher at step 0, only adapters move and are kept, applied as peft itself would."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.lora import targets, wrap
from guda.errors import Mismatch
from guda.unlearning.bank import Counterfactual, bank_fraction, full_bytes
from guda.unlearning.operators.retrack import RetrackConfig
from guda.unlearning.student import Student
from guda.unlearning.unlearn import unlearn_group
from refusals import refused


def config(**values: Any) -> RetrackConfig:
    small = {"steps": 4, "lr": 1e-2, "batch_forget": 4, "batch_retain": 4, "store": "lora:2"}
    return RetrackConfig.model_validate(small | values)


@pytest.fixture(params=["mlp", "unet"])
def base(request: Any, make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any]) -> Denoiser:
    return make_mlp() if request.param == "mlp" else Denoiser.from_module(make_unet(), make_scheduler("linear:50"))


def batch(base: Denoiser) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, *base.shape, generator=torch.Generator().manual_seed(5)), torch.tensor([1, 7, 20, 40])


def trained(base: Denoiser, **values: Any) -> Student:
    """A few steps on a made-up loss, so that no factor is zero."""
    student = Student(base, config(**values), "cat")
    optimizer = torch.optim.AdamW(student.parameters, 1e-2)
    x, t = batch(base)
    for _ in range(4):
        student.denoiser.eps(x, t).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return student


def test_a_student_is_its_teacher_at_step_0_and_only_adapters_move(base: Denoiser) -> None:
    student = Student(base, config(), "cat")
    x, t = batch(base)
    with torch.no_grad():
        assert torch.equal(student.denoiser.eps(x, t), base.eps(x, t))
    n = sum(p.numel() for p in student.parameters)
    assert 4 * n == bank_fraction(base, "lora:2") * full_bytes(base.module)
    after = trained(base)
    names = {n for n, _ in base.module.named_parameters()}
    for name, value in after.denoiser.module.state_dict().items():
        plain = name.replace(".base_layer", "")
        if plain in names:
            assert torch.equal(value, base.weights()[plain]), name
        else:
            assert ".lora_" in name
    with torch.no_grad():
        assert not torch.allclose(after.denoiser.eps(x, t), base.eps(x, t), atol=1e-3)


def test_applied_is_what_peft_runs_and_what_it_merges(base: Denoiser, tmp_path: Path) -> None:
    student = trained(base)
    item = student.counterfactual("cat", "retrack")
    assert (item.kind, item.about, item.base) == ("lora", {"rank": 2, "alpha": 2}, base.digest())
    assert set(item.tensors) == {f"{name}.weight@{part}" for name in targets(base.module) for part in "AB"}
    item.save(tmp_path / "c.safetensors")
    applied = Counterfactual.load(tmp_path / "c.safetensors").apply(base)
    assert set(applied.weights()) == set(base.weights())
    x, t = batch(base)
    merged = copy.deepcopy(student.denoiser)
    for layer in merged.module.modules():
        if hasattr(layer, "merge"):
            layer.merge()
    with torch.no_grad():
        torch.testing.assert_close(applied.eps(x, t), student.denoiser.eps(x, t), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(applied.eps(x, t), merged.eps(x, t), rtol=1e-5, atol=1e-5)
    for name in targets(base.module):
        theirs = merged.module.get_submodule(name).base_layer.weight
        torch.testing.assert_close(applied.weights()[f"{name}.weight"], theirs, rtol=1e-5, atol=1e-6)


def test_alpha_scales_the_product(make_mlp: Callable[..., Denoiser]) -> None:
    base, g = make_mlp(), torch.Generator().manual_seed(0)
    b, a = torch.randn(32, 2, generator=g), torch.randn(2, 16, generator=g)
    tensors = {"inp.weight@B": b, "inp.weight@A": a}
    item = Counterfactual("lora", "cat", base.digest(), "m", tensors, {"rank": 2, "alpha": 6})
    changed = item.changed(base)
    assert set(changed) == {"inp.weight"}
    torch.testing.assert_close(changed["inp.weight"], base.weights()["inp.weight"] + 3 * b @ a)


def test_rounded_adapters_are_half_the_size_and_close(base: Denoiser, tmp_path: Path) -> None:
    whole = trained(base).counterfactual("cat", "m")
    half = trained(base, store="lora:2:bf16").counterfactual("cat", "m")
    half.save(tmp_path / "c.safetensors")
    half = Counterfactual.load(tmp_path / "c.safetensors")
    assert 2 * sum(v.nbytes for v in half.tensors.values()) == sum(v.nbytes for v in whole.tensors.values())
    for name, value in whole.tensors.items():
        assert bool(((half.tensors[name].float() - value).abs() <= 2.0**-8 * value.abs()).all())


def test_the_start_is_keyed_by_seed_and_group_and_leaves_the_global_generator_alone(base: Denoiser) -> None:
    def start(seed: int, group: str, global_seed: int) -> list[torch.Tensor]:
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        found = Student(base, config(seed=seed), group).state()
        assert torch.equal(torch.get_rng_state(), before)
        return found

    def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))

    first = start(0, "cat", 1)
    assert same(first, start(0, "cat", 2))
    assert not same(first, start(0, "dog", 1))
    assert not same(first, start(1, "cat", 1))


def test_a_student_goes_back_to_an_earlier_state(base: Denoiser) -> None:
    student = trained(base)
    early, x = student.state(), batch(base)
    with torch.no_grad():
        said = student.denoiser.eps(*x)
        for p in student.parameters:
            p.add_(0.3)
        assert not torch.equal(student.denoiser.eps(*x), said)
        student.restore(early)
        assert torch.equal(student.denoiser.eps(*x), said)


def test_unlearning_makes_an_adapter_and_repeats_bit_for_bit(
    make_mlp: Callable[..., Denoiser], make_images: Callable[..., ImageData]
) -> None:
    base, data = make_mlp(), make_images({"cat": 6, "dog": 6})
    one = unlearn_group(base, data, "cat", "retrack", config())
    torch.manual_seed(99)
    again = unlearn_group(base, data, "cat", "retrack", config())
    assert one.kind == "lora"
    assert one.digest() == again.digest()
    assert one.apply(base).digest() != base.digest()
    with refused("base-model-mismatch", kind=Mismatch):
        one.apply(make_mlp(seed=1))


@pytest.mark.parametrize("store", ["bf16", "lowrank:2"])
def test_unlearning_packs_what_it_made(
    make_mlp: Callable[..., Denoiser], make_images: Callable[..., ImageData], store: str
) -> None:
    """The same optimisation, only rounded afterwards."""
    base, data = make_mlp(), make_images({"cat": 6, "dog": 6})
    whole = unlearn_group(base, data, "cat", "retrack", config(store="fp32"))
    packed = unlearn_group(base, data, "cat", "retrack", config(store=store))
    x = batch(base)
    with torch.no_grad():
        said, exact, full = (m.eps(*x) for m in (packed.apply(base), whole.apply(base), base))
    assert float((said - exact).norm()) < 0.8 * float((full - exact).norm())
    assert not torch.equal(said, exact)


def test_only_layers_that_two_factors_describe_are_adapted() -> None:
    net = nn.Sequential(
        nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), nn.ConvTranspose2d(4, 4, 2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.LayerNorm(4), nn.Linear(4, 4),
    )  # fmt: skip
    assert targets(net) == ["0", "6"]
    with refused("lora-layers-missing"):
        wrap(nn.LayerNorm(4), 2, 0, "cat")


def test_without_peft_the_extra_is_named(
    make_mlp: Callable[..., Denoiser], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = make_mlp()
    item = trained(base).counterfactual("cat", "m")
    monkeypatch.setitem(sys.modules, "peft", None)
    with refused("package-missing"):
        Student(base, config(), "cat")
    item.save(tmp_path / "c.safetensors")
    assert Counterfactual.load(tmp_path / "c.safetensors").apply(base).digest() != base.digest()  # needs no peft
