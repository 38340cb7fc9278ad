"""What a counterfactual is stored as: each kind comes back, costs what it says, and errs by what it must."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.errors import GudaError, Mismatch
from guda.unlearning.bank import (
    Card,
    Counterfactual,
    Packing,
    bank_fraction,
    changes,
    compress,
    factor,
    full_bytes,
    pays,
)
from guda.unlearning.unlearn import UnlearnConfig
from refusals import refused

PACKINGS = ("fp32", "bf16", "lowrank:2", "lowrank:2:bf16")


@pytest.fixture(params=["mlp", "unet"])
def base(request: Any, make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any]) -> Denoiser:
    return make_mlp() if request.param == "mlp" else Denoiser.from_module(make_unet(), make_scheduler("linear:50"))


def delta(base: Denoiser, size: float = 1e-2) -> Counterfactual:
    g = torch.Generator().manual_seed(0)
    weights = {k: v + size * torch.randn(v.shape, generator=g) for k, v in base.weights().items()}
    return Counterfactual.delta(base, weights, "cat", "m")


def moved(base: Denoiser, item: Counterfactual) -> dict[str, torch.Tensor]:
    """The change as it is applied, float64."""
    old = base.weights()
    return {k: v.double() - old[k].double() for k, v in item.changed(base).items()}


@pytest.mark.parametrize("store", PACKINGS)
def test_every_packing_comes_back_from_disk(base: Denoiser, tmp_path: Path, store: str) -> None:
    item = Packing.parse(store).pack(delta(base))
    item.save(tmp_path / "c.safetensors")
    again = Counterfactual.load(tmp_path / "c.safetensors")
    assert (again.kind, again.about, again.digest()) == (item.kind, item.about, item.digest())
    assert all(torch.equal(again.tensors[k], v) and again.tensors[k].dtype == v.dtype for k, v in item.tensors.items())
    assert again.apply(base).digest() == item.apply(base).digest() != base.digest()
    item.save(tmp_path / "d.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == (tmp_path / "d.safetensors").read_bytes()


@pytest.mark.parametrize("store", PACKINGS)
def test_a_packing_costs_what_its_shapes_say(base: Denoiser, tmp_path: Path, store: str) -> None:
    item = Packing.parse(store).pack(delta(base))
    stored = sum(v.nbytes for v in item.tensors.values())
    assert stored == bank_fraction(base, store) * full_bytes(base.module)
    item.save(tmp_path / "c.safetensors")
    card = Card.read(tmp_path / "c.safetensors")
    assert (card.kind, card.group, card.base, card.method) == (item.kind, "cat", base.digest(), "m")
    assert card.dtype == ("bf16" if "bf16" in store else "fp32")
    assert card.about == ({"rank": 2} if "lowrank" in store else {})
    assert stored < (tmp_path / "c.safetensors").stat().st_size < stored + 200 * len(item.tensors) + 1000


@pytest.mark.parametrize("store", PACKINGS)
def test_every_packing_is_refused_on_another_base(base: Denoiser, store: str) -> None:
    item = Packing.parse(store).pack(delta(base))
    other = delta(base).apply(base)
    with refused("base-model-mismatch", match="without 'cat': base model", kind=Mismatch) as caught:
        item.apply(other)
    assert base.digest() in str(caught.value)
    assert other.digest() in str(caught.value)


@pytest.mark.parametrize("store", PACKINGS)
def test_a_flipped_byte_is_noticed(base: Denoiser, tmp_path: Path, store: str) -> None:
    path = tmp_path / "c.safetensors"
    Packing.parse(store).pack(delta(base)).save(path)
    whole = path.read_bytes()
    for position in (len(whole) - 3, len(whole) - 500, whole.index(b"cat")):
        broken = bytearray(whole)
        broken[position] ^= 1
        path.write_bytes(broken)
        with refused("counterfactual-damaged", kind=Mismatch):
            Counterfactual.load(path)
    path.write_bytes(whole[:-10])
    with refused("file-damaged"):
        Counterfactual.load(path)


def test_bfloat16_errs_by_at_most_one_part_in_256(base: Denoiser) -> None:
    exact = delta(base)
    old, packed = base.weights(), Packing.parse("bf16").pack(exact).changed(base)
    for name, value in exact.tensors.items():
        rounding = 2.0**-23 * (old[name].abs() + value.abs())  # of the float32 sum itself
        error = (packed[name].double() - old[name].double() - value.double()).abs()
        assert bool((error <= 2.0**-8 * value.abs() + rounding).all()), name
        assert float(error.max()) > 2.0**-11 * float(value.abs().max()), name  # it was rounded at all


# ---- low rank -----------------------------------------------------------------------------------------------------


def test_truncation_errs_by_the_discarded_singular_values() -> None:
    g = torch.Generator().manual_seed(1)
    change = torch.randn(12, 5, 3, 3, generator=g)
    s = torch.linalg.svdvals(change.double().flatten(1))
    for rank in (1, 3, 8):
        b, a = factor(change, rank)
        assert (b.shape, a.shape) == ((12, rank), (rank, 45))
        left = (change.flatten(1).double() - b.double() @ a.double()).norm()
        assert float(left) == pytest.approx(float(s[rank:].square().sum().sqrt()), rel=1e-5)
    b, a = factor(change, 12)
    torch.testing.assert_close((b @ a).reshape(change.shape), change, rtol=1e-5, atol=1e-5)
    assert torch.allclose(b.norm(dim=0), a.norm(dim=1), rtol=1e-4)  # shared evenly


def test_low_rank_on_a_network_errs_matrix_by_matrix_as_the_closed_form_says(base: Denoiser) -> None:
    exact = delta(base)
    found = moved(base, Packing.parse("lowrank:2").pack(exact))
    for name, value in exact.tensors.items():
        error = (found[name] - value.double()).norm()
        if not pays(value.shape, 2):
            assert float(error) < 1e-6 * value.numel() ** 0.5, name  # kept whole
            continue
        s = torch.linalg.svdvals(value.double().flatten(1))
        assert float(error) == pytest.approx(float(s[2:].norm()), rel=1e-3), name
    assert any(pays(v.shape, 2) for v in exact.tensors.values())


def test_a_change_of_low_rank_is_kept_exactly(make_mlp: Callable[..., Denoiser]) -> None:
    base, g = make_mlp(), torch.Generator().manual_seed(2)
    weights = {k: v.clone() for k, v in base.weights().items()}
    weights["blocks.0.up.weight"] += torch.randn(32, 3, generator=g) @ torch.randn(3, 32, generator=g)
    exact = Counterfactual.delta(base, weights, "cat", "m")
    item = Packing.parse("lowrank:3").pack(exact)
    assert set(item.tensors) == {"blocks.0.up.weight@B", "blocks.0.up.weight@A"}
    torch.testing.assert_close(item.apply(base).weights(), weights, rtol=1e-5, atol=1e-5)


def test_at_full_rank_low_rank_is_the_dense_delta_bit_for_bit(base: Denoiser) -> None:
    """Factors of full rank are never smaller than the matrix, so it is kept as it is."""
    exact = delta(base)
    item = Packing.parse("lowrank:100000").pack(exact)
    assert set(item.tensors) == set(exact.tensors)
    assert item.apply(base).digest() == exact.apply(base).digest()


def test_biases_norms_and_small_matrices_are_kept_whole() -> None:
    stored = compress({"bias": torch.ones(64), "w": torch.ones(64, 64), "thin": torch.ones(64, 2)}, 2)
    assert set(stored) == {"bias", "w@B", "w@A", "thin"}
    assert not pays((64, 64), 32)  # 32 (64 + 64) = 64 64
    assert pays((64, 64), 31)


def test_factors_that_do_not_fit_are_refused() -> None:
    weights = {"w": torch.zeros(4, 3, 1, 1)}
    b, a = torch.zeros(4, 2), torch.zeros(2, 3)
    assert [(k, v.shape) for k, v in changes({"w@B": b, "w@A": a}, weights, 1.0, "c")] == [("w", (4, 3, 1, 1))]
    for tensors, part in (
        ({"w@B": b}, "one factor of two"),
        ({"w@A": a}, "one factor of two"),
        ({"w@B": b.T, "w@A": a}, r"factors of 'w' are \(2, 4\) x \(2, 3\), the network has \(4, 3, 1, 1\)"),
        ({"w@B": b, "w@A": torch.zeros(2, 4)}, "factors of 'w'"),
        ({"w": torch.zeros(1)}, r"'w' is \(1,\), the network has"),  # would broadcast
        ({"v": torch.zeros(1)}, "it has no weight 'v'"),
        ({"v@B": b, "v@A": a}, "it has no weight 'v'"),
    ):
        with pytest.raises(GudaError, match=part):
            list(changes(tensors, weights, 1.0, "c"))


def test_a_header_without_its_rank_is_refused(base: Denoiser, tmp_path: Path) -> None:
    for about in ({}, {"rank": 2}, {"rank": 0, "alpha": 1}):
        Counterfactual("lora", "cat", base.digest(), "m", {"x": torch.zeros(1)}, about).save(tmp_path / "c.safetensors")
        with refused("counterfactual-damaged"):
            Counterfactual.load(tmp_path / "c.safetensors")


# ---- the setting --------------------------------------------------------------------------------------------------


def test_the_setting_is_read() -> None:
    assert UnlearnConfig().store == "fp32"
    assert Packing.parse("bf16") == Packing("delta", torch.bfloat16)
    assert Packing.parse("lowrank:16") == Packing("lowrank", torch.float32, 16)
    assert Packing.parse("lora:4:bf16") == Packing("lora", torch.bfloat16, 4)
    for text in ("", "fp16", "lora", "lora:", "lora:0", "lora:-1", "lora:4.5", "lowrank:4:fp8", "svd:3", "lora:4 "):
        with pytest.raises(ValidationError, match="is none of fp32, bf16, lowrank:RANK, lora:RANK"):
            UnlearnConfig(store=text)


def test_a_finished_change_is_no_adapter(base: Denoiser) -> None:
    with refused("store-lora-unsupported"):
        Packing.parse("lora:2").pack(delta(base))


def test_the_papers_network_is_kept_in_a_twentieth() -> None:
    """UNet2DModel of the CIFAR-10 recipe, on the meta device: shapes only."""
    from diffusers import UNet2DModel

    with torch.device("meta"):
        unet = UNet2DModel(
            sample_size=32, in_channels=3, out_channels=3, layers_per_block=3, dropout=0.3,
            block_out_channels=(128, 256, 256, 256),
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
    assert sum(p.numel() for p in unet.parameters()) / 1e6 == pytest.approx(49.1, abs=0.1)
    assert bank_fraction(unet, "fp32") == 1.0
    assert bank_fraction(unet, "bf16") == 0.5
    for kind in ("lowrank", "lora"):
        assert bank_fraction(unet, f"{kind}:4") < 0.025
        assert bank_fraction(unet, f"{kind}:9") <= 0.05 < bank_fraction(unet, f"{kind}:10")
        assert bank_fraction(unet, f"{kind}:19:bf16") <= 0.05 < bank_fraction(unet, f"{kind}:20:bf16")
