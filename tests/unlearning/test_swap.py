"""One network, weights swapped in place: bitwise what a copy of its own would be, in any order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.errors import Mismatch
from guda.scoring.plan import Settings
from guda.unlearning.bank import Counterfactual, Packing, Workbench
from guda.unlearning.student import Student
from guda.unlearning.unlearn import UnlearnConfig
from refusals import refused


@pytest.fixture
def base(make_unet: Callable[..., Any]) -> Denoiser:
    return Denoiser.from_module(make_unet(), make_scheduler("linear:50"))


def changed(base: Denoiser, seed: int, every: int = 1) -> dict[str, torch.Tensor]:
    """Only every n-th tensor differs: a delta of some layers leaves the others to be put back."""
    g = torch.Generator().manual_seed(seed)
    return {
        k: v + 0.01 * torch.randn(v.shape, generator=g) if i % every == 0 else v
        for i, (k, v) in enumerate(base.weights().items())
    }


def adapter(base: Denoiser) -> Counterfactual:
    student = Student(base, UnlearnConfig(store="lora:2"), "lora")
    with torch.no_grad():
        for p in student.parameters:
            p.add_(0.05)
    return student.counterfactual("lora", "m")


@pytest.fixture
def cases(base: Denoiser) -> dict[str, Counterfactual | None]:
    return {
        "base": None,
        "all": Counterfactual.delta(base, changed(base, 1), "all", "m"),
        "some": Counterfactual.delta(base, changed(base, 2, every=3), "some", "m"),
        "others": Counterfactual.delta(base, changed(base, 3, every=4), "others", "m"),
        "weights": Counterfactual("weights", "weights", "", "logo", changed(base, 4)),
        "bf16": Packing.parse("bf16").pack(Counterfactual.delta(base, changed(base, 5, every=2), "bf16", "m")),
        "lowrank": Packing.parse("lowrank:2").pack(Counterfactual.delta(base, changed(base, 6), "lowrank", "m")),
        "lora": adapter(base),
    }


ORDERS = (
    ["base", "all", "base", "some", "others", "weights", "some", "base"],
    ["weights", "others", "all", "base"],
    ["lora", "base", "lowrank", "base", "bf16", "base", "lowrank", "lora", "some", "weights", "bf16", "lora", "base"],
)


@pytest.mark.parametrize("settings", [Settings(4), Settings(4, channels_last=True)], ids=["plain", "channels_last"])
@pytest.mark.parametrize("order", ORDERS, ids=["there and back", "another", "every kind"])
def test_swaps_are_bitwise_what_apply_makes(
    base: Denoiser, cases: dict[str, Counterfactual | None], order: list[str], settings: Settings
) -> None:
    before = {k: v.clone() for k, v in base.weights().items()}
    bench = Workbench(base, base.digest())
    x, t = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    for name in order:
        case = cases[name]
        found = settings.prepare(bench.use(case))
        expected = base if case is None else case.apply(base)
        assert found.digest() == expected.digest(), name
        if not settings.channels_last:
            with torch.inference_mode():
                assert torch.equal(found.raw(x, t), expected.raw(x, t)), name
    assert all(torch.equal(v, before[k]) for k, v in base.weights().items())


def test_a_foreign_delta_is_refused_and_the_bench_stays_sound(
    base: Denoiser, cases: dict[str, Counterfactual | None], make_unet: Callable[..., Any]
) -> None:
    bench = Workbench(base, base.digest())
    bench.use(cases["all"])
    other = Denoiser.from_module(make_unet(seed=9), make_scheduler("linear:50"))
    with refused(
        "base-model-mismatch",
        match=r"without 'x': base model: found .*fits only the model it was made from",
        kind=Mismatch,
    ):
        bench.use(Counterfactual.delta(other, changed(other, 1), "x", "m"))
    with refused("weights-mismatch"):
        bench.use(Counterfactual("weights", "y", "", "logo", {"nothing": torch.zeros(1)}))
    assert bench.use(None).digest() == base.digest()
