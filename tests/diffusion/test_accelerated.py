"""Pieces, precision and LoRA change how a step is computed, not what is published: the same network, in fp32."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import TrainingConfig
from guda.data.images import ImageData
from guda.diffusion import distributed
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.distributed import Stepper, make_stepper, precision_on
from guda.diffusion.loading import make_scheduler
from guda.diffusion.lora import factors, merged, targets, wrap
from guda.diffusion.training import Trained, newest, train
from guda.files import read_tensors
from refusals import refused


def config(**values: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {"steps": 12, "batch": 8, "warmup": 4, "checkpoint_every": 5, "lr": 3e-3, "ema": 0.9} | values
    )


def same(one: Trained, other: Trained) -> bool:
    return one.losses == other.losses and all(torch.equal(one.weights[k], other.weights[k]) for k in one.weights)


@pytest.fixture(scope="module")
def images(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 10, "b": 20, "c": 12})


@pytest.fixture
def autocast_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the CPU were a GPU: accelerate's bf16 autocast exists there too."""
    monkeypatch.setattr(distributed, "precision_on", lambda device, precision: precision)
    yield
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


# ---- pieces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "world", "accumulate"), [(8, 1, 1), (8, 1, 3), (9, 2, 2), (7, 3, 2), (5, 5, 1)])
def test_pieces_of_all_processes_are_the_batch_and_their_weighted_means_its_mean(
    batch: int, world: int, accumulate: int
) -> None:
    values, places, losses = np.random.default_rng(0).normal(size=batch), [], []
    for rank in range(world):
        one = Stepper()
        one.rank, one.world = rank, world
        pieces = one.pieces(batch, accumulate)
        assert len(pieces) == accumulate
        places += [i for piece, _ in pieces for i in range(batch)[piece]]
        losses.append(sum(share * values[piece].mean() for piece, share in pieces))
    assert places == list(range(batch))
    assert np.mean(losses) == pytest.approx(values.mean())


def test_a_batch_too_small_to_share_is_refused(make_mlp: Callable[..., Denoiser]) -> None:
    one = Stepper()
    one.world = 3
    with refused("batch-indivisible", match=r"training\.batch = 5 cannot be shared by 3 processes in 2 pieces"):
        one.pieces(5, 2)
    with pytest.raises(ValueError, match="accumulate"):
        config(accumulate=9)


@pytest.mark.parametrize("net", ["mlp", "unet"])
def test_an_accumulated_step_is_the_same_step(
    net: str, make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any], make_images: Callable[..., ImageData],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    data = make_images({"a": 10, "b": 20, "c": 12}, size=4 if net == "mlp" else 8)
    base = make_mlp() if net == "mlp" else Denoiser.from_module(make_unet(), make_scheduler("linear:100"))
    gradients: list[torch.Tensor] = []
    step = Stepper.step

    def watched(self: Stepper, optimizer: Any, parameters: list[Any], clip: float) -> None:
        gradients.append(torch.cat([p.grad.flatten() for p in parameters]))
        step(self, optimizer, parameters, clip)

    monkeypatch.setattr(Stepper, "step", watched)
    # labels of the whole batch are drawn before it is cut
    whole, cut = (
        train(base, data.images, data.groups, config(accumulate=n, steps=4), seed=0, label_dropout=0.3) for n in (1, 3)
    )
    assert not torch.equal(gradients[0], gradients[4])  # rounding: it was cut
    # AdamW turns the rounding of a gradient that is 0 into a step of its own, so gradients are compared, not weights
    assert float((gradients[0] - gradients[4]).norm()) < 1e-5 * float(gradients[0].norm())
    np.testing.assert_allclose(cut.losses, whole.losses, rtol=1e-4)


def test_every_piece_has_dropout_of_its_own(
    make_mlp: Callable[..., Denoiser], images: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("guda.diffusion.training._seed_dropout", lambda device, seed: seeds.append(seed))
    train(make_mlp(), images.images, images.groups, config(steps=3), seed=0)
    whole, seeds[:] = seeds[:], []
    train(make_mlp(), images.images, images.groups, config(steps=3, accumulate=2), seed=0)
    assert len(set(seeds)) == len(seeds) == 6
    assert seeds[::2] == whole  # the first piece begins where the batch does


# ---- precision ----------------------------------------------------------------------------------------------------


def test_a_cpu_computes_in_fp32_whatever_the_recipe_says(make_mlp: Callable[..., Denoiser], images: ImageData) -> None:
    assert precision_on(torch.device("cpu"), "fp16") == precision_on(torch.device("cuda"), "fp32") == "fp32"
    assert precision_on(torch.device("cuda"), "bf16") == "bf16"
    assert type(make_stepper("fp16", torch.device("cpu"))) is Stepper
    one, other = (
        train(make_mlp(), images.images, images.groups, config(precision=p), seed=0) for p in ("fp32", "bf16")
    )
    assert same(one, other)


def test_under_autocast_weights_and_ema_stay_fp32_and_the_ema_follows_its_recursion(
    make_mlp: Callable[..., Denoiser], images: ImageData, autocast_on_cpu: None, tmp_path: Path
) -> None:
    """e_n = d_n e_{n-1} + (1 - d_n) theta_n with steps of 1e-6: in half precision the weights would not move."""
    base, seen = make_mlp(), set()

    def watch(layer: Any, args: Any, out: torch.Tensor) -> None:
        seen.add(out.dtype)

    def raw(n: int, **values: Any) -> dict[str, torch.Tensor]:
        settings = {"steps": n, "warmup": 0, "schedule": "constant", "lr": 1e-6, "precision": "bf16", "ema": None}
        start = base.clone()
        start.module.inp.register_forward_hook(watch)
        return train(
            start, images.images, images.groups, config(**(settings | values)), seed=0, fine_tune=True,
            checkpoint=tmp_path / str(n) if values else None,
        ).weights  # fmt: skip

    ema = raw(4, ema=0.99, checkpoint_every=3)
    assert seen == {torch.bfloat16}
    kept, _ = read_tensors((newest(tmp_path / "4") or tmp_path) / "state.safetensors")
    assert {v.dtype for k, v in kept.items() if k.startswith(("ema.", "model."))} == {torch.float32}
    expected = raw(1)
    for n in range(2, 5):
        d, theta = (1 + n - 1) / (10 + n - 1), raw(n)  # diffusers counts from the first update
        expected = {k: d * expected[k] + (1 - d) * theta[k] for k in theta}
    moved = 0.0
    for name, start in base.weights().items():
        assert ema[name].dtype == torch.float32
        torch.testing.assert_close(ema[name] - start, expected[name] - start, rtol=0.1, atol=2e-7)
        moved = max(moved, float((ema[name] - start).abs().max()))
    assert 1e-6 < moved < 1e-5


def test_ema_decay_is_the_specs_and_adamw_is_fused_with_its_betas(
    make_mlp: Callable[..., Denoiser], images: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers.training_utils import EMAModel

    ema = EMAModel([torch.zeros(1)], decay=0.9999)
    for n in (1, 2, 50, 10**4, 10**6):
        assert ema.get_decay(n + 1) == min(0.9999, (1 + n) / (10 + n))
    made: list[dict[str, Any]] = []
    real = torch.optim.AdamW

    def watched(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "AdamW", watched)
    train(make_mlp(), images.images, images.groups, config(steps=1, weight_decay=0.01), seed=0)
    assert made == [{"betas": (0.9, 0.999), "weight_decay": 0.01, "fused": True}]


# ---- fine-tuning --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, 2])
@pytest.mark.parametrize("ema", [None, 0.99])
def test_full_and_logo_start_from_the_same_given_weights(
    make_mlp: Callable[..., Denoiser], images: ImageData, lora: int | None, ema: float | None
) -> None:
    """The first step of a warm-up has learning rate 0, so what comes out is the start."""
    base, settings = make_mlp(seed=7), config(steps=1, warmup=10, lora=lora, ema=ema)
    for group in (None, "a", "b"):
        found = train(base, images.images, images.groups, settings, seed=0, leave_out=group, fine_tune=True)
        assert all(torch.equal(found.weights[k], v) for k, v in base.weights().items())
        assert found.weights.keys() == base.weights().keys()


def test_a_start_in_half_precision_is_trained_in_fp32(make_mlp: Callable[..., Denoiser], images: ImageData) -> None:
    base = make_mlp()
    base.module.half()
    found = train(base, images.images, images.groups, config(steps=2), seed=0, fine_tune=True).weights
    assert {v.dtype for v in found.values()} == {torch.float32}
    assert next(base.module.parameters()).dtype == torch.float16  # the given one is left alone


def test_exposure_is_matched_from_scratch_and_not_in_fine_tuning_unless_said(
    make_mlp: Callable[..., Denoiser], images: ImageData
) -> None:
    def run(fine_tune: bool, **values: Any) -> Trained:
        return train(make_mlp(), images.images, images.groups, config(**values), seed=0, fine_tune=fine_tune)

    for fine_tune in (False, True):
        default = run(fine_tune)
        assert same(default, run(fine_tune, exposure_matched=not fine_tune))
        assert not same(default, run(fine_tune, exposure_matched=fine_tune))


# ---- LoRA ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["mlp", "unet"])
def base(request: Any, make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any]) -> Denoiser:
    return make_mlp() if request.param == "mlp" else Denoiser.from_module(make_unet(), make_scheduler("linear:50"))


def test_a_merged_network_says_what_the_wrapped_one_says_and_is_w_plus_b_a(base: Denoiser) -> None:
    wrapped = base.clone()
    wrap(wrapped.module, 2, 0, "lora")
    g = torch.Generator().manual_seed(1)
    x, t = torch.randn(4, *base.shape, generator=g), torch.tensor([1, 7, 20, 40])
    with torch.no_grad():
        for name, p in wrapped.module.named_parameters():
            if ".lora_B." in name:
                p.copy_(0.1 * torch.randn(p.shape, generator=g))
    wrapped.raw(x, t).square().mean().backward()
    got = {name for name, p in wrapped.module.named_parameters() if p.grad is not None}
    assert got == {name for name, _ in wrapped.module.named_parameters() if ".lora_" in name} != set()
    weights, plain = merged(wrapped.module), base.weights()
    for name, b, a in factors(wrapped.module):
        torch.testing.assert_close(weights[name], plain[name] + (b @ a).reshape(plain[name].shape))
    adapted = {f"{name}.weight" for name in targets(base.module)}
    assert all(torch.equal(weights[k], v) for k, v in plain.items() if k not in adapted)
    with torch.no_grad():
        said = base.with_weights(weights).raw(x, t)
        torch.testing.assert_close(said, wrapped.raw(x, t), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(said, base.raw(x, t), atol=1e-3)


def test_lora_fine_tuning_moves_matrices_by_low_rank_and_nothing_else(
    make_mlp: Callable[..., Denoiser], images: ImageData, tmp_path: Path
) -> None:
    base = make_mlp()
    before = base.digest()

    class Killed(Exception):
        pass

    def tick(done: int, total: int) -> None:
        if done == 8:
            raise Killed

    def run(seed: int = 0, **options: Any) -> Trained:
        settings = config(lora=2, weight_decay=0.1, steps=12)
        return train(base, images.images, images.groups, settings, seed=seed, fine_tune=True, **options)

    found = run()
    assert base.digest() == before
    adapted = {f"{name}.weight" for name in targets(base.module)}
    for name, start in base.weights().items():
        change = found.weights[name] - start
        if name in adapted:
            values = torch.linalg.svdvals(change.double())
            assert values[0] > 0
            assert values[2] < 1e-4 * values[0], name
        else:
            assert not change.any(), name
    with pytest.raises(Killed):
        run(checkpoint=tmp_path, tick=tick)
    kept, _ = read_tensors(tmp_path / "step-00000005" / "state.safetensors")
    assert all(".lora_" in k for k in kept if k.startswith("model."))  # the start is not copied into it
    assert same(run(checkpoint=tmp_path), found)
    torch.manual_seed(99)
    assert same(run(), found)  # A comes from the key
    assert not same(run(seed=1), found)


def test_lora_needs_a_start(make_mlp: Callable[..., Denoiser], images: ImageData) -> None:
    with refused("lora-start-missing"):
        train(make_mlp(), images.images, images.groups, config(lora=2), seed=0)
