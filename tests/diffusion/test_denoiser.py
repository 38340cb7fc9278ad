"""One interface over plain modules and diffusers models."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import PREDICTIONS
from guda.errors import GudaError
from refusals import refused


class Half(nn.Module):
    """Says x_t / 2, and has one weight so that it has a digest."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.scale * x


def test_a_plain_module_is_wrapped_as_it_is() -> None:
    denoiser = Denoiser.from_module(Half(), make_scheduler("linear:100"), shape=(1, 2, 2))
    x, t = torch.randn(3, 1, 2, 2), torch.tensor([0, 5, 99])
    torch.testing.assert_close(denoiser.eps(x, t), x / 2, rtol=0, atol=0)
    a, s = denoiser.schedule.coefficients(t, x)
    torch.testing.assert_close(denoiser.x0(x, t), (x - s * x / 2) / a)
    assert denoiser.shape == (1, 2, 2)
    assert not denoiser.conditional
    assert denoiser.n_parameters() == 1


def test_a_plain_module_needs_its_shape_said() -> None:
    with refused("image-shape-missing"):
        Denoiser.from_module(Half(), make_scheduler("linear:100"))


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_diffusers_unet_is_called_like_diffusers_calls_it(make_unet: Callable[..., Any], prediction: str) -> None:
    unet = make_unet()
    denoiser = Denoiser.from_module(unet, make_scheduler(f"linear:100:{prediction}"))
    assert denoiser.shape == (1, 8, 8)
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([3, 70])
    with torch.no_grad():
        raw = unet(x, t).sample
        assert torch.equal(denoiser.raw(x, t), raw)
        a, s = denoiser.schedule.coefficients(t, x)
        expected = {"epsilon": raw, "v_prediction": a * raw + s * x, "sample": (x - a * raw) / s}[prediction]
        torch.testing.assert_close(denoiser.eps(x, t), expected)


def test_the_wrapped_network_is_in_eval_mode_so_that_dropout_is_off(make_unet: Callable[..., Any]) -> None:
    denoiser = Denoiser.from_module(make_unet(dropout=0.5).train(), make_scheduler("linear:100"))
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([3, 70])
    with torch.no_grad():
        assert torch.equal(denoiser.eps(x, t), denoiser.eps(x, t))


# ---- class-conditional --------------------------------------------------------------------------------------------


def test_classes_reach_the_network_through_condition(make_unet: Callable[..., Any]) -> None:
    unet = make_unet(num_class_embeds=3)
    denoiser = Denoiser.from_module(unet, make_scheduler("linear:100"))
    assert denoiser.conditional
    x, t = torch.randn(1, 1, 8, 8).expand(3, -1, -1, -1), torch.tensor([50, 50, 50])
    cond = denoiser.condition(["0", "2", "0"])
    with torch.no_grad():
        out = denoiser.eps(x, t, cond)
        assert torch.equal(out, unet(x, t, class_labels=torch.tensor([0, 2, 0])).sample)
    torch.testing.assert_close(out[0], out[2])
    assert (out[0] - out[1]).abs().max() > 1e-3


def test_prompts_must_be_classes_of_the_model(make_unet: Callable[..., Any]) -> None:
    denoiser = Denoiser.from_module(make_unet(num_class_embeds=3), make_scheduler("linear:100"))
    for bad in ("3", "-1", "cat", ""):
        with refused("class-unknown", match=r"is not one of 0\.\.2"):
            denoiser.condition(["0", bad])
    with refused("prompts-required"):
        denoiser.condition(None)
    with refused("prompts-required"):
        denoiser.eps(torch.zeros(1, 1, 8, 8), torch.tensor([0]))


def test_an_unconditional_model_refuses_prompts(make_mlp: Callable[..., Denoiser]) -> None:
    assert make_mlp().condition(None) is None
    with refused("prompts-unexpected"):
        make_mlp().condition(["0"])


# ---- refused networks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_channels": 2}, "learned-variance head"),
        ({"in_channels": 3, "out_channels": 1}, "maps 3 channels to 1"),
        ({"class_embed_type": "timestep"}, "class_embed_type"),
        ({"sample_size": None}, "sample_size"),
    ],
)
def test_networks_that_cannot_be_scored_are_refused(
    make_unet: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GudaError, match=message):
        Denoiser.from_module(make_unet(**options), make_scheduler("linear:100"))


def test_a_unet_without_sample_size_takes_the_given_shape(make_unet: Callable[..., Any]) -> None:
    denoiser = Denoiser.from_module(make_unet(sample_size=None), make_scheduler("linear:100"), shape=(1, 8, 8))
    assert denoiser.shape == (1, 8, 8)


# ---- pixels and weights -------------------------------------------------------------------------------------------


def test_encode_and_decode_are_inverse_on_every_grey_level(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp()
    images = np.arange(256, dtype=np.uint8).reshape(16, 1, 4, 4)
    x0 = denoiser.encode(images)
    assert (float(x0.min()), float(x0.max())) == (-1, 1)
    np.testing.assert_array_equal(denoiser.decode(x0), images)


def test_with_weights_makes_a_twin_and_leaves_the_original_alone(make_mlp: Callable[..., Denoiser]) -> None:
    one, other = make_mlp(seed=0), make_mlp(seed=1)
    before = one.digest()
    twin = one.with_weights(other.weights())
    assert twin.digest() == other.digest() != before
    assert one.digest() == before
    with torch.no_grad():
        next(twin.module.parameters()).zero_()
    assert one.digest() == before
    assert other.digest() != twin.digest()


def test_weights_of_another_network_are_refused(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp()
    with refused("weights-mismatch"):
        denoiser.with_weights(make_mlp(depth=3).weights())
    with refused("weight-shape-mismatch", match=r"the network has \(32"):
        denoiser.with_weights(make_mlp(width=48).weights())


def test_digest_sees_one_bit(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp()
    state = {k: v.clone() for k, v in denoiser.weights().items()}
    state["out.bias"][3] = torch.nextafter(state["out.bias"][3], torch.tensor(1.0))
    assert denoiser.with_weights(state).digest() != denoiser.digest()
